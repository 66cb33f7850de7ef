"""The router side: pollers and subscribers that write down all that they are told, with its time.

The parser of server-sent events is this suite's own and shares nothing with the client library.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.live.replica import Replica, pool_name
from tests.live.traffic import Traffic


@dataclass(frozen=True)
class Poll:
    """One GET of the list: when it was sent and answered, by whom, and what it said; status 0 is no answer at all."""

    sent: float
    answered: float
    replica: str
    status: int
    etag: str | None
    complete: bool | None
    names: frozenset[str]
    body: bytes = field(repr=False, default=b"")


class Poller:
    """Reads the list of one or several replicas in turn, as often as asked, for as long as the test lasts."""

    def __init__(
        self,
        traffic: Traffic,
        replicas: Sequence[Replica],
        *,
        every: float = 0.02,
        conditional: bool = False,
        timeout: float = 5,
    ) -> None:
        self.polls: list[Poll] = []
        self._replicas = list(replicas)
        self._every = every
        self._conditional = conditional
        self._timeout = timeout
        self._traffic = traffic
        self._etag: str | None = None
        self._known: dict[bytes, tuple[bool, frozenset[str]]] = {}
        self._ending = False
        self._actor: Future[None] = traffic.spawn(self._run())

    def since(self, moment: float) -> list[Poll]:
        """The polls that were sent from ``moment`` on."""
        return [poll for poll in self.polls if poll.sent >= moment]

    def stop(self) -> list[Poll]:
        """End with a last poll of each replica, and give all polls."""
        self._ending = True
        self._actor.result(10)
        return self.polls

    async def _run(self) -> None:
        turn = 0
        while not self._ending:
            due = time.monotonic() + self._every
            self.polls.append(await self._poll(self._replicas[turn % len(self._replicas)]))
            turn += 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        for replica in self._replicas:
            self.polls.append(await self._poll(replica))

    async def _poll(self, replica: Replica) -> Poll:
        headers = {"If-None-Match": self._etag} if self._conditional and self._etag else {}
        sent = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                async with self._traffic.session.get(f"{replica.url}/pools", headers=headers) as answer:
                    body = await answer.read()
                    status, etag = answer.status, answer.headers.get("ETag")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return Poll(sent, time.monotonic(), replica.name, 0, None, None, frozenset())
        answered = time.monotonic()
        if status != 200:
            return Poll(sent, answered, replica.name, status, etag, None, frozenset(), body)
        self._etag = etag
        complete, names = self._read(body)
        return Poll(sent, answered, replica.name, status, etag, complete, names, body)

    def _read(self, body: bytes) -> tuple[bool, frozenset[str]]:
        known = self._known.get(body)
        if known is None:
            content = json.loads(body)
            known = (content["complete"], frozenset(pool_name(pool) for pool in content["pools"]))
            self._known[body] = known
        return known


@dataclass(frozen=True)
class Event:
    """One server-sent event as it came over the wire."""

    at: float
    replica: str
    name: str
    data: Any
    id: str | None


@dataclass
class Visit:
    """One connection of a subscriber: to whom, with which id, how it was answered and how it ended."""

    begun: float
    replica: str
    resumed_from: str | None
    status: int = 0
    retry_after: str | None = None
    ended: float | None = None
    clean: bool = False
    events: int = 0


class Subscriber:
    """Follows the stream, assembles what it is told, and comes back with its last id to the next replica.

    ``faults`` collects every word that a correct stream would not have said.
    """

    def __init__(
        self,
        traffic: Traffic,
        replicas: Sequence[Replica],
        *,
        query: str = "",
        path: str = "/pools/events",
        comes_back: bool = True,
        after: "Subscriber | None" = None,
        patience: float | None = 0.1,
    ) -> None:
        # Goes on from what another one holds; it has to be there before the first event comes.
        self.state: dict[str, Any] = dict(after.state) if after else {}
        self.complete: bool | None = after.complete if after else None
        self.last_id: str | None = after.last_id if after else None
        self.events: list[Event] = []
        self.visits: list[Visit] = []
        self.retries: list[int] = []
        self.faults: list[str] = []
        self.comments = 0
        self._replicas = list(replicas)
        self._url = path + query
        self._comes_back = comes_back
        self._patience = patience
        self._traffic = traffic
        self._turn = 0
        self._response: aiohttp.ClientResponse | None = None
        self._reading = asyncio.Event()
        self._reading.set()
        self._ending = False
        self.actor: Future[None] = traffic.spawn(self._run())

    # What the test asks

    def named(self, name: str, since: float = 0.0) -> list[Event]:
        """The events of one kind that came from ``since`` on."""
        return [event for event in self.events if event.name == name and event.at >= since]

    def told_of(self, pool: str, since: float = 0.0) -> list[Event]:
        """The ``put`` and ``delete`` events about one pool that came from ``since`` on."""
        return [
            event
            for event in self.events
            if event.at >= since and event.name in ("put", "delete") and pool_name(event.data) == pool
        ]

    @property
    def connected(self) -> bool:
        """Whether the newest connection was answered 200, said something, and is still open."""
        newest = self.visits[-1] if self.visits else None
        return newest is not None and newest.status == 200 and newest.ended is None and self.complete is not None

    @property
    def breaks(self) -> list[Visit]:
        """The connections that ended although nobody here ended them."""
        return [visit for visit in self.visits if visit.ended is not None]

    def agrees_with(self, body: dict[str, Any]) -> bool:
        """Whether the assembled state is what this GET said."""
        return bool(
            self.complete == body["complete"] and self.state == {pool_name(pool): pool for pool in body["pools"]}
        )

    def drop(self) -> None:
        """Let the connection go, as a client whose network fails; it comes back to the next replica."""
        self._traffic.soon(self._cut)

    def _cut(self) -> None:
        if self._response is not None:
            self._response.close()

    def lag(self) -> None:
        """Stop reading: what the service sends stays in the buffers."""
        self._traffic.soon(self._reading.clear)

    def catch_up(self) -> None:
        """Read again."""
        self._traffic.soon(self._reading.set)

    def stop(self) -> None:
        """End for good."""
        self._ending = True
        self._traffic.soon(self._reading.set)
        self._traffic.soon(self._cut)
        self.actor.result(10)

    # How it listens

    async def _run(self) -> None:
        while not self._ending:
            replica = self._replicas[self._turn % len(self._replicas)]
            self._turn += 1
            visit = Visit(time.monotonic(), replica.name, self.last_id)
            self.visits.append(visit)
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                await self._visit(replica, visit)
            visit.ended = time.monotonic()
            if not self._comes_back:
                return
            await asyncio.sleep(float(visit.retry_after or self._pause))

    @property
    def _pause(self) -> float:
        """Seconds until it comes back: its own patience, or what the service said last, as browsers do."""
        return self.retries[-1] / 1000 if self._patience is None and self.retries else self._patience or 0.1

    async def _visit(self, replica: Replica, visit: Visit) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        async with self._traffic.session.get(replica.url + self._url, headers=headers) as response:
            visit.status = response.status
            visit.retry_after = response.headers.get("Retry-After")
            if response.status != 200:
                await response.read()
                return
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                self.faults.append(f"content type {response.headers.get('Content-Type')!r}")
            self._response = response
            try:
                async for fields in self._frames(response):
                    self._take(replica, visit, fields)
                visit.clean = True
            finally:
                self._response = None

    async def _frames(self, response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
        rest = b""
        while True:
            await self._reading.wait()
            chunk = await response.content.readany()
            if not chunk:
                break
            *frames, rest = (rest + chunk).split(b"\n\n")
            for frame in frames:
                yield self._fields(frame)
        if rest.strip():
            self.faults.append(f"the stream ended inside a frame: {rest[:200]!r}")

    def _fields(self, frame: bytes) -> dict[str, str]:
        fields: dict[str, str] = {}
        for line in frame.decode().split("\n"):
            if line.startswith(":"):
                self.comments += 1
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = fields[name] + "\n" + value if name == "data" and name in fields else value
        return fields

    def _take(self, replica: Replica, visit: Visit, fields: dict[str, str]) -> None:
        if "retry" in fields:
            self.retries.append(int(fields["retry"]))
        if "data" not in fields:
            return
        event = Event(
            time.monotonic(), replica.name, fields.get("event", "message"), json.loads(fields["data"]), fields.get("id")
        )
        self.events.append(event)
        if visit.events == 0 and visit.resumed_from is None and event.name != "snapshot":
            self.faults.append(f"the first event of a fresh stream is {event.name}")
        visit.events += 1
        self._apply(event)
        # In the middle of a published change the state has no name yet: who is cut off there asks for everything.
        self.last_id = event.id

    def _apply(self, event: Event) -> None:
        match event.name:
            case "snapshot":
                listed = event.data.get("pools", event.data.get("routers"))
                self.state = {_entry_name(entry): entry for entry in listed}
                self.complete = event.data["complete"]
            case "put":
                self.state[_entry_name(event.data)] = event.data
            case "delete":
                if self.state.pop(_entry_name(event.data), None) is None:
                    self.faults.append(f"delete of a pool that was never given: {event.data}")
            case "complete":
                if self.complete == event.data["complete"]:
                    self.faults.append(f"complete said twice: {event.data}")
                self.complete = event.data["complete"]
            case _:
                self.faults.append(f"unknown event {event.name!r}")


def _entry_name(entry: dict[str, Any]) -> str:
    return pool_name(entry) if "dgd_name" in entry else str(entry["id"])
