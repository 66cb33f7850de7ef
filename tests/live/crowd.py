"""Clients that hold connections and mean no good, thousands of them in one process of their own.

``python -m tests.live.crowd 8080 '{"idle": 1500, "dripping": 200}'`` says ``standing`` once each has its connection,
and when its input ends, as JSON, how each kind was treated. Whoever is closed or refused comes back, except those that
do not read.
"""

import contextlib
import json
import resource
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

CONNECTING_AT_ONCE = 300
TICK_SECS = 0.1
PACE_SECS = 1.0
"""How long a client that trickles waits between two bytes."""
CLIENTS_PER_ADDRESS = 10_000
"""Loopback has many addresses, and each has ports of its own."""

GREETINGS = {
    "idle": b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "silent": b"",
    "dripping": b"GET /pools HTTP/1.1\r\nHost: a\r\nX: ",
    "not reading": b"GET /pools HTTP/1.1\r\nHost: a\r\n\r\n",
    "slow bodies": b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n",
}
TRICKLING = ("dripping", "slow bodies")


class _Client:
    """One of them; ``connection`` is open or about to be."""

    def __init__(self, kind: str, number: int, port: int) -> None:
        self.kind = kind
        self.number = number
        self.standing = False
        self.connection = socket.socket()
        self.connection.setblocking(False)
        if kind == "not reading":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.connection.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        self.connection.bind((f"127.0.0.{2 + number // CLIENTS_PER_ADDRESS}", 0))
        self.connection.connect_ex(("127.0.0.1", port))


class _Crowd:
    def __init__(self, port: int, sizes: dict[str, int]) -> None:
        self._port = port
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._connecting = 0
        self._waiting = [kind for kind, size in sizes.items() for _ in range(size)]
        self._wanted = len(self._waiting)
        self._numbers = 0
        self._tallies = {kind: Counter[str]() for kind in sizes}
        self._said = False

    def run(self) -> dict[str, Counter[str]]:
        """Stand until the input ends."""
        self._poll.register(sys.stdin, select.EPOLLIN)
        due, part = time.monotonic(), 0
        while True:
            self._fill()
            for descriptor, events in self._poll.poll(max(0.0, due - time.monotonic()), 1000):
                if descriptor == sys.stdin.fileno():
                    return self._tallies
                self._attend(self._clients[descriptor], events)
            if time.monotonic() >= due:
                due, part = due + TICK_SECS, part + 1
                self._trickle(part)
            if not self._said and sum(client.standing for client in self._clients.values()) == self._wanted:
                self._said = True
                print("standing", flush=True)

    def _fill(self) -> None:
        while self._waiting and self._connecting < CONNECTING_AT_ONCE:
            client = _Client(self._waiting.pop(), self._numbers % self._wanted, self._port)
            self._numbers += 1
            self._connecting += 1
            self._clients[client.connection.fileno()] = client
            self._poll.register(client.connection, select.EPOLLOUT)

    def _attend(self, client: _Client, events: int) -> None:
        if events & (select.EPOLLHUP | select.EPOLLERR):
            self._lose(client, "cut")
        elif not client.standing:
            self._stand(client)
        elif events & select.EPOLLIN:
            self._read(client)

    def _stand(self, client: _Client) -> None:
        client.standing = True
        self._connecting -= 1
        self._tallies[client.kind]["connections"] += 1
        try:
            client.connection.send(GREETINGS[client.kind])
        except OSError:
            self._lose(client, "cut")
            return
        reads = client.kind != "not reading"
        self._poll.modify(client.connection, select.EPOLLIN if reads else 0)

    def _read(self, client: _Client) -> None:
        try:
            said = client.connection.recv(65536)
        except OSError:
            self._lose(client, "cut")
            return
        if not said:
            self._lose(client, "closed")
        elif said.startswith(b"HTTP/1.1 "):
            self._tallies[client.kind][said[9:12].decode()] += 1

    def _lose(self, client: _Client, how: str) -> None:
        self._tallies[client.kind][how] += 1
        if not client.standing:
            self._connecting -= 1
        del self._clients[client.connection.fileno()]
        client.connection.close()
        if client.kind != "not reading":  # most of them cannot tell that they were cut off: nobody counts on it
            self._waiting.append(client.kind)

    def _trickle(self, part: int) -> None:
        parts = round(PACE_SECS / TICK_SECS)
        for client in list(self._clients.values()):
            if client.kind in TRICKLING and client.standing and client.number % parts == part % parts:
                try:
                    client.connection.send(b"x")
                except OSError:
                    self._lose(client, "cut")


class Crowd:
    """The process, as a test sees it."""

    def __init__(self, port: int, sizes: dict[str, int]) -> None:
        command = [sys.executable, "-m", "tests.live.crowd", str(port), json.dumps(sizes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stands(self) -> None:
        """Wait until each has its connection."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "standing\n", "the crowd ended"

    def leaves(self) -> dict[str, dict[str, int]]:
        """Let all of them go at once, and give how each kind was treated."""
        report, _ = self._process.communicate(timeout=20)
        return dict(json.loads(report))

    def kill(self) -> None:
        """End it, however far it is."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def crowd(port: int, **sizes: int) -> Iterator[Crowd]:
    """A crowd that is gone after the block; its kinds are those of ``GREETINGS``, with ``_`` for the spaces."""
    standing = Crowd(port, {kind.replace("_", " "): size for kind, size in sizes.items()})
    try:
        yield standing
    finally:
        standing.kill()


def raise_descriptor_limit(wanted: int) -> None:
    """Allow this process and those that it starts so many open files; fails where the machine does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sizes_wanted = json.loads(sys.argv[2])
    raise_descriptor_limit(sum(sizes_wanted.values()) + 100)
    print(json.dumps(_Crowd(int(sys.argv[1]), sizes_wanted).run()))
