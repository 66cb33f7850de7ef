"""The connections of the benchmark's own processes, against a socket whose other end the test holds."""

import socket
import time
from collections.abc import Iterator

import pytest

from tests.bench import storm
from tests.bench.load import MARK, CannotMeasure, mark
from tests.bench.paced import _Senders
from tests.bench.storm import _Followers
from tests.bench.watchers import _Connections

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Listener:
    """Takes connections; the test speaks for the server."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(10)
        self.port = self._socket.getsockname()[1]
        self.accepted: list[socket.socket] = []

    def accept(self, count: int) -> list[socket.socket]:
        for _ in range(count):
            self.accepted.append(self._socket.accept()[0])
            self.accepted[-1].settimeout(10)
        return self.accepted

    def close(self) -> None:
        for one in (self._socket, *self.accepted):
            one.close()


@pytest.fixture(name="listener")
def listener_fixture() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def test_a_post_waits_for_a_free_connection_and_is_timed_from_when_it_was_due(listener):
    senders = _Senders(listener.port, lambda number: b"POST %d" % number, 2)
    one, other = listener.accept(2)
    long_ago = time.monotonic_ns() - 5_000_000_000
    assert senders.send(long_ago)
    assert senders.send(long_ago)
    assert not senders.send(long_ago)
    assert {one.recv(100), other.recv(100)} == {b"POST 0", b"POST 1"}
    one.sendall(ANSWER)
    while not senders.took_ms:
        senders.read(1)
    assert senders.took_ms[0] >= 5000
    assert senders.send(long_ago)
    assert one.recv(100) == b"POST 2"
    assert len(senders.waiting) == 2
    senders.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}", b""])
def test_a_post_that_is_refused_or_cut_off_ends_the_run(listener, answer):
    senders = _Senders(listener.port, lambda _: b"POST", 1)
    (one,) = listener.accept(1)
    senders.send(0)
    one.recv(100)
    one.sendall(answer)
    one.shutdown(socket.SHUT_WR)
    with pytest.raises(CannotMeasure, match="answered with"):
        senders.read(10)
    senders.close()


def test_watchers_greet_and_are_ready_when_each_has_heard_something(listener):
    connections = _Connections(listener.port, b"hello", 2, MARK)
    one, other = listener.accept(2)
    assert one.recv(100) == other.recv(100) == b"hello"
    one.sendall(b"welcome" + mark(1))
    other.sendall(b"welcome")
    connections.settle()
    assert not connections.sightings.by_all(1)
    other.sendall(mark(1))
    connections.read(10)
    assert connections.sightings.by_all(1)
    other.close()
    connections.read(10)
    assert connections.read(0.01) == set()
    connections.close()


def test_followers_that_are_cut_off_or_silent_are_told_from_those_that_are_current(listener, monkeypatch):
    monkeypatch.setattr(storm, "SUBSCRIBERS", 3)
    followers = _Followers(listener.port, "an-id")
    streams = listener.accept(3)
    for each in streams:
        assert b"Last-Event-ID: an-id\r\n" in each.recv(1000)
        each.sendall(b"retry: 1000\n\n")
    followers.settle()
    cut, silent, current = streams
    cut.close()
    current.sendall(mark(1) + mark(4)[:8])
    current.sendall(mark(4)[8:])
    while not followers.gone or len(followers.behind(4)) > 2:
        assert followers.read(10)
    silent.sendall(b":\n\n")
    followers.read(10)
    assert len(followers.gone) == 1
    assert len(followers.behind(4)) == 2
    assert len(followers.behind(4) | followers.gone) == 2
    spans = [(read.before, read.after) for reads in followers.reads.values() for read in reads]
    assert spans[0][0] == 0
    assert spans[-1][1] == 4
    followers.close()
