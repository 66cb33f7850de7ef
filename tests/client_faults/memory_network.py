"""A network in memory, on virtual time, below everything that the client is made of: names, addresses, connections.

A loop of it resolves and connects for ``aiohttp`` as the real one does, so that the public client runs on it unchanged.
Bytes arrive after a moment, in order; each connection can be frozen, cut, slowed or ended, at any byte. A server is
told of each request, and what it sends may be marked: a mark is met when the client has been given the last of its
bytes, and again a moment later, when the client has had the time to read them.
"""

import asyncio
import errno
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.virtual_time import VirtualTimeLoop

LATENCY_SECS = 0.001
READ_SECS = 0.0005
SYN_SECS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""When a kernel asks again for a connection that nobody answers."""


class Mark(NamedTuple):
    """Where a message ends among the bytes that a server sent."""

    offset: int
    arrived: Callable[[], object]
    read: Callable[[], object]


class Server:
    """Who answers at one address, and what is wrong with it."""

    def __init__(self, serve: Callable[["Wire", bytes], Awaitable[None]]) -> None:
        self.serve = serve
        self.refuses = False
        self.unreachable = False
        self.frozen = False
        self.wires: list[Wire] = []

    def thaw(self) -> None:
        self.frozen = False
        for wire in list(self.wires):
            wire.flow()

    def cut(self) -> None:
        for wire in list(self.wires):
            wire.cut()


class Wire:
    """One connection, seen from the middle. Sending is the server's side; the faults are the network's."""

    def __init__(self, loop: "MemoryLoop", server: Server) -> None:
        self.loop = loop
        self.server = server
        self.frozen = False
        self.pieces: Callable[[], tuple[int, float]] | None = None
        """How large the next piece is, and after how many seconds it goes; all at once without."""
        self.cut_after: int | None = None
        """How many more bytes arrive before the connection is reset."""
        self.stuck_after: int | None = None
        """How many bytes arrive at all: a proxy keeps the rest until the answer ends, which it never does."""
        self.client: MemoryTransport | None = None
        self.task: asyncio.Task[None] | None = None
        self.sent = self.arrived = 0
        self.broken = False
        """Whether what arrived last may never have been read."""
        self.closed_by_client = False
        self._asked = b""
        self._waiting = bytearray()
        self._marks: list[Mark] = []
        self._ends: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        server.wires.append(self)

    # the server's side

    def send(self, data: bytes, *marks: Mark) -> None:
        if self.client is None:
            return
        self._marks += [mark._replace(offset=self.sent + mark.offset) for mark in marks]
        self._waiting += data
        self.sent += len(data)
        self.flow()

    def end(self) -> None:
        """The server has nothing more to say on this connection."""
        self._ends = self._ends or "end"
        self.flow()

    # the network's side

    def flow(self) -> None:
        """Let what waits arrive, a moment later."""
        if self._timer is None and self.client is not None and (self._waiting or self._ends):
            wait = LATENCY_SECS if self.pieces is None else self.pieces()[1]
            self._timer = self.loop.call_later(wait, self._arrive)

    def cut(self) -> None:
        """A reset: whatever is under way is lost."""
        if self.client is not None:
            self.broken = True
            client, self.client = self.client, None
            client.lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            self._over()

    def _arrive(self) -> None:
        self._timer = None
        if self.client is None or self.frozen or self.server.frozen:
            return
        size = len(self._waiting) if self.pieces is None else max(1, self.pieces()[0])
        if self.stuck_after is not None:
            size = min(size, self.stuck_after - self.arrived)
            if not size:
                return
        cut = self.cut_after is not None and size >= self.cut_after
        if cut:
            size = self.cut_after or 0
        elif self.cut_after is not None:
            self.cut_after -= size
        self._give(bytes(self._waiting[:size]))
        del self._waiting[:size]
        if cut:
            self.cut()
        elif self._waiting:
            self.flow()
        elif self._ends and self.client is not None:
            client, self.client = self.client, None
            client.lost(None)
            self._over()

    def _give(self, data: bytes) -> None:
        if not data or self.client is None:
            return
        self.arrived += len(data)
        met = [mark for mark in self._marks if mark.offset <= self.arrived]
        self._marks = self._marks[len(met) :]
        for mark in met:
            mark.arrived()
        self.client.give(data)
        if met:
            self.loop.call_later(READ_SECS, lambda: [mark.read() for mark in met])

    # the client's side

    def asks(self, data: bytes) -> None:
        self._asked += data
        head, end, rest = self._asked.partition(b"\r\n\r\n")
        if end:
            self._asked = rest
            self.loop.call_later(LATENCY_SECS, self._ask, head)

    def _ask(self, head: bytes) -> None:
        if self.client is None:
            return
        if self.server.frozen or self.frozen:  # it asks when somebody listens
            self.loop.call_later(0.01, self._ask, head)
            return
        self.task = self.loop.create_task(self._serve(head))

    async def _serve(self, head: bytes) -> None:
        await self.server.serve(self, head)

    def left(self) -> None:
        """The client closed it."""
        if self.client is not None:
            self.closed_by_client, self.client = True, None
            self._over()

    def _over(self) -> None:
        if self in self.server.wires:
            self.server.wires.remove(self)
        if self.task is not None:
            self.task.cancel()
        if self._timer is not None:
            self._timer.cancel()


class MemoryTransport(asyncio.Transport):
    """The client's end of a connection."""

    def __init__(self, wire: Wire, protocol: asyncio.BaseProtocol, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        self._wire = wire
        self._protocol: Any = protocol
        self._closing = False
        self._paused = False
        self._held: list[bytes] = []
        self._lost: tuple[Exception | None] | None = None
        wire.client = self

    def give(self, data: bytes) -> None:
        if self._closing:
            return
        if self._paused:
            self._held.append(data)
        else:
            self._protocol.data_received(data)

    def lost(self, error: Exception | None) -> None:
        if self._paused and error is None:
            self._lost = (error,)
        elif not self._closing:
            self._closing = True
            self._wire.loop.call_soon(self._protocol.connection_lost, error)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for data in held:
            self._wire.loop.call_soon(self.give, data)
        if self._lost:
            self._wire.loop.call_soon(self.lost, *self._lost)
            self._lost = None

    def is_reading(self) -> bool:
        return not self._paused

    def write(self, data: Any) -> None:
        if not self._closing:
            self._wire.asks(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._wire.left()
            self._wire.loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class MemoryLoop(VirtualTimeLoop):
    """Virtual time, and a network of its own: ``names`` have addresses, at which there are ``servers``.

    Of an address with several servers, such as that of a balancer, one of those that do not refuse is met by chance.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, list[str]] = {}
        self.servers: dict[str, list[Server]] = {}
        self.resolver_fails = False
        self.resolver_hangs = False
        self.dice = random.Random(0)
        self._reached: dict[int, tuple[Server, tuple[str, int]]] = {}

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        while self.resolver_hangs:
            await asyncio.sleep(0.05)
        await asyncio.sleep(LATENCY_SECS)
        if self.resolver_fails or host not in self.names:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        addresses = list(self.names[host])
        self.dice.shuffle(addresses)  # as many resolvers do
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await asyncio.sleep(2 * LATENCY_SECS)
        behind = self.servers[address[0]]
        server = self.dice.choice([each for each in behind if not each.refuses] or behind)
        for secs in SYN_SECS:
            if server.unreachable:
                await asyncio.sleep(secs)
        if server.unreachable:
            raise OSError(errno.ETIMEDOUT, "Connection timed out")
        if server.refuses:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self._reached[sock.fileno()] = (server, address)

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        server, address = self._reached.pop(sock.fileno())
        sock.close()
        protocol = protocol_factory()
        transport = MemoryTransport(Wire(self, server), protocol, address)
        protocol.connection_made(transport)
        return transport, protocol
