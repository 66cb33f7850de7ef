"""W1 and W2: heartbeats through Redis on 32 connections, and on one.

Every POST changes its pool, so that the service has to store and announce each one, as the references do.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tests.bench import etcd
from tests.bench.goals import Bound, Row
from tests.bench.load import Load, load_post, registration
from tests.bench.plan import Plan, cpu_each
from tests.bench.servers import product, redis_server, reference

POOLS = 1000
CONNECTIONS = 32


def measure(plan: Plan) -> Iterator[Row]:
    """W1, and beside it the heartbeats that say nothing new."""
    changing = _changing()
    same = changing[:POOLS]
    goal = Row("W1", "POST that changes", "req/s", Bound(">=", 0.6), "post")
    renewals = Row("W1", "POST that renews", "req/s", None, "post")
    processor = Row("W1", "server CPU, changes", "us/req", None, "post")
    gateway = Row("W1", "POST that changes", "req/s", Bound(">=", 2), "etcd-put-gw", etcd.absent())
    grpc = Row("W1", "POST that changes", "req/s", Bound(">=", 1.2), "etcd-put-grpc", etcd.absent("h2load"))
    late = Row("W1", "POST that changes, p99", "ms", Bound("<=", 1), "etcd-put-gw", etcd.absent())
    rows = (goal, gateway, grpc, late, renewals, processor)
    with ExitStack() as stack:
        ours = stack.enter_context(product(stack.enter_context(redis_server()).url))
        theirs = stack.enter_context(reference("post", redis_port=stack.enter_context(redis_server()).port))
        member = _Etcd(stack)
        for server in (ours, theirs):
            load_post(server.port, CONNECTIONS, 1, changing)
        for _ in plan.rounds():
            limit, limit_cpu = cpu_each(theirs.pid, lambda: load_post(theirs.port, CONNECTIONS, plan.secs, changing))
            load, load_cpu = cpu_each(ours.pid, lambda: load_post(ours.port, CONNECTIONS, plan.secs, changing))
            goal.add(load.per_sec, limit.per_sec)
            processor.add(load_cpu, limit_cpu)
            renewals.add(load_post(ours.port, CONNECTIONS, plan.secs, same).per_sec, limit.per_sec)
            if gateway.absent is None:
                put = member.put(CONNECTIONS, plan.secs, changing)
                gateway.add(load.per_sec, put.per_sec)
                late.add(load.p99, put.p99)
            if grpc.absent is None:
                grpc.add(load.per_sec, member.put_by_grpc(CONNECTIONS, plan.secs, changing[0]).per_sec)
            plan.tell(*rows)
    yield from rows


def measure_one(plan: Plan) -> Iterator[Row]:
    """W2: one connection, so that nothing can be done for many at once."""
    changing = _changing()
    goal = Row("W2", "POST that changes, 1 connection, p50", "ms", Bound("<=", 1.3), "post-multi")
    gateway = Row("W2", "POST that changes, 1 connection, p50", "ms", Bound("<=", 1), "etcd-put-gw", etcd.absent())
    processor = Row("W2", "server CPU, 1 connection", "us/req", None, "post-multi")
    with ExitStack() as stack:
        ours = stack.enter_context(product(stack.enter_context(redis_server()).url))
        theirs = stack.enter_context(reference("post-multi", redis_port=stack.enter_context(redis_server()).port))
        member = _Etcd(stack)
        for server in (ours, theirs):
            load_post(server.port, 1, 1, changing)
        for _ in plan.rounds():
            limit, limit_cpu = cpu_each(theirs.pid, lambda: load_post(theirs.port, 1, plan.secs, changing))
            load, load_cpu = cpu_each(ours.pid, lambda: load_post(ours.port, 1, plan.secs, changing))
            goal.add(load.p50, limit.p50)
            processor.add(load_cpu, limit_cpu)
            if gateway.absent is None:
                gateway.add(load.p50, member.put(1, plan.secs, changing).p50)
            plan.tell(goal, gateway, processor)
    yield from (goal, gateway, processor)


def _changing() -> list[bytes]:
    return [registration(index, number) for number in (1, 2) for index in range(POOLS)]


class _Etcd:
    """etcd with leases, where there is one."""

    def __init__(self, stack: ExitStack) -> None:
        if etcd.absent() is None:
            self._port = stack.enter_context(etcd.etcd()).port
            self._leases = etcd.grant(self._port, etcd.LEASES)

    def put(self, connections: int, secs: float, bodies: Sequence[bytes]) -> Load:
        """Through the gateway, the bodies in turn."""
        return etcd.load_put(self._port, connections, secs, bodies, self._leases)

    def put_by_grpc(self, connections: int, secs: float, body: bytes) -> Load:
        """By gRPC, the same key again and again."""
        return etcd.load_grpc(self._port, connections, secs, "KV/Put", etcd.put_message(body, self._leases[0]))
