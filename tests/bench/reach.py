"""P2: a write until the last of 1,000 watchers has it; for the service, watchers on another replica than the writer's.

Beside it the announcements of Redis with as many subscribers, and watches of etcd through its gateway and by gRPC, each
on a connection of its own.
"""

import re
import time
from collections.abc import Callable, Iterator

import redis

from tests.bench import etcd
from tests.bench.goals import Bound, Row
from tests.bench.load import MARK, CannotMeasure, Peer, get_request, register_all, registration
from tests.bench.plan import Plan
from tests.bench.propagation import SUBSCRIBE, percentile, post_number, publish_number, put_number
from tests.bench.servers import product, redis_server
from tests.bench.watchers import Watchers, watched

WATCHERS = 1000
GAP_SECS = 0.15  # longer than the service waits between two rounds of events


def measure(plan: Plan) -> Iterator[Row]:
    """P2."""
    what = f"POST to A until {WATCHERS:,} streams of B, p50"
    beside_redis = Row("P2", what, "ms", Bound("<=", 2), "redis")
    gateway = Row("P2", what, "ms", Bound("<=", 0.6), "etcd-gw", etcd.absent())
    grpc = Row("P2", what, "ms", Bound("<=", 0.8), "etcd-grpc", etcd.absent())
    numbers = iter(range(1, 10_000_000))
    for _ in plan.rounds():
        ours = _service(plan.events, numbers)
        beside_redis.add(ours, _redis(plan.events, numbers))
        if gateway.absent is None:
            gateway.add(ours, _etcd(etcd.watch_greeting(), etcd.KEY_MARKS, plan.events, numbers))
            grpc.add(ours, _etcd(etcd.grpc_watch_greeting(), MARK, plan.events, numbers))
        plan.tell(beside_redis, gateway, grpc)
    yield from (beside_redis, gateway, grpc)


def _service(events: int, numbers: Iterator[int]) -> float:
    with redis_server() as shared, product(shared.url) as a, product(shared.url) as b:
        register_all(a.port, [registration(0)])
        peer = Peer(a.port)
        try:
            with watched(b.port, get_request("/pools/events"), WATCHERS) as watchers:
                return sent_to_last(lambda number: post_number(peer, number), watchers, events, numbers)
        finally:
            peer.close()


def _redis(events: int, numbers: Iterator[int]) -> float:
    with redis_server() as alone, watched(alone.port, SUBSCRIBE, WATCHERS) as watchers:
        client = redis.Redis(port=alone.port)
        try:
            return sent_to_last(lambda number: publish_number(client, number), watchers, events, numbers)
        finally:
            client.close()


def _etcd(greeting: bytes, marks: "re.Pattern[bytes]", events: int, numbers: Iterator[int]) -> float:
    """Written through the gateway in both cases, which costs a fraction of a millisecond more."""
    with etcd.etcd() as member, watched(member.port, greeting, WATCHERS, marks) as watchers:
        peer = Peer(member.port)
        try:
            return sent_to_last(lambda number: put_number(peer, number), watchers, events, numbers)
        finally:
            peer.close()


def sent_to_last(write: Callable[[int], None], watchers: Watchers, events: int, numbers: Iterator[int]) -> float:
    """The median of the milliseconds from before each write until the last watcher had it."""
    sent: dict[int, int] = {}
    for _ in range(events):
        number = next(numbers)
        sent[number] = time.monotonic_ns()
        write(number)
        time.sleep(GAP_SECS)
    seen = watchers.stop(sent)
    if missing := sent.keys() - seen.keys():
        raise CannotMeasure(f"{len(missing)} of {events} writes were not seen by every watcher")
    return percentile([(seen[number] - at) / 1e6 for number, at in sent.items()], 0.5)
