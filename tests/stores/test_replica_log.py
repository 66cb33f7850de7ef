"""What a replica's log says of a fault that goes on: its begin and its end, however often it shows itself between."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from discovery import registrations
from discovery.errors import Gone, Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.registrations import Heartbeat
from discovery.stores import Event, Listed, Outcome
from discovery.stores.replica import REFUSED_FOR_SECS, Replica
from tests.stores.shared_server import SharedServer, View
from tests.virtual_time import VirtualTimeLoop

LEASE, HEARTBEAT = 6.0, 2.0
KEY = PoolKey("c1", "n1", "p1")
BEAT = Heartbeat(KEY, registrations.encode(registrations.canonical(Registration(*KEY, model="m"))))


class Troubled(View):
    """A store that may be away, whose writes may hang, and whose subscription may break again and again."""

    hanging = False
    breaking = False
    away = False

    async def list_all(self) -> Listed:
        if self.away:
            raise Unavailable("nobody answers")
        return await super().list_all()

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        if not self.hanging:
            return await super().put(key, value, lease_secs)
        await asyncio.sleep(1.4)
        raise Unavailable("no answer within 1.4 s")

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        async for event in super().watch(listed):
            if self.breaking:
                await asyncio.sleep(0.2)
                raise Gone("feed", "the subscription broke")
            yield event


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    running = VirtualTimeLoop()
    asyncio.set_event_loop(running)
    yield running
    running.shut()
    asyncio.set_event_loop(None)


class Troubles:
    """One replica on a server in use, with heartbeats ten times a second."""

    def __init__(self, loop: VirtualTimeLoop, away_secs: float = 0.0) -> None:
        self.loop = loop
        self.server = SharedServer(LEASE, loop.time)
        self.server.epoch()
        loop.pass_time(LEASE + 1)
        self.store = Troubled(self.server)
        self.counters = Counters()
        self.replica = Replica(
            self.store,
            lease_secs=LEASE,
            heartbeat_secs=HEARTBEAT,
            max_pools=10,
            counters=self.counters,
            on_change=lambda *_: None,
            clock=loop.time,
        )
        self.store.away = away_secs > 0
        loop.create_task(self.replica.run())
        loop.pass_time(away_secs)
        self.store.away = False
        loop.pass_time(1)
        for number in range(20):
            loop.create_task(self._beat(number / 10))
        loop.pass_time(LEASE)

    async def _beat(self, first_after: float) -> None:
        await asyncio.sleep(first_after)
        while True:
            with contextlib.suppress(Unavailable):
                await self.replica.put(BEAT)
            await asyncio.sleep(HEARTBEAT)


@pytest.fixture
def troubles(loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture) -> Troubles:
    made = Troubles(loop)
    caplog.set_level(logging.INFO)
    caplog.clear()
    return made


def said(caplog: pytest.LogCaptureFixture, word: str) -> int:
    return sum(word in record.getMessage() for record in caplog.records)


def test_writes_that_hang_while_the_store_is_read_are_one_outage(
    troubles: Troubles, caplog: pytest.LogCaptureFixture
) -> None:
    troubles.store.hanging = True
    troubles.loop.pass_time(30)
    # The very first may come before it is known that reads go on.
    assert said(caplog, "the store fails") <= 2
    assert troubles.replica.failing() is not None
    begun = said(caplog, "the store fails") - said(caplog, "the store answers again")
    assert begun == 1
    troubles.store.hanging = False
    troubles.loop.pass_time(1.4 + REFUSED_FOR_SECS + 2)
    assert troubles.replica.failing() is None
    assert said(caplog, "the store fails") == said(caplog, "the store answers again") <= 2


def test_losses_within_a_loss_only_prolong_it(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(8):
        troubles.server.lose_everything()
        troubles.loop.pass_time(1.5)
    assert said(caplog, "may have lost data") == 1
    assert troubles.replica.incomplete() is not None
    troubles.loop.pass_time(2 * LEASE)
    assert troubles.replica.incomplete() is None
    troubles.server.lose_everything()
    troubles.loop.pass_time(2)
    assert said(caplog, "may have lost data") == 2, "after its end the next one is news"


def test_a_subscription_that_breaks_again_and_again_is_told_once_in_a_lease_and_counted_each_time(
    troubles: Troubles, caplog: pytest.LogCaptureFixture
) -> None:
    troubles.store.breaking = True
    troubles.loop.pass_time(LEASE - 0.5)
    assert said(caplog, "reading the store again") == 1
    assert troubles.counters.values()["relists_feed"] >= 4


def test_a_replica_that_starts_while_the_store_is_away_says_what_it_saw_of_that(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Troubles(loop, away_secs=LEASE)
    assert said(caplog, "the store answers again after more than") == 1
    assert said(caplog, "an outage of more than") == 1
    assert said(caplog, " inf ") == 0
