"""The owner of the slot, found through whichever nodes are left; on real clusters of both kinds, without failovers."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from discovery.errors import Gone, Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores.redis.address import Access, open_address
from discovery.stores.redis.link import Line, pack
from discovery.stores.redis.store import RedisStore
from tests.live.redis_cluster import RedisCluster
from tests.live.redis_server import KINDS

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

TIMEOUT = 1.0
NOTHING = pack("GET", "{discovery}:nothing")
WRITE = pack("SET", "{discovery}:x", "1")


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisCluster]:
    running = RedisCluster(request.param, tmp_path, masters=2, arguments=("--cluster-require-full-coverage", "no"))
    try:
        yield running.start()
    finally:
        running.close()


def line_to(url: str) -> Line:
    return Line(open_address(Access(url=url), prefix="discovery", timeout_secs=TIMEOUT), TIMEOUT)


async def failure_of(line: Line, command: bytes) -> str:
    begun = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        await line.call(command)
    assert time.monotonic() - begun < TIMEOUT + 0.5
    return str(caught.value)


async def test_a_slot_that_moves_is_followed_and_the_nodes_of_the_url_may_all_go(cluster: RedisCluster) -> None:
    first, second = cluster.nodes
    owner, other = (first, second) if cluster.owner() is first else (second, first)
    line = line_to(f"redis+cluster://127.0.0.1:{other.port}")
    assert await line.call(WRITE) == [b"OK"]
    assert line.node == f"127.0.0.1:{owner.port}"

    cluster.begin_move(other)
    assert await line.call(pack("GET", "{discovery}:x")) == [b"1"], "what is still here can be read"
    assert "its slot is being moved" in await failure_of(line, NOTHING)
    assert "its slot is being moved" in await failure_of(line, pack("MGET", "{discovery}:x", "{discovery}:nothing"))
    waiting = asyncio.create_task(line.call(NOTHING))
    await asyncio.sleep(0.2)
    generation = line.generation
    await asyncio.to_thread(cluster.finish_move, owner, other)
    assert await waiting == [None]
    assert (line.node, line.generation) == (f"127.0.0.1:{other.port}", generation + 1)
    assert await line.call(pack("GET", "{discovery}:x")) == [b"1"]

    await asyncio.to_thread(cluster.move_slot, owner)
    assert await line.call(pack("GET", "{discovery}:x")) == [b"1"], "moved again"
    other.kill()
    line.reset("a test")
    assert await line.call(WRITE) == [b"OK"], "the URL's only node is gone"
    other.start()
    owner.kill()
    assert f"127.0.0.1:{owner.port}: Connection refused" in await failure_of(line, WRITE)
    owner.start()
    async with asyncio.timeout(10):
        while await asyncio.gather(line.call(pack("PING")), return_exceptions=True) != [[b"PONG"]]:
            await asyncio.sleep(0.05)
    await line.close()


async def test_half_of_a_slot_is_never_listed_as_all_of_it(cluster: RedisCluster) -> None:
    owner = cluster.owner()
    target = next(node for node in cluster.nodes if node is not owner)
    lease = {"lease_secs": 20.0, "timeout_secs": TIMEOUT, "counters": Counters()}
    store = RedisStore(Access(url=cluster.url), prefix="discovery", **lease)
    for number in range(20):
        await store.put(PoolKey("c", "n", f"p{number}"), b"{}", 20.0)
    await store.settle("so that every key that a check reads is there", 60.0)
    assert len((await store.list_all()).items) == 20
    cluster.begin_move(target)
    cluster.move_keys(owner, target, 10)
    with pytest.raises(Unavailable, match="its slot is being moved"):
        await store.list_all()
    with pytest.raises(Unavailable, match="its slot is being moved"):
        await store.remaining([PoolKey("c", "n", f"p{number}") for number in range(20)])
    await asyncio.to_thread(cluster.finish_move, owner, target)
    # The first connection after the move is made in the middle of a list, which is then made anew.
    with contextlib.suppress(Gone):
        await store.list_all()
    assert len((await store.list_all()).items) == 20
    await store.close()


async def test_a_cluster_that_is_down_refuses_and_heals_by_itself(cluster: RedisCluster) -> None:
    owner = cluster.owner()
    line = line_to(cluster.url)
    await line.call(WRITE)
    owner.cli("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    other = next(node for node in cluster.nodes if node is not owner)
    other.kill()
    async with asyncio.timeout(10):
        while not str((await line.call(WRITE))[0]).startswith("CLUSTERDOWN"):
            await asyncio.sleep(0.05)
    begun, before = time.monotonic(), line.generation
    while time.monotonic() < begun + 1.0:
        assert str((await line.call(WRITE))[0]).startswith("CLUSTERDOWN")
        await asyncio.sleep(0.01)
    assert line.generation - before <= 12, "not a connection for each call"
    other.start()
    async with asyncio.timeout(10):
        while await line.call(WRITE) != [b"OK"]:
            await asyncio.sleep(0.05)
    await line.close()
