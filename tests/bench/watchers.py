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
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    numbers = {one.fileno(): number for number, one in enumerate(sockets)}
    sightings, poll = Sightings(count, marks), select.epoll()
    for one in sockets:
        poll.register(one.fileno(), select.EPOLLIN)
        one.sendall(greeting)

    def read(timeout: float) -> set[int]:
        ready = {descriptor for descriptor, _ in poll.poll(timeout)}
        for descriptor in ready & numbers.keys():
            data = sockets[numbers[descriptor]].recv(1 << 20)
            if data:
                sightings.take(numbers[descriptor], data, time.monotonic_ns())
            else:
                poll.unregister(descriptor)
        return ready

    begun: set[int] = set()
    while len(begun) < count:
        begun |= read(-1)
    while read(QUIET_SECS):
        pass
    poll.register(pipe.fileno(), select.EPOLLIN)
    pipe.send("ready")
    while pipe.fileno() not in read(-1):
        pass
    expected, within = pipe.recv()
    poll.unregister(pipe.fileno())
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        while expected and sightings.by_all(expected[-1]):
            expected.pop()
        if not expected:
            break
        read(max(0.0, deadline - time.monotonic()))
    pipe.send(sightings.times())
