"""S1 and S2: one event to many subscribers of one worker, and the memory of those that wait.

The event is a registration of one kilobyte; product and references send frames of the same length. The time runs from
before the POST to the last subscriber's last byte.
"""

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.bench.goals import Bound, Row
from tests.bench.load import CannotMeasure, Peer, get_request, mark, post_request, registration
from tests.bench.plan import Plan
from tests.bench.propagation import percentile
from tests.bench.servers import product, reference, resident_kib

PAUSE_SECS = 0.15  # longer than the service waits between two rounds of events
QUIET_SECS = 0.3
SUBSCRIBERS = (1000, 5000)
OURS = "product"
LIMITS = ("fanout-transport", "fanout-nowait", "fanout-queue")


def measure(plan: Plan, wanted: frozenset[str]) -> Iterator[Row]:
    """S1 and S2 for each number of subscribers."""
    limits = [name for name in LIMITS if "S2" in wanted or name != "fanout-nowait"]
    for count in plan.of_sizes(SUBSCRIBERS):
        last = f"last of {count:,} subscribers"
        idle = f"RSS of 1 of {count:,} subscribers"
        rows = {
            "fanout-transport": Row("S1", last, "ms", Bound("<=", 1.7), "fanout-transport"),
            "fanout-queue": Row("S1", last, "ms", Bound("<=", 0.5), "fanout-queue"),
        }
        memory = {
            "fanout-nowait": Row("S2", idle, "KiB", Bound("<=", 1.5), "fanout-nowait"),
            "fanout-queue": Row("S2", idle, "KiB", Bound("<=", 0.6), "fanout-queue"),
        }
        for _ in plan.rounds():
            times, sizes, lengths = {}, {}, set()
            for name in (OURS, *limits):
                events = 1 if name == "fanout-nowait" else plan.events
                times[name], sizes[name], length = _measure_one(name, count, events)
                lengths.add(length)
            if len(lengths) != 1:
                raise CannotMeasure(f"the product's event and the references' are not equally long: {lengths} bytes")
            for name, row in rows.items():
                row.add(times[OURS], times[name])
            for name, row in memory.items():
                if name in sizes:
                    row.add(sizes[OURS], sizes[name])
            told = [row for row in (*rows.values(), *memory.values()) if row.product]
            plan.tell(*told)
        yield from told


def _measure_one(name: str, count: int, events: int) -> tuple[float, float, float]:
    """Of a freshly started server: median milliseconds to the last subscriber, KiB for each that is idle, and the
    bytes that one event is for one of them."""
    with product() if name == OURS else reference(name) as server:
        publisher = Peer(server.port)
        publisher.ask(post_request(registration(0)))
        before = resident_kib(server.pid)
        with subscribed(server.port, count) as audience:
            size = (resident_kib(server.pid) - before) / count
            took, lengths = [], []
            for number in range(1, events + 1):
                took.append(_until_last(publisher, audience, number))
                lengths.append(audience.event_bytes / count)
                time.sleep(PAUSE_SECS)
        publisher.close()
    return percentile(took, 0.5), size, min(lengths)  # a comment line may have come beside an event


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
