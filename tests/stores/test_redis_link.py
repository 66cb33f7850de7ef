"""Connections that carry many callers, on a real server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from discovery.stores.redis_address import Access, open_address
from discovery.stores.redis_link import Line, pack
from tests.live.redis_server import RedisServer

pytestmark = pytest.mark.live

WHO = pack("CLIENT", "ID")


@pytest.fixture
async def line(debian_redis: RedisServer) -> AsyncIterator[Line]:
    opened = Line(open_address(Access(url=debian_redis.url), prefix="discovery", timeout_secs=1.0), 1.0)
    yield opened
    await opened.close()


async def test_a_reset_line_connects_anew_for_the_next_call(line: Line) -> None:
    first = await line.call(WHO)
    assert await line.call(WHO) == first
    line.reset("a test")
    assert await line.call(WHO) != first


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
    assert await line.call(pack("PING")) == [b"PONG"]
