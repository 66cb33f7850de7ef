"""The heads of requests and answers: what is refused by them, how large they are, and how they look on the wire.

Pure: ``connection`` asks from within the parser's callbacks, ``exchange`` when an answer begins. Knows no parser, no
connection and no other request.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from discovery.http.limits import (
    NO_TEXT_IN_PATH,
    UNKNOWN_CONTENT_ENCODING,
    UNKNOWN_TRANSFER_ENCODING,
    Limits,
    Refusal,
)
from discovery.http.request_ids import REQUEST_ID_HEADERS

Field = tuple[bytes, bytes]

_host = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=:%\[\]-]*")

CHECKED_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"content-encoding", b"expect"}) | (
    REQUEST_ID_HEADERS
)
"""Headers that decide how a request is taken, or what it is called; of all others the value does not matter."""

_is_name = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_is_value = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch


def header_refusal(name: bytes, value: bytes, limits: Limits) -> Refusal | None:
    """Why no request with this header is taken; the name is in lower case."""
    if name == b"content-length":
        value = value.strip()
        return limits.body_too_large if value.isdigit() and int(value) > limits.max_body_bytes else None
    value = value.strip().lower()
    if name == b"transfer-encoding" and value != b"chunked":
        return UNKNOWN_TRANSFER_ENCODING
    if name == b"content-encoding" and value != b"identity":
        return UNKNOWN_CONTENT_ENCODING
    return None


def is_host(value: bytes) -> bool:
    """Whether a ``Host`` names one host; two that a proxy has joined are none."""
    return _host.fullmatch(value.strip()) is not None


def target_refusal(url: bytes) -> Refusal | None:
    """Why no request for this target is taken: decoded leniently, two names could meet in one path."""
    if b"%" in url:
        try:
            unquote_to_bytes(url.partition(b"?")[0]).decode()
        except UnicodeDecodeError:
            return NO_TEXT_IN_PATH
    return None


def size_refusal(url: bytes, limits: Limits) -> Refusal:
    """What a peer is told whose head is too large: which part of it is."""
    return limits.request_line_too_long if 2 * len(url) > limits.max_header_bytes else limits.head_too_large


def head_size(url: bytes, headers: Iterable[Field]) -> int:
    """The bytes of a head without what every head has."""
    return len(url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


def without_offer(method: bytes, url: bytes, version: str, headers: Iterable[Field]) -> bytes:
    """The head again, to be parsed as if it had not offered another protocol.

    Without the wish for a 100 too: it was granted when the head was read.
    """
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, version.encode())]
    lines += [b"%b: %b\r\n" % field for field in headers if field[0] not in (b"upgrade", b"expect")]
    return b"".join([*lines, b"\r\n"])


# ---- of an answer


class ReadyHeaders(list[Field]):
    """The headers of an answer with their bytes on the wire, checked and put together once for many answers.

    Not to be changed. ``length`` is the body's where a header names it, ``closes`` says whether the connection ends.
    """

    __slots__ = ("closes", "length", "lines", "names")

    def __init__(self, headers: Iterable[Field]) -> None:
        super().__init__(headers)
        self.lines = header_lines(self)
        by_name = {name.lower(): value for name, value in self}
        self.names = frozenset(by_name)
        length = by_name.get(b"content-length")
        self.length = None if length is None else int(length)
        self.closes = b"close" in map(bytes.strip, by_name.get(b"connection", b"").lower().split(b","))


def header_lines(headers: Iterable[Field]) -> bytes:
    """Headers as they are written; ``ValueError`` for one that could end its line and begin another."""
    lines = []
    for name, value in headers:
        if not _is_name(name) or not _is_value(value):
            raise ValueError(f"a header that cannot be sent: {name[:40]!r}")
        lines.append(b"%b: %b\r\n" % (name.lower(), value))
    return b"".join(lines)
