"""A store whose calls are measured: it is the same store, and nothing that it answers or fails with goes uncounted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from discovery.errors import Gone, Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import Event, Health, Listed, Remaining, Store
from discovery.stores.measured import MeasuredStore
from discovery.stores.memory import MemoryStore
from discovery.stores.replica import Replica
from tests.stores.test_replica_writes import BEAT, KEY
from tests.virtual_time import VirtualTimeLoop

LEASE = 6.0
CALLS: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "put": lambda store: store.put(KEY, b"{}", LEASE),
    "delete": lambda store: store.delete(KEY, None),
    "list": lambda store: store.list_all(),
    "remaining": lambda store: store.remaining([KEY]),
    "settle": lambda store: store.settle("a reason", 1.0),
}


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    running = VirtualTimeLoop()
    asyncio.set_event_loop(running)
    yield running
    running.shut()
    asyncio.set_event_loop(None)


class Slow:
    """Any call of a store takes a while, and ends as it is told to."""

    share = close = describe = None

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> tuple[str, tuple[Any, ...]]:
            await asyncio.sleep(0.2)
            if self._error is not None:
                raise self._error
            return name, arguments

        return call


def measured(store: Any, loop: VirtualTimeLoop) -> tuple[MeasuredStore, Counters]:
    counters = Counters()
    return MeasuredStore(store, counters, clock=loop.time), counters


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_passed_on_counted_and_timed(loop: VirtualTimeLoop, call: str) -> None:
    store, counters = measured(Slow(), loop)
    given = loop.run(CALLS[call](store))
    assert given == loop.run(CALLS[call](Slow())) or call == "settle"  # type: ignore[arg-type]
    assert dict(counters.store_calls.read()) == {(name,): float(name == call) for name in (*CALLS, "check")}
    assert counters.store_call_seconds.of(call).total == pytest.approx(0.2)
    assert not [number for _, number in counters.store_errors.values() if number]


@pytest.mark.parametrize("extent", ["source", "writes", "item"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_counted_by_its_extent_and_fails_the_same(
    loop: VirtualTimeLoop, call: str, extent: Any
) -> None:
    error = Unavailable("no answer", extent=extent)
    store, counters = measured(Slow(error), loop)
    with pytest.raises(Unavailable) as failed:
        loop.run(CALLS[call](store))
    assert failed.value is error
    assert {words: number for words, number in counters.store_errors.values() if number} == {(call, extent): 1}
    assert not any(number for _, number in counters.store_calls.read())


class Watched(MemoryStore):
    """Tells what it is told to, and then ends as it is told to."""

    def __init__(self, loop: VirtualTimeLoop, end: Exception | None) -> None:
        super().__init__(LEASE, loop.time)
        self._loop = loop
        self._end = end
        self.closed = False

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        try:
            yield listed
            yield Health(self._loop.time() - 0.3, "epoch", 1, None)
            if self._end is not None:
                raise self._end
        finally:
            self.closed = True


async def _events(store: Store, most: int = 99) -> list[Event]:
    found: list[Event] = []
    async with aclosing(store.watch(await store.list_all())) as events:  # type: ignore[type-var]
        async for event in events:
            found.append(event)
            if len(found) == most:
                break
    return found


@pytest.mark.parametrize("end", [Unavailable("away"), Gone("gap", "one is missing"), None])
def test_a_watch_shows_how_long_checks_took_and_what_it_ended_with(
    loop: VirtualTimeLoop, end: Exception | None
) -> None:
    inner = Watched(loop, end)
    store, counters = measured(inner, loop)
    if end is None:
        assert [type(event) for event in loop.run(_events(store))] == [Listed, Health]
    else:
        with pytest.raises(type(end)) as ended:
            loop.run(_events(store))
        assert ended.value is end
    assert counters.store_call_seconds.of("check").total == pytest.approx(0.3)
    assert counters.store_errors.of("watch", "source").value == isinstance(end, Unavailable)
    assert inner.closed


def test_a_watch_that_is_left_ends_at_once_in_the_store_too(loop: VirtualTimeLoop) -> None:
    inner = Watched(loop, None)
    store, _ = measured(inner, loop)
    loop.run(_events(store, most=1))
    assert inner.closed


# ---- leases that were found with little left


class Late(MemoryStore):
    """Another replica renews every lease, and later than a relay should."""

    left_secs = 1.0

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        return Remaining([self.left_secs for _ in keys], self._epoch)


@pytest.mark.parametrize(("left_secs", "missed"), [(1.0, True), (1.9, True), (2.1, False), (5.0, False)])
def test_a_lease_that_has_little_left_when_it_is_asked_about_is_a_near_miss(
    loop: VirtualTimeLoop, left_secs: float, missed: bool
) -> None:
    """Of 6 s, with a heartbeat each 2 s of which one was lost, a pool has 2 s left at the least."""
    counters = Counters()
    store = Late(LEASE, loop.time)
    store.left_secs = left_secs
    replica = Replica(
        store,
        lease_secs=LEASE,
        heartbeat_secs=LEASE / 3,
        max_pools=10,
        counters=counters,
        on_change=lambda *_: None,
        clock=loop.time,
    )
    loop.create_task(replica.run())
    loop.run(replica.put(BEAT))
    loop.pass_time(LEASE - 0.1)
    assert counters.near_misses.of().value == 0
    loop.pass_time(0.2)
    assert counters.near_misses.of().value == missed
    assert len(replica) == 1
    assert counters.leases_expired.of().value == 0
