"""What the store reads from a real server beyond its data: losses without a trace, a server that is the wrong one."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from discovery.errors import Gone, Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import Health, Listed
from discovery.stores.redis.store import RedisStore
from tests.live.faults.surroundings import PlacedServer, Surroundings
from tests.live.redis_server import RedisServer
from tests.live.signs import await_sign
from tests.stores.test_contract import KEY, LEASE, OTHER, redis_store, value, watching

pytestmark = pytest.mark.live

EPOCH = "{discovery}:epoch"
SETTLING = "{discovery}:settling"

Open = Callable[..., RedisStore]


@pytest.fixture
async def open_store(redis_server: RedisServer) -> AsyncIterator[Open]:
    """Opens stores on one server that was in use before."""
    opened: list[RedisStore] = []
    redis_server.cli("SET", EPOCH, "in-use-before")

    def make(user: str = "", **changed: Any) -> RedisStore:
        url = f"redis://{user}:pw@127.0.0.1:{redis_server.port}" if user else redis_server.url
        opened.append(redis_store(redis_server, url=url, **changed))
        return opened[-1]

    yield make
    for store in opened:
        await store.close()


async def eventually(work: Callable[[], Awaitable[Any]], within: float = 4.0) -> Any:
    """What ``work`` gives as soon as it does not fail any more."""
    async with asyncio.timeout(within):
        while True:
            with contextlib.suppress(Unavailable, Gone):
                return await work()
            await asyncio.sleep(0.05)


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


def change_master(server: RedisServer) -> None:
    """As a failover does: the same data, another history."""
    server.cli("DEBUG", "CHANGE-REPL-ID")


def evict(server: RedisServer) -> None:
    """Some leases end before their time; the policy takes the one that would end first."""
    before = server.cli("INFO", "stats")["evicted_keys"]
    server.cli("SET", "foreign", "x" * 100_000, "PX", 100)
    server.cli("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    server.cli("CONFIG", "SET", "maxmemory", server.cli("INFO", "memory")["used_memory"] - 50_000)
    assert server.cli("INFO", "stats")["evicted_keys"] > before
    server.cli("CONFIG", "SET", "maxmemory", "0")
    server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")


class JumpingServer(PlacedServer):
    """A Valkey server whose clock can jump; leases end by it."""

    def __init__(self, directory: Path) -> None:
        self.clock = Surroundings(directory, "server")
        super().__init__("valkey", directory, self.clock)

    def jump(self, offset: str) -> None:
        before = self.cli("INFO", "server")["server_time_usec"]
        self.clock.set_clock(offset)
        await_sign(lambda: abs(self.cli("INFO", "server")["server_time_usec"] - before) > 50e6, 3, "the clock jumped")


LOSSES = {"another-master": change_master, "evicted": evict}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
async def test_leases_are_not_believed_between_a_loss_and_the_check_that_finds_it(
    redis_server: RedisServer, open_store: Open, lose: Callable[[RedisServer], None]
) -> None:
    store = open_store()
    await store.put(KEY, value("m"), LEASE)
    epoch = (await store.list_all()).health.epoch
    assert (await store.remaining([KEY])).epoch == epoch
    lose(redis_server)
    redis_server.cli("DEL", store._names.pool(KEY))  # a renewal that the other server did not have
    assert (await store.remaining([KEY, OTHER])).epoch is None
    assert redis_server.cli("GET", EPOCH) == epoch, "only a check replaces it"
    listed = await store.list_all()
    assert listed.loss
    assert listed.health.epoch != epoch
    assert listed.health.settling == listed.loss
    assert (await store.remaining([KEY])).epoch == listed.health.epoch


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
async def test_a_loss_ends_the_watch_and_an_answer_about_leases_asks_for_the_check_at_once(
    redis_server: RedisServer, open_store: Open, lose: Callable[[RedisServer], None]
) -> None:
    store = open_store()
    async with watching(store) as watch:
        await watch.until(lambda: any(isinstance(event, Health) for event in watch.events))
        lose(redis_server)
        assert (await store.remaining([KEY])).epoch is None
        await watch.until(lambda: watch.error is not None, within=0.4)
        assert getattr(watch.error, "cause", None) == "loss"
    assert (await store.list_all()).loss == str(watch.error), "the next list says why it was made"
    assert (await store.list_all()).loss is None


async def test_replicas_that_see_a_loss_at_the_same_time_share_one_new_epoch(
    redis_server: RedisServer, open_store: Open
) -> None:
    stores = [open_store() for _ in range(4)]
    before = {(await store.list_all()).health.epoch for store in stores}
    for _ in range(5):
        change_master(redis_server)
        listed = await asyncio.gather(*(store.list_all() for store in stores))
        epochs = {each.health.epoch for each in listed}
        assert len(epochs) == 1, "nobody replaced what another one had just made"
        assert epochs.isdisjoint(before)
        assert all(each.loss for each in listed)
        before |= epochs
        assert [(await store.list_all()).loss for store in stores] == [None] * 4


async def test_a_replica_that_was_told_of_the_new_epoch_by_a_write_makes_no_other(
    redis_server: RedisServer, open_store: Open
) -> None:
    one, two = open_store(), open_store()
    await one.list_all()
    await two.list_all()
    change_master(redis_server)
    epoch = (await one.list_all()).health.epoch
    assert (await two.put(KEY, value("m"), LEASE)).epoch == epoch
    listed = await two.list_all()
    assert (listed.health.epoch, bool(listed.loss)) == (epoch, True)


async def test_a_store_that_comes_back_with_an_epoch_of_the_past_begins_a_new_life_that_all_share(
    redis_server: RedisServer, open_store: Open
) -> None:
    """Two masters, of which the first stays: whoever was at the second had replaced the first one's epoch there."""
    stayed, strayed = open_store(), open_store()
    first = (await stayed.list_all()).health.epoch
    assert (await strayed.list_all()).health.epoch == first
    redis_server.cli("SET", EPOCH, "of-the-second-master")
    assert (await strayed.list_all()).health.epoch == "of-the-second-master"
    redis_server.cli("SET", EPOCH, first)
    back = await strayed.list_all()
    assert back.health.epoch not in (first, "of-the-second-master")
    assert back.loss
    assert "is back in a life that was over" in back.loss
    assert back.health.settling == back.loss
    again = await stayed.list_all()
    assert (again.health.epoch, bool(again.loss)) == (back.health.epoch, True)
    assert (await strayed.list_all()).loss is None


async def test_a_loss_that_could_not_be_written_down_is_found_again(
    redis_server: RedisServer, open_store: Open
) -> None:
    store = open_store()
    epoch = (await store.list_all()).health.epoch
    change_master(redis_server)
    redis_server.cli("CONFIG", "SET", "min-replicas-to-write", "1")
    for _ in range(2):
        with pytest.raises(Unavailable, match="NOREPLICAS"):
            await store.list_all()
        assert (await store.remaining([KEY])).epoch is None
    redis_server.cli("CONFIG", "SET", "min-replicas-to-write", "0")
    listed = await store.list_all()
    assert listed.loss
    assert listed.health.epoch != epoch


async def test_a_clock_that_jumps_ends_leases_that_are_not_believed_to_have_ended(tmp_path: Path) -> None:
    server = JumpingServer(tmp_path / "server")
    try:
        server.start()
        server.cli("SET", EPOCH, "in-use-before")
        store = redis_store(server)
        await store.put(KEY, value("m"), LEASE)
        epoch = (await store.list_all()).health.epoch
        server.jump("+100")
        answer = await store.remaining([KEY])
        assert answer.secs == [None], "the key is gone"
        assert answer.epoch is None, "which says nothing about the relay"
        listed = await store.list_all()
        assert "clock moved by +1" in listed.loss
        await store.put(KEY, value("m"), LEASE)
        assert (await store.remaining([KEY])).epoch == listed.health.epoch != epoch
        server.jump("+0")
        assert (await store.remaining([KEY])).epoch is None
        assert "clock moved by -" in (await store.list_all()).loss
        await store.close()
    finally:
        server.close()


async def test_a_replica_is_named_as_one_by_reads_and_writes_and_left_as_soon_as_it_is_a_master(
    redis_server: RedisServer, open_store: Open
) -> None:
    store = open_store()
    async with watching(store) as watch:
        await store.put(KEY, value("m"), LEASE)
        redis_server.cli("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(Unavailable, match="is a read-only replica") as written:
            await store.put(KEY, value("n"), LEASE)
        assert written.value.extent == "source"
        await watch.until(lambda: watch.error is not None, within=0.3)  # not at the next check, but now
    for ask in (store.list_all, lambda: store.remaining([KEY])):
        with pytest.raises(Unavailable, match=r"Redis at .* is a read-only replica"):
            await ask()
    assert redis_server.subscribers("{discovery}:changes") == 0
    redis_server.cli("REPLICAOF", "NO", "ONE")
    listed = await eventually(store.list_all)
    assert listed.items[KEY].value == value("m")
    assert "master_replid" in listed.loss
    await eventually(lambda: store.put(KEY, value("n"), LEASE))


async def test_a_process_that_took_the_place_of_another_is_written_to_and_listened_to_alike(
    redis_server: RedisServer, open_store: Open
) -> None:
    store = open_store()
    await store.put(KEY, value("m"), LEASE)
    async with watching(store) as watch:
        redis_server.restart()
        await watch.until(lambda: watch.error is not None)
    listed = await eventually(store.list_all)
    assert (listed.items, bool(listed.loss)) == ({}, True)
    async with watching(store) as watch:
        await open_store().put(OTHER, value("n"), LEASE)
        await watch.until(watch.changes)


@pytest.mark.parametrize(
    ("limit", "says"), [("0", "would throw leases away"), ("100mb", "throws leases away")], ids=["unlimited", "limited"]
)
async def test_f20_a_policy_that_evicts_is_warned_about_once_and_again_when_it_changes(
    redis_server: RedisServer, open_store: Open, caplog: pytest.LogCaptureFixture, limit: str, says: str
) -> None:
    caplog.set_level(logging.INFO)
    store = open_store()
    redis_server.cli("CONFIG", "SET", "maxmemory", limit)
    await store.list_all()
    assert lines(caplog, "maxmemory") == []
    for policy in ("volatile-ttl", "allkeys-lru", "noeviction", "volatile-ttl"):
        redis_server.cli("CONFIG", "SET", "maxmemory-policy", policy)
        for _ in range(3):
            await store.list_all()
    warned = lines(caplog, "maxmemory_policy")
    assert [line.split("maxmemory_policy ")[1].split(",")[0] for line in warned] == [
        "volatile-ttl",
        "allkeys-lru",
        "volatile-ttl",
    ]
    assert all(says in line for line in warned)


async def test_a_server_that_refuses_info_is_used_without_its_signs_and_with_one_line(
    redis_server: RedisServer, open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    redis_server.cli("ACL", "SETUSER", "u", "on", ">pw", "~*", "&*", "+@all", "-info")
    store = open_store(user="u")
    epoch = (await store.list_all()).health.epoch
    async with watching(store) as watch:
        await watch.until(lambda: sum(isinstance(event, Health) for event in watch.events) >= 2)
        assert (await store.remaining([KEY])).epoch == epoch
    assert len(lines(caplog, "does not tell role, master_replid")) == 1
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_f22_without_the_right_to_subscribe_a_store_that_had_it_goes_by_the_revision(
    redis_server: RedisServer, open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    counters = Counters()
    redis_server.cli("ACL", "SETUSER", "u", "on", ">pw", "~*", "&*", "+@all")
    store, other = open_store(user="u", counters=counters), open_store()
    async with watching(store) as watch:
        redis_server.cli("ACL", "SETUSER", "u", "resetchannels")
        await watch.until(lambda: watch.error is not None)
    async with watching(store) as watch:
        assert counters.values()["announcements_refused"] == 1
        written = await store.put(KEY, value("own"), LEASE)
        assert written.changed
        assert counters.values()["announcements_refused"] == 2
        await watch.until(lambda: any(isinstance(event, Health) and event.revision == 1 for event in watch.events))
        assert watch.error is None, "what the store wrote itself is no gap"
        await other.put(OTHER, value("n"), LEASE)
        read = lambda: [set(event.items) for event in watch.events if isinstance(event, Listed)]  # noqa: E731
        await watch.until(lambda: {KEY, OTHER} in read(), within=2)
        assert watch.error is None
    assert len(lines(caplog, "refuses SUBSCRIBE")) == 1
    assert len(lines(caplog, "refuses to announce")) == 1
    assert "&{discovery}:*" in lines(caplog, "refuses SUBSCRIBE")[0]

    async with watching(store) as watch:
        redis_server.cli("ACL", "SETUSER", "u", "&*")
        await watch.until(lambda: watch.error is not None, within=5)
        assert "subscribed to again" in str(watch.error)
    async with watching(store) as watch:
        await other.put(OTHER, value("news"), LEASE)
        await watch.until(watch.changes, within=1)
        await store.put(KEY, value("own news"), LEASE)
    assert len(lines(caplog, "lets the store subscribe again")) == len(lines(caplog, "announces writes again")) == 1


async def test_f22_a_store_that_never_could_subscribe_says_what_to_grant(
    redis_server: RedisServer, open_store: Open
) -> None:
    redis_server.cli("ACL", "SETUSER", "u", "on", ">pw", "~*", "resetchannels", "+@all")
    store = open_store(user="u")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"refuses SUBSCRIBE: NOPERM .*\+subscribe &\{discovery\}:\*"):
            await store.list_all()
    redis_server.cli("ACL", "SETUSER", "u", "&{discovery}:*")
    await store.list_all()


async def test_a_list_that_was_read_over_two_connections_is_none(
    redis_server: RedisServer, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    await store.list_all()
    read_items = store._reader.items

    async def items(as_of: float) -> Any:
        found = await read_items(as_of)
        redis_server.client_kill("normal")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(store._reader, "items", items)
        with pytest.raises(Gone, match="made anew while Redis was read"):
            await store.list_all()
    assert (await store.list_all()).loss is None


async def test_ten_thousand_leases_are_asked_about_within_one_deadline(
    redis_server: RedisServer, open_store: Open
) -> None:
    store = open_store()
    keys = [PoolKey("c", "n", f"p{number}") for number in range(10_000)]
    with redis_server.client.pipeline(transaction=False) as batch:
        for key in keys:
            batch.set(store._names.pool(key), "{}", px=60_000)
        batch.execute()
    epoch = (await store.list_all()).health.epoch
    asked = [keys[start : start + 1000] for start in range(0, len(keys), 1000)]
    answers = await asyncio.gather(*map(store.remaining, asked))
    assert {answer.epoch for answer in answers} == {epoch}
    assert sum(left is not None for answer in answers for left in answer.secs) == 10_000
