"""P1: a POST to one replica until it is on the stream, and in the list, of another; idle, one watcher.

Beside it Redis itself: SET and PUBLISH by redis-py until one subscriber has the message; and a put to etcd until a
watcher has it, both through the gateway.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import redis

from tests.bench import etcd
from tests.bench.goals import NONE_AT_ALL, Bound, Row
from tests.bench.load import MARK, CannotMeasure, Peer, get_request, mark, post_request, register_all, registration
from tests.bench.plan import Plan
from tests.bench.servers import product, redis_server
from tests.bench.watchers import Watchers, watched

GAP_SECS = 0.02
CHANNEL = "changes"
SUBSCRIBE = b"*2\r\n$9\r\nSUBSCRIBE\r\n$7\r\n%b\r\n" % CHANNEL.encode()
FIRST_COUNTED = 10_000_000


def measure(plan: Plan) -> Iterator[Row]:
    """P1."""
    on_stream, in_list = "POST to A until on B's stream, p50", "POST to A until in B's list, p50"
    stream = Row("P1", on_stream, "ms", Bound("<=", 3), "redis")
    listed = Row("P1", in_list, "ms", Bound("<=", 3), "redis")
    stream_etcd = Row("P1", on_stream, "ms", Bound("<=", 1), "etcd-gw", etcd.absent())
    listed_etcd = Row("P1", in_list, "ms", Bound("<=", 1), "etcd-gw", etcd.absent())
    late = Row("P1", "POST to A until on B's stream, p99", "ms", Bound("<=", 50))
    lost = Row("P1", f"lost of {plan.counted_writes:,} writes", "writes", NONE_AT_ALL)
    rows = (stream, listed, stream_etcd, listed_etcd, late)
    numbers = iter(range(1, FIRST_COUNTED))
    with ExitStack() as stack:
        shared, alone = (stack.enter_context(redis_server()) for _ in range(2))
        a, b = (stack.enter_context(product(shared.url)) for _ in range(2))
        member = stack.enter_context(etcd.etcd()) if etcd.absent() is None else None
        client = redis.Redis(port=alone.port)
        to_a, of_b = Peer(a.port), Peer(b.port)
        register_all(a.port, [registration(0)])
        for _ in plan.rounds():
            with watched(alone.port, SUBSCRIBE) as watcher:
                limit = _until_seen(lambda number: publish_number(client, number), watcher, plan.writes, numbers)
            with watched(b.port, get_request("/pools/events")) as watcher:
                seen = _until_seen(lambda number: post_number(to_a, number), watcher, plan.writes, numbers)
            found = [_until_listed(to_a, of_b, next(numbers)) for _ in range(plan.writes)]
            stream.add(percentile(seen, 0.5), percentile(limit, 0.5))
            late.add(percentile(seen, 0.99))
            listed.add(percentile(found, 0.5), percentile(limit, 0.5))
            if member is not None:
                put = percentile(_until_watched(member.port, plan.writes, numbers), 0.5)
                stream_etcd.add(percentile(seen, 0.5), put)
                listed_etcd.add(percentile(found, 0.5), put)
            plan.tell(*rows)
        lost.add(_count_lost(a.port, b.port, plan.counted_writes))
        plan.tell(lost)
        client.close()
    yield from (*rows, lost)


def _until_watched(port: int, writes: int, numbers: Iterator[int]) -> list[float]:
    """The same of etcd: puts through the gateway until a watch through it shows their keys."""
    peer = Peer(port)
    try:
        with watched(port, etcd.watch_greeting(), marks=etcd.KEY_MARKS) as watcher:
            return _until_seen(lambda number: put_number(peer, number), watcher, writes, numbers)
    finally:
        peer.close()


def percentile(samples: list[float], share: float) -> float:
    """The sample that ``share`` of all are below; samples must not be empty."""
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def publish_number(client: "redis.Redis", number: int) -> None:
    """One write with announcement to Redis itself."""
    body = registration(0, number)
    both = client.pipeline(transaction=True)
    both.set("pool:0", body, px=15_000)
    both.publish(CHANNEL, body)
    both.execute()


def post_number(peer: Peer, number: int) -> None:
    """One registration with that mark."""
    peer.ask(post_request(registration(0, number)))


def put_number(peer: Peer, number: int) -> None:
    """One put to etcd, under the key and with the mark of that number."""
    peer.ask(etcd.gateway_request(etcd.PUT, etcd.put_body(number, registration(0, number))))


def _until_seen(write: Callable[[int], None], watcher: Watchers, writes: int, numbers: Iterator[int]) -> list[float]:
    """Milliseconds from before each write until the watcher had it."""
    sent: dict[int, int] = {}
    for _ in range(writes):
        number = next(numbers)
        sent[number] = time.monotonic_ns()
        write(number)
        time.sleep(GAP_SECS)  # so that each write meets an idle service
    seen = watcher.stop(sent)
    missing = sent.keys() - seen.keys()
    if missing:
        raise CannotMeasure(f"{len(missing)} of {writes} writes were never seen")
    return [(seen[number] - at) / 1e6 for number, at in sent.items()]


def _until_listed(to_a: Peer, of_b: Peer, number: int) -> float:
    """Milliseconds from before the POST until an answer of the other replica shows it."""
    request, look, wanted = post_request(registration(0, number)), get_request("/pools"), mark(number)
    time.sleep(GAP_SECS)
    started = time.monotonic_ns()
    to_a.send(request)
    while wanted not in of_b.ask(look):
        if time.monotonic_ns() - started > 10e9:
            raise CannotMeasure("a write was not in the other replica's list after 10 s")
    found = time.monotonic_ns()
    status, body = to_a.answer()
    if status != 200:
        raise CannotMeasure(f"a registration was answered with {status}: {body[:200]!r}")
    return (found - started) / 1e6


def _count_lost(a: int, b: int, writes: int) -> int:
    """As many pools as writes, each written once, as fast as they are taken: which of them the stream never showed."""
    last = FIRST_COUNTED + writes - 1
    with watched(b, get_request("/pools/events")) as watcher:
        register_all(a, [registration(1 + index, FIRST_COUNTED + index) for index in range(writes)])
        seen = watcher.stop([last])
    peer = Peer(b)
    listed = {int(found) for found in MARK.findall(peer.ask(get_request("/pools")))}
    peer.close()
    wanted = set(range(FIRST_COUNTED, last + 1))
    return len(wanted - (seen.keys() & listed))
