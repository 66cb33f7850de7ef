"""The two ends of the HTTP server's tests: the server on its own loop in a thread, and peers that are plain sockets."""

import asyncio
import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from discovery.http.access_log import CountedExchange
from discovery.http.certificates import Certificates
from discovery.http.exchange import Exchange
from discovery.http.server import HttpServer, Limits, run_async

Result = TypeVar("Result")
PATIENCE_SECS = 8.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document; fails on an answer that is none."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        return problem


class Peer:
    """A client that says and reads exactly what it is told to."""

    def __init__(self, port: int, host: str = "127.0.0.1", receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.socket.settimeout(PATIENCE_SECS)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect((host, port))
        except OSError:
            self.socket.close()
            raise
        self.began = time.monotonic()
        self.pending = b""

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, path: str, *headers: str) -> None:
        lines = "".join(f"{header}\r\n" for header in ("Host: test", *headers))
        self.send(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())

    def post(self, path: str, body: bytes, *headers: str, length: int | None = None) -> None:
        lines = "".join(f"{header}\r\n" for header in ("Host: test", *headers))
        length = len(body) if length is None else length
        self.send(f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n".encode() + body)

    def read_until(self, sign: bytes) -> bytes:
        """What comes up to and with the sign; fails on the end of the connection."""
        while sign not in self.pending:
            data = self.socket.recv(65536)
            assert data, f"the connection ended before {sign!r}: {self.pending[-300:]!r}"
            self.pending += data
        read, _, self.pending = self.pending.partition(sign)
        return read + sign

    def read(self, count: int) -> bytes:
        while len(self.pending) < count:
            data = self.socket.recv(65536)
            assert data, "the connection ended inside a body"
            self.pending += data
        read, self.pending = self.pending[:count], self.pending[count:]
        return read

    def answer(self, *, to_head: bool = False) -> Answer:
        """One whole answer that has a Content-Length."""
        head = self.read_until(b"\r\n\r\n").decode()
        status_line, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if to_head else int(headers.get("content-length", "0"))
        return Answer(int(status_line.split()[1]), headers, self.read(length))

    def ended(self) -> bytes:
        """Everything up to the end of the connection, by a clean close or a reset; fails when it stays open."""
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(65536):
                self.pending += data
        rest, self.pending = self.pending, b""
        return rest

    def is_open(self) -> bool:
        """Whether the connection is open and silent at this moment."""
        readable, _, _ = select.select([self.socket], [], [], 0)
        return not readable and not self.pending

    def drip(self, byte: bytes, pace_secs: float = 0.03) -> None:
        """Send one byte after the other until the server says something or closes."""
        until = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < until:
            readable, _, _ = select.select([self.socket], [], [], pace_secs)
            if readable:
                return
            with contextlib.suppress(ConnectionError):
                self.socket.sendall(byte)
        raise AssertionError("the server let it trickle")


class App:
    """An app with one path for each thing that an answer can do; ``seen`` are the bodies it took as complete."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.disconnected: list[str] = []
        self.started: list[str] = []
        self.streams: list[Callable[[dict[str, Any]], Awaitable[None]]] = []
        self.release = threading.Event()
        self.answer_bytes = 8_000_000

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.started.append(scope["path"])
        await getattr(self, scope["path"].strip("/"))(scope, receive, send)

    async def whole(self, send: Any, body: bytes, status: int = 200) -> None:
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def ok(self, scope: Any, receive: Any, send: Any) -> None:
        await self.whole(send, b"ok")

    async def echo(self, scope: Any, receive: Any, send: Any) -> None:
        """As naive as apps are: takes whatever ends the body for its end."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.seen.append(body)
        await self.whole(send, body)

    async def park(self, scope: Any, receive: Any, send: Any) -> None:
        """A long poll: silent until the test releases it or the peer leaves."""
        await receive()
        gone = asyncio.ensure_future(receive())
        while not self.release.is_set() and not gone.done():
            await asyncio.wait([gone], timeout=0.01)
        if gone.done():
            self.disconnected.append("park")
            return
        gone.cancel()
        await self.whole(send, b"released", 201)

    async def stream(self, scope: Any, receive: Any, send: Any) -> None:
        """Open until the peer leaves; the test writes into it through ``streams``."""
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
        self.streams.append(send)
        assert (await receive())["type"] == "http.disconnect"
        self.disconnected.append("stream")

    async def torrent(self, scope: Any, receive: Any, send: Any) -> None:
        """A stream that writes as fast as it is let."""
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        gone = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        while not gone.done():
            await send({"type": "http.response.body", "body": b":" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.disconnected.append("torrent")

    async def big(self, scope: Any, receive: Any, send: Any) -> None:
        await self.whole(send, b"b" * self.answer_bytes)

    async def block(self, scope: Any, receive: Any, send: Any) -> None:
        """Let the peer know, then keep the whole process busy for longer than the tests' deadlines."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await asyncio.sleep(0.05)  # the head leaves at the end of the loop's turn
        time.sleep(2.5)
        await send({"type": "http.response.body", "body": b"."})

    async def deaf(self, scope: Any, receive: Any, send: Any) -> None:
        """Never ends by itself and never listens whether anybody still waits."""
        await asyncio.Event().wait()

    async def raises(self, scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("the reason is for the log alone")

    async def silent(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def breaks(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        raise LookupError("in the middle of an answer")

    async def cancels(self, scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError


class Served:
    """A running server, driven from the test's thread."""

    def __init__(
        self, app: Any, limits: Limits, host: str, certificates: Certificates | None, *, counted: bool = False
    ) -> None:
        self.app = app
        kind = CountedExchange if counted else Exchange
        self.server = HttpServer(app, host=host, port=0, limits=limits, certificates=certificates, exchange=kind)
        self._started = threading.Event()
        self._thread = threading.Thread(target=run_async, args=(self._run(),), daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_SECS)
        self.port = self.server.port

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        await self.server.start()
        self._started.set()
        await self._ended.wait()

    def ask(self, awaitable: Callable[[], Awaitable[Result]]) -> Result:
        """Run something on the server's loop and wait for it."""

        async def run() -> Result:
            return await awaitable()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_SECS)

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a plain function on the server's loop and wait for it."""

        async def run() -> Result:
            return function()

        return self.ask(run)

    def write(self, data: bytes) -> None:
        """Write one event into every open stream, stepped from outside of the request's own task as publishers do."""

        def step() -> None:
            for send in self.app.streams:
                coroutine = send({"type": "http.response.body", "body": data, "more_body": True})
                try:
                    coroutine.send(None)
                except StopIteration:
                    continue
                coroutine.close()
                raise AssertionError("send() waited though the peer reads")

        self.call(step)

    def peer(self, **options: Any) -> Peer:
        return Peer(self.port, **options)

    def end(self) -> None:
        async def stop() -> None:
            await self.server.stop(0)
            self._ended.set()

        self.ask(stop)
        self._thread.join(PATIENCE_SECS)
        assert not self._thread.is_alive()


def eventually(sign: Callable[[], Any], what: str) -> None:
    """Wait for a sign that another thread gives, at most a few seconds."""
    until = time.monotonic() + PATIENCE_SECS
    while not sign():
        assert time.monotonic() < until, f"never seen: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def served(
    app: Any = None,
    host: str = "127.0.0.1",
    certificates: Certificates | None = None,
    *,
    counted: bool = False,
    **limits: Any,
) -> Iterator[Served]:
    """A server with the given limits, on a free port."""
    running = Served(app or App(), Limits(**{"max_connections": 1000} | limits), host, certificates, counted=counted)
    try:
        yield running
    finally:
        running.end()
