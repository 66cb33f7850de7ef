"""What every store promises, each promise stated once and run on memory, a real Redis and Valkey, and a table.

The table is of moto's server, a process of its own; and of whatever answers at ``DYNAMODB_LIVE_URL``, where that is
set. What differs by nature: others hear of a change only by reading the table, so nothing is announced, and what a
watch tells carries its own store's revision; a table that is new or empty is no sign of loss, so nothing settles.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from discovery.errors import Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import Deleted, Event, Health, Listed, Put, Store
from discovery.stores.memory import MemoryStore
from discovery.stores.redis.address import Access
from discovery.stores.redis.store import RedisStore
from tests.live.dynamodb_server import DynamoDBServer, Table
from tests.live.redis_server import RedisServer
from tests.stores.tables import dynamo_store, live_table

LEASE = 5.0
KEY = PoolKey("us-east-1", "prod", "llama/70b %")
OTHER = PoolKey("us-east-1", "prod", "other")


def value(model: str, instance: str | None = None) -> bytes:
    """A small registration; stores do not read it but for the instance."""
    tail = f',"instance_id":"{instance}"' if instance else ""
    return f'{{"model":"{model}"{tail}}}'.encode()


TABLES = ("dynamodb", "dynamodb-live")


ANNOUNCING = ["memory", *(pytest.param(kind, marks=pytest.mark.live) for kind in ("redis", "valkey"))]


@pytest.fixture(params=[*ANNOUNCING, *(pytest.param(kind, marks=pytest.mark.live) for kind in TABLES)])
def kind(request: pytest.FixtureRequest) -> str:
    """Which store."""
    return str(request.param)


@pytest.fixture
async def open_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Store]]:
    """Opens as many stores on the same data as are asked for; memory is always the same one."""
    opened: list[Store] = []
    server: RedisServer | Table | None = None
    if kind == "dynamodb-live":
        server = live_table()
    elif kind == "dynamodb":
        moto: DynamoDBServer = request.getfixturevalue("dynamodb_server")
        server = moto.table()
    elif kind != "memory":
        server = RedisServer(kind, tmp_path / "server").start()

    def make() -> Store:
        match server:
            case RedisServer():
                opened.append(redis_store(server))
            case Table():
                opened.append(dynamo_store(server, LEASE, timeout_secs=10.0))
            case _:
                opened.append(opened[0] if opened else MemoryStore(LEASE))
        return opened[-1]

    yield make
    for store in opened:
        await store.close()
    if isinstance(server, Table):
        server.delete()
    if server is not None:
        server.close()


def redis_store(server: RedisServer, **changed: Any) -> RedisStore:
    """A store on a real server, as the service opens it."""
    access = Access(url=changed.pop("url", server.url), password_path=changed.pop("password_path", None))
    settings = {
        "prefix": "discovery",
        "lease_secs": LEASE,
        "timeout_secs": 1.5,
        "counters": Counters(),
    }
    return RedisStore(access, **(settings | changed))


class Watch:
    """Watches a store in the background and keeps what it tells."""

    def __init__(self, store: Store, listed: Listed) -> None:
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self._came = asyncio.Event()
        self._task = asyncio.create_task(self._collect(store, listed))

    async def _collect(self, store: Store, listed: Listed) -> None:
        try:
            async for event in store.watch(listed):
                self.events.append(event)
                self._came.set()
        except Exception as error:
            self.error = error
            self._came.set()

    async def until(self, sign: Callable[[], Any], within: float = 4.0) -> Any:
        async with asyncio.timeout(within):
            while not (seen := sign()):
                self._came.clear()
                await self._came.wait()
        return seen

    def changes(self) -> list[Event]:
        return [event for event in self.events if isinstance(event, Put | Deleted)]

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def watching(store: Store) -> AsyncIterator[Watch]:
    watch = Watch(store, await store.list_all())
    try:
        yield watch
    finally:
        await watch.stop()


Open = Callable[[], Store]


async def test_a_first_put_creates_an_equal_one_renews_and_another_changes(open_store: Open) -> None:
    store = open_store()
    created = await store.put(KEY, value("m"), LEASE)
    renewed = await store.put(KEY, value("m"), LEASE)
    changed = await store.put(KEY, value("n"), LEASE)
    assert (created.created, created.changed) == (True, True)
    assert (renewed.created, renewed.changed) == (False, False)
    assert (changed.created, changed.changed) == (False, True)
    assert renewed.revision == created.revision
    assert changed.revision == created.revision + 1
    assert created.epoch == renewed.epoch == changed.epoch != ""


async def test_a_list_holds_every_value_with_what_its_lease_has_left(open_store: Open) -> None:
    store = open_store()
    await store.put(KEY, value("m"), LEASE)
    await store.put(OTHER, value("n"), LEASE / 2)
    listed = await store.list_all()
    assert {key: stored.value for key, stored in listed.items.items()} == {KEY: value("m"), OTHER: value("n")}
    assert LEASE - 1 < listed.items[KEY].remaining_secs <= LEASE
    assert LEASE / 2 - 1 < listed.items[OTHER].remaining_secs <= LEASE / 2
    assert listed.loss is None


async def test_a_renewal_moves_the_end_of_the_lease_and_nothing_else(open_store: Open) -> None:
    store = open_store()
    await store.put(KEY, value("m"), 1.0)
    await store.put(KEY, value("m"), LEASE)
    (left,) = (await store.remaining([KEY])).secs
    assert left is not None
    assert LEASE - 1 < left <= LEASE


async def test_a_lease_ends_by_itself_and_the_same_value_then_is_a_new_pool(open_store: Open) -> None:
    store = open_store()
    first = await store.put(KEY, value("m"), 0.2)
    async with asyncio.timeout(3):
        while (await store.remaining([KEY])).secs != [None]:
            await asyncio.sleep(0.02)
    assert KEY not in (await store.list_all()).items
    again = await store.put(KEY, value("m"), LEASE)
    assert (again.created, again.changed) == (True, True)
    assert again.revision > first.revision


@pytest.mark.parametrize("kind", ANNOUNCING, indirect=True)
async def test_changes_are_announced_in_order_and_renewals_are_not(open_store: Open) -> None:
    writer = open_store()
    async with watching(open_store()) as watch:
        put = await writer.put(KEY, value("m"), LEASE)
        await writer.put(KEY, value("m"), LEASE)
        deleted = await writer.delete(KEY, None)
        assert deleted is not None
        await watch.until(lambda: len(watch.changes()) >= 2)
        assert watch.changes() == [Put(KEY, value("m"), LEASE, put.epoch, put.revision), deleted]
        assert deleted.revision == put.revision + 1


@pytest.mark.parametrize("kind", ANNOUNCING, indirect=True)
async def test_a_delete_of_an_absent_pool_is_a_change_and_is_announced(open_store: Open) -> None:
    writer = open_store()
    async with watching(open_store()) as watch:
        deleted = await writer.delete(KEY, None)
        assert deleted is not None
        await watch.until(lambda: watch.changes())
        assert watch.changes() == [deleted]


@pytest.mark.parametrize("stored", [None, "other-instance"])
async def test_a_delete_for_an_instance_leaves_what_another_one_registered(
    open_store: Open, stored: str | None
) -> None:
    store = open_store()
    await store.put(KEY, value("m", stored), LEASE)
    assert await store.delete(KEY, "mine") is None
    assert KEY in (await store.list_all()).items


@pytest.mark.parametrize("words", ["", "nil", "null", "userdata: NULL"])
async def test_a_registration_without_an_instance_is_left_by_a_delete_for_any(open_store: Open, words: str) -> None:
    store = open_store()
    await store.put(KEY, value("m"), LEASE)
    assert await store.delete(KEY, words) is None
    assert KEY in (await store.list_all()).items


async def test_the_instance_without_a_name_removes_its_own(open_store: Open) -> None:
    store = open_store()
    await store.put(KEY, b'{"model":"m","instance_id":""}', LEASE)
    assert isinstance(await store.delete(KEY, ""), Deleted)


async def test_a_delete_for_the_stored_instance_removes_it(open_store: Open) -> None:
    store = open_store()
    await store.put(KEY, value("m", "mine"), LEASE)
    assert isinstance(await store.delete(KEY, "mine"), Deleted)
    assert KEY not in (await store.list_all()).items


async def test_remaining_answers_for_each_key_in_the_order_that_was_asked(open_store: Open) -> None:
    store = open_store()
    put = await store.put(OTHER, value("n"), LEASE)
    answer = await store.remaining([KEY, OTHER, KEY])
    assert [left is None for left in answer.secs] == [True, False, True]
    assert answer.epoch == put.epoch


async def test_health_comes_at_least_once_a_second_while_nothing_changes(open_store: Open) -> None:
    store = open_store()
    put = await store.put(KEY, value("m"), LEASE)
    async with watching(store) as watch:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await watch.until(lambda: sum(isinstance(event, Health) for event in watch.events) >= 3)
        assert loop.time() - began < 3.5
        health = next(event for event in watch.events if isinstance(event, Health))
        assert (health.epoch, health.revision) == (put.epoch, put.revision)


async def test_health_goes_on_while_changes_come_all_the_time(open_store: Open) -> None:
    writer = open_store()
    async with watching(open_store()) as watch:
        stop = asyncio.Event()

        async def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                await writer.put(KEY, value(str(number)), LEASE)
                await asyncio.sleep(0)

        task = asyncio.create_task(write())
        await watch.until(lambda: sum(isinstance(event, Health) for event in watch.events) >= 2)
        stop.set()
        await task
        assert watch.error is None


@pytest.mark.parametrize("kind", ANNOUNCING, indirect=True)
async def test_a_new_store_settles_for_one_lease_and_says_why(open_store: Open) -> None:
    listed = await open_store().list_all()
    assert listed.health.settling


async def test_settling_can_be_asked_for_and_reaches_everyone(open_store: Open) -> None:
    writer = open_store()
    async with watching(open_store()) as watch:
        await writer.settle("an outage of 7.0 s", LEASE + 1)
        await watch.until(
            lambda: any(isinstance(e, Health) and e.settling == "an outage of 7.0 s" for e in watch.events)
        )


async def test_settling_is_never_shortened_and_ends_early_only_for_its_own_reason(open_store: Open) -> None:
    store = open_store()
    await store.list_all()  # a new store settles under its own reason
    await store.settle("a hold", 4 * LEASE)
    await store.settle("an outage", LEASE)
    await store.end_settling("an outage")
    assert (await store.list_all()).health.settling == "a hold"
    await store.end_settling("a hold")
    assert (await store.list_all()).health.settling is None


@pytest.mark.parametrize("kind", ANNOUNCING, indirect=True)
async def test_nothing_falls_between_the_list_and_the_watch(open_store: Open) -> None:
    writer, reader = open_store(), open_store()
    for number in range(30):
        key = PoolKey("c", "n", f"p{number}")
        putting = asyncio.create_task(_put_after(writer, key, number * 0.0002))
        listed = await reader.list_all()
        watch = Watch(reader, listed)
        await putting
        try:
            if key not in listed.items:
                await watch.until(lambda watch=watch, key=key: any(event.key == key for event in watch.changes()))
        finally:
            await watch.stop()


async def _put_after(store: Store, key: PoolKey, secs: float) -> None:
    await asyncio.sleep(secs)
    await store.put(key, value("m"), LEASE)


async def test_many_puts_at_once_share_the_way_and_each_has_its_own_answer(open_store: Open) -> None:
    store = open_store()
    keys = [PoolKey("c", "n", f"p{number}") for number in range(500)]
    lease_secs = 12 * LEASE  # a busy machine takes longer than a short one before the last is written
    outcomes = await asyncio.gather(*(store.put(key, value(key.dgd_name), lease_secs) for key in keys))
    assert sorted(outcome.revision for outcome in outcomes) == list(range(1, 501))
    items = (await store.list_all()).items
    assert {key: stored.value for key, stored in items.items()} == {key: value(key.dgd_name) for key in keys}


async def test_a_caller_that_leaves_disturbs_nobody_else_in_its_batch(open_store: Open) -> None:
    store = open_store()
    await store.put(OTHER, value("warm"), LEASE)
    keys = [PoolKey("c", "n", f"p{number}") for number in range(20)]
    tasks = [asyncio.create_task(store.put(key, value("m"), LEASE)) for key in keys]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(
        isinstance(result, asyncio.CancelledError) for result in results[::2] if isinstance(result, BaseException)
    )
    assert all(not isinstance(result, BaseException) for result in results[1::2])
    items = (await store.list_all()).items
    assert all(items[key].value == value("m") for key in keys[1::2])
    assert all(items[key].value == value("m") for key in keys[::2] if key in items)


async def test_a_closed_store_can_be_closed_again(open_store: Open) -> None:
    store = open_store()
    await store.list_all()
    await store.close()
    await store.close()


# ---- what Redis adds


@pytest.mark.live
async def test_redis_a_gap_in_the_announcements_is_noticed_within_two_seconds(redis_server: RedisServer) -> None:
    store = redis_store(redis_server)
    async with watching(store) as watch:
        redis_server.cli("INCR", "{discovery}:revision")
        await watch.until(lambda: watch.error is not None)
        assert getattr(watch.error, "cause", None) == "gap"
    await store.close()


@pytest.mark.live
async def test_redis_an_emptied_server_is_a_loss_for_every_replica_and_settles(redis_server: RedisServer) -> None:
    store = redis_store(redis_server)
    await store.put(KEY, value("m"), LEASE)
    async with watching(store) as watch:
        before = await store.list_all()
        redis_server.flush()
        await watch.until(lambda: watch.error is not None)
    after = await store.list_all()
    assert after.health.epoch != before.health.epoch
    assert after.health.settling
    assert 0 < redis_server.cli("PTTL", "{discovery}:settling") <= LEASE * 1000
    await store.close()


@pytest.mark.live
async def test_redis_an_older_revision_is_a_loss_and_the_epoch_is_replaced_once(redis_server: RedisServer) -> None:
    one, two = redis_store(redis_server), redis_store(redis_server)
    for number in range(5):
        await one.put(KEY, value(str(number)), LEASE)
    first, _ = await one.list_all(), await two.list_all()
    redis_server.cli("SET", "{discovery}:revision", 2)
    losses = [await one.list_all(), await two.list_all()]
    assert [listed.loss is not None for listed in losses] == [True, True]
    assert losses[0].health.epoch == losses[1].health.epoch != first.health.epoch
    await one.close()
    await two.close()


@pytest.mark.live
async def test_redis_settling_is_never_shortened_and_ended_only_for_its_own_reason(redis_server: RedisServer) -> None:
    one, two = redis_store(redis_server), redis_store(redis_server)

    def settling() -> tuple[str | None, float]:
        return redis_server.cli("GET", "{discovery}:settling"), redis_server.cli("PTTL", "{discovery}:settling") / 1000

    redis_server.cli("SET", "{discovery}:epoch", "in-use-before")
    await one.settle("a hold", 60)
    await two.settle("an outage", LEASE)
    assert settling()[0] == "a hold"
    assert 58 < settling()[1] <= 60
    await two.end_settling("an outage")
    assert settling()[0] == "a hold"
    await two.end_settling("a hold")
    assert settling()[0] is None

    await one.settle("an outage", LEASE)
    await two.settle("a hold", 60)
    assert settling()[0] == "a hold"
    assert settling()[1] > 58
    redis_server.cli("DEL", "{discovery}:epoch")
    await one.list_all()
    reason, left = settling()
    assert reason is not None
    assert "no epoch" in reason
    assert left > 58
    await two.end_settling("a hold")
    assert settling()[0] == reason

    redis_server.cli("SET", "{discovery}:settling", "set by hand, without an end")
    await one.settle("an outage", LEASE)
    assert settling()[0] == "an outage"
    assert 0 < settling()[1] <= LEASE
    await one.close()
    await two.close()


@pytest.mark.live
async def test_redis_a_connection_that_was_killed_while_idle_costs_no_error(redis_server: RedisServer) -> None:
    store = redis_store(redis_server)
    for number in range(20):
        await store.put(KEY, value(str(number)), LEASE)
        redis_server.client_kill("normal")
    assert (await store.list_all()).items[KEY].value == value("19")
    await store.close()


@pytest.mark.live
async def test_redis_scripts_that_vanish_are_loaded_again_unseen(redis_server: RedisServer) -> None:
    store = redis_store(redis_server)
    for number in range(20):
        redis_server.cli("SCRIPT", "FLUSH")
        puts = [store.put(PoolKey("c", "n", f"p{i}"), value(str(number)), LEASE) for i in range(10)]
        assert len(await asyncio.gather(*puts)) == 10
        redis_server.cli("SCRIPT", "FLUSH")
        assert await store.delete(PoolKey("c", "n", "p0"), None) is not None
    await store.close()


@pytest.mark.live
async def test_redis_a_frozen_server_is_unavailable_within_the_deadline(redis_server: RedisServer) -> None:
    store = redis_store(redis_server, timeout_secs=0.8)
    await store.put(KEY, value("m"), LEASE)
    loop = asyncio.get_running_loop()
    redis_server.freeze()
    try:
        for _ in range(2):  # on the connection that froze, then on one that cannot be opened
            began = loop.time()
            with pytest.raises(Unavailable):
                await store.put(KEY, value("m"), LEASE)
            assert loop.time() - began < 1.3
    finally:
        redis_server.thaw()
    async with asyncio.timeout(3):
        while True:
            with contextlib.suppress(Unavailable):
                await store.put(KEY, value("m"), LEASE)
                break
            await asyncio.sleep(0.05)
    await store.close()


@pytest.mark.live
async def test_redis_a_full_memory_refuses_new_values_and_still_renews(redis_server: RedisServer) -> None:
    store = redis_store(redis_server)
    await store.put(KEY, value("m"), LEASE)
    revision = int(redis_server.cli("GET", "{discovery}:revision"))
    redis_server.cli("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Unavailable, match="OOM"):
        await store.put(OTHER, value("n"), LEASE)
    renewed = await store.put(KEY, value("m"), LEASE)
    assert (renewed.changed, renewed.revision) == (False, revision)
    assert isinstance(await store.delete(KEY, None), Deleted)
    await store.close()


@pytest.mark.live
async def test_redis_foreign_values_under_the_prefix_are_skipped(redis_server: RedisServer) -> None:
    store = redis_store(redis_server)
    await store.put(KEY, value("m"), LEASE)
    redis_server.cli("LPUSH", "{discovery}:pool:a/b/list", "x")
    redis_server.cli("SET", "{discovery}:pool:not-three-parts", "x")
    redis_server.cli("SET", b"{discovery}:pool:a/b/\xff", "x")
    assert list((await store.list_all()).items) == [KEY]
    await store.close()


@pytest.mark.live
async def test_redis_prefixes_and_databases_never_hear_each_other(redis_server: RedisServer) -> None:
    one = redis_store(redis_server)
    prefixed = redis_store(redis_server, prefix="other")
    numbered = redis_store(redis_server, url=f"{redis_server.url}/1")
    async with watching(prefixed) as first, watching(numbered) as second:
        await one.put(KEY, value("m"), LEASE)
        neighbours = [redis_store(redis_server, prefix="other"), redis_store(redis_server, url=f"{redis_server.url}/1")]
        for neighbour, watch in zip(neighbours, (first, second), strict=True):
            own = await neighbour.put(OTHER, value("n"), LEASE)
            assert own.revision == 1
            await watch.until(lambda watch=watch: watch.changes())
            assert [event.key for event in watch.changes() if isinstance(event, Put)] == [OTHER]
    for store in (one, prefixed, numbered, *neighbours):
        await store.close()


@pytest.mark.live
async def test_redis_a_password_file_is_read_again_and_never_shown(redis_server: RedisServer, tmp_path: Path) -> None:
    secret = "p#a/s@s:w%rd"
    password = tmp_path / "password"
    password.write_text("wrong-one\n")
    redis_server.cli("CONFIG", "SET", "requirepass", secret)
    store = redis_store(redis_server, password_path=str(password))
    with pytest.raises(Unavailable) as refused:
        await store.put(KEY, value("m"), LEASE)
    assert "wrong-one" not in str(refused.value)
    password.write_text(secret + "\n")
    async with asyncio.timeout(3):
        while True:
            with contextlib.suppress(Unavailable):
                await store.put(KEY, value("m"), LEASE)
                break
            await asyncio.sleep(0.02)
    assert secret not in str(store.describe())
    await store.close()
