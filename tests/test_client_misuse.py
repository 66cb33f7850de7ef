"""What a program can do wrong with the client: one clear error before anything is asked, and nothing that runs on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any

import pytest

from discovery.client import Client, Heartbeat, NoAnswer, Pools
from discovery.errors import Misconfigured, Rejected
from discovery.model import PoolKey, Registration
from tests.fake_service import Canned, FakeService, listing, until

REGISTRATION = Registration("c1", "n1", "p1", "m")
KEY = PoolKey("c1", "n1", "p1")


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    async with FakeService() as fake:
        yield fake


USES: dict[str, Callable[[Client], Any]] = {
    "list": lambda client: client.list(),
    "follow": lambda client: client.follow().__aenter__(),
    "register": lambda client: client.register(REGISTRATION).__aenter__(),
    "deregister": lambda client: client.deregister(KEY),
    "routers": lambda client: client.routers(),
    "explain": lambda client: client.explain(),
    "compare": lambda client: client.compare(),
}


@pytest.mark.parametrize("use", USES)
async def test_a_client_is_used_within_its_block(service: FakeService, use: str) -> None:
    client = Client(service.url)
    with pytest.raises(RuntimeError, match="a client works within its block: async with Client"):
        await USES[use](client)
    async with client:
        pass
    with pytest.raises(RuntimeError, match="the client is closed"):
        await USES[use](client)
    assert service.seen == []


async def test_a_block_is_entered_once(service: FakeService) -> None:
    async with Client(service.url) as client:
        with pytest.raises(RuntimeError, match="a client is entered once"):
            await client.__aenter__()
        for block in (client.follow(), client.register(REGISTRATION)):
            async with block:
                with pytest.raises(RuntimeError, match="was entered before"):
                    await block.__aenter__()
            with pytest.raises(RuntimeError, match="was entered before"):
                await block.__aenter__()
        assert (await client.list()).complete
    assert len(asyncio.all_tasks()) == 1 + len(service._tasks)


async def test_a_block_of_a_closed_client_does_not_begin(service: FakeService) -> None:
    async with Client(service.url) as client:
        pools, heartbeat = client.follow(), client.register(REGISTRATION)
    blocks: tuple[Pools | Heartbeat, ...] = (pools, heartbeat)
    for block in blocks:
        with pytest.raises(RuntimeError, match="the client is closed"):
            await block.__aenter__()
    assert service.seen == []


async def test_a_client_that_is_left_ends_what_was_begun_within(service: FakeService) -> None:
    told = []

    async def watch(pools: Pools) -> None:
        told.extend([snapshot async for snapshot in pools])

    async with Client(service.url) as client:
        pools = await client.follow().__aenter__()
        heartbeat = await client.register(REGISTRATION).__aenter__()
        watching = asyncio.create_task(watch(pools))
        await until(lambda: service.pools)
    assert service.pools == {}
    await asyncio.wait_for(watching, 5)
    assert not await pools.changed()
    assert pools.snapshot.pools is not None
    with pytest.raises(RuntimeError, match="has ended"):
        heartbeat.update(REGISTRATION)
    for block in (pools, heartbeat):
        await block.__aexit__(None, None, None)  # as their own blocks would, a little later
    assert len(service.requests("DELETE")) == 1


async def test_a_request_that_is_under_way_when_the_client_is_left_ends(service: FakeService) -> None:
    service.can("GET", Canned(200, gate=asyncio.Event()))
    async with Client(service.url) as client:
        listing_pools = asyncio.create_task(client.list())
        await until(lambda: service.seen)
    with pytest.raises((RuntimeError, NoAnswer)):
        await asyncio.wait_for(listing_pools, 5)


async def test_one_pool_is_not_kept_registered_twice_at_one_service(service: FakeService) -> None:
    async with FakeService() as another, Client(service.url) as client, Client([service.url]) as second:
        async with client.register(REGISTRATION):
            for other in (client, second):
                with pytest.raises(RuntimeError, match="c1/n1/p1 is kept registered by this process already"):
                    await other.register(REGISTRATION).__aenter__()
            async with Client(another.url) as elsewhere, elsewhere.register(REGISTRATION):
                assert another.pools
            async with client.register(Registration("c1", "n1", "p2", "m")):
                assert len(service.pools) == 2
        async with second.register(REGISTRATION):
            assert service.pools
    assert service.pools == {}


async def test_a_registration_that_was_refused_may_be_tried_again(service: FakeService) -> None:
    async with Client(service.url) as client:
        service.can("POST", Canned(422, {"detail": "no"}))
        with pytest.raises(Rejected, match="no"):
            await client.register(REGISTRATION).__aenter__()
        async with client.register(REGISTRATION):
            assert service.pools


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"model": ""}, ValueError("model holds an empty text")),
        ({"capability": ["chat", ""]}, ValueError("capability holds an empty text")),
        ({"model": []}, ValueError("model names nothing")),
        ({"model": ()}, ValueError("model names nothing")),
        ({"region": set()}, ValueError("region names nothing")),
        ({"capability": iter(())}, ValueError("capability names nothing")),
        ({"model": None}, TypeError("model is a text or several texts, not NoneType")),
        ({"region": 3}, TypeError("region is a text or several texts, not int")),
        ({"namespace": b"prod"}, TypeError("namespace is a text or several texts, not bytes")),
        ({"cluster_id": {"a": 1}}, TypeError("cluster_id is a text or several texts, not dict")),
        ({"cluster_id": ["a", None]}, TypeError("cluster_id is a text or several texts, and holds NoneType")),
    ],
)
async def test_a_filter_that_is_none_is_an_error_and_no_list_of_everything(
    service: FakeService, filters: dict[str, Any], said: Exception
) -> None:
    async with Client(service.url) as client:
        for use in (client.list, client.follow):
            with pytest.raises(type(said), match=str(said)):
                await use(**filters)  # type: ignore[operator]
        assert (await client.list(model=iter(["m"]))).complete
    assert [seen.target for seen in service.seen] == ["/pools?model=m"]


@pytest.mark.parametrize(
    "registration",
    [
        Registration("c1", "n1", "p1", "m", metadata={"a": object()}),  # type: ignore[dict-item]
        Registration("c1", "n1", "p1", "m", frontends=("http://\ud800",)),
    ],
)
async def test_a_registration_that_cannot_be_sent_is_told_at_once(
    service: FakeService, registration: Registration
) -> None:
    async with Client(service.url) as client:
        with pytest.raises(TypeError, match="cannot be written as JSON"):
            client.register(registration)
        async with client.register(REGISTRATION) as heartbeat:
            with pytest.raises(TypeError, match="cannot be written as JSON"):
                heartbeat.update(registration)
    assert service.pools == {}


async def test_a_process_that_was_forked_keeps_pools_registered_by_itself(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(service.url) as client, client.register(REGISTRATION):
        monkeypatch.setattr("discovery.client.blocks.os.getpid", lambda: -1)
        async with Client(service.url) as forked, forked.register(REGISTRATION):
            assert service.pools


@pytest.mark.parametrize("secs", [-1.0, float("nan"), float("inf")])
async def test_seconds_that_are_none(service: FakeService, secs: float) -> None:
    async with Client(service.url) as client:
        for name in ("patience_secs", "quiet_secs"):
            with pytest.raises(ValueError, match="patience_secs must be a number"):
                client.follow(**{name: secs})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["c1/n1/p1", ("c1", "n1"), ("c1", "n1", None), ["c1", "n1", "p1"], None])
async def test_a_key_that_is_none(service: FakeService, key: Any) -> None:
    async with Client(service.url) as client:
        for use in (client.deregister(key), client.explain([key]), client.compare([key])):
            with pytest.raises(TypeError, match="a pool is named by PoolKey"):
                await use
        for part in ("", ".", ".."):
            with pytest.raises(ValueError, match="no part of a pool's key"):
                await client.deregister(PoolKey("c1", part, "p1"))
        with pytest.raises(TypeError, match="what is registered is a Registration, not dict"):
            client.register({"cluster_id": "c1"})  # type: ignore[arg-type]
    assert service.seen == []


@pytest.mark.parametrize("urls", [None, 8080, b"http://a", ["http://a", None], [b"http://a"], {}])
def test_urls_that_are_none(urls: Any) -> None:
    with pytest.raises((TypeError, Misconfigured), match="URL"):
        Client(urls)


async def test_an_exception_in_the_middle_of_everything_leaves_nothing_behind(service: FakeService) -> None:
    service.set(listing("a"))
    before = len(asyncio.all_tasks())
    with pytest.raises(ZeroDivisionError):
        async with Client(service.url) as client, client.register(REGISTRATION), client.follow() as pools:
            await service.put(listing("b"))
            assert await pools.changed()
            raise ZeroDivisionError
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert set(service.pools) == {("c1", "n1", "a"), ("c1", "n1", "b")}


@pytest.mark.parametrize("after_secs", [0.0, 0.001, 0.01, 0.05, 0.3])
async def test_cancelled_at_any_moment_nothing_runs_on(service: FakeService, after_secs: float) -> None:
    async def use() -> None:
        async with Client(service.url) as client, client.register(REGISTRATION), client.follow() as pools:
            await client.list()
            while await pools.changed():
                pass

    before = len(asyncio.all_tasks())
    using = asyncio.create_task(use())
    await asyncio.sleep(after_secs)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert service.pools == {}


async def test_cancelled_while_it_is_left_a_pool_is_deregistered_all_the_same(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(client: Client) -> None:
        async with client.register(REGISTRATION):
            await asyncio.Event().wait()

    async with Client(service.url) as client:
        for _ in range(3):
            service.can("DELETE", Canned(503, headers=("Retry-After: 0",), gate=(gate := asyncio.Event())))
            using = asyncio.create_task(use(client))
            await until(lambda: service.pools)
            deletes = len(service.requests("DELETE"))
            using.cancel()
            await until(lambda before=deletes: len(service.requests("DELETE")) > before)
            using.cancel()
            with pytest.raises(asyncio.CancelledError):
                await using
            gate.set()
            await until(lambda: not service.pools)
            async with asyncio.timeout(5):
                while True:  # until it has been left
                    try:
                        async with client.register(REGISTRATION):
                            break
                    except RuntimeError:
                        await asyncio.sleep(0.01)
    assert service.pools == {}


async def test_a_program_that_ends_while_a_pool_is_deregistered_says_what_is_left(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.can("DELETE", Canned(204, gate=asyncio.Event()))
    async with Client(service.url) as client:
        heartbeat = await client.register(REGISTRATION).__aenter__()
        leaving = asyncio.create_task(heartbeat.__aexit__(None, None, None))
        await until(lambda: service.requests("DELETE"))
        for task in asyncio.all_tasks():
            if task.get_name().startswith("leaving "):
                task.cancel()
        await asyncio.wait([leaving])
    assert "it stays until its lease ends: the program ended first" in caplog.text


def test_the_library_is_typed() -> None:
    assert files("discovery").joinpath("py.typed").is_file()
