"""S1 and S2: one event to many subscribers of one worker, and the memory of those that wait.

The event is a registration of one kilobyte; product and references send frames of the same length. The time runs from
before the POST to the last subscriber's last byte.
"""

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.bench.goals import Bound, Row
from tests.bench.load import CannotMeasure, Peer, get_request, mark, post_request, registration
from tests.bench.plan import Plan
from tests.bench.propagation import percentile
from tests.bench.servers import cpu_secs, product, reference, resident_kib

PAUSE_SECS = 0.15  # longer than the service waits between two rounds of events
QUIET_SECS = 0.3
SUBSCRIBERS = (1000, 5000)
OURS = "product"
LIMITS = ("fanout-transport", "fanout-nowait", "fanout-queue")


class Sample(NamedTuple):
    """Of a freshly started server: to the last subscriber, memory of each that is idle, the length of one event, and
    processor time for one event and subscriber."""

    last_ms: float
    idle_kib: float
    event_bytes: float
    cpu_us: float


def measure(plan: Plan, wanted: frozenset[str]) -> Iterator[Row]:
    """S1 and S2 for each number of subscribers."""
    limits = [name for name in LIMITS if "S2" in wanted or name != "fanout-nowait"]
    for count in plan.of_sizes(SUBSCRIBERS):
        rows = _rows(count, limits)
        for _ in plan.rounds():
            samples = {name: _measure_one(name, count, _events(plan, name)) for name in (OURS, *limits)}
            if len(lengths := {sample.event_bytes for sample in samples.values()}) != 1:
                raise CannotMeasure(f"the product's event and the references' are not equally long: {lengths} bytes")
            for row, field in rows:
                row.add(getattr(samples[OURS], field), getattr(samples[str(row.reference_name)], field))
            plan.tell(*(row for row, _ in rows))
        yield from (row for row, _ in rows)


def _events(plan: Plan, name: str) -> int:
    """Of ``nowait`` only the memory is asked for."""
    return 1 if name == "fanout-nowait" else plan.events


def _rows(count: int, limits: Sequence[str]) -> list[tuple[Row, str]]:
    """Each row with the field of a sample that it is about."""
    last, idle = f"last of {count:,} subscribers", f"RSS of 1 of {count:,} subscribers"
    processor = f"server CPU of an event for 1 of {count:,} subscribers"
    rows = [
        (Row("S1", last, "ms", Bound("<=", 1.7), "fanout-transport"), "last_ms"),
        (Row("S1", last, "ms", Bound("<=", 0.5), "fanout-queue"), "last_ms"),
        (Row("S1", processor, "us", None, "fanout-transport"), "cpu_us"),
        (Row("S2", idle, "KiB", Bound("<=", 1.5), "fanout-nowait"), "idle_kib"),
        (Row("S2", idle, "KiB", Bound("<=", 0.6), "fanout-queue"), "idle_kib"),
    ]
    return [(row, field) for row, field in rows if row.reference_name in limits]


def _measure_one(name: str, count: int, events: int) -> Sample:
    with product() if name == OURS else reference(name) as server:
        publisher = Peer(server.port)
        publisher.ask(post_request(registration(0)))
        before = resident_kib(server.pid)
        with subscribed(server.port, count) as audience:
            size = (resident_kib(server.pid) - before) / count
            took, lengths, used = [], [], cpu_secs(server.pid)
            for number in range(1, events + 1):
                took.append(_until_last(publisher, audience, number))
                lengths.append(audience.event_bytes / count)
                time.sleep(PAUSE_SECS)
            cpu_us = (cpu_secs(server.pid) - used) * 1e6 / (count * events)
        publisher.close()
    return Sample(percentile(took, 0.5), size, min(lengths), cpu_us)  # a comment line may have come beside an event


def _until_last(publisher: Peer, audience: "Audience", number: int) -> float:
    request = post_request(registration(0, number))
    started = time.monotonic_ns()
    publisher.send(request)
    ended = audience.all_have(mark(number) + b"}}")
    status, _ = publisher.answer()
    if status != 200:
        raise CannotMeasure(f"the POST of an event was answered with {status}")
    return (ended - started) / 1e6


class Audience:
    """Many open streams read by one loop."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = {one.fileno(): one for one in sockets}
        self._poll = select.epoll()
        self._buffer = bytearray(1 << 16)
        self.event_bytes = 0
        for descriptor in self._sockets:
            self._poll.register(descriptor, select.EPOLLIN)

    def settle(self) -> None:
        """Read until every stream has begun and nothing more comes for a moment."""
        begun: set[int] = set()
        deadline = time.monotonic() + 60
        quiet = False
        while len(begun) < len(self._sockets) or not quiet:
            ready = self._poll.poll(QUIET_SECS)
            quiet = not ready
            for descriptor, _ in ready:
                if self._sockets[descriptor].recv_into(self._buffer):
                    begun.add(descriptor)
            if time.monotonic() > deadline:
                raise CannotMeasure(f"{len(begun)} of {len(self._sockets)} streams had begun after 60 s")

    def all_have(self, wanted: bytes) -> int:
        """Read until each stream has shown ``wanted``; the time of the last one in nanoseconds."""
        missing, begun, total = len(self._sockets), dict[int, bytes](), 0
        buffer, sockets, poll = self._buffer, self._sockets, self._poll.poll
        while missing:
            ready = poll(20)
            if not ready:
                raise CannotMeasure(f"{missing} of {len(sockets)} subscribers did not get an event within 20 s")
            for descriptor, _ in ready:
                length = sockets[descriptor].recv_into(buffer)
                total += length
                if buffer.find(wanted, 0, length) >= 0:
                    missing -= 1
                elif length == 0:
                    raise CannotMeasure("a stream ended")
                else:
                    text = begun.get(descriptor, b"") + bytes(buffer[:length])
                    begun[descriptor] = text
                    missing -= wanted in text
        ended = time.monotonic_ns()
        self.event_bytes = total
        return ended


@contextmanager
def subscribed(port: int, count: int) -> Iterator[Audience]:
    """That many subscribers that have all that there is so far."""
    sockets = []
    try:
        for _ in range(count):
            sockets.append(socket.create_connection(("127.0.0.1", port)))
            sockets[-1].sendall(get_request("/pools/events"))
        audience = Audience(sockets)
        audience.settle()
        yield audience
    finally:
        for one in sockets:
            one.close()
