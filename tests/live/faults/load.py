"""The load: relays that keep their pools registered, pollers, and subscribers; all of it written down.

A relay behaves as the documentation asks: after a 503, or no answer, it goes to the next replica when it was told to,
on a new connection. A pool's body carries a version, so that a list shows how new it is.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from tests.live.faults.records import Answer, Beat, Content, Life, Records, Told
from tests.live.faults.wire import Wire, request
from tests.live.replica import Replica, pool_name
from tests.live.router import Event, Subscriber
from tests.live.traffic import Traffic

POLL_SECS = 0.01
LATE_SECS = 0.05
DELETE_SECS = 3.0
CLUSTERS = 10


class Relay:
    """The heartbeat of one pool: it alternates between the replicas, or ``stays`` with one while that answers.

    Of a pool whose relay stays the other replica learns from the store alone.
    """

    def __init__(self, load: "Load", name: str, first: int, *, stays: bool) -> None:
        self.life = Life(name)
        self._load = load
        self._turn = first
        self._stays = stays
        self._wires = [Wire(replica.port) for replica in load.replicas]
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Beat until the end."""
        wait = self._load.chance.uniform(0, self._load.interval)
        try:
            place = self._next()
            while not await self._is_over(wait):
                due = time.monotonic() + self._load.interval
                beat = await self._beat(place)
                if beat.status != 200 or not (self._stays and self._load.staying):
                    place = self._next()
                wait = due - time.monotonic() if beat.status == 200 else _patience_after(beat)
        finally:
            for wire in self._wires:
                wire.close()

    async def _is_over(self, within: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, within)):
                await self._ending.wait()
        return self._ending.is_set()

    def _next(self) -> int:
        self._turn += 1
        return self._turn % len(self._wires)

    async def _beat(self, place: int) -> Beat:
        name, version, sent = self.life.name, self.life.version, time.monotonic()
        wire, replica = self._wires[place], self._load.replicas[place].name
        try:
            reply = await wire.ask(registration(name, version), self._load.patience)
        except (OSError, TimeoutError):
            beat = Beat(name, version, sent, time.monotonic(), replica, 0)
        else:
            why = "" if reply.status == 200 else reply.body.decode(errors="replace")
            heard = (reply.status, reply.header("retry-after"), reply.closes, why)
            beat = Beat(name, version, sent, time.monotonic(), replica, *heard)
        self.life.beat(beat)
        self._load.records.beats.append(beat)
        return beat

    def die(self) -> None:
        """Fall silent as a killed relay does; a heartbeat on its way still gets its answer."""
        self.life.silent = time.monotonic()
        self._ending.set()

    async def deregister(self, running: "asyncio.Task[None]") -> None:
        """End as a clean shutdown does: the POST on its way first, then DELETE until it was taken."""
        self._ending.set()
        await running
        self.life.removing = time.monotonic()
        while self.life.removed is None:
            place = self._next()
            with contextlib.suppress(OSError, TimeoutError):
                reply = await self._wires[place].ask(request("DELETE", f"/pools/{self.life.name}"), DELETE_SECS)
                if reply.status == 204:
                    self.life.removed_on, self.life.removed = self._load.replicas[place].name, time.monotonic()
            self._wires[place].close()
            if self.life.removed is None:
                await asyncio.sleep(0.2)


class Load:
    """Everything that uses the replicas. Methods are for the test's thread, unless they say otherwise."""

    def __init__(
        self,
        traffic: Traffic,
        replicas: Sequence[Replica],
        *,
        interval: float,
        chance: random.Random,
        pools: int = 200,
        subscribers: int = 20,
        changers: int = 6,
    ) -> None:
        self.replicas = list(replicas)
        self.interval = interval
        self.chance = chance
        self.patience = 1.6
        self._pools = pools
        self.records = Records()
        self.changing = False
        self.staying = True
        """Whether relays may stay with one replica."""
        self.failures: list[BaseException] = []
        self._traffic = traffic
        self._numbers = 0
        self._changers = changers
        self._known: dict[str, dict[str, Content]] = {replica.name: {} for replica in replicas}
        self._relays: dict[str, tuple[Relay, asyncio.Task[None]]] = {}
        self.streams = [Subscriber(traffic, _turned(replicas, number)) for number in range(subscribers)]
        self._streams_read = [0] * subscribers
        traffic.call(self._begin())

    async def _begin(self) -> None:
        for _ in range(self._pools):
            self._bear()
        for work in (*map(self._poll, self.replicas), self._watch_the_clock(), self._change()):
            self._traffic.spawn(work)

    # ---- what the test does with it

    def bear(self, number: int) -> None:
        """New pools."""
        self._traffic.soon(lambda: [self._bear() for _ in range(number)])

    def silence(self, number: int) -> None:
        """Pools whose relays die."""
        self._traffic.soon(lambda: [self._pick()[0].die() for _ in range(number)])

    def remove(self, number: int) -> None:
        """Pools that are shut down."""
        for _ in range(number):
            self._traffic.spawn(self._remove())

    def change(self, on: bool) -> None:
        """Whether some pools say something new all the time."""
        self.changing = on

    def note(self, text: str) -> None:
        """Write down something that happened, for people who read the record."""
        self.records.notes.append((time.monotonic(), text))

    def alive(self) -> set[str]:
        """The pools that have to be listed once all is at rest."""
        lives = list(self.records.lives.values())
        return {life.name for life in lives if life.born is not None and life.ended == float("inf")}

    def hear(self) -> None:
        """Take over what the streams told since the last time."""
        for place, stream in enumerate(self.streams):
            events = list(stream.events)
            self.records.told += map(_told, events[self._streams_read[place] :])
            self._streams_read[place] = len(events)

    def forget(self) -> None:
        """Drop all records that have been judged."""
        self._traffic.call(self._forget())

    async def _forget(self) -> None:
        self.records.forget(time.monotonic())
        for place, stream in enumerate(self.streams):
            stream.events.clear()
            del stream.visits[:-1]
            del stream.retries[:-1]
            self._streams_read[place] = 0

    def close(self) -> None:
        """End all relays; the other actors end with the traffic."""
        self._traffic.call(self._close())

    async def _close(self) -> None:
        running = [task for _, task in self._relays.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # ---- on the loop

    def _bear(self) -> None:
        name, stays = f"c{self._numbers % CLUSTERS}/n1/p{self._numbers}", self._numbers % 4 < 2
        relay = Relay(self, name, self._numbers, stays=stays)
        self._numbers += 1
        self.records.lives[relay.life.name] = relay.life
        running = asyncio.get_running_loop().create_task(relay.run())
        running.add_done_callback(self._ended)
        self._relays[relay.life.name] = (relay, running)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def _pick(self) -> tuple[Relay, "asyncio.Task[None]"]:
        """One of the pools that are registered, to end it."""
        name = self.chance.choice([name for name, (relay, _) in self._relays.items() if relay.life.born is not None])
        return self._relays.pop(name)

    async def _remove(self) -> None:
        relay, running = self._pick()
        await relay.deregister(running)

    async def _change(self) -> None:
        while True:
            await asyncio.sleep(3 * self.interval)
            for relay, _ in list(self._relays.values())[: self._changers] if self.changing else ():
                relay.life.version += 1

    async def _watch_the_clock(self) -> None:
        while True:
            due = time.monotonic() + 0.02
            await asyncio.sleep(0.02)
            if (late := time.monotonic() - due) > LATE_SECS:
                self.records.lags.append((time.monotonic(), late))

    async def _poll(self, replica: Replica) -> None:
        etag = ""
        with contextlib.closing(Wire(replica.port)) as wire:
            while True:
                due = time.monotonic() + POLL_SECS
                answer = await self._get(replica, wire, etag)
                self.records.answers.append(answer)
                if answer.content is not None:
                    etag = answer.content.etag
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _get(self, replica: Replica, wire: Wire, etag: str) -> Answer:
        asked = {"If_None_Match": etag} if etag else {}
        sent = time.monotonic()
        try:
            reply = await wire.ask(request("GET", "/pools", **asked), self.patience)
        except (OSError, TimeoutError):
            return Answer(sent, time.monotonic(), replica.name, 0)
        answered = time.monotonic()
        content = None
        if reply.status == 200:
            content = self._remember(replica, read_list(reply.body, reply.header("etag")))
        elif reply.status == 304:
            content = self._known[replica.name].get(reply.header("etag"))
        return Answer(sent, answered, replica.name, reply.status, content)

    def _remember(self, replica: Replica, content: Content) -> Content:
        known = self._known[replica.name]
        known.clear()  # only the newest is asked about again
        known[content.etag] = content
        return content


def read_list(body: bytes, etag: str) -> Content:
    """What a list says."""
    content = json.loads(body)
    return Content(content["complete"], {pool_name(entry): _version(entry) for entry in content["pools"]}, etag)


def _version(entry: dict[str, Any]) -> int:
    return int(entry["metadata"]["version"])


def _patience_after(beat: Beat) -> float:
    # Two seconds, which a 503 may ask for, are most of the short leases here; with the usual ones they are little.
    return min(1.0, float(beat.retry_after or 0.1))


def registration(name: str, version: int) -> bytes:
    """A whole POST of that pool in that version."""
    cluster_id, namespace, dgd_name = name.split("/")
    body = {
        "cluster_id": cluster_id,
        "namespace": namespace,
        "dgd_name": dgd_name,
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "relays": ["http://10.0.3.7:5561"],
        "metadata": {"version": str(version)},
    }
    return request("POST", "/pools", json.dumps(body).encode())


def _told(event: Event) -> Told:
    match event.name:
        case "snapshot":
            names = frozenset(map(pool_name, event.data["pools"]))
        case "put" | "delete":
            names = frozenset([pool_name(event.data)])
        case _:
            names = frozenset()
    return Told(event.at, event.replica, event.name, names)


def _turned(replicas: Sequence[Replica], number: int) -> list[Replica]:
    first = number % len(replicas)
    return [*replicas[first:], *replicas[:first]]
