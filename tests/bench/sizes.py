"""M1, M2 and M3: what a replica costs and how long it takes to start, from 100 to 100,000 pools in one Redis.

M2: POSTs that change, POSTs that renew and GETs, each in turn on replicas of every size, by processor time of the
replica; and of one size that of Redis. M3: a further replica on the same Redis, from just before its process is started
until it has answered with the whole list. M1: the memory of that replica after the list was read and pools have
changed, and that of Redis.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from tests.bench.fanout import subscribed
from tests.bench.goals import Bound, Row
from tests.bench.load import CannotMeasure, Load, Peer, get_request, load_get, load_post, register_all, registration
from tests.bench.plan import Plan
from tests.bench.servers import cpu_secs, launched_product, product, redis_server, resident_kib
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign

SIZES = (100, 1000, 10_000, 100_000)
RESIDENT_MB = {10_000: 120, 100_000: 800}
START_SECS = {10_000: 1, 100_000: 8}
STREAM_POOLS = 10_000
STREAMS = 1000
CHANGED_POOLS = 1000
POSTERS = 32
READERS = 4
FLAT = 1.5
SMALLEST_READ = 1000  # below it what a request costs anyway is much of the whole
LOOK_EVERY_SECS = 0.005


def measure(plan: Plan, wanted: frozenset[str]) -> Iterator[Row]:
    """M1, M2 and M3."""
    sizes = plan.of_sizes(SIZES if "M2" in wanted else START_SECS)
    with ExitStack() as stack:
        stores = {}
        held = Row("M1", f"Redis memory of 1 of {STREAM_POOLS:,} pools", "kB", None)
        with ExitStack() as filling:
            replicas = {}
            for size in sizes:
                stores[size] = stack.enter_context(redis_server())
                empty = _used_bytes(stores[size])
                replicas[size] = filling.enter_context(product(stores[size].url))
                register_all(replicas[size].port, [registration(index) for index in range(size)])
                if size == STREAM_POOLS:
                    held.add((_used_bytes(stores[size]) - empty) / 1e3 / size)
            if "M2" in wanted:
                yield from _growth(plan, replicas)
                if STREAM_POOLS in replicas:
                    yield from _store_share(plan, replicas[STREAM_POOLS], stores[STREAM_POOLS], STREAM_POOLS)
        if wanted & {"M1", "M3"}:
            for size in (size for size in sizes if size in START_SECS):
                yield from _starts(plan, stores[size], size)
        if held.product:
            yield held


# ---- M2


def _growth(plan: Plan, replicas: Mapping[int, Replica]) -> Iterator[Row]:
    bodies = {size: _changes(size) for size in replicas}
    ways: dict[str, Callable[[int], float]] = {
        "change": lambda size: _each(replicas[size], lambda: _post(replicas[size], plan, bodies[size])),
        "heartbeat": lambda size: _renewal(replicas[size], plan, bodies[size]),
        "GET": lambda size: _read(replicas[size], plan),
    }
    for what, way in ways.items():
        unit = "us/MB" if what == "GET" else "us"
        each = {size: Row("M2", f"CPU of a {what}, {size:,} pools", unit, None) for size in replicas}
        for _ in plan.rounds():
            for size, row in each.items():
                row.add(way(size))
            plan.tell(*each.values())
        yield _flatness(what, unit, each)
        yield from each.values()


def _flatness(what: str, unit: str, each: Mapping[int, Row]) -> Row:
    """The dearest size beside the cheapest; of GETs, for a megabyte, any size beside the smallest that is much."""
    sizes = [size for size in each if size >= SMALLEST_READ or what != "GET"]
    base = min(sizes) if what == "GET" else min(sizes, key=lambda size: each[size].figure)
    dearest = max(sizes, key=lambda size: each[size].figure)
    beside = f"{base:,} pools" if what == "GET" else "cheapest size"
    flat = Row("M2", f"CPU of a {what}, dearest size", unit, Bound("<=", FLAT), beside)
    for sample, cheapest in zip(each[dearest].product, each[base].product, strict=True):
        flat.add(sample, cheapest)
    return flat


def _changes(size: int) -> list[bytes]:
    """Two bodies for each of some pools, evenly from all; as many pools of each size, so that only the others grow."""
    return [registration(index, number) for number in (1, 2) for index in _evenly(size, min(SIZES))]


def _evenly(size: int, count: int) -> Sequence[int]:
    return range(0, size, max(1, size // count))


def _post(replica: Replica, plan: Plan, bodies: Sequence[bytes]) -> Load:
    return load_post(replica.port, POSTERS, plan.secs / 2, bodies)


def _renewal(replica: Replica, plan: Plan, bodies: Sequence[bytes]) -> float:
    said = bodies[: len(bodies) // 2]
    register_all(replica.port, said)
    return _each(replica, lambda: _post(replica, plan, said))


def _read(replica: Replica, plan: Plan) -> float:
    """For each megabyte that was read, that of answers which the end of the window cut off as well."""
    _list(replica)
    before = cpu_secs(replica.pid)
    done = load_get(replica.port, READERS, plan.secs / 2)
    return (cpu_secs(replica.pid) - before) * 1e6 / done.read_mb


def _list(replica: Replica) -> bytes:
    peer = Peer(replica.port)
    try:
        return peer.ask(get_request("/pools"))
    finally:
        peer.close()


def _store_share(plan: Plan, replica: Replica, store: RedisServer, size: int) -> Iterator[Row]:
    """What of a POST is Redis's: without a bound, for whoever plans how much Redis must bear."""
    bodies = _changes(size)
    change = Row("M2", f"Redis CPU of a change, {size:,} pools", "us", None)
    renewal = Row("M2", f"Redis CPU of a heartbeat, {size:,} pools", "us", None)
    for _ in plan.rounds():
        change.add(_each(store, lambda: _post(replica, plan, bodies)))
        said = bodies[: len(bodies) // 2]
        register_all(replica.port, said)
        renewal.add(_each(store, lambda said=said: _post(replica, plan, said)))
        plan.tell(change, renewal)
    yield from (change, renewal)


def _used_bytes(store: RedisServer) -> int:
    return int(store.cli("INFO", "memory")["used_memory"])


def _each(server: Replica | RedisServer, load: Callable[[], Load]) -> float:
    """Microseconds of a server's processor time for each request."""
    before = cpu_secs(server.pid)
    done = load()
    return (cpu_secs(server.pid) - before) * 1e6 / max(1, done.requests)


# ---- M1 and M3


def _starts(plan: Plan, store: RedisServer, size: int) -> Iterator[Row]:
    first = Row("M3", f"start until the first whole list, {size:,} pools", "s", Bound("<=", START_SECS[size]))
    used = Row("M3", f"server CPU until then, {size:,} pools", "s", None)
    resident = Row("M1", f"RSS, {size:,} pools", "MB", Bound("<=", RESIDENT_MB[size]))
    stream = Row("M1", f"RSS of 1 of {STREAMS:,} streams, {size:,} pools", "kB", Bound("<=", 15))
    for number in plan.rounds():
        began = time.monotonic()
        with launched_product(store.url) as replica:
            _await_list(replica, size)
            first.add(time.monotonic() - began)
            used.add(cpu_secs(replica.pid))
            _change_some(replica, size, number)
            resident.add(_resident_mb(replica))
            if size == STREAM_POOLS:
                with subscribed(replica.port, STREAMS):
                    stream.add((_resident_mb(replica) - resident.product[-1]) * 1e3 / STREAMS)
        plan.tell(first, used, resident, *([stream] if stream.product else []))
    yield from (row for row in (first, resident, stream, used) if row.product)


def _resident_mb(replica: Replica) -> float:
    return resident_kib(replica.pid) * 1024 / 1e6


class _List(msgspec.Struct):
    pools: list[msgspec.Raw]


def _await_list(replica: Replica, size: int) -> None:
    """Until the list is read; ``CannotMeasure`` when it holds less than Redis.

    It does not say ``complete``: leases of a run last a day, and Redis began with nothing less than one lease ago.
    """
    await_sign(lambda: replica.says("/readyz", 200), 60, "the service is ready", every=LOOK_EVERY_SECS)
    found = msgspec.json.decode(_list(replica), type=_List)
    if len(found.pools) != size:
        raise CannotMeasure(f"a replica that is ready lists {len(found.pools):,} of {size:,} pools")


def _change_some(replica: Replica, size: int, number: int) -> None:
    register_all(replica.port, [registration(index, 10 + number) for index in _evenly(size, CHANGED_POOLS)])
    _list(replica)
