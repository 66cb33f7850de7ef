"""R1, R2 and R4: the list on 16 connections, whole and as 304.

The references serve the very bytes that the service serves; the peers hold the registrations that are in them.
"""

import http.client
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import redis

from tests.bench import consul, etcd
from tests.bench.goals import Bound, Row
from tests.bench.load import CannotMeasure, Load, Peer, get_request, load_get, register_all, registration
from tests.bench.plan import Plan, cpu_each
from tests.bench.references import ETAG
from tests.bench.servers import Reference, product, redis_server, reference
from tests.live.replica import Replica

CONNECTIONS = 16
SCANNERS = 4
SCAN_COUNT = 1000
MANY, MANY_SECS = 10_000, 5
# Where Starlette's own cost for a request is most of the answer, it is the limit; else the raw answer is.
AT_LEAST = {100: ("list-starlette", 0.9), 1000: ("list-raw", 0.85), 10_000: ("list-raw", 0.85)}
# Of each peer: how many times its rate is wanted with so many pools, and why it cannot be measured.
_PEERS: dict[str, tuple[Callable[[int], float], Callable[[], str | None]]] = {
    "scan-mget": (lambda pools: 2 if pools == 100 else 3, lambda: None),
    "etcd-range-gw": (lambda _: 10, etcd.absent),
    "etcd-range-grpc": (lambda pools: 2.5 if pools == 100 else 3, lambda: etcd.absent("h2load")),
    "consul-health": (lambda _: 10, consul.absent),
}


def measure_lists(plan: Plan, wanted: frozenset[str]) -> Iterator[Row]:
    """R1 and R2 for each number of pools."""
    for pools in plan.of_sizes(AT_LEAST):
        bodies = [registration(index) for index in range(pools)]
        with product() as ours:
            register_all(ours.port, bodies)
            load_get(ours.port, CONNECTIONS, 1)
            if "R1" in wanted:
                yield from _beside_limit(plan, pools, ours)
            if "R2" in wanted:
                yield from _beside_peers(plan, bodies, ours)


def _beside_limit(plan: Plan, pools: int, ours: Replica) -> Iterator[Row]:
    name, least = AT_LEAST[pools]
    goal = Row("R1", f"GET, {pools:,} pools", "req/s", Bound(">=", least), name)
    processor = Row("R1", f"server CPU, {pools:,} pools", "us/req", None, name)
    served = _served(ours.port)
    with reference(name, body=served) as theirs:
        if _served(theirs.port) != served:
            raise CannotMeasure("the product and the reference do not serve the same bytes")
        load_get(theirs.port, CONNECTIONS, 1)
        for _ in plan.rounds(plan.list_rounds):
            load, load_cpu = cpu_each(ours.pid, lambda: load_get(ours.port, CONNECTIONS, plan.secs))
            limit, limit_cpu = cpu_each(theirs.pid, lambda: load_get(theirs.port, CONNECTIONS, plan.secs))
            goal.add(load.per_sec, limit.per_sec)
            processor.add(load_cpu, limit_cpu)
            plan.tell(goal, processor)
    yield from (goal, processor)


def _beside_peers(plan: Plan, bodies: Sequence[bytes], ours: Replica) -> Iterator[Row]:
    pools = len(bodies)
    rows = {
        name: Row("R2", f"GET, {pools:,} pools", "req/s", Bound(">=", least(pools)), name, absent())
        for name, (least, absent) in _PEERS.items()
    }
    with ExitStack() as stack:
        rates = {name: _start_peer(name, bodies, stack) for name, row in rows.items() if row.absent is None}
        for _ in plan.rounds():
            load = load_get(ours.port, CONNECTIONS, plan.secs)
            for name, rate in rates.items():
                # The slowest answer takes a second and a half: a short window would end before most of them.
                rows[name].add(load.per_sec, rate(plan.secs if pools < MANY else max(plan.secs, MANY_SECS)))
            plan.tell(*rows.values())
    yield from rows.values()


def _start_peer(name: str, bodies: Sequence[bytes], stack: ExitStack) -> Callable[[float], float]:
    """A peer that holds the registrations, and its way to give whole lists a second in a window of so many seconds."""
    count, least_bytes = len(bodies), sum(map(len, bodies))
    if name == "scan-mget":
        keys = stack.enter_context(redis_server())
        fill(keys.port, bodies)
        return lambda secs: scan(keys.port, count, secs)
    if name == "consul-health":
        catalog = stack.enter_context(consul.consul())
        consul.fill(catalog.port, bodies)
        return lambda secs: consul.load_list(catalog.port, CONNECTIONS, secs).per_sec
    member = stack.enter_context(etcd.etcd())
    etcd.fill(member.port, bodies)
    if name == "etcd-range-gw":
        return lambda secs: etcd.load_range(member.port, CONNECTIONS, secs).per_sec
    words = ("KV/Range", etcd.range_message(), least_bytes)
    return lambda secs: etcd.load_grpc(member.port, CONNECTIONS, secs, *words).per_sec


def _served(port: int) -> bytes:
    peer = Peer(port)
    try:
        return peer.ask(get_request("/pools"))
    finally:
        peer.close()


def measure_not_modified(plan: Plan) -> Iterator[Row]:
    """R4: 304 beside the reference's 304 and the service's own 200; and whether a renewal keeps the ETag."""
    pools = 1000
    goal = Row("R4", f"304, {pools:,} pools", "req/s", Bound(">=", 0.9), "list-starlette")
    processor = Row("R4", "server CPU, 304", "us/req", None, "list-starlette")
    own = Row("R4", f"304 beside 200, {pools:,} pools", "req/s", Bound(">=", 8), "own 200")
    changed = Row("R4", "renewals that changed the ETag", "of 1 a round", Bound("<=", 0))
    bodies = [registration(index) for index in range(pools)]
    with product() as ours:
        register_all(ours.port, bodies)
        with reference("list-starlette", body=_served(ours.port)) as theirs:
            for _ in plan.rounds():
                etag = _etag(ours.port)
                load, load_cpu = _not_modified(ours, plan, etag)
                limit, limit_cpu = _not_modified(theirs, plan, ETAG.decode())
                goal.add(load.per_sec, limit.per_sec)
                processor.add(load_cpu, limit_cpu)
                own.add(load.per_sec, load_get(ours.port, CONNECTIONS, plan.secs).per_sec)
                register_all(ours.port, bodies[:1])
                changed.add(float(_etag(ours.port) != etag))
                plan.tell(goal, processor, own, changed)
    yield from (goal, own, changed, processor)


def _etag(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("HEAD", "/pools")
    etag = connection.getresponse().headers["ETag"]
    connection.close()
    return str(etag)


def _not_modified(server: Replica | Reference, plan: Plan, etag: str) -> tuple[Load, float]:
    """Load of which every answer is a 304: one that is not is seen before, since wrk counts both as good."""
    peer = Peer(server.port)
    peer.send(f"GET /pools HTTP/1.1\r\nHost: bench\r\nIf-None-Match: {etag}\r\n\r\n".encode())
    status, _ = peer.answer()
    peer.close()
    if status != 304:
        raise CannotMeasure(f"a GET with a fresh ETag was answered with {status}, not 304")
    headers = [("If-None-Match", etag)]
    return cpu_each(server.pid, lambda: load_get(server.port, CONNECTIONS, plan.secs, headers))


# ---- Redis itself: what a router would do without the service


def fill(port: int, bodies: Sequence[bytes], expire_at_ms: int | None = None) -> None:
    """One key for each body, with one deadline."""
    client = redis.Redis(port=port)
    deadline = expire_at_ms or round(time.time() * 1000) + 86_400_000
    for start in range(0, len(bodies), SCAN_COUNT):
        batch = client.pipeline(transaction=False)
        for index in range(start, min(start + SCAN_COUNT, len(bodies))):
            batch.set(f"pool:{index:06d}", bodies[index], pxat=deadline)
        batch.execute()
    client.close()


def scan(port: int, pools: int, secs: float) -> float:
    """Whole lists a second by SCAN and MGET, from four processes at once."""
    context = multiprocessing.get_context("fork")
    counts: Any = context.Queue()
    workers = [context.Process(target=_scan, args=(port, pools, secs, counts)) for _ in range(SCANNERS)]
    for worker in workers:
        worker.start()
    rate = sum(counts.get(timeout=secs + 60) for _ in workers)
    for worker in workers:
        worker.join()
    return float(rate)


def _scan(port: int, pools: int, secs: float, counts: Any) -> None:
    client = redis.Redis(port=port)
    client.ping()
    lists, started = 0, time.perf_counter()
    while (now := time.perf_counter()) - started < secs:
        keys = list(client.scan_iter("pool:*", count=SCAN_COUNT))
        values = [value for at in range(0, len(keys), SCAN_COUNT) for value in client.mget(keys[at : at + SCAN_COUNT])]
        if len(values) != pools:
            raise CannotMeasure(f"Redis gave {len(values)} of {pools} pools")
        lists += 1
    counts.put(lists / (now - started))
