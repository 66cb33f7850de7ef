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
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    by_descriptor = {one.fileno(): one for one in sockets}
    idle, poll = list(sockets), select.epoll()
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(one.fileno(), select.EPOLLIN)
    poll.register(pipe.fileno(), select.EPOLLIN)
    due_ns, took_ms, asked = list[int](), list[float](), dict[int, int]()
    began, gap = time.monotonic_ns(), 1e9 / per_sec
    ended = None
    while ended is None or asked:
        now = time.monotonic_ns()
        while ended is None and idle and (due := began + round(len(due_ns) * gap)) <= now:
            one = idle.pop()
            asked[one.fileno()] = len(due_ns)
            one.sendall(request(len(due_ns)))
            due_ns.append(due)
        for descriptor, _ in poll.poll(0.001 if ended is None else 1):
            if descriptor == pipe.fileno():
                pipe.recv()
                poll.unregister(descriptor)
                ended = time.monotonic_ns()
                continue
            one = by_descriptor[descriptor]
            _check(one.recv(1 << 16))
            took_ms.append((time.monotonic_ns() - due_ns[asked.pop(descriptor)]) / 1e6)
            idle.append(one)
    return Pace(len(due_ns) / (ended - began) * 1e9, due_ns, took_ms)


def _check(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"}"):
        raise CannotMeasure(f"it was answered with {answer[:200]!r}")
