"""M5: four replicas on one Redis with four times the streams of one, and what idle replicas cost Redis.

An event is one POST to the first replica; each replica's streams are read by a process of their own. Four replicas and
four readers are eight busy processes, where one replica and one reader are two: with fewer processors than eight the
last stream can only come later by what is missing, so that its goal grows with it. What does not depend on the number
of processors is the processor time of the replicas for one stream and event.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from tests.bench.goals import Bound, Row
from tests.bench.load import CannotMeasure, Peer, get_request, register_all, registration
from tests.bench.plan import Plan
from tests.bench.propagation import percentile, post_number
from tests.bench.servers import cpu_secs, product, redis_server
from tests.bench.watchers import watched
from tests.live.replica import Replica

REPLICAS = 4
STREAMS = 1000
IDLE_POOLS = 1000
GAP_SECS = 0.15
SAME = 1.25


class Fanout(NamedTuple):
    """What some events came to: milliseconds to the last stream, and processor time for one stream and event."""

    last_ms: float
    cpu_us: float


def measure(plan: Plan) -> Iterator[Row]:
    """M5."""
    yield from _streams(plan)
    yield from _idle(plan)


def lag_allowed(processors: int) -> float:
    """How many times later the last stream of four replicas may be: as late, where every process has a processor."""
    alone, together = (max(1.0, busy / processors) for busy in (2, 2 * REPLICAS))
    return SAME * together / alone


def _streams(plan: Plan) -> Iterator[Row]:
    processors = os.cpu_count() or 1
    what = f"{REPLICAS} replicas, {STREAMS:,} streams each"
    cpu = Row("M5", f"{what}: CPU of a stream and event", "us", Bound("<=", SAME), "1 replica")
    lag = Row(
        "M5", f"{what}: last stream, {processors} processors", "ms", Bound("<=", lag_allowed(processors)), "1 replica"
    )
    numbers = iter(range(1, 10_000_000))
    with redis_server() as store, ExitStack() as stack:
        replicas = [stack.enter_context(product(store.url)) for _ in range(REPLICAS)]
        register_all(replicas[0].port, [registration(0)])
        for _ in plan.rounds():
            one = _fanout(replicas[:1], plan.events, numbers)
            four = _fanout(replicas, plan.events, numbers)
            cpu.add(four.cpu_us, one.cpu_us)
            lag.add(four.last_ms, one.last_ms)
            plan.tell(cpu, lag)
    yield from (cpu, lag)


def _fanout(replicas: Sequence[Replica], events: int, numbers: Iterator[int]) -> Fanout:
    peer = Peer(replicas[0].port)
    with ExitStack() as stack:
        stack.callback(peer.close)
        readers = [stack.enter_context(watched(each.port, get_request("/pools/events"), STREAMS)) for each in replicas]
        before = _cpu(replicas)
        sent = {}
        for number in (next(numbers) for _ in range(events)):
            sent[number] = time.monotonic_ns()
            post_number(peer, number)
            time.sleep(GAP_SECS * len(replicas))
        seen = [reader.stop(sent) for reader in readers]
        used = _cpu(replicas) - before
    try:
        last_ms = [(max(each[number] for each in seen) - at) / 1e6 for number, at in sent.items()]
    except KeyError as error:
        raise CannotMeasure(f"event {error} was not on every stream") from None
    return Fanout(percentile(last_ms, 0.5), used * 1e6 / (len(replicas) * STREAMS * events))


def _cpu(replicas: Sequence[Replica]) -> float:
    return sum(cpu_secs(each.pid) for each in replicas)


def _idle(plan: Plan) -> Iterator[Row]:
    """All at once: three servers that do nothing do not disturb each other."""
    what = f"Redis CPU for 1 of {REPLICAS} idle replicas, {IDLE_POOLS:,} pools"
    each = Row("M5", what, "ms/s", Bound("<=", SAME), "1 replica")
    counts = (0, 1, REPLICAS)
    with ExitStack() as stack:
        stores = [stack.enter_context(redis_server()) for _ in counts]
        for store, count in zip(stores, counts, strict=True):
            with product(store.url) as filler:
                register_all(filler.port, [registration(index) for index in range(IDLE_POOLS)])
            for _ in range(count):
                stack.enter_context(product(store.url))
        for _ in plan.rounds():
            before = [cpu_secs(store.pid) for store in stores]
            began = time.monotonic()
            time.sleep(plan.idle_secs)
            secs = time.monotonic() - began
            none, one, some = (
                (cpu_secs(store.pid) - was) * 1e3 / secs for store, was in zip(stores, before, strict=True)
            )
            each.add((some - none) / REPLICAS, one - none)
            plan.tell(each)
    yield each
