"""One connection that speaks TLS: from the accept through the handshake to bytes in the clear for ``connection``.

Between the socket and ``Connection``, for which it is the transport. Built on Python's own TLS in memory rather than on
the event loop's, for three bounds that this one does not have: a peer in its handshake counts as a connection and has a
deadline, a large answer is encrypted piece by piece as its reader takes it instead of being copied whole, and a
close waits for no answer of the peer. Each connection takes the certificate of the moment in which it begins.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from discovery.http.certificates import Certificates
from discovery.http.connection import FIRST_OF_TLS, LINGER_SECS, RESET_ON_CLOSE, Connection
from discovery.http.limits import TLS_SPOKEN_HERE
from discovery.http.peers import SharedState

LONG_HELLO_BYTES = 4096
"""A first record above this is left to the library to judge."""
LONGEST_RECORD_BYTES = 16_384
PIECE_BYTES = 65_536
"""How much is encrypted, or decrypted, at a time."""


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """The protocol of a socket, and the transport of the ``Connection`` that begins after the handshake."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_certificates",
        "_closing",
        "_connection",
        "_ears_shut",
        "_hello",
        "_incoming",
        "_open",
        "_outgoing",
        "_reading_paused",
        "_shared",
        "_tls",
        "_writing_paused",
        "deadline",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(
        self, certificates: Certificates, shared: SharedState, open_connection: Callable[[], Connection]
    ) -> None:
        self._certificates = certificates
        self._shared = shared
        self._open = open_connection
        self._connection: Connection | None = None
        self._tls: ssl.SSLObject | None = None
        # What came of the first record: the library begins when all of it is there, since it takes tens of kilobytes.
        self._hello = b""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._backlog: list[bytes | memoryview] = []  # a list: an empty deque has half a kilobyte
        self._backlog_bytes = 0
        self._writing_paused = False
        self._reading_paused = False
        self._closing = False
        self._ears_shut = False
        self.deadline = 0.0

    # What the socket's transport tells.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count as a connection from the first moment on."""
        self.transport = transport
        self.deadline = asyncio.get_running_loop().time() + self._shared.limits.handshake_timeout_secs
        self._shared.connections.add(self)
        if len(self._shared.connections) > self._shared.capacity + self._shared.spare:
            self._shared.turn_away()
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake, or hand over what was decrypted."""
        if self._ears_shut:
            return
        if self._tls is None:
            self._hello += data
            if self._hello[:1] != FIRST_OF_TLS:
                self._refuse_plain_http()
                return
            if not _is_whole_record(self._hello):
                return
            data, self._hello = self._hello, b""
            self._tls = self._certificates.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(data)
        if self._connection is None:
            self._shake_hands(self._tls)
        if self._connection is not None:
            self._read(self._tls, self._connection)

    def eof_received(self) -> bool:
        """What has been written is still delivered, as without TLS."""
        if self._connection is None:
            return False
        self._hear_end(self._connection)
        return True  # the end comes by ``close``

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, or leave as one whose handshake never ended."""
        in_handshake = self._in_handshake
        connection, self._connection, self._tls = self._connection, None, None
        self._closing = self._ears_shut = True
        self._backlog.clear()
        self._backlog_bytes = 0
        if connection is not None:
            connection.connection_lost(exc)
            return
        if in_handshake:
            self._shared.handshake_failed("the client hung up")
        self._leave()

    def pause_writing(self) -> None:
        """The peer takes less than is written."""
        self._writing_paused = True
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Encrypt the next pieces; only when none is left, more can be written."""
        self._writing_paused = False
        self._encrypt_backlog()
        if self._connection is not None and not self._writing_paused:
            self._connection.resume_writing()

    # What the server asks for until the handshake is done; from then on it asks ``Connection``.

    def overdue(self) -> None:
        """No handshake in time, or no end after a refused one."""
        if self._in_handshake:
            secs = self._shared.limits.handshake_timeout_secs
            self._shared.handshake_failed(f"it was not done within {secs:g} seconds")
        self.finish()

    def check_writing(self, now: float) -> None:
        """A handshake writes too little to wait for anybody."""

    def drain(self) -> None:
        """Nothing has been asked yet."""

    def finish(self) -> None:
        """Nobody begins any more."""
        self._ears_shut = True
        self.transport.abort()

    # The transport of ``Connection``.

    def write(self, data: Any) -> None:
        """Encrypt it if the peer keeps up, else keep a reference."""
        if self._closing or not data:
            return
        if len(data) <= PIECE_BYTES and not self._writing_paused and not self._backlog:
            self._encrypt(data)
            return
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Keep references to what the peer is not ready for, since others may be sent the very same bytes."""
        if self._closing:
            return
        for data in list_of_data:
            if data:
                self._backlog.append(bytes(data))  # no copy of what is bytes already
                self._backlog_bytes += len(data)
        self._encrypt_backlog()

    def get_write_buffer_size(self) -> int:
        """What the peer has not taken yet, encrypted or not."""
        return self._backlog_bytes + self.transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        """TLS has an end of its own for each direction."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more comes, and hear nothing more but the end."""
        self._ears_shut = True
        self._say_end()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def close(self) -> None:
        """Close when everything is written, without waiting for the peer to agree."""
        if self._closing:
            return
        self._closing = self._ears_shut = True
        if not self._backlog:
            self._say_end()
            self.transport.close()

    def abort(self) -> None:
        """See ``asyncio.Transport``."""
        self._closing = self._ears_shut = True
        self.transport.abort()

    def is_closing(self) -> bool:
        """See ``asyncio.Transport``."""
        return self._closing or self.transport.is_closing()

    def pause_reading(self) -> None:
        """See ``asyncio.Transport``."""
        self._reading_paused = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, beginning with what was decrypted or received before the pause."""
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of the socket, and whether it speaks TLS."""
        if name in ("sslcontext", "ssl_object"):
            return self._tls if name == "ssl_object" or self._tls is None else self._tls.context
        return self.transport.get_extra_info(name, default)

    # Inner steps.

    @property
    def _in_handshake(self) -> bool:
        """Whether the peer has begun a handshake that is neither done nor refused."""
        begun = self._tls is not None or bool(self._hello)
        return begun and self._connection is None and not self._ears_shut

    def _refuse_plain_http(self) -> None:
        """Answer in plain text: whoever forgot the s of https reads why."""
        connection = self._open()
        self._shared.connections.discard(self)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)
        connection.refuse(TLS_SPOKEN_HERE)

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._fail(_reason(error))
            return
        self._flush()
        self._shared.connections.discard(self)
        self._connection = self._open()
        self._connection.connection_made(self)

    def _fail(self, reason: str) -> None:
        """Tell the peer and the log; the peer's bytes are still taken, since a reset would destroy what it is told."""
        self._shared.handshake_failed(reason)
        self._ears_shut = True
        self._flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline = asyncio.get_running_loop().time() + LINGER_SECS

    def _read_on(self) -> None:
        if self._tls is not None and self._connection is not None:
            self._read(self._tls, self._connection)

    def _read(self, tls: ssl.SSLObject, connection: Connection) -> None:
        while (self._incoming.pending or tls.pending()) and not (self._reading_paused or self._ears_shut):
            try:
                data = tls.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:  # broken on the way, or the peer refuses what it was shown
                self.abort()
                return
            if not data:
                self._hear_end(connection)
                return
            connection.data_received(data)
        if self._outgoing.pending and not self._closing:
            self._flush()

    def _hear_end(self, connection: Connection) -> None:
        if not self._ears_shut:
            self._ears_shut = True
            connection.eof_received()
        elif not self._closing:
            self.close()

    def _encrypt(self, data: Any) -> None:
        if self._tls is None:
            return
        try:
            self._tls.write(data)
        except ssl.SSLError:
            self.abort()
            return
        self._flush()

    def _encrypt_backlog(self) -> None:
        while self._backlog and not self._writing_paused and not self.transport.is_closing():
            piece = self._next_piece()
            self._backlog_bytes -= len(piece)
            self._encrypt(piece)
        if self._closing and not self._backlog and not self.transport.is_closing():
            self._say_end()
            self.transport.close()

    def _next_piece(self) -> bytes | memoryview:
        """The beginning of the backlog: of much a part, of little as much as goes together."""
        first = self._backlog[0]
        if len(first) > PIECE_BYTES:
            self._backlog[0] = memoryview(first)[PIECE_BYTES:]
            return memoryview(first)[:PIECE_BYTES]
        size = count = 0
        for data in self._backlog:
            size += len(data)
            if size > PIECE_BYTES:
                break
            count += 1
        piece = first if count == 1 else b"".join(self._backlog[:count])
        del self._backlog[:count]
        return piece

    def _say_end(self) -> None:
        if self._tls is not None:
            with contextlib.suppress(ssl.SSLError):  # the peer has not said the same yet, and need not
                self._tls.unwrap()
            self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.transport.write(self._outgoing.read())

    def _leave(self) -> None:
        self._shared.connections.discard(self)
        if not self._shared.connections:
            self._shared.empty.set()


def _is_whole_record(received: bytes) -> bool:
    """Whether the first record is complete, longer than it needs to be, or none."""
    if len(received) < 5:
        return False
    length = int.from_bytes(received[3:5], "big")
    is_record = received[1] == 3 and length <= LONGEST_RECORD_BYTES
    return not is_record or len(received) >= 5 + min(length, LONG_HELLO_BYTES)


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not trusted: {error.verify_message}"
    return (error.reason or "no TLS").lower().replace("_", " ")
