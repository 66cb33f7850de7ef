"""R3: the list on 16 connections while every pool sends its heartbeats to the same worker, beside the list alone.

Each pool beats every five seconds and each heartbeat says another capacity, so that the body of the list changes all
the time. Registrations are kept in Redis.
"""

from collections.abc import Callable, Iterator, Sequence

from tests.bench.goals import Bound, Row
from tests.bench.load import load_get, post_request, register_all, registration
from tests.bench.paced import LEAST_SHARE, paced
from tests.bench.plan import Plan, cpu_each
from tests.bench.reads import CONNECTIONS
from tests.bench.servers import product, redis_server
from tests.live.replica import Replica

AT_LEAST = {1000: 0.7, 10_000: 0.6}
BEAT_SECS = 5
SENDERS = 256  # enough that each may wait for 100 ms
_QUANTITY = b'"quantity":65536'


def measure(plan: Plan) -> Iterator[Row]:
    """R3 for each number of pools."""
    for pools in plan.of_sizes(AT_LEAST):
        bodies = [registration(index) for index in range(pools)]
        with redis_server() as store, product(store.url) as service:
            register_all(service.port, bodies)
            load_get(service.port, CONNECTIONS, 1)
            yield from _rows(plan, service, bodies)


def _rows(plan: Plan, service: Replica, bodies: Sequence[bytes]) -> Iterator[Row]:
    pools = len(bodies)
    per_sec = pools / BEAT_SECS
    goal = Row(
        "R3", f"GET while {per_sec:,.0f} POST/s, {pools:,} pools", "req/s", Bound(">=", AT_LEAST[pools]), "own R1"
    )
    processor = Row("R3", f"server CPU, both, {pools:,} pools", "us/GET", None, "own R1")
    taken = Row("R3", f"POSTs taken meanwhile, {pools:,} pools", "POST/s", Bound(">=", LEAST_SHARE * per_sec))
    late = Row("R3", f"POST p99 meanwhile, {pools:,} pools", "ms", None)
    for number in plan.rounds():
        alone, alone_cpu = cpu_each(service.pid, lambda: load_get(service.port, CONNECTIONS, plan.secs))
        with paced(service.port, heartbeats(bodies, number), per_sec, SENDERS) as beats:
            mixed, mixed_cpu = cpu_each(service.pid, lambda: load_get(service.port, CONNECTIONS, plan.secs))
            pace = beats.stop()
        goal.add(mixed.per_sec, alone.per_sec)
        processor.add(mixed_cpu, alone_cpu)
        taken.add(pace.per_sec)
        late.add(sorted(pace.took_ms)[int(len(pace.took_ms) * 0.99)])
        plan.tell(goal, taken, processor, late)
    yield from (goal, taken, processor, late)


def heartbeats(bodies: Sequence[bytes], first_turn: int) -> Callable[[int], bytes]:
    """The pools in turn, each time with a quantity that it did not have before."""

    def request(number: int) -> bytes:
        turn, index = divmod(number, len(bodies))
        quantity = 10_000 + (1000 * first_turn + turn) % 50_000
        return post_request(bodies[index].replace(_QUANTITY, b'"quantity":%d' % quantity))

    return request
