"""The client library against two real replicas on one real store: routers keep every pool, relays keep every lease."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from discovery.client import Client, Pools
from discovery.client.service import Service
from discovery.client.transport import Connections
from discovery.model import Registration
from tests.fake_service import until
from tests.live.conftest import StartPair
from tests.live.redis_server import RedisServer

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

COUNT = 20
LEASE_SECS = 6.0


def shown(pools: Pools) -> list[str]:
    return [found.dgd_name for found in pools.snapshot.pools]


async def record(pools: Pools, fewest: list[int]) -> None:
    async for snapshot in pools:
        fewest.append(len(snapshot.pools))


async def hold_for_a_lease(pools: Pools) -> None:
    """Until then a relay that had not moved on to the other replica would have lost its pool."""
    ends_at = time.monotonic() + LEASE_SECS + 1
    while time.monotonic() < ends_at:
        assert len(shown(pools)) == COUNT
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("fault", ["killed", "frozen", "stopped"])
async def test_no_pool_is_ever_missing_while_a_replica_fails(
    debian_redis: RedisServer, start_pair: StartPair, fault: str
) -> None:
    a, b = await asyncio.to_thread(start_pair, debian_redis, lease=LEASE_SECS, heartbeat=1.0)
    urls = [f"http://127.0.0.1:{replica.port}" for replica in (a, b)]
    registrations = [Registration("c1", "n1", f"p{number:02}", "m") for number in range(COUNT)]
    async with Client(urls) as client, AsyncExitStack() as relays:
        beats = [await relays.enter_async_context(client.register(registration)) for registration in registrations]
        router = Pools(Connections(Service(urls)), (), patience_secs=5, silence_secs=1.5)
        async with router as pools:
            await until(lambda: len(shown(pools)) == COUNT)
            fewest: list[int] = []
            recording = asyncio.create_task(record(pools, fewest))
            {"killed": a.kill, "frozen": a.freeze, "stopped": a.terminate}[fault]()
            late = Registration("c1", "n1", "late", "m")
            async with client.register(late):
                await until(lambda: "late" in shown(pools), within_secs=15)
                await until(lambda: all(beat.trouble is None and beat.accepted for beat in beats), within_secs=15)
            await until(lambda: "late" not in shown(pools), within_secs=15)
            await hold_for_a_lease(pools)
            async with Client(urls[1]) as other:
                served = await other.list()
            assert pools.snapshot.pools == served.pools
            assert len(served.pools) == COUNT
            assert pools.snapshot.etag == served.etag
            assert min(fewest) >= COUNT
            if fault == "frozen":
                a.thaw()
            recording.cancel()
    # A registration that waited in the frozen replica's socket is taken at the thaw, and then ends with its lease.
    async with asyncio.timeout(LEASE_SECS + 3):
        while (await asyncio.to_thread(b.pools)).names:
            await asyncio.sleep(0.1)
