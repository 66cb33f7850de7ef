"""One request with the app: from the moment it is complete to the end of its answer.

Between ``connection``, which hands the request over and hears of the end, and the ASGI app. Knows neither how a request
arrives nor what waits behind it on the connection.

The app takes its first step at once, in the turn of the loop that brought the request: most answers end in it, and only
the others cost a task. In that step there is no current task: what needs one, as ``asyncio.timeout`` does, has to wait
for something before. A future that has ``needs_no_task`` is followed by a second such step.
"""

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from discovery.http.heads import Field, ReadyHeaders
from discovery.http.limits import INTERNAL_ERROR
from discovery.http.peers import SharedState
from discovery.http.request_ids import REQUEST_ID, id_of
from discovery.logs import Fields, event

JOINED_BYTES = 65_536
"""Up to here a copy that puts head and body into one piece is cheaper than a second piece for the system call."""

SHARED_BYTES = 16_384
"""From here on the body of a chunk is written as it is, between what frames it."""

TURN_BYTES = 4 << 20
"""How much of a body in pieces is written in one turn of the loop, in about a millisecond; less would cost more."""

LAST_CHUNK = b"0\r\n\r\n"

REMEMBERED_TARGETS = 1024
REMEMBERED_TARGET_BYTES = 256

WIRE = "discovery.wire"
"""Where the scope has the exchange itself, for answers that are written to from outside of their task: ``streams``."""

App = Callable[[Any, Any, Any], Awaitable[None]]

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """The connection, as far as its exchanges need it."""

    transport: asyncio.Transport
    flow: FlowControl
    shared: SharedState

    def on_response_complete(self) -> None:
        """The running answer has been written to its end."""

    def close(self) -> None:
        """Close after what is written has been taken."""

    def abort(self) -> None:
        """Reset at once."""


class Exchange:
    """A request and its answer, as ASGI's ``receive`` and ``send``; head and first body bytes leave in one write."""

    __slots__ = (
        "_body",
        "_head",
        "_heard",
        "_missing",
        "_owner",
        "_shared",
        "begun_at",
        "chunked_encoding",
        "disconnected",
        "flow",
        "keep_alive",
        "response_complete",
        "response_started",
        "scope",
        "status",
        "transport",
    )

    begun_at: float
    """When the app was handed the request, by ``time.perf_counter``; only where somebody hears of its end."""

    def __init__(self, scope: dict[str, Any], body: bytes, owner: Owner, *, keep_alive: bool) -> None:
        scope[WIRE] = self
        self.scope = scope
        self.transport = owner.transport
        self.flow = owner.flow
        self.keep_alive = keep_alive
        self.disconnected = False
        self.status = 0
        self.response_started = False
        self.response_complete = False
        # None while the answer has not begun, and where it has neither length nor chunks: HTTP/1.0, up to the close.
        self.chunked_encoding: bool | None = None
        self._owner: Owner | None = owner
        self._shared = owner.shared
        self._body: bytes | None = body
        self._head = b""
        self._missing = 0
        self._heard: asyncio.Event | None = None

    async def receive(self) -> dict[str, Any]:
        """The whole body; from then on the end of the answer or of the connection, whichever comes first."""
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            if self._body is not None:
                body, self._body = self._body, None
                return {"type": "http.request", "body": body, "more_body": False}
            if self._heard is None:
                self._heard = asyncio.Event()
            await self._heard.wait()
        return {"type": "http.disconnect"}

    def take_body(self) -> bytes | None:
        """The body as ``receive`` would give it; None where that has to be asked."""
        if self.disconnected or self.response_complete:
            return None
        self.flow.resume_reading()
        body, self._body = self._body, None
        return body

    def answer_now(self, status: int, headers: Iterable[Field], body: bytes) -> bool:
        """Write a whole answer; false, and nothing is written, where it has to go through ``send``."""
        if self.flow.write_paused or self.disconnected or self.response_started:
            return False
        self._begin(status, headers)
        self._write(body, more=False)
        return True

    async def send(self, message: Any) -> None:
        """Write a part of the answer when the peer has room for it; nothing once it has left."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.response_started and not self.response_complete:
            if (pieces := message.get("pieces")) is not None:
                await self._write_all(pieces)
            else:
                self._write(message.get("body", b""), more=message.get("more_body", False))
        elif kind == "http.response.start" and not self.response_started:
            self._begin(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"the app sent {kind} where it has no place in the answer")

    def write_now(self, framed: bytes) -> bool:
        """Write a part of the body that is framed already; false, and nothing is written, where the peer lags."""
        if self.disconnected or self.response_complete:
            return True
        if self.flow.write_paused:
            return False
        self.transport.write(framed)
        return True

    def disconnect(self) -> None:
        """The peer has left before the end of its answer."""
        self.disconnected = True
        if self._heard is not None:
            self._heard.set()

    def release(self) -> None:
        """The app has ended: who listens hears it, and what has led to this exchange and back must not keep it."""
        self._owner = None
        self.scope.pop(WIRE, None)
        for heard in self._shared.on_finished:
            heard(self)

    def _begin(self, status: int, headers: Iterable[Field]) -> None:
        """Make the head; it waits for the first body bytes."""
        ready = headers if type(headers) is ReadyHeaders else ReadyHeaders(headers)
        head = STATUS_LINE[status] + self._shared.default_lines(ready.names) + ready.lines
        if ready.closes:
            self.keep_alive = False
        elif not self.keep_alive:
            head += b"connection: close\r\n"
        if ready.length is not None:
            self.chunked_encoding = False
            self._missing = ready.length
        elif status in (204, 304) or self.scope["method"] == "HEAD":
            self.chunked_encoding = False
        elif self.scope["http_version"] != "1.0":
            self.chunked_encoding = True
            head += b"transfer-encoding: chunked\r\n"
        if REQUEST_ID in self.scope:
            head += b"x-request-id: %b\r\n" % self.scope[REQUEST_ID].encode("ascii")
        self.status = status
        self.response_started = True
        self._head = head + b"\r\n"

    def _write(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self._missing = 0
            self._write_out(b"")
        elif self.chunked_encoding:
            self._write_chunk(body, b"" if more else LAST_CHUNK)
        else:
            if self.chunked_encoding is False:
                if len(body) > self._missing:
                    raise RuntimeError("the app sent more than its Content-Length")
                self._missing -= len(body)
            self._write_out(body)
        if not more:
            self._end()

    def _write_chunk(self, body: bytes, last: bytes) -> None:
        if len(body) < SHARED_BYTES:
            self._write_out(b"%x\r\n%b\r\n%b" % (len(body), body, last) if body else last)
            return
        # Thousands may be sent the very same bytes: framed as one, each that reads slowly would hold a copy.
        head, self._head = self._head, b""
        self._write_parts((b"%b%x\r\n" % (head, len(body)), body, b"\r\n" + last))

    async def _write_all(self, pieces: list[bytes]) -> None:
        """Write a whole body that others share with this answer: it leaves as it is, without a copy.

        Of a long one a part in each turn of the loop, so that a crowd of its readers keeps nobody else waiting.
        """
        if self.chunked_encoding is not False or self.scope["method"] == "HEAD":
            self._write(b"" if self.scope["method"] == "HEAD" else b"".join(pieces), more=False)
            return
        if sum(map(len, pieces)) != self._missing:
            raise RuntimeError("the app sent another length than its Content-Length")
        parts = _parts(self._head, pieces)
        self._head = b""
        self._write_parts(next(parts))
        for part in parts:
            await (self.flow.drain() if self.flow.write_paused else asyncio.sleep(0))
            if self.disconnected:
                return
            self._write_parts(part)
        self._missing = 0
        self._end()

    def _write_parts(self, parts: Sequence[bytes]) -> None:
        self.transport.writelines(parts)

    def _write_out(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if len(data) > JOINED_BYTES and head:
            self.transport.writelines((head, data))
        elif head or data:
            self.transport.write(head + data)

    def _end(self) -> None:
        if self._missing:
            raise RuntimeError("the app sent less than its Content-Length")
        self.response_complete = True
        if self._heard is not None:
            self._heard.set()
        if not self.keep_alive:
            self.transport.close()
        if self._owner is not None:
            self._owner.on_response_complete()


def _parts(head: bytes, pieces: list[bytes]) -> Iterator[list[bytes]]:
    part, size = [head], 0
    for piece in pieces:
        if size + len(piece) > TURN_BYTES and size:
            yield part
            part, size = [], 0
        part.append(piece)
        size += len(piece)
    yield part


# ---- running the app


class Begun(Coroutine[Any, None, None]):
    """A coroutine that has taken its first step: what it waits for is given once more to the task that goes on."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, None, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for: tuple[Any] | None = (waits_for,)

    def send(self, value: None) -> Any:
        """See ``collections.abc.Coroutine``."""
        if self._waits_for is not None:
            (waits_for,), self._waits_for = self._waits_for, None
            return waits_for
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """See ``collections.abc.Coroutine``."""
        self._waits_for = None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """See ``collections.abc.Coroutine``."""
        self._coroutine.close()

    def __await__(self) -> Any:
        raise TypeError("it is for a task alone")

    def go_on(self, loop: asyncio.AbstractEventLoop, running: "set[asyncio.Future[Any]]") -> None:
        """Go on when what it waits for is there; until its end ``running`` has what can be awaited, or cancelled."""
        waits_for: Any = self._waits_for and self._waits_for[0]
        if getattr(waits_for, "needs_no_task", False):
            waits_for._asyncio_future_blocking = False  # as a task does that begins to wait
            running.add(waits_for)
            waits_for.add_done_callback(lambda done: self._take_second_step(done, loop, running))
        else:
            task = loop.create_task(self)
            running.add(task)
            task.add_done_callback(running.discard)

    def _take_second_step(
        self, done: "asyncio.Future[Any]", loop: asyncio.AbstractEventLoop, running: "set[asyncio.Future[Any]]"
    ) -> None:
        running.discard(done)
        try:
            waits_for = self._coroutine.send(None)
        except (StopIteration, asyncio.CancelledError):
            return
        self._waits_for = (waits_for,)
        task = loop.create_task(self)
        running.add(task)
        task.add_done_callback(running.discard)


def begin(exchange: Exchange, app: App, owner: Owner) -> Begun | None:
    """Let the app take its first step; what is left of it has to go on."""
    if owner.shared.on_finished:
        exchange.begun_at = time.perf_counter()
    running = _run(exchange, app, owner)
    try:
        waits_for = running.send(None)
    except (StopIteration, asyncio.CancelledError):
        return None
    return Begun(running, waits_for)


async def _run(exchange: Exchange, app: App, owner: Owner) -> None:
    """Let the app answer a complete request; where it fails to, say so in the log and to the peer."""
    try:
        await app(exchange.scope, exchange.receive, exchange.send)
        if not exchange.response_complete and not exchange.disconnected:
            _tell(logging.ERROR, exchange, "%s ended without an answer")
    except Exception:
        # After the peer has left, an error is most likely the app noticing just that.
        level = logging.DEBUG if exchange.disconnected else logging.ERROR
        _tell(level, exchange, "%s failed")
    except BaseException:
        owner.abort()
        raise
    finally:
        if not exchange.response_complete and not exchange.disconnected:
            await _answer_for_app(exchange, owner)
        exchange.release()


async def _answer_for_app(exchange: Exchange, owner: Owner) -> None:
    if exchange.response_started or owner.transport.is_closing():
        owner.close()  # in the middle of an answer: the missing rest tells the peer
        return
    headers, body = INTERNAL_ERROR.headers_and_body(id_of(exchange.scope))
    await exchange.send({"type": "http.response.start", "status": INTERNAL_ERROR.status, "headers": headers})
    await exchange.send({"type": "http.response.body", "body": body, "more_body": False})


def _tell(level: int, exchange: Exchange, text: str) -> None:
    """A fault of ours, with the traceback of the error that is being handled, if one is."""
    scope = exchange.scope
    # The path as it came, still escaped: an unescaped one could write lines of its own into the log.
    method, path = scope["method"], scope["raw_path"].decode("ascii")
    fields: Fields = {"method": method, "path": path, "request_id": id_of(scope)}
    event(logger, level, "request.failed", text, f"{method} {path}", exc_info=True, **fields)


# ---- what is asked for


class Target(NamedTuple):
    """The path of a request, as it is meant and as it came, and its query."""

    path: str
    raw_path: bytes
    query: bytes


def target_of(url: bytes) -> Target:
    """What the request line asks for; raises where it is no URL."""
    return _remembered(url) if len(url) <= REMEMBERED_TARGET_BYTES else _parse(url)


def _parse(url: bytes) -> Target:
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return Target(urllib.parse.unquote(path) if "%" in path else path, parsed.path, parsed.query or b"")


_remembered = lru_cache(REMEMBERED_TARGETS)(_parse)
