"""S3: heartbeats of 10,000 pools, of which every tenth changes its pool, while 1,000 subscribers follow one worker.

A subscriber is current with a change when it has read that change or a later one. The time runs from the moment at
which the POST of the change was due.
"""

import multiprocessing
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

from tests.bench.fanout import QUIET_SECS
from tests.bench.goals import NONE_AT_ALL, Bound, Row
from tests.bench.load import CannotMeasure, get_request, mark, post_request, register_all, registration
from tests.bench.paced import LEAST_SHARE, Pace, paced
from tests.bench.plan import Plan
from tests.bench.propagation import percentile
from tests.bench.servers import cpu_secs, product, redis_server
from tests.live.replica import Replica

POOLS = 10_000
SUBSCRIBERS = 1000
BEATS_PER_SEC = 2000
CHANGE_EVERY = 10
SENDERS = 256
LONGEST_TURN_SECS = 5.0
_END = b'-end"'
_DIGITS = 8
_TAIL = 32


class Read(NamedTuple):
    """One read of one subscriber that brought it from one change to another."""

    at_ns: int
    before: int
    after: int


def measure(plan: Plan) -> Iterator[Row]:
    """S3."""
    what = f"{BEATS_PER_SEC:,} POST/s, {SUBSCRIBERS:,} streams"
    current = Row("S3", f"{what}: current within, p99", "ms", Bound("<=", 500))
    answered = Row("S3", f"{what}: POST p99", "ms", Bound("<=", 100))
    taken = Row("S3", f"{what}: POSTs taken", "POST/s", Bound(">=", LEAST_SHARE * BEATS_PER_SEC))
    dropped = Row("S3", "subscribers dropped or left behind", "streams", NONE_AT_ALL)
    processor = Row("S3", "server CPU meanwhile", "cores", None)
    bodies = [registration(index) for index in range(POOLS)]
    with redis_server() as store, product(store.url) as service:
        register_all(service.port, bodies)
        first = 1
        for _ in plan.rounds():
            pace, reads, left, cores = _round(plan, service, bodies, first)
            changes_due_ns = pace.due_ns[::CHANGE_EVERY]
            current.add(percentile(delays(changes_due_ns, reads, first), 0.99))
            answered.add(percentile(pace.took_ms, 0.99))
            taken.add(pace.per_sec)
            dropped.add(left)
            processor.add(cores)
            first += len(changes_due_ns)
            plan.tell(current, answered, taken, dropped, processor)
    yield from (current, answered, taken, dropped, processor)


def _round(
    plan: Plan, service: Replica, bodies: Sequence[bytes], first: int
) -> tuple[Pace, list[list[Read]], int, float]:
    with _following(service.port, _current_id(service)) as pipe:
        before, began = cpu_secs(service.pid), time.monotonic()
        with paced(service.port, _beats(bodies, first), BEATS_PER_SEC, SENDERS) as beats:
            time.sleep(2 * plan.secs)
            cores = (cpu_secs(service.pid) - before) / (time.monotonic() - began)
            pace = beats.stop()
        last = first + (len(pace.due_ns) - 1) // CHANGE_EVERY
        pipe.send(last)
        if not pipe.poll(60):
            raise CannotMeasure("the subscribers do not answer")
        reads, left = pipe.recv()
    return pace, reads, left, cores


def _beats(bodies: Sequence[bytes], first: int) -> Callable[[int], bytes]:
    unmarked = mark(0)

    def request(number: int) -> bytes:
        body = bodies[number % len(bodies)]
        if number % CHANGE_EVERY == 0:
            body = body.replace(unmarked, mark(first + number // CHANGE_EVERY))
        return post_request(body)

    return request


def _current_id(service: Replica) -> str:
    """What a subscriber says to get no first snapshot, which would be ten megabytes for each."""
    connection = socket.create_connection(("127.0.0.1", service.port))
    text = b""
    try:
        connection.settimeout(20)
        connection.sendall(get_request("/pools/events"))
        while (start := text.find(b"\nid: ")) < 0 or text.find(b"\n", start + 1) < 0:
            text += connection.recv(1 << 16)
    finally:
        connection.close()
    return text[start + 5 : text.find(b"\n", start + 1)].decode().strip()


def delays(due_ns: Sequence[int], reads: Iterable[Sequence[Read]], first_number: int) -> list[float]:
    """Milliseconds of each change and subscriber from when its POST was due until the subscriber was current with it.

    The change of number ``first_number + n`` was due at ``due_ns[n]``.
    """
    return [
        (read.at_ns - due_ns[number - first_number]) / 1e6
        for of_one in reads
        for read in of_one
        for number in range(max(read.before + 1, first_number), min(read.after + 1, first_number + len(due_ns)))
    ]


# ---- the subscribers, in a process of their own


@contextmanager
def _following(port: int, last_id: str) -> Iterator["Connection"]:
    """Subscribers; they are told the last change over the pipe, and give all reads and how many did not get there."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_follow, args=(port, last_id, there), daemon=True)
    process.start()
    try:
        if not here.poll(120) or here.recv() != "ready":
            raise CannotMeasure("the subscribers did not all get a stream")
        yield here
    finally:
        process.terminate()
        process.join()


def last_mark(text: bytes) -> int:
    """The number of the last whole mark in the text; 0 without one."""
    end = text.rfind(_END)
    digits = text[max(0, end - _DIGITS) : max(0, end)]
    return int(digits) if len(digits) == _DIGITS and digits.isdigit() else 0


def _follow(port: int, last_id: str, pipe: "Connection") -> None:
    followers = _Followers(port, last_id)
    followers.settle()
    pipe.send("ready")
    while not pipe.poll():
        followers.read(0.02)
    last, deadline = pipe.recv(), time.monotonic() + LONGEST_TURN_SECS
    while followers.behind(last) and time.monotonic() < deadline:
        followers.read(0.1)
    pipe.send((list(followers.reads.values()), len(followers.behind(last) | followers.gone)))
    followers.close()


class _Followers:
    """Many streams, by descriptor, that have the last change they showed and all reads that brought a later one."""

    def __init__(self, port: int, last_id: str) -> None:
        request = get_request("/pools/events", f"Last-Event-ID: {last_id}")
        self._poll = select.epoll()
        self._sockets = dict[int, socket.socket]()
        for _ in range(SUBSCRIBERS):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(request)
            self._sockets[one.fileno()] = one
            self._poll.register(one.fileno(), select.EPOLLIN)
        self._tails = dict.fromkeys(self._sockets, b"")  # a mark may lie in two reads
        self._shown = dict.fromkeys(self._sockets, 0)
        self._begun = set[int]()
        self.gone = set[int]()
        self.reads = {descriptor: list[Read]() for descriptor in self._sockets}

    def settle(self) -> None:
        """Read until every stream has begun and nothing more comes for a moment."""
        while len(self._begun) < SUBSCRIBERS or self.read(QUIET_SECS):
            self.read(1)

    def behind(self, last: int) -> set[int]:
        """Those that have not shown this change yet."""
        return {descriptor for descriptor, number in self._shown.items() if number < last}

    def read(self, timeout: float) -> bool:
        """Read whatever there is; false when nothing came in time."""
        ready = self._poll.poll(timeout)
        for descriptor, _ in ready:
            data = self._sockets[descriptor].recv(1 << 18)
            if data:
                self._take(descriptor, data, time.monotonic_ns())
            else:
                self._poll.unregister(descriptor)
                self.gone.add(descriptor)
        return bool(ready)

    def _take(self, descriptor: int, data: bytes, now: int) -> None:
        self._begun.add(descriptor)
        tail, shown = self._tails[descriptor], self._shown[descriptor]
        number = last_mark(data) or last_mark(tail + data[:_TAIL])
        self._tails[descriptor] = (tail + data[-_TAIL:])[-_TAIL:]
        if number > shown:
            self.reads[descriptor].append(Read(now, shown, number))
            self._shown[descriptor] = number

    def close(self) -> None:
        """Close all streams."""
        self._poll.close()
        for one in self._sockets.values():
            one.close()
