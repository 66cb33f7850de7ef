"""POSTs at a steady pace from one process of its own, however quickly they are answered.

An answer's time runs from the moment at which its POST was due, so that POSTs that had to wait for their turn count as
late as their senders would see them.
"""

import contextlib
import multiprocessing
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.bench.load import CannotMeasure

LEAST_SHARE = 0.95  # of the pace that is wanted; whoever asks for one judges this as well


@dataclass(frozen=True)
class Pace:
    """What was sent: POSTs a second, when each was due, and how long each took until it was answered."""

    per_sec: float
    due_ns: list[int]
    took_ms: list[float]


class Pacer:
    """The running process."""

    def __init__(self, pipe: "Connection") -> None:
        self._pipe = pipe

    def stop(self) -> Pace:
        """End it, once all that was sent is answered."""
        self._pipe.send("stop")
        if not self._pipe.poll(60):
            raise CannotMeasure("the POSTs were not answered within 60 s")
        pace = self._pipe.recv()
        if isinstance(pace, str):
            raise CannotMeasure(pace)
        return pace  # type: ignore[no-any-return]


@contextlib.contextmanager
def paced(port: int, request: Callable[[int], bytes], per_sec: float, connections: int) -> Iterator[Pacer]:
    """Send ``request(0)``, ``request(1)`` and so on until stopped, each connection one at a time."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_send, args=(port, request, per_sec, connections, there), daemon=True)
    process.start()
    try:
        yield Pacer(here)
    finally:
        process.terminate()
        process.join()


def _send(port: int, request: Callable[[int], bytes], per_sec: float, connections: int, pipe: "Connection") -> None:
    try:
        pipe.send(_paced(port, request, per_sec, connections, pipe))
    except (OSError, CannotMeasure) as error:
        pipe.send(f"a paced POST failed: {error}")


def _paced(port: int, request: Callable[[int], bytes], per_sec: float, connections: int, pipe: "Connection") -> Pace:
    senders = _Senders(port, request, connections)
    began, gap = time.monotonic_ns(), 1e9 / per_sec
    while not pipe.poll():
        while (due := began + round(len(senders.due_ns) * gap)) <= time.monotonic_ns() and senders.send(due):
            pass
        senders.read(0.001)
    secs = (time.monotonic_ns() - began) / 1e9
    while senders.waiting:
        senders.read(1)
    senders.close()
    return Pace(len(senders.due_ns) / secs, senders.due_ns, senders.took_ms)


class _Senders:
    """Connections with one POST each on the way at most."""

    def __init__(self, port: int, request: Callable[[int], bytes], connections: int) -> None:
        self._request = request
        self._poll = select.epoll()
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
        self._idle = list(self._sockets)
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poll.register(one.fileno(), select.EPOLLIN)
        self.waiting: dict[int, tuple[socket.socket, int]] = {}  # by descriptor: the socket, and when its POST was due
        self.due_ns: list[int] = []
        self.took_ms: list[float] = []

    def send(self, due: int) -> bool:
        """Send the next POST, if a connection is free."""
        if not self._idle:
            return False
        one = self._idle.pop()
        self.waiting[one.fileno()] = (one, due)
        one.sendall(self._request(len(self.due_ns)))
        self.due_ns.append(due)
        return True

    def read(self, timeout: float) -> None:
        """Take the answers that are there."""
        for descriptor, _ in self._poll.poll(timeout):
            one, due = self.waiting.pop(descriptor)
            _check(one.recv(1 << 16))
            self.took_ms.append((time.monotonic_ns() - due) / 1e6)
            self._idle.append(one)

    def close(self) -> None:
        """Close all connections."""
        self._poll.close()
        for one in self._sockets:
            one.close()


def _check(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"}"):
        raise CannotMeasure(f"it was answered with {answer[:200]!r}")
