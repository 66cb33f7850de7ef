"""What a replica tells all others of an outage: until the store has taken it, and no longer than it concerns them."""

import asyncio
from collections.abc import Iterator

import pytest

from discovery.errors import Unavailable
from discovery.stores.settling import Settling
from tests.stores.shared_server import SharedServer, View
from tests.virtual_time import VirtualTimeLoop


class Refusing(View):
    """Takes no word while ``refuses``."""

    refuses = True

    def __init__(self, server: SharedServer) -> None:
        super().__init__(server)
        self.told: list[tuple[str, float, float | None]] = []

    async def settle(self, reason: str, secs: float, known_until: float | None = None) -> None:
        self.told.append((reason, secs, known_until))
        if self.refuses:
            raise Unavailable("throttled", extent="writes")


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    running = VirtualTimeLoop()
    asyncio.set_event_loop(running)
    yield running
    running.shut()
    asyncio.set_event_loop(None)


@pytest.mark.parametrize(("taken_after", "told"), [(1, [15.0, 14.0]), (3, [15.0, 14.0, 13.0, 12.0]), (99, None)])
def test_an_outage_is_told_until_it_is_taken_or_concerns_nobody(
    loop: VirtualTimeLoop, taken_after: int, told: list[float] | None
) -> None:
    store = Refusing(SharedServer(15.0, loop.time))
    failures: list[Unavailable] = []
    settling = Settling(store, failures.append)

    async def run() -> None:
        settling.tell("an outage", 15.0, 900.0)
        for second in range(1, 30):
            await asyncio.sleep(1.0)
            store.refuses = second < taken_after
            settling.attend(None, may_end=True)
        await asyncio.sleep(1.0)

    loop.run(run())
    assert {(reason, known_until) for reason, _, known_until in store.told} == {("an outage", 900.0)}
    assert [secs for _, secs, _ in store.told] == (told or [15.0 - second for second in range(15)])
    assert len(failures) == len(store.told) - (told is not None)


def test_what_concerns_others_as_long_as_nobody_can_write_is_told_until_then(loop: VirtualTimeLoop) -> None:
    store = Refusing(SharedServer(15.0, loop.time))
    settling = Settling(store, lambda _: None)

    async def run() -> None:
        settling.tell("leases had ended", 15.0, 900.0, lasting=True)
        for _ in range(100):
            await asyncio.sleep(1.0)
            settling.attend(None, may_end=True)
        store.refuses = False
        for _ in range(10):
            await asyncio.sleep(1.0)
            settling.attend(None, may_end=True)

    loop.run(run())
    assert {told[1] for told in store.told} == {15.0}
    assert 101 <= len(store.told) <= 102
