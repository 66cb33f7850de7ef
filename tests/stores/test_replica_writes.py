"""What a relay is told when the store does not confirm its write, and what the first list does to others meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from discovery import registrations
from discovery.errors import Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.registrations import Heartbeat
from discovery.stores import Deleted, Event, Listed, Outcome, Stored
from discovery.stores.memory import MemoryStore
from discovery.stores.replica import AT_ONCE, SHORT_LEASE_SECS, Change, Replica

KEY = PoolKey("c1", "n1", "p1")
BEAT = Heartbeat(KEY, registrations.encode(registrations.canonical(Registration(*KEY, model="m"))))


class Away(MemoryStore):
    """A store that confirms no write."""

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        raise Unavailable("away")

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        raise Unavailable("away")


@pytest.mark.parametrize(("lease", "spread"), [(3.0, 0), (SHORT_LEASE_SECS - 0.1, 0), (SHORT_LEASE_SECS, 1), (15.0, 1)])
async def test_a_relay_under_a_short_lease_comes_back_in_a_second_and_others_are_spread(
    lease: float, spread: int
) -> None:
    replica = Replica(
        Away(lease),
        lease_secs=lease,
        heartbeat_secs=lease / 3,
        max_pools=10,
        counters=Counters(),
        on_change=lambda *_: None,
    )
    for write in (replica.put(BEAT), replica.delete(KEY, None)):
        with pytest.raises(Unavailable) as not_confirmed:
            await write
        assert not_confirmed.value.retry_after_secs == spread


async def test_a_long_list_is_taken_in_parts_and_writes_go_on_in_between() -> None:
    """A start with many pools must not stop heartbeats and probes for seconds."""
    store, count = MemoryStore(15.0), 10 * AT_ONCE
    for number in range(count):
        await store.put(*_named(f"p{number}")[:2], 15.0)
    parts: list[int] = []
    listed: list[int] = []

    def found(changes: Sequence[Change]) -> None:
        parts.append(len(changes))

    replica = Replica(
        store,
        lease_secs=15.0,
        heartbeat_secs=5.0,
        max_pools=2 * count,
        counters=Counters(),
        on_change=lambda changes, *_: listed.append(len(changes)),
        on_found=found,
    )
    task = asyncio.create_task(replica.run())
    try:
        async with asyncio.timeout(20):
            await _turns_until(lambda: len(parts) >= 3)
            assert not replica.listed
            assert not await replica.put(_named("p0", "other"))  # behind the part that holds it
            assert not await replica.put(_named(f"p{count - 1}", "other"))  # before it
            await _turns_until(lambda: replica.listed)
        models = {known.key.dgd_name: registrations.decode(known.value).model for known in replica.known()}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (models["p0"], models["p1"], models[f"p{count - 1}"]) == ("other", "m", "other")
    assert len(models) == count
    assert max(parts) <= AT_ONCE
    assert sum(parts) == count + 1
    assert listed[0] == 0


async def _turns_until(so: Callable[[], bool]) -> None:
    while not so():
        await asyncio.sleep(0)


def _named(name: str, model: str = "m") -> Heartbeat:
    key = PoolKey("c1", "n1", name)
    return Heartbeat(key, registrations.encode(registrations.canonical(Registration(*key, model=model))))


class Listing(MemoryStore):
    """Lists everything again and again, as a table is read; one lease has little left."""

    def __init__(self, lists: int, ends_leases: bool) -> None:
        super().__init__(15.0)
        self.ends_leases = ends_leases
        self.lists = lists
        self.done = asyncio.Event()

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        key, value, _ = _named("late")
        for number in range(self.lists):
            yield Listed(listed.health._replace(asked_at=listed.health.asked_at + number), {key: Stored(value, 1.0)})
        self.done.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(("ends_leases", "counted"), [(True, 5), (False, 1)])
async def test_a_missed_heartbeat_is_counted_once_where_everything_is_listed_each_second(
    ends_leases: bool, counted: int
) -> None:
    store, counters = Listing(5, ends_leases), Counters()
    replica = Replica(
        store, lease_secs=15.0, heartbeat_secs=5.0, max_pools=10, counters=counters, on_change=lambda *_: None
    )
    running = asyncio.create_task(replica.run())
    await store.done.wait()
    running.cancel()
    await asyncio.wait([running])
    assert counters.near_misses.of().value == counted
