"""The relay side: pools that register, keep registering, and write down every answer they get.

A relay behaves as the service asks of it: the interval it was given, after a 503 again in ``Retry-After`` seconds, each
time on a new connection, and on the next replica of its list.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.live.replica import Replica, pool
from tests.live.traffic import Traffic


@dataclass(frozen=True)
class Beat:
    """One heartbeat: when it was sent and answered (monotonic), by whom, and how; status 0 is no answer at all."""

    sent: float
    answered: float
    replica: str
    status: int
    retry_after: str | None
    closes: bool


class Relay:
    """The heartbeat of one pool over one or several replicas, alternating between them."""

    def __init__(
        self,
        traffic: Traffic,
        replicas: Sequence[Replica],
        name: str,
        *,
        interval: float = 1.0,
        skip_every: int = 0,
        first_after: float = 0.0,
        **fields: Any,
    ) -> None:
        self.name = name
        self.replicas = list(replicas)
        self.interval = interval
        self.body = pool(name, **fields)
        self.beats: list[Beat] = []
        self.stopped: float | None = None
        self.deregistered: float | None = None
        self._skip_every = skip_every
        self._first_after = first_after
        self._traffic = traffic
        self._ending = False
        self._actor: Future[None] = traffic.spawn(self._run())

    @property
    def accepted(self) -> list[Beat]:
        """The heartbeats that were answered 200."""
        return [beat for beat in self.beats if beat.status == 200]

    def statuses(self, since: float = 0.0) -> list[int]:
        """The status of each heartbeat sent from ``since`` on."""
        return [beat.status for beat in self.beats if beat.sent >= since]

    @property
    def last_accepted(self) -> Beat:
        """The newest heartbeat that was answered 200."""
        return self.accepted[-1]

    async def _run(self) -> None:
        await asyncio.sleep(self._first_after)
        turn = 0
        while not self._ending:
            replica = self.replicas[turn % len(self.replicas)]
            turn += 1
            due = time.monotonic() + self.interval
            if not self._skip_every or turn % self._skip_every:
                beat = await self._beat(replica)
                self.beats.append(beat)
                if beat.status != 200:
                    due = time.monotonic() + float(beat.retry_after or 0.2)
            while not self._ending and time.monotonic() < due:
                await asyncio.sleep(min(0.05, max(0.0, due - time.monotonic())))
        self.stopped = time.monotonic()

    async def _beat(self, replica: Replica) -> Beat:
        sent = time.monotonic()
        status, retry_after, closes = 0, None, True
        try:
            async with asyncio.timeout(5):
                async with self._traffic.session.post(f"{replica.url}/pools", json=self.body) as answer:
                    await answer.read()
                    status, retry_after = answer.status, answer.headers.get("Retry-After")
                    closes = answer.headers.get("Connection", "").lower() == "close"
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        return Beat(sent, time.monotonic(), replica.name, status, retry_after, closes)

    def change(self, **fields: Any) -> None:
        """From the next heartbeat on, say this instead."""
        self._traffic.soon(lambda: self.body.update(fields))

    def stop(self) -> None:
        """Fall silent as a killed relay does; a heartbeat on its way still gets its answer."""
        self._ending = True
        self._actor.result(10)

    def deregister(self, replica: Replica) -> None:
        """Stop, and say so with a DELETE, as a pool that shuts down does."""
        self.stop()
        assert replica.delete(self.name).status == 204
        self.deregistered = time.monotonic()


def many(traffic: Traffic, replicas: Sequence[Replica], names: Sequence[str], *, interval: float = 1.0) -> list[Relay]:
    """One relay for each name, their heartbeats spread over the interval and each starting at another replica."""
    relays = []
    for place, name in enumerate(names):
        start = place % len(replicas)
        order = [*replicas[start:], *replicas[:start]]
        relays.append(Relay(traffic, order, name, interval=interval, first_after=random.uniform(0, min(interval, 0.5))))
    return relays
