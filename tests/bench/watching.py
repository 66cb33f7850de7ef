"""K1 and K2: the watcher on a cluster of many slices, as its events come and when the service starts.

The API server is the one of the tests, in a process of its own. What it costs itself is measured as well: it has to
have time to spare, else its pace would be measured and not the service's.
"""

import contextlib
import http.client
import itertools
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.bench.expiry import _events as events_of
from tests.bench.goals import NONE_AT_ALL, Bound, Row
from tests.bench.imports import SLICES, Event, ImportedPools, Key, Urls
from tests.bench.load import CannotMeasure, register_all
from tests.bench.plan import Plan
from tests.bench.propagation import percentile
from tests.bench.servers import cpu_secs, launched_product, product, redis_server, resident_kib
from tests.live.replica import Replica
from tests.live.signs import await_sign
from tests.mcs.api_process import ApiServerProcess, write_kubeconfig

CONTEXT = "hub"
EVENTS_PER_SEC = 100
LEAST_PACE = 95  # below it the API server, or this machine, is measured
WARM_UP_EVENTS_PER_SEC = 1000
PATIENCE_SECS = 5.0
SLICES_AT_ONCE = 500
LOOK_EVERY_SECS = 0.01


def measure_events(plan: Plan) -> Iterator[Row]:
    """K1."""
    pools = ImportedPools(plan.watched_pools)
    rows = EventRows.of(plan)
    resident = Row("K1", "RSS after all events", "MiB", None)
    flat = Row("K1", "RSS after all events beside before", "times", Bound("<=", 1.05))
    with cluster(pools) as (server, flags), product(None, *flags) as service:
        register_all(service.port, pools.bodies)
        with Stream(service.port, pools.urls()) as stream:
            numbers = itertools.count()
            # Every pool once: what the service keeps of the past has its full length before memory is looked at.
            _send(server, _next_events(pools, numbers, pools.count), stream, WARM_UP_EVENTS_PER_SEC)
            stream.seen.clear()
            before = resident_kib(service.pid)
            for _ in plan.rounds(plan.event_rounds):
                events = _next_events(pools, numbers, round(plan.event_secs * EVENTS_PER_SEC))
                rows.add(_window(server, service, stream, events))
                plan.tell(*rows)
            after = resident_kib(service.pid)
    resident.add(after / 1024)
    flat.add(after / before)
    plan.tell(flat)
    yield from (*rows, flat, resident)


def _next_events(pools: ImportedPools, numbers: Iterator[int], count: int) -> list[Event]:
    return [pools.event(number) for number in itertools.islice(numbers, count)]


class Window(NamedTuple):
    """What one stretch of events came to."""

    service_cpu: float
    p50_ms: float
    p99_ms: float
    missing: int
    lists: int
    server_cpu: float
    pace: float


class EventRows(NamedTuple):
    """The rows of K1, in the order of ``Window``."""

    service_cpu: Row
    p50_ms: Row
    p99_ms: Row
    missing: Row
    lists: Row
    server_cpu: Row
    pace: Row

    @classmethod
    def of(cls, plan: Plan) -> "EventRows":
        """Without samples."""
        slices = plan.watched_pools * SLICES
        return cls(
            Row("K1", f"service CPU, {slices:,} slices, {EVENTS_PER_SEC} events/s", "cores", Bound("<=", 0.5)),
            Row("K1", "slice event until on the stream, p50", "ms", None),
            Row("K1", "slice event until on the stream, p99", "ms", Bound("<=", 100)),
            Row("K1", "slice events never on the stream", "events", NONE_AT_ALL),
            Row("K1", "lists asked for again", "requests", NONE_AT_ALL),
            Row("K1", "API server's own CPU", "cores", None),
            Row("K1", "slice events sent", "events/s", Bound(">=", LEAST_PACE)),
        )

    def add(self, window: Window) -> None:
        """Keep the samples of one round."""
        for row, sample in zip(self, window, strict=True):
            row.add(sample)


def _window(server: ApiServerProcess, service: Replica, stream: "Stream", events: Sequence[Event]) -> Window:
    requests = len(server.call("requests_since"))
    service_cpu, server_cpu = cpu_secs(service.pid), cpu_secs(server.pid)
    began = time.monotonic()
    sent, paced_secs = _send(server, events, stream)
    secs = time.monotonic() - began
    took, missing = delays(sent, stream.seen)
    stream.seen.clear()
    if not took:
        raise CannotMeasure("no slice event was ever on the stream")
    return Window(
        service_cpu=(cpu_secs(service.pid) - service_cpu) / secs,
        p50_ms=percentile(took, 0.5),
        p99_ms=percentile(took, 0.99),
        missing=missing,
        lists=sum(request["verb"] == "list" for request in server.call("requests_since", number=requests)),
        server_cpu=(cpu_secs(server.pid) - server_cpu) / secs,
        pace=len(events) / paced_secs,
    )


class Sent(NamedTuple):
    """One event as it was sent."""

    at_ns: int
    key: Key
    urls: Urls


class Seen(NamedTuple):
    """One pool as a stream showed it; without addresses it was deleted."""

    at_ns: int
    key: Key
    urls: Urls


def delays(sent: Iterable[Sent], seen: Iterable[Seen]) -> tuple[list[float], int]:
    """Milliseconds of each event until its pool was shown as it left it, and how many never were."""
    shown: dict[Key, list[Seen]] = defaultdict(list)
    for one in seen:
        shown[one.key].append(one)
    took, missing = [], 0
    for event in sent:
        there = next((one for one in shown[event.key] if one.at_ns >= event.at_ns and one.urls == event.urls), None)
        if there is None:
            missing += 1
        else:
            took.append((there.at_ns - event.at_ns) / 1e6)
    return took, missing


def _send(
    server: ApiServerProcess, events: Sequence[Event], stream: "Stream", per_sec: float = EVENTS_PER_SEC
) -> tuple[list[Sent], float]:
    """Send them at their pace and wait until the stream has shown them; and the seconds that sending took."""
    sent = []
    began = time.monotonic()
    for number, event in enumerate(events):
        time.sleep(max(0.0, began + number / per_sec - time.monotonic()))
        sent.append(Sent(time.monotonic_ns(), event.key, event.urls))
        server.call(event.call, **event.arguments)
    secs = max(time.monotonic() - began, len(events) / per_sec)
    deadline = time.monotonic() + PATIENCE_SECS
    while delays(sent[-EVENTS_PER_SEC:], list(stream.seen))[1] and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_SECS)
    return sent, secs


class _Pool(msgspec.Struct):
    cluster_id: str
    namespace: str
    dgd_name: str
    relays: list[str] = []
    frontends: list[str] = []

    def seen(self, at_ns: int) -> Seen:
        key = (self.cluster_id, self.namespace, self.dgd_name)
        return Seen(at_ns, key, frozenset(self.relays + self.frontends))


class _Snapshot(msgspec.Struct):
    pools: list[_Pool]


class Stream:
    """One subscriber in a thread of its own; what it shows after the first snapshot is ``seen``."""

    def __init__(self, port: int, expected: dict[Key, Urls]) -> None:
        self.seen: list[Seen] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", "/pools/events")
        self._socket: socket.socket = self._connection.sock  # the answer takes it from the connection
        self._events = events_of(self._connection.getresponse())
        _, data = next(self._events)
        first = [pool.seen(0) for pool in msgspec.json.decode(data, type=_Snapshot).pools]
        if {one.key: one.urls for one in first} != expected:
            raise CannotMeasure(f"the stream begins with {len(first)} pools, or others than the {len(expected)} made")
        self._thread = threading.Thread(target=self._read, name="subscriber", daemon=True)

    def __enter__(self) -> "Stream":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the service may have ended first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_SECS)
        self._connection.close()

    def _read(self) -> None:
        try:
            for name, data in self._events:
                at_ns = time.monotonic_ns()
                if name in ("put", "delete"):
                    self.seen.append(msgspec.json.decode(data, type=_Pool).seen(at_ns))
                elif name == "snapshot":  # whoever falls behind gets one: it shows all pools at once
                    self.seen.extend(pool.seen(at_ns) for pool in msgspec.json.decode(data, type=_Snapshot).pools)
        except (CannotMeasure, OSError, ValueError, http.client.HTTPException):
            return  # events that are missing tell of it


def measure_start(plan: Plan) -> Iterator[Row]:
    """K2: the registrations are in Redis already, so that what is listed is the whole list."""
    pools = ImportedPools(plan.watched_pools)
    rows = (
        Row("K2", f"start until {plan.watched_pools * SLICES:,} slices are listed", "s", Bound("<=", 3)),
        Row("K2", "of it: until the first request for slices", "s", None),
        Row("K2", "service CPU until listed", "s", None),
        Row("K2", "API server's own CPU until listed", "s", None),
    )
    with redis_server() as store, cluster(pools) as (server, flags):
        with product(store.url) as first:
            register_all(first.port, pools.bodies)
        for _ in plan.rounds():
            for row, sample in zip(rows, _start(server, store.url, flags, pools.urls()), strict=True):
                row.add(sample)
            plan.tell(*rows)
    yield from rows


def _start(
    server: ApiServerProcess, redis_url: str, flags: Sequence[str], expected: dict[Key, Urls]
) -> tuple[float, ...]:
    """All seconds are from just before the process is started, but those of processors."""
    known, server_cpu = len(server.call("requests_since")), cpu_secs(server.pid)
    began = time.monotonic()
    with launched_product(redis_url, *flags) as service:
        await_sign(lambda: service.says("/readyz", 200), 60, "the service is ready", every=LOOK_EVERY_SECS)
        ready, service_cpu = time.monotonic(), cpu_secs(service.pid)
        server_cpu = cpu_secs(server.pid) - server_cpu
        found = msgspec.json.decode(service.pools().body, type=_Snapshot).pools
        if {one.key: one.urls for one in (pool.seen(0) for pool in found)} != expected:
            raise CannotMeasure(f"when ready the service lists {len(found)} pools, or others than those made")
        asked = first_list(server.call("requests_since", number=known))
    return ready - began, asked - began, service_cpu, server_cpu


def first_list(requests: Iterable[dict[str, Any]]) -> float:
    """When slices were first asked for, on the clock that all processes share."""
    asked = [request["at"] for request in requests if request["verb"] == "list"]
    if not asked:
        raise CannotMeasure("the service was ready before it asked for slices")
    return float(min(asked))


@contextlib.contextmanager
def cluster(pools: ImportedPools) -> Iterator[tuple[ApiServerProcess, tuple[str, ...]]]:
    """An API server that holds all slices of these pools, and the flags with which the service watches it."""
    with tempfile.TemporaryDirectory(prefix="discovery-bench-") as directory, ApiServerProcess() as server:
        slices = list(pools.slices())
        for start in range(0, len(slices), SLICES_AT_ONCE):
            server.call("apply_all", manifests=slices[start : start + SLICES_AT_ONCE])
        path = write_kubeconfig(Path(directory, "kubeconfig"), **{CONTEXT: server.url})
        yield server, ("--pool-discovery", "mcs", "--kubeconfig", str(path), "--kube-context", CONTEXT)
