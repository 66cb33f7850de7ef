"""What a table promises beyond what every store does: on moto's server, with a proxy where something has to fail."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from discovery import registrations
from discovery.errors import Rejected, Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.stores import Deleted, Listed
from discovery.stores.dynamodb import store as module
from discovery.stores.dynamodb.refusals import Throttled
from discovery.stores.dynamodb.store import DynamoStore
from discovery.stores.replica import Change, Replica
from tests.live.dynamodb_proxy import DynamoDBProxy, denies, fails, unheard
from tests.live.dynamodb_server import DynamoDBServer, Table
from tests.stores.tables import dynamo_store
from tests.stores.test_contract import Watch, value, watching

pytestmark = pytest.mark.live

LEASE = 1.5
KEY, OTHER = PoolKey("c#1", "n%", "a"), PoolKey("c2", "n", "b")

Open = Callable[..., DynamoStore]


@pytest.fixture
def table(dynamodb_server: DynamoDBServer) -> Iterator[Table]:
    made = dynamodb_server.table()
    yield made
    made.delete()
    made.close()


@pytest.fixture
def proxy(dynamodb_server: DynamoDBServer) -> Iterator[DynamoDBProxy]:
    made = DynamoDBProxy(dynamodb_server.port)
    yield made
    made.close()


@pytest.fixture
async def open_store(table: Table, proxy: DynamoDBProxy) -> AsyncIterator[Open]:
    """Stores on the table; one with ``through`` reaches it by the proxy."""
    opened: list[DynamoStore] = []

    def make(*, through: bool = False, **changed: Any) -> DynamoStore:
        url = f"http://127.0.0.1:{proxy.port}" if through else table.url
        opened.append(dynamo_store(table, LEASE, **({"endpoint_url": url, "timeout_secs": 5.0} | changed)))
        return opened[-1]

    yield make
    for store in opened:
        await store.close()


def lists(watch: Watch, key: PoolKey) -> bool:
    listed = [event for event in watch.events if isinstance(event, Listed)]
    return bool(listed) and key in listed[-1].items


# ---- hearing of others


async def test_a_pool_of_another_replica_is_in_the_next_list_and_its_removal_is_told(open_store: Open) -> None:
    writer = open_store()
    async with watching(open_store()) as watch:
        await writer.put(KEY, value("m"), LEASE)
        await watch.until(lambda: lists(watch, KEY))
        await writer.delete(KEY, None)
        await watch.until(lambda: watch.changes())
        assert [(type(event), event.key) for event in watch.changes()] == [(Deleted, KEY)]
        assert not lists(watch, KEY)
        await writer.put(KEY, value("m"), LEASE)
        await watch.until(lambda: lists(watch, KEY))
        (deleted,) = watch.changes()
        listed = [event for event in watch.events if isinstance(event, Listed)][-1]
        assert listed.health.revision > deleted.revision, "or the removal would seem to be the later of the two"


async def test_a_change_of_ones_own_starts_a_read_at_once_and_a_renewal_does_not(
    open_store: Open, proxy: DynamoDBProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_SECS", 3600.0)
    store = open_store(through=True)
    async with watching(store) as watch:
        listed = len(proxy.seen("Query"))
        await store.put(KEY, value("m"), LEASE)
        await watch.until(lambda: len(proxy.seen("Query")) == listed + 1)
        await watch.until(lambda: lists(watch, KEY))
        await store.put(KEY, value("m"), LEASE)
        await store.put(OTHER, value("m"), LEASE)
        await watch.until(lambda: lists(watch, OTHER))
        assert len(proxy.seen("Query")) == listed + 2


# ---- writing


async def test_what_no_table_takes_is_refused_before_anything_is_sent(open_store: Open, proxy: DynamoDBProxy) -> None:
    store = open_store(through=True)
    await store.list_all()
    since = time.monotonic()
    for key, size in ((PoolKey("€" * 253, "€" * 253, "n"), 10), (KEY, 500_000)):
        with pytest.raises(Rejected) as refused:
            await store.put(key, value("m" * size), LEASE)
        assert refused.value.status == 422
    assert isinstance(await store.delete(PoolKey("€" * 253, "€" * 253, "n"), None), Deleted)
    assert proxy.seen("PutItem", since) == proxy.seen("DeleteItem", since) == []


async def test_a_table_that_was_throttled_for_ever_is_read_no_faster(open_store: Open) -> None:
    store = open_store()
    store._throttled = 5000
    store._failed(Throttled("throttled"))
    assert 2.9 < store._reads._not_before - time.monotonic() < 5.1


async def test_writes_whose_answers_were_lost_tell_what_they_did(
    open_store: Open, proxy: DynamoDBProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt finds what the first one did."""
    monkeypatch.setattr(module, "READ_SECS", 3600.0)
    store = open_store(through=True)
    lost: list[object] = []

    def first(asked: object) -> bool:
        lost.append(asked)
        return len(lost) == 1

    async with watching(store) as watch:
        proxy.let(unheard(), "PutItem", "DeleteItem", when=first)
        created = await store.put(KEY, value("m", "i"), 30.0)
        assert (len(lost), created.created, created.changed) == (2, True, True)
        lost.clear()
        renewed = await store.put(KEY, value("m", "i"), 30.0)
        assert (len(lost), renewed.created, renewed.changed) == (2, False, False)
        lost.clear()
        changed = await store.put(KEY, value("n", "i"), 30.0)
        assert (len(lost), changed.created, changed.changed) == (2, False, True)
        lost.clear()
        assert await store.delete(KEY, "i") is None, "nobody can tell any more which attempt it was"
        await watch.until(lambda: watch.changes())
        assert [(type(event), event.key) for event in watch.changes()] == [(Deleted, KEY)]


async def test_a_heartbeat_after_a_removal_that_was_told_is_newer_than_it(open_store: Open) -> None:
    """Removed and registered again by way of another replica, before the next read here."""
    here, elsewhere = open_store(), open_store()
    await here.put(KEY, value("m"), 30.0)
    deleted = await here.delete(KEY, None)
    await elsewhere.put(KEY, value("m"), 30.0)
    renewed = await here.put(KEY, value("m"), 30.0)
    assert deleted is not None
    assert (renewed.changed, renewed.revision > deleted.revision) == (False, True)


async def test_a_fault_of_ours_ends_no_reading(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    await store.list_all()
    with monkeypatch.context() as broken:
        broken.setattr(store._sightings, "apply", lambda read: 1 // 0)
        with pytest.raises(Unavailable, match="ZeroDivisionError"):
            await store.list_all()
    assert "a read of the table failed" in caplog.text
    await store.list_all()


async def test_a_pool_put_by_hand_is_removed_for_its_instance_and_no_other(open_store: Open, table: Table) -> None:
    store = open_store()
    item = {
        "pk": {"S": "POOL"},
        "sk": {"S": "c%231#n%25#a"},
        "registration": {"S": '{"metadata":{"instance_id":"mine"},"instance_id":"theirs"}'},
        "lease_ends_ms": {"N": str(int((time.time() + 60) * 1000))},
    }
    table.put_item(item)
    assert KEY in (await store.list_all()).items
    assert await store.delete(KEY, "mine") is None
    assert isinstance(await store.delete(KEY, "theirs"), Deleted)
    assert table.get_item("c%231#n%25#a") is None


async def test_without_the_right_to_delete_all_else_works(open_store: Open, proxy: DynamoDBProxy) -> None:
    store = open_store(through=True)
    proxy.let(denies("DeleteItem"), "DeleteItem")
    await store.put(KEY, value("m"), LEASE)
    with pytest.raises(Unavailable, match="dynamodb:DeleteItem") as refused:
        await store.delete(KEY, None)
    assert refused.value.extent == "item"
    await store.settle("a hold", 60)
    await store.end_settling("a hold")
    listed = await store.list_all()
    assert (list(listed.items), listed.health.settling) == ([KEY], None)


async def test_a_word_about_an_outage_concerns_only_who_was_not_there_before(open_store: Open) -> None:
    writer, there = open_store(), open_store()
    await there.list_all()
    later = time.monotonic() + 2.0  # as if the outage had begun later than the doubt about clocks reaches
    await writer.settle("an outage", 60, later)
    assert (await there.list_all()).health.settling is None
    await writer.settle("an outage before", 90, time.monotonic() - 60)
    assert (await there.list_all()).health.settling == "an outage before"
    assert (await writer.list_all()).health.settling is None, "whoever wrote it saw the outage"
    await writer.settle("a hold", 120)
    assert (await writer.list_all()).health.settling == "a hold"


async def test_a_word_that_a_wrong_clock_wrote_lasts_no_longer_than_it_was_meant_to(
    open_store: Open, table: Table
) -> None:
    later = 0.0
    store = open_store(clock=lambda: time.monotonic() + later)
    far = int((time.time() + 3600) * 1000)
    item = {"pk": {"S": "POOL"}, "sk": {"S": "#settling"}, "reason": {"S": "x"}, "until_ms": {"N": str(far)}}
    table.put_item({**item, "lasts_ms": {"N": "60000"}})
    assert (await store.list_all()).health.settling == "x"
    later = 61.0
    assert (await store.list_all()).health.settling is None
    table.put_item({**item, "until_ms": {"N": str(far + 1)}})
    assert (await store.list_all()).health.settling == "x"
    later += LEASE + 1
    assert (await store.list_all()).health.settling is None
    await store.settle("a hold", 60)
    assert (await store.list_all()).health.settling == "a hold"


# ---- reading


async def test_broken_items_are_told_once_each_and_cost_nothing_else(
    open_store: Open, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    await store.put(KEY, value("m"), LEASE)
    table.put_item({"pk": {"S": "POOL"}, "sk": {"S": "not a pool"}, "registration": {"S": "{}"}})
    table.put_item({"pk": {"S": "POOL"}, "sk": {"S": "a#b#c"}, "registration": {"N": "1"}, "lease_ends_ms": {"N": "1"}})
    table.put_item({"pk": {"S": "OTHER"}, "sk": {"S": "a#b#c"}})
    for _ in range(2):
        assert list((await store.list_all()).items) == [KEY]
    told = [record.getMessage() for record in caplog.records if record.name.startswith("discovery.stores.dynamodb")]
    assert sorted(text.split("'")[1] for text in told) == ["a#b#c", "not a pool"]
    last = store.describe()["last_read"]
    assert isinstance(last, dict)
    assert (last["items"], last["skipped"], last["pages"]) == (1, 2, 1)


async def test_a_list_of_several_pages_is_read_to_the_end_or_not_at_all(
    open_store: Open, table: Table, proxy: DynamoDBProxy
) -> None:
    ends = str(int((time.time() + 600) * 1000))
    names = [f"p{number:03}" for number in range(60)]
    table.put_items(
        {
            "pk": {"S": "POOL"},
            "sk": {"S": f"c#n#{name}"},
            "registration": {"S": json.dumps({"model": name, "metadata": {"m": "x" * 30_000}})},
            "lease_ends_ms": {"N": ends},
        }
        for name in names
    )
    store = open_store(through=True, timeout_secs=10.0)
    listed = await store.list_all()
    assert sorted(key.dgd_name for key in listed.items) == names
    pages = len(proxy.seen("Query"))
    assert pages > 1
    proxy.let(fails(), "Query", when=lambda asked: asked.continues)
    with pytest.raises(Unavailable):
        await store.list_all()
    last = store.describe()["last_read"]
    assert isinstance(last, dict)
    assert (last["items"], last["pages"]) == (60, pages)


# ---- a replica on it


class Following:
    """A replica in this process, and what it published."""

    def __init__(self, store: DynamoStore) -> None:
        self.names: set[str] = set()
        self.left: list[str] = []
        self.replica = Replica(
            store,
            lease_secs=LEASE,
            heartbeat_secs=LEASE / 4,
            max_pools=100,
            counters=Counters(),
            on_change=self._on_change,
        )
        self.running = asyncio.create_task(self.replica.run())

    def _on_change(self, changes: Any, complete: bool, until: float) -> None:
        for key, registration in self._read(changes):
            if registration is None:
                self.names.discard(key.dgd_name)
                self.left.append(key.dgd_name)
            else:
                self.names.add(key.dgd_name)

    def _read(self, changes: list[Change]) -> list[Change]:
        return changes

    async def until(self, sign: Callable[[], bool], within: float = 8.0) -> None:
        async with asyncio.timeout(within):
            while not sign():
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])


async def register(store: DynamoStore, name: str) -> None:
    registration = Registration("c", "n", name, "m")
    await store.put(registration.key, registrations.encode(registration), LEASE)


async def renew(store: DynamoStore, name: str) -> None:
    while True:
        await register(store, name)
        await asyncio.sleep(LEASE / 4)


async def test_an_outage_drops_nobody_and_afterwards_the_dead_and_the_deregistered_leave_after_a_lease(
    open_store: Open, proxy: DynamoDBProxy
) -> None:
    elsewhere = open_store()
    for name in ("dead", "deregistered"):
        await register(elsewhere, name)
    renewing = asyncio.create_task(renew(elsewhere, "living"))
    following = Following(open_store(through=True, timeout_secs=1.5))
    try:
        await following.until(lambda: following.names == {"dead", "deregistered", "living"})
        await following.until(lambda: following.replica.incomplete() is None)
        proxy.refuse()
        proxy.cut()
        await following.until(lambda: following.replica.failing() is not None)
        away = time.monotonic()
        await elsewhere.delete(PoolKey("c", "n", "deregistered"), None)
        await following.until(lambda: time.monotonic() > away + LEASE + 1)
        assert following.left == []
        assert following.replica.incomplete() is not None
        proxy.accept()
        await following.until(lambda: following.replica.failing() is None)
        back = time.monotonic()
        assert following.replica.incomplete() is None, "it was there before, and kept all"
        await following.until(lambda: following.replica.held == 2)
        assert following.replica.incomplete() is None, "what is held is listed"
        await following.until(lambda: bool(following.left))
        assert time.monotonic() - back > LEASE * 0.9
        await following.until(lambda: len(following.left) == 2)
        await following.until(lambda: following.replica.incomplete() is None)
        assert (set(following.left), following.names) == ({"dead", "deregistered"}, {"living"})
    finally:
        renewing.cancel()
        await following.stop()
