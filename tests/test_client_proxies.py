"""Following over real connections, through proxies that break what takes long.

The rules are tried on virtual time in ``test_client_following``; here is that they hold for bytes on sockets.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from discovery.client import Client, Pools
from tests.fake_service import Canned, FakeService, Proxy, listing, until
from tests.live.signs import free_port

UNKNOWN = Canned(404, {"detail": "no such page"})


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    async with FakeService() as fake:
        fake.set(listing("a"))
        yield fake


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discovery.client.channel.MUTE_SECS", 0.2)
    monkeypatch.setattr("discovery.client.channel.RETRY_SECS", 0.05)
    monkeypatch.setattr("discovery.client.channel.BACKOFF_SECS", 0.1)
    monkeypatch.setattr("discovery.client.looks.FIRST_SECS", 0.1)


def shown(pools: Pools) -> list[str]:
    return [found.dgd_name for found in pools.snapshot.pools]


@pytest.mark.parametrize(
    "proxy",
    [
        pytest.param(Proxy(buffers_streams=True), id="buffers streams"),
        pytest.param(Proxy(answers_streams=UNKNOWN), id="does not know the path"),
        pytest.param(Proxy(stream_lives_secs=0.05), id="cuts streams"),
    ],
)
async def test_where_streams_are_broken_long_polls_are_used(service: FakeService, proxy: Proxy) -> None:
    service.proxy = proxy
    async with Client(service.url) as client, client.follow(quiet_secs=0.5) as pools:
        assert shown(pools) == ["a"]
        await until(lambda: pools.step == "long poll", within_secs=15)
        await until(lambda: service.waits)
        service.set(listing("b"))
        await until(lambda: shown(pools) == ["a", "b"])
        assert pools.snapshot.etag == service.token
        asked = [seen.headers["prefer"] for seen in service.seen if "prefer" in seen.headers]
        assert set(asked) == {"wait=20"}
        assert pools.trouble is None


async def test_where_prefer_is_taken_out_polls_remain(service: FakeService) -> None:
    service.proxy = Proxy(answers_streams=UNKNOWN, strips_prefer=True)
    async with Client(service.url) as client, client.follow(quiet_secs=0.2) as pools:
        await until(lambda: pools.step == "poll", within_secs=15)
        service.set(listing("b"))
        await until(lambda: shown(pools) == ["a", "b"])


async def test_where_waits_are_refused_polls_remain(service: FakeService) -> None:
    service.proxy = Proxy(answers_streams=UNKNOWN, answers_waits=Canned(503, headers=("Retry-After: 0",)))
    async with Client(service.url) as client, client.follow(quiet_secs=0.2) as pools:
        await until(lambda: pools.step == "poll", within_secs=15)
        service.set(listing("b"))
        await until(lambda: shown(pools) == ["a", "b"])
        assert pools.trouble is None


async def test_a_stream_that_stands_still_is_overtaken_and_left(service: FakeService) -> None:
    async with Client(service.url) as client, client.follow(quiet_secs=0.3) as pools:
        stream = (await until(lambda: service.streams))[0]
        stream.hold()
        await service.put(listing("old"))
        await service.drop("old")
        await service.put(listing("b"))
        await until(lambda: shown(pools) == ["a", "b"])
        await until(lambda: stream.gone)
        await until(lambda: len(service.streams) == 2)
        resumed = next(seen for seen in reversed(service.seen) if seen.target.endswith("/events"))
        assert resumed.headers["last-event-id"] == service.token


async def test_a_service_that_is_back_is_found_by_a_look(service: FakeService) -> None:
    async with Client([f"http://127.0.0.1:{free_port()}", service.url]) as client, client.follow() as pools:
        await service.stop()
        await until(lambda: pools.trouble)
        service.set(listing("b"))
        await service.start()
        async with asyncio.timeout(5):
            while shown(pools) != ["a", "b"]:
                assert await pools.changed()
        assert pools.trouble is None
