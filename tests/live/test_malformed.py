"""Five thousand requests that went wrong, against one replica: what comes back, and what stays."""

import asyncio
import json
import re
from typing import NamedTuple

import pytest

from tests.live.conftest import MakeReplica
from tests.live.mutations import mutated
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica, pool
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

COUNT = 5_000
AT_ONCE = 150
PATIENCE_SECS = 30
MIB = 1024 * 1024
STREAM = b"content-type: text/event-stream"
# What the server itself refuses ends the connection; what a route refuses leaves it open.
STATUSES = {200, 204, 304, 400, 403, 404, 405, 408, 413, 414, 415, 422, 431, 501}


class Outcome(NamedTuple):
    """One connection: what was sent ahead of the request behind it, and all that came back."""

    sent: bytes
    received: bytes
    is_stream: bool
    in_time: bool
    is_cut: bool


def behind(index: int) -> bytes:
    """A whole registration; where it is stored, everything before it on its connection was taken."""
    body = json.dumps(pool(f"behind/n1/p{index}")).encode()
    return (
        b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


async def converse(port: int, index: int, data: bytes, places: asyncio.Semaphore) -> Outcome:
    """Send a request and another one behind it, and read to the end of the connection."""
    received = b""
    async with places:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        in_time = is_cut = False
        try:
            async with asyncio.timeout(PATIENCE_SECS):
                writer.write(data + behind(index))
                while STREAM not in received:
                    part = await reader.read(65536)
                    if not part:
                        break
                    received += part
                in_time = True
        except ConnectionError:
            in_time = is_cut = True  # a reset: an answer that was on its way does not count
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()
    return Outcome(data, received, STREAM in received, in_time, is_cut)


async def converse_with_all(port: int, requests: list[bytes]) -> list[Outcome]:
    places = asyncio.Semaphore(AT_ONCE)
    return await asyncio.gather(*(converse(port, index, data, places) for index, data in enumerate(requests)))


def check_answers(outcome: Outcome) -> tuple[list[int], bytes]:
    """Fail where what came back is no HTTP; gives the statuses and the last body."""
    raw, statuses, body, last = outcome.received, [], b"", False
    while raw:
        assert not last, "an answer behind the one that ends the connection"
        head, end, raw = raw.partition(b"\r\n\r\n")
        if not end and outcome.is_cut:
            break
        assert end, f"a head without an end: {head[-200:]!r}"
        line, *lines = head.decode("ascii").split("\r\n")
        assert re.fullmatch(r"HTTP/1\.1 [1-5][0-9]{2} [A-Za-z -]+", line), line
        statuses.append(int(line.split()[1]))
        if statuses[-1] == 100:
            assert not lines
            continue
        headers = dict(line.split(": ", 1) for line in lines)
        assert headers["x-content-type-options"] == "nosniff"
        assert "content-security-policy" in headers
        # On a machine that stands still the store is late, and 503 is the honest answer.
        assert statuses[-1] in STATUSES or (statuses[-1] == 503 and "retry-after" in headers), head
        if headers.get("content-type", "").startswith("text/event-stream"):
            return statuses, b""
        last = headers.get("connection") == "close"
        length = int(headers.get("content-length", "0"))
        is_head = b"HEAD" in outcome.sent and (not raw or raw.startswith(b"HTTP/1.1 "))
        if length and not is_head:
            if len(raw) < length and outcome.is_cut:
                break
            assert len(raw) >= length, "the connection ended inside a body"
            body, raw = raw[:length], raw[length:]
            if headers["content-type"] == "application/problem+json":
                assert json.loads(body)["status"] == statuses[-1]
    return statuses, body


def test_thousands_of_malformed_requests_leave_the_process_as_it_was(
    debian_redis: RedisServer, start_replica: MakeReplica
) -> None:
    flags = ("--request-timeout-secs", "0.5", "--keep-alive-secs", "0.5")
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    replica: Replica = start_replica(redis_url=debian_redis.url, lease=600, heartbeat=5, flags=flags)
    await_sign(lambda: replica.pools().complete, 10, "a complete list")
    replica.register("before/n1/p1")
    pid, rss, descriptors = replica.pid, replica.rss, replica.descriptors

    outcomes = asyncio.run(converse_with_all(replica.port, list(mutated(COUNT, seed=7))))

    assert replica.running
    assert replica.pid == pid
    stored = {pool["dgd_name"] for pool in replica.pools().json["pools"] if pool["cluster_id"] == "behind"}
    seen: set[int] = set()
    for index, outcome in enumerate(outcomes):
        assert outcome.in_time, f"neither answered nor closed: {outcome.sent!r} ({outcome.received[-300:]!r})"
        try:
            statuses, body = check_answers(outcome)
            if f"p{index}" in stored and not (outcome.is_stream or outcome.is_cut):
                assert statuses[-1:] in ([200], [503]), "it was stored, and its sender was told otherwise"
                assert b"lease_duration_secs" in body or statuses[-1] == 503
        except AssertionError as error:
            raise AssertionError(
                f"{error}\nsent: {outcome.sent[:2000]!r}\nreceived: {outcome.received[:2000]!r}"
            ) from None
        seen.update(statuses)
    # The requests are no use where nearly all of them go wrong in the same way.
    assert seen >= STATUSES - {304}, STATUSES - seen
    assert len(stored) > COUNT / 20
    assert "Traceback" not in replica.log, replica.log[-3000:]
    assert all(re.match("20[0-9]{2}-", line) for line in replica.log.splitlines()), "something wrote a line of its own"
    assert all(line.isprintable() for line in replica.log.splitlines())
    assert replica.lists("before/n1/p1")
    await_sign(lambda: replica.descriptors <= descriptors + 5, 10, "all connections are closed")
    assert replica.rss - rss < 48 * MIB
