"""What one peer of the HTTP server may hold, and what it is told when it asks for more.

Pure: ``connection`` measures and acts, ``server`` hands the limits out. The texts are for the person at the other end.
"""

import http
import math
import random

import msgspec

MAX_PIPELINED = 8
"""Requests that may wait behind a running one on the same connection."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is answered here and not by the app: a status, one sentence, and headers that go with it."""

    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def headers_and_body(self, request_id: str | None = None) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The answer as ``application/problem+json``; the connection closes after it."""
        title = http.HTTPStatus(self.status).phrase
        problem = {"title": title, "status": self.status, "detail": self.detail}
        if request_id is not None:
            problem |= {"request_id": request_id}
        body = msgspec.json.encode(problem)
        return [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.headers,
        ], body


class Limits(msgspec.Struct, frozen=True):
    """What one peer, and all of them together, may hold. The defaults are those of ``discovery serve``."""

    max_connections: int = 20_000
    max_header_bytes: int = 16_384
    max_body_bytes: int = 65_536
    request_timeout_secs: float = 10
    write_stall_timeout_secs: float = 30
    transfer_timeout_secs: float = 300
    keep_alive_secs: float = 75
    always_answered: frozenset[bytes] = frozenset()
    """Targets that also the first connections above ``max_connections`` may ask for: those of probes."""
    handshake_timeout_secs: float = 10

    @property
    def max_message_bytes(self) -> int:
        """The most bytes on the wire for one request: chunks of one byte, extensions and trailers included."""
        return self.max_header_bytes + 8 * self.max_body_bytes

    @property
    def body_too_large(self) -> Refusal:
        """For a body above ``max_body_bytes``, or for more bytes than any body may need."""
        return Refusal(413, f"The body is larger than the limit of {self.max_body_bytes} bytes.")

    @property
    def head_too_large(self) -> Refusal:
        """For a request line and headers above ``max_header_bytes``."""
        return Refusal(431, f"The request line and headers are larger than the limit of {self.max_header_bytes} bytes.")

    @property
    def request_line_too_long(self) -> Refusal:
        """For such a head in which it is the target that is long."""
        return Refusal(414, f"The path and the query are too long: a head may have {self.max_header_bytes} bytes.")

    @property
    def too_many_connections(self) -> Refusal:
        """For a connection above ``max_connections``; spread, so that not all of them come back together."""
        return Refusal(
            503,
            f"This replica has its {self.max_connections:,} connections (--max-connections) or all that its limit of "
            "open files allows.",
            headers=((b"retry-after", b"%d" % random.randint(2, 10)),),  # noqa: S311
        )

    @property
    def too_slow(self) -> Refusal:
        """For a request that took more than ``request_timeout_secs`` to arrive."""
        return Refusal(408, f"The request did not arrive in full within {self.request_timeout_secs:g} seconds.")


class Unread:
    """What the peer has not taken yet of one answer, judged by its size from time to time.

    A peer that takes anything at all is given time: without end for a stream, else ``transfer_timeout_secs`` in total.
    """

    __slots__ = ("_end", "_limits", "_size", "_stalled", "answer")

    def __init__(self, answer: object, limits: Limits, now: float, *, has_end: bool) -> None:
        self.answer = answer
        self._limits = limits
        self._size = -1
        self._stalled = math.inf
        self._end = now + limits.transfer_timeout_secs if has_end else math.inf

    @property
    def has_end(self) -> bool:
        """Whether all of it must have been taken at some time."""
        return self._end < math.inf

    def is_overdue(self, size: int, now: float) -> bool:
        """Whether the peer has taken nothing for too long, or not everything in time; ``size`` is what is left."""
        if size != self._size:
            self._size = size
            self._stalled = now + self._limits.write_stall_timeout_secs
        return now >= self._stalled or now >= self._end


INTERNAL_ERROR = Refusal(500, "The request could not be answered because of an error in the service; its log has more.")
NOT_HTTP = Refusal(400, "The request is not valid HTTP/1.1.")
TLS_SPOKEN_HERE = Refusal(400, "This port speaks TLS: use https://.")
TLS_NOT_SPOKEN_HERE = Refusal(400, "This port speaks plain HTTP: use http://.")
NO_TEXT_IN_PATH = Refusal(400, "The path is not percent-encoded UTF-8.")
NO_SINGLE_HOST = Refusal(400, "An HTTP/1.1 request must have exactly one Host header.")
TOO_MANY_PIPELINED = Refusal(400, f"More than {MAX_PIPELINED} requests wait on this connection; read answers first.")
NO_TUNNELS = Refusal(501, "CONNECT is not supported: this is no proxy.")
UNKNOWN_TRANSFER_ENCODING = Refusal(501, "The only supported Transfer-Encoding is chunked.")
UNKNOWN_CONTENT_ENCODING = Refusal(
    415, "Send the body without a Content-Encoding.", headers=((b"accept-encoding", b"identity"),)
)
