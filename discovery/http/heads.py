"""The head of a request: which headers are refused, how large it is, and how an offer of another protocol leaves it.

Pure: ``connection`` asks from within the parser's callbacks. Knows no parser, no connection and no other request.
"""

from collections.abc import Iterable

from urllib.parse import unquote_to_bytes

from discovery.http.limits import (
    NO_TEXT_IN_PATH,
    UNKNOWN_CONTENT_ENCODING,
    UNKNOWN_TRANSFER_ENCODING,
    Limits,
    Refusal,
)

Field = tuple[bytes, bytes]

CHECKED_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"content-encoding", b"expect"})
"""Headers that decide how a request is taken; of all others the value does not matter."""


def header_refusal(name: bytes, value: bytes, limits: Limits) -> Refusal | None:
    """Why no request with this header is taken; the name is in lower case."""
    value = value.strip().lower()
    if name == b"content-length" and value.isdigit() and int(value) > limits.max_body_bytes:
        return limits.body_too_large
    if name == b"transfer-encoding" and value != b"chunked":
        return UNKNOWN_TRANSFER_ENCODING
    if name == b"content-encoding" and value != b"identity":
        return UNKNOWN_CONTENT_ENCODING
    return None


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
