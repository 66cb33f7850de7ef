"""Many watchers in one process of its own: when the last of them had each mark.

A watcher is one connection that has sent a greeting and from then on only listens, whatever it is that answers: a
stream of the service, a subscription of Redis, a watch of etcd. They do nothing but look for marks, so that all systems
are read at the same cost.
"""

import multiprocessing
import re
import select
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tests.bench.load import MARK, CannotMeasure

QUIET_SECS = 0.3
REST_BYTES = 64  # a mark may lie in two reads


class Watchers:
    """That process; ``stop`` ends it and gives the moment at which the last watcher first saw each mark."""

    def __init__(self, pipe: "Connection") -> None:
        self._pipe = pipe

    def stop(self, expected: Iterable[int], within: float = 20) -> dict[int, int]:
        """Wait until all have seen all ``expected`` marks, or not within so many seconds."""
        self._pipe.send((list(expected), within))
        if not self._pipe.poll(within + 20):
            raise CannotMeasure("the watchers do not answer")
        seen: dict[int, int] = self._pipe.recv()
        return seen


@contextmanager
def watched(port: int, greeting: bytes, count: int = 1, marks: "re.Pattern[bytes]" = MARK) -> Iterator[Watchers]:
    """So many watchers that have sent ``greeting`` and read the first answer to it."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_watch, args=(port, greeting, count, marks, there), daemon=True)
    process.start()
    try:
        if not here.poll(60) or here.recv() != "ready":
            raise CannotMeasure("the watchers heard nothing")
        yield Watchers(here)
    finally:
        process.terminate()
        process.join()


class Sightings:
    """Which marks were seen, by how many watchers, and when by the last of them."""

    def __init__(self, count: int, marks: "re.Pattern[bytes]" = MARK) -> None:
        self._count = count
        self._marks = marks
        self._rests = [b""] * count
        self._known: list[set[int]] = [set() for _ in range(count)]
        self._times: dict[int, int] = {}
        self._watchers: dict[int, int] = {}

    def take(self, watcher: int, data: bytes, now: int) -> None:
        """What one watcher just read."""
        text = self._rests[watcher] + data
        known, end = self._known[watcher], 0
        for found in self._marks.finditer(text):
            number, end = int(found[1]), found.end()
            if number not in known:
                known.add(number)
                self._times[number] = now
                self._watchers[number] = self._watchers.get(number, 0) + 1
        self._rests[watcher] = text[max(end, len(text) - REST_BYTES) :]

    def by_all(self, number: int) -> bool:
        """Whether every watcher has seen this mark."""
        return self._watchers.get(number) == self._count

    def times(self) -> dict[int, int]:
        """When the last watcher saw each mark, of those marks that all have seen."""
        return {number: time for number, time in self._times.items() if self.by_all(number)}


def _watch(port: int, greeting: bytes, count: int, marks: "re.Pattern[bytes]", pipe: "Connection") -> None:
    connections = _Connections(port, greeting, count, marks)
    connections.settle()
    pipe.send("ready")
    expected, within = connections.read_until_told(pipe)
    deadline = time.monotonic() + within
    while (left := deadline - time.monotonic()) > 0:
        while expected and connections.sightings.by_all(expected[-1]):
            expected.pop()
        if not expected:
            break
        connections.read(left)
    pipe.send(connections.sightings.times())
    connections.close()


class _Connections:
    """The sockets of all watchers, read as soon as anything comes."""

    def __init__(self, port: int, greeting: bytes, count: int, marks: "re.Pattern[bytes]") -> None:
        self.sightings = Sightings(count, marks)
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        self._numbers = {one.fileno(): number for number, one in enumerate(self._sockets)}
        self._poll = select.epoll()
        for one in self._sockets:
            self._poll.register(one.fileno(), select.EPOLLIN)
            one.sendall(greeting)

    def read(self, timeout: float) -> set[int]:
        """Read whatever there is; the descriptors that had something."""
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout)}
        for descriptor in ready & self._numbers.keys():
            number = self._numbers[descriptor]
            data = self._sockets[number].recv(1 << 20)
            if data:
                self.sightings.take(number, data, time.monotonic_ns())
            else:
                self._poll.unregister(descriptor)
        return ready

    def settle(self) -> None:
        """Read until every watcher got something and nothing more comes for a moment."""
        begun: set[int] = set()
        while len(begun) < len(self._sockets):
            begun |= self.read(-1)
        while self.read(QUIET_SECS):
            pass

    def read_until_told(self, pipe: "Connection") -> tuple[list[int], float]:
        """Read until something comes over the pipe."""
        self._poll.register(pipe.fileno(), select.EPOLLIN)
        while pipe.fileno() not in self.read(-1):
            pass
        self._poll.unregister(pipe.fileno())
        told: tuple[list[int], float] = pipe.recv()
        return told

    def close(self) -> None:
        """Close all connections."""
        self._poll.close()
        for one in self._sockets:
            one.close()
