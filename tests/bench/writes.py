"""W1 and W2: heartbeats through Redis on 32 connections, and on one.

Every POST changes its pool, so that the service has to store and announce each one, as the reference does.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench.goals import Bound, Row
from tests.bench.load import load_post, registration
from tests.bench.plan import Plan, cpu_each
from tests.bench.servers import product, redis_server, reference

POOLS = 1000
CONNECTIONS = 32


def measure(plan: Plan) -> Iterator[Row]:
    """W1, and beside it the heartbeats that say nothing new."""
    changing = [registration(index, number) for number in (1, 2) for index in range(POOLS)]
    same = changing[:POOLS]
    goal = Row("W1", "POST that changes", "req/s", Bound(">=", 0.6), "post")
    renewals = Row("W1", "POST that renews", "req/s", None, "post")
    processor = Row("W1", "server CPU, changes", "us/req", None, "post")
    with ExitStack() as stack:
        ours = stack.enter_context(product(stack.enter_context(redis_server()).url))
        theirs = stack.enter_context(reference("post", redis_port=stack.enter_context(redis_server()).port))
        for server in (ours, theirs):
            load_post(server.port, CONNECTIONS, 1, changing)
        for _ in plan.rounds():
            limit, limit_cpu = cpu_each(theirs.pid, lambda: load_post(theirs.port, CONNECTIONS, plan.secs, changing))
            load, load_cpu = cpu_each(ours.pid, lambda: load_post(ours.port, CONNECTIONS, plan.secs, changing))
            goal.add(load.per_sec, limit.per_sec)
            processor.add(load_cpu, limit_cpu)
            renewals.add(load_post(ours.port, CONNECTIONS, plan.secs, same).per_sec, limit.per_sec)
            plan.tell(goal, processor, renewals)
    yield from (goal, renewals, processor)


def measure_one(plan: Plan) -> Iterator[Row]:
    """W2: one connection, so that nothing can be done for many at once."""
    changing = [registration(index, number) for number in (1, 2) for index in range(POOLS)]
    goal = Row("W2", "POST that changes, 1 connection, p50", "ms", Bound("<=", 1.3), "post-multi")
    processor = Row("W2", "server CPU, 1 connection", "us/req", None, "post-multi")
    with ExitStack() as stack:
        ours = stack.enter_context(product(stack.enter_context(redis_server()).url))
        theirs = stack.enter_context(reference("post-multi", redis_port=stack.enter_context(redis_server()).port))
        for server in (ours, theirs):
            load_post(server.port, 1, 1, changing)
        for _ in plan.rounds():
            limit, limit_cpu = cpu_each(theirs.pid, lambda: load_post(theirs.port, 1, plan.secs, changing))
            load, load_cpu = cpu_each(ours.pid, lambda: load_post(ours.port, 1, plan.secs, changing))
            goal.add(load.p50, limit.p50)
            processor.add(load_cpu, limit_cpu)
            plan.tell(goal, processor)
    yield from (goal, processor)
