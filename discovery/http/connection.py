"""One connection of the HTTP server: uvicorn's parser protocol with a bound on everything that a peer can hold.

Between the socket and ``exchange``, which runs the app. A request gets there only when all of it has arrived, so the
app never waits for a body, never acts on half of one, and whatever is refused here is refused before the app has heard
of it. Knows nothing of routes, pools or who the caller is.

Deadlines are plain numbers that the server's sweep compares: a timer for each request would cost more than the request.
"""

import asyncio
import math
import socket
import struct
from collections import deque

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from discovery.http.exchange import Exchange, begin, target_of
from discovery.http.heads import (
    CHECKED_HEADERS,
    head_size,
    header_refusal,
    is_host,
    size_refusal,
    target_refusal,
    without_offer,
)
from discovery.http.limits import (
    MAX_PIPELINED,
    NO_SINGLE_HOST,
    NO_TUNNELS,
    NOT_HTTP,
    TLS_NOT_SPOKEN_HERE,
    TOO_MANY_PIPELINED,
    Refusal,
    Unread,
)
from discovery.http.peers import SharedState
from discovery.http.request_ids import REQUEST_ID, REQUEST_ID_HEADERS, taken_over

LINGER_SECS = 1.0
"""How long a refused peer's bytes are still read and thrown away: a close with unread bytes is a reset, which would
destroy the refusal before the peer has read it."""

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
NEVER = math.inf
ASGI = {"version": "3.0", "spec_version": "2.3"}
FIRST_OF_TLS = b"\x16"
"""The first byte of every TLS connection, and of no request."""


class Refused(Exception):
    """Stops the parser from inside one of its callbacks; the reason lies in the connection's ``refusal``."""


class Connection(HttpToolsProtocol):
    """One peer's connection, from the accept to the last byte.

    It is *receiving* (under ``request_timeout_secs`` up to the end of the request, whatever trickles in), *answering*
    (under no deadline but that of a stalled or endless transfer) or idle (``keep_alive_secs``).
    """

    # Beside uvicorn's own attributes: more in the same dictionary would cost each idle subscriber a kilobyte.
    __slots__ = (
        "begun",
        "content",
        "deadline",
        "hosts",
        "in_head",
        "limits",
        "lingering",
        "message_bytes",
        "messages",
        "receiving",
        "refusal",
        "request_id",
        "running",
        "shared",
        "surplus",
        "to_begin",
        "unread",
    )

    pipeline: deque[Exchange]  # type: ignore[assignment]

    def __init__(self, config: Config, shared: SharedState, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, shared, {}, loop)
        self.shared = shared
        self.limits = shared.limits
        self.running: Exchange | None = None
        # The running request until it is begun, which happens when all of a read has been parsed.
        self.to_begin: Exchange | None = None
        self.refusal: Refusal | None = None
        self.surplus = False
        self.lingering = False
        # When the sweep has to act on this connection, by the loop's clock.
        self.deadline = NEVER
        self.receiving = True
        # Of the request that is being received.
        self.in_head = True
        self.begun = False
        self.hosts = 0
        self.content: bytes | bytearray = b""
        self.request_id: str | None = None
        # Bytes since the request began; never less than its head, and more when the read also held an earlier request.
        self.message_bytes = 0
        self.messages = 0
        self.unread: Unread | None = None

    @property
    def answering(self) -> bool:
        """Whether a complete request is with the app and its answer is not finished."""
        return self.running is not None and not self.running.response_complete

    # What the transport tells.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the receive deadline; above the capacity a few hear why they are not served, all others are closed."""
        super().connection_made(transport)
        self.deadline = self.loop.time() + self.limits.request_timeout_secs
        above = len(self.connections) - self.shared.capacity
        if above > 0:
            self.shared.turn_away()
            self.surplus = True
            if above > self.shared.spare:
                self.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, answer what is complete, and bound what is not."""
        if self.lingering:
            return
        self.message_bytes += len(data)
        messages = self.messages
        refusal = self._feed(data)
        if self.messages != messages:
            # Where in this read the next request began is unknown: its bytes count from the next read on.
            self.message_bytes = 0
        elif refusal is None:
            refusal = self._reason_to_stop_receiving()
        if self.to_begin is not None:
            exchange, self.to_begin = self.to_begin, None
            self._begin(exchange)
        if refusal is not None:
            self.refuse(refusal)
        elif not self.receiving and not self.answering and (self.begun or self.message_bytes > 0):
            self.receiving = True
            self.deadline = self.loop.time() + self.limits.request_timeout_secs

    def eof_received(self) -> None:
        """A peer that only closed its side has left too: nothing here is worth a half-open connection."""
        self._tell_disconnected()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request; those that wait behind it are never started."""
        self.shared.unflushed.discard(self)
        self.pipeline.clear()
        self._tell_disconnected()
        super().connection_lost(exc)
        if not self.connections:
            self.shared.empty.set()

    def pause_writing(self) -> None:
        """The peer takes less than is written: from now on the sweep looks whether it takes anything."""
        super().pause_writing()
        self._watch_writing()

    # What the parser tells.

    def on_message_begin(self) -> None:
        """Forget what was noted of the request before."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.begun = True
        self.hosts = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header and note what decides how the request is taken; trailers are dropped."""
        if not self.in_head:
            return
        name = name.lower()
        if name == b"host":
            self.hosts += 1
            if not is_host(value):
                self.refusal = self.refusal or NO_SINGLE_HOST
        elif name in CHECKED_HEADERS:
            if name == b"expect":
                self.expect_100_continue = value.strip().lower() == b"100-continue"
            elif name in REQUEST_ID_HEADERS:
                self.request_id = taken_over(name, value.strip(), self.request_id)
            else:
                self.refusal = self.refusal or header_refusal(name, value, self.limits)
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Refuse by the head alone what can be refused, and let a peer that asks for it send its body."""
        self.refusal = self.refusal or self._reason_to_refuse_head()
        if self.refusal is not None:
            raise Refused
        self.in_head = False
        if self.expect_100_continue:
            self._say_continue()

    def on_body(self, body: bytes) -> None:
        """Keep the body until it is complete, and no more of it than the limit."""
        if len(self.content) + len(body) > self.limits.max_body_bytes:
            self.refusal = self.limits.body_too_large
            raise Refused
        if not self.content:
            self.content = body  # nearly always all of it
            return
        if type(self.content) is bytes:
            self.content = bytearray(self.content)
        self.content += body

    def on_message_complete(self) -> None:
        """Hand the whole request to the app: what uvicorn does at the end of the head happens here, body in hand."""
        if self.parser.should_upgrade():
            # The parser ends such a request at its head and leaves the body lying: see ``_ignore_upgrade``.
            if self.parser.get_method() == b"CONNECT":
                self.refusal = NO_TUNNELS
                raise Refused
            return
        self.messages += 1
        self.in_head = True
        self.begun = False
        self.receiving = False
        self.deadline = NEVER
        exchange = self._exchange()
        if self.answering:
            self.flow.pause_reading()
            self.pipeline.append(exchange)
        else:
            self.running = self.to_begin = exchange

    # The answer.

    def on_response_complete(self) -> None:
        """Start the request that waits behind this answer, or the deadline for the next one."""
        self.shared.total_requests += 1
        if self.transport.is_closing():
            self.close()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self.running = self.pipeline.popleft()
            self._begin(self.running)
            return
        if self.transport.get_write_buffer_size() == 0:
            self.running = self.unread = None  # an idle connection holds nothing of its last request
        self.receiving = self.begun or self.message_bytes > 0
        limits = self.limits
        self.deadline = self.loop.time() + (limits.request_timeout_secs if self.receiving else limits.keep_alive_secs)

    # What the server's sweep, drain and stop ask for.

    def overdue(self) -> None:
        """Its deadline has passed: nobody is heard any longer, a trickling request is refused, an idle peer closed."""
        self.deadline = NEVER
        if self.lingering:
            self.transport.abort()
        elif self.begun or self.message_bytes > 0:
            self.refuse(self.limits.too_slow)
        else:
            self.close()

    def check_writing(self, now: float) -> None:
        """Abort when the peer took nothing for ``write_stall_timeout_secs``, or not all within the transfer time.

        ``close()`` would wait for the very bytes that nobody takes.
        """
        size = self.transport.get_write_buffer_size()
        unread = self._unread(now)
        is_flowing_stream = not unread.has_end and not self.flow.write_paused and not self.transport.is_closing()
        if size == 0 or is_flowing_stream:
            self.shared.unflushed.discard(self)
        elif unread.is_overdue(size, now):
            self.shared.dropped += 1
            self.abort()

    def drain(self) -> None:
        """Let the running answer be the last one on this connection."""
        if self.running is not None and self.answering:
            self.running.keep_alive = False

    def finish(self) -> None:
        """Close now, unless a request is running or on its way in."""
        if self.lingering:
            self.transport.abort()
        elif not self.answering and not self.begun:
            self.close()

    def close(self) -> None:
        """Close after what is written has been taken, which the sweep then watches."""
        self.transport.close()
        if self.transport.get_write_buffer_size() > 0:
            self._watch_writing()

    def abort(self) -> None:
        """Reset the connection: a plain close leaves what was written to the kernel, megabytes that nobody may take."""
        if self not in self.connections:
            return  # already lost, and its descriptor may belong to somebody else by now
        peer = self.transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()

    def refuse(self, refusal: Refusal) -> None:
        """Answer with a problem document and hear no more; abort where it would land inside a running answer."""
        if self.answering or self.transport.is_closing():
            self.abort()
            return
        headers, body = refusal.headers_and_body(self.request_id)
        if self.request_id is not None:
            headers.append((b"x-request-id", self.request_id.encode("ascii")))
        lines = [b"%b: %b\r\n" % header for header in (*self.shared.default_headers, *headers)]
        answer = b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body])
        self.transport.write(answer)
        for heard in self.shared.on_refused:
            heard(refusal.status, self.client, self.request_id, len(answer))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.lingering = True
        self.content = b""
        self.flow.resume_reading()
        self.deadline = self.loop.time() + LINGER_SECS

    # Inner steps.

    def _feed(self, data: bytes) -> Refusal | None:
        """Let the parser take a read; why no more of it is taken, if so."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            return self.refusal or NOT_HTTP
        except httptools.HttpParserError as error:
            is_tls = data[:1] == FIRST_OF_TLS and not self.messages
            return TLS_NOT_SPOKEN_HERE if is_tls else Refusal(400, f"{NOT_HTTP.detail[:-1]}: {error}.")
        return None

    def _reason_to_stop_receiving(self) -> Refusal | None:
        if self.in_head and self.message_bytes > self.limits.max_header_bytes:
            return size_refusal(self.url if self.begun else b"", self.limits)
        if self.message_bytes > self.limits.max_message_bytes:
            return self.limits.body_too_large
        return None

    def _exchange(self) -> Exchange:
        """The request that has just become complete."""
        parser, headers, body = self.parser, self.headers, self.content
        version = parser.get_http_version()
        path, raw_path, query = target_of(self.url)
        scope = {
            "type": "http",
            "asgi": ASGI,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": self.scheme,
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self.client,
            "server": self.server,
        }
        if self.request_id is not None:
            scope[REQUEST_ID], self.request_id = self.request_id, None
        self.headers, self.content = [], b""
        keep_alive = version != "1.0" and parser.should_keep_alive()
        return self.shared.exchange(scope, bytes(body), self, keep_alive=keep_alive)

    def _begin(self, exchange: Exchange) -> None:
        """Let the app answer the running request: at once, or when what it has to wait for is there."""
        if self.shared.draining or self.surplus:
            exchange.keep_alive = False
        rest = begin(exchange, self.app, self)
        if rest is not None:
            rest.go_on(self.loop, self.tasks)  # type: ignore[arg-type]

    def _reason_to_refuse_head(self) -> Refusal | None:
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            return NOT_HTTP
        if self.hosts != 1 and (self.hosts > 1 or version != "1.0"):
            return NO_SINGLE_HOST
        # Only a suspicion: the same read may have brought a body or an earlier request.
        limit = self.limits.max_header_bytes
        if self.message_bytes > limit and head_size(self.url, self.headers) > limit:
            return size_refusal(self.url, self.limits)
        if len(self.pipeline) >= MAX_PIPELINED:
            return TOO_MANY_PIPELINED
        if self.surplus and self.url not in self.limits.always_answered:
            return self.limits.too_many_connections
        return target_refusal(self.url)

    def _say_continue(self) -> None:
        self.expect_100_continue = False
        # Inside of another answer it would be taken for a part of that; an older peer knows nothing of it. Both go on
        # by themselves after a moment.
        if not self.answering and self.parser.get_http_version() == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _ignore_upgrade(self, rest: bytes) -> Refusal | None:
        """Take a request that offers another protocol as if it had not.

        Java's HTTP client offers HTTP/2 with every first request, and the parser would skip that request's body: so it
        is parsed again without the offer.
        """
        parser = self.parser
        head = without_offer(parser.get_method(), self.url, parser.get_http_version(), self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.in_head = True
        self.message_bytes = len(head) + len(rest)
        return self._feed(head + rest)

    def _watch_writing(self) -> None:
        now = self.loop.time()
        self._unread(now).is_overdue(self.transport.get_write_buffer_size(), now)
        self.shared.unflushed.add(self)

    def _unread(self, now: float) -> Unread:
        if self.unread is None or self.unread.answer is not self.running:
            has_end = self.running is not None and self.running.chunked_encoding is False  # else it is a stream
            self.unread = Unread(self.running, self.limits, now, has_end=has_end)
        return self.unread

    def _tell_disconnected(self) -> None:
        if self.running is not None and self.answering:
            self.running.disconnect()
