"""Connections that carry many callers, on a real server: deadlines, silence, and a server that is the wrong one."""

import asyncio
import contextlib
import gc
import socket
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from redis._parsers import BaseParser

from discovery.errors import Unavailable
from discovery.stores.redis import node
from discovery.stores.redis.address import Access, open_address
from discovery.stores.redis.link import Line, Refused, pack
from discovery.stores.redis.node import Place, SocketAddress
from discovery.stores.redis.subscription import Subscription
from tests.live.redis_server import RedisServer
from tests.live.signs import free_port
from tests.live.tcp_proxy import TcpProxy

pytestmark = pytest.mark.live

WHO = pack("CLIENT", "ID")
PING = pack("PING")
TIMEOUT = 1.0

OpenLine = Callable[..., Line]


@pytest.fixture
async def open_line() -> AsyncIterator[OpenLine]:
    opened: list[Line] = []

    def make(url: str, timeout_secs: float = TIMEOUT) -> Line:
        opened.append(Line(open_address(Access(url=url), prefix="discovery", timeout_secs=timeout_secs), timeout_secs))
        return opened[-1]

    yield make
    for line in opened:
        await line.close()


@pytest.fixture
def line(open_line: OpenLine, debian_redis: RedisServer) -> Line:
    return open_line(debian_redis.url)


@pytest.fixture
def proxy(debian_redis: RedisServer) -> Iterator[TcpProxy]:
    running = TcpProxy(debian_redis.port)
    yield running
    running.close()


async def until(sign: Callable[[], object], within_secs: float) -> None:
    async with asyncio.timeout(within_secs):
        while not sign():
            await asyncio.sleep(0.01)


# ---- giving a connection up


async def test_a_reset_line_connects_anew_for_the_next_call(line: Line) -> None:
    first = await line.call(WHO)
    assert await line.call(WHO) == first
    assert line.generation == 1
    line.reset("a test")
    assert await line.call(WHO) != first
    assert line.generation == 2


async def test_calls_on_their_way_when_a_line_is_reset_are_made_again(line: Line, debian_redis: RedisServer) -> None:
    before = await line.call(WHO)
    debian_redis.cli("CLIENT", "PAUSE", 200)
    calls = [asyncio.create_task(line.call(WHO)) for _ in range(3)]
    await asyncio.sleep(0)
    line.reset("a test")
    answers = await asyncio.gather(*calls)
    assert answers[0] != before
    assert answers == [answers[0]] * 3


async def test_a_line_that_was_never_opened_can_be_reset(line: Line) -> None:
    line.reset("a test")
    assert await line.call(PING) == [b"PONG"]
    assert line.node


@pytest.mark.parametrize("words", [("SET", "x", "1"), ("EVAL", "return redis.call('SET', KEYS[1], '1')", "1", "x")])
async def test_a_write_refused_by_a_replica_is_told_and_finds_the_server_anew_but_not_for_each_call(
    line: Line, debian_redis: RedisServer, words: tuple[str, ...]
) -> None:
    assert await line.call(pack(*words)) == [b"OK"]
    debian_redis.cli("REPLICAOF", "127.0.0.1", free_port())
    (answer,) = await line.call(pack(*words))
    assert isinstance(answer, Refused)
    assert str(answer).startswith("READONLY")
    assert line.node == ""
    begun = time.monotonic()
    while time.monotonic() < begun + 1.0:
        (answer,) = await line.call(pack(*words))
        assert isinstance(answer, Refused)
    assert 2 <= line.generation <= 12
    debian_redis.cli("REPLICAOF", "NO", "ONE")
    assert await line.call(pack(*words)) == [b"OK"]


# ---- deadlines and silence


async def test_what_is_idle_and_half_open_is_found_dead_before_the_next_caller_finds_it(
    open_line: OpenLine, proxy: TcpProxy
) -> None:
    line = open_line(proxy.url, 1.4)
    await line.call(PING)
    proxy.freeze()
    await until(lambda: line.node == "", 3.0)
    assert await line.call(PING) == [b"PONG"]
    assert line.generation == 2


async def test_a_second_connection_does_not_give_a_call_a_second_deadline(open_line: OpenLine, proxy: TcpProxy) -> None:
    line = open_line(proxy.url)
    await line.call(PING)
    proxy.delay_answers(5.0)
    begun = time.monotonic()
    call = asyncio.create_task(line.call(PING))
    await asyncio.sleep(0.7 * TIMEOUT)
    proxy.cut()
    with pytest.raises(Unavailable):
        await call
    assert 0.7 * TIMEOUT < time.monotonic() - begun < 1.3 * TIMEOUT


async def test_the_deadline_of_a_repeated_call_ends_it_alone(open_line: OpenLine, proxy: TcpProxy) -> None:
    line = open_line(proxy.url)
    await line.call(PING)
    proxy.freeze()
    repeated = asyncio.create_task(line.call(PING))
    await asyncio.sleep(0.6 * TIMEOUT)
    proxy.delay_answers(0.5 * TIMEOUT, to="ECHO")
    proxy.cut()
    patient = asyncio.create_task(line.call(pack("ECHO", "x")))
    with pytest.raises(Unavailable, match="no answer in time"):
        await repeated
    assert await patient == [b"x"]
    assert line.generation == 2


async def test_an_attempt_to_connect_is_shared_and_another_is_made_after_a_pause_that_grows(
    open_line: OpenLine, debian_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    port = free_port()

    async def look_up(place: Place) -> list[SocketAddress]:
        attempts.append(time.monotonic())
        return [(socket.AF_INET, ("127.0.0.1", port))]

    monkeypatch.setattr(node, "_look_up", look_up)
    line = open_line("redis://redis.example:6379")
    begun = time.monotonic()
    while time.monotonic() < begun + 1.5:
        answers = await asyncio.gather(*(line.call(PING) for _ in range(50)), return_exceptions=True)
        assert {str(answer) for answer in answers} == {"Redis at redis://redis.example:6379/0: Connection refused"}
        await asyncio.sleep(0.01)
    assert 3 <= len(attempts) <= 12
    port = debian_redis.port
    async with asyncio.timeout(3.0):
        while (await asyncio.gather(line.call(PING), return_exceptions=True)) != [[b"PONG"]]:
            await asyncio.sleep(0.01)


# ---- names


async def test_a_name_is_resolved_for_each_connection_and_all_its_addresses_are_tried(
    open_line: OpenLine, debian_redis: RedisServer, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    filling = [socket.socket() for _ in range(3)]
    for each in filling:
        each.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            each.connect(silent.getsockname())
    refusing = ("127.0.0.1", free_port())
    answers: list[list[tuple[str, int]]] = []

    async def look_up(place: Place) -> list[SocketAddress]:
        assert place.host == "redis.example"
        return [(socket.AF_INET, address) for address in answers[0]]

    monkeypatch.setattr(node, "_look_up", look_up)
    line = open_line("redis://redis.example:6379")
    try:
        for addresses in (
            [refusing, silent.getsockname(), ("127.0.0.1", debian_redis.port)],
            [("127.0.0.1", proxy.port)],
        ):
            answers[:] = [addresses]
            line.reset("a test")
            assert await line.call(PING) == [b"PONG"]
        assert len(proxy.connections) == 1
        answers[:] = [[refusing]]
        line.reset("a test")
        with pytest.raises(Unavailable, match=r"redis\.example:6379/0: Connection refused"):
            await line.call(PING)
    finally:
        for each in (silent, *filling):
            each.close()


async def test_a_lookup_that_hangs_runs_once_and_costs_no_more_than_the_deadline(
    open_line: OpenLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = 0

    async def look_up(place: Place) -> list[SocketAddress]:
        nonlocal lookups
        lookups += 1
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(node, "_look_up", look_up)
    line = open_line("redis://redis.example:6379", 0.2)
    for _ in range(3):
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            await line.call(PING)
        assert time.monotonic() - begun < 0.5
        await asyncio.sleep(0.2)
    assert lookups == 1


async def test_an_unknown_name_is_said_to_be_one(open_line: OpenLine) -> None:
    with pytest.raises(Unavailable, match="its name cannot be resolved"):
        await open_line("redis://no-such-host.invalid:6379", 5.0).call(PING)


# ---- what is left behind


@pytest.mark.parametrize("what", ["attempt that failed", "connection that was lost"])
async def test_nothing_is_left_for_the_garbage_collector(
    open_line: OpenLine, debian_redis: RedisServer, what: str
) -> None:
    is_attempt = what == "attempt that failed"
    line = open_line(f"redis://127.0.0.1:{free_port()}" if is_attempt else debian_redis.url)

    async def once() -> None:
        with contextlib.suppress(Unavailable):
            await line.call(PING)
        line.reset("a test")
        await asyncio.sleep(0.02)
        line._not_before = 0.0  # at once, not after the pause

    await once()  # what exists once for all comes first
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            await once()
        gc.collect()
        left = [thing for thing in gc.garbage if isinstance(thing, Unavailable | BaseParser)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == []


async def test_a_subscription_that_ended_is_given_back_at_once(debian_redis: RedisServer) -> None:
    address = open_address(Access(url=debian_redis.url), prefix="discovery", timeout_secs=TIMEOUT)
    subscription = await Subscription.open(address, "{discovery}:changes", TIMEOUT)
    await subscription.barrier()
    remembered = weakref.ref(subscription)
    gc.disable()
    try:
        subscription.close()
        del subscription
        await until(lambda: remembered() is None, 1)
    finally:
        gc.enable()
