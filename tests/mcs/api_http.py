"""As much of HTTP/1.1 as a server of tests needs, with the bytes in its own hands: so that it can also break them."""

import asyncio
import gzip
import json
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

GZIP_FROM_BYTES = 128 * 1024
CHUNKED_FROM_BYTES = 2048
REASONS = {200: "OK", 410: "Gone"}


class Request(NamedTuple):
    """A request as it came; header names in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None at its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    return Request(method, unquote(url.path), dict(parse_qsl(url.query, keep_blank_values=True)), headers, body)


def head(status: int, headers: dict[str, str]) -> bytes:
    """Status line and headers."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(status: int, value: Any, accepted_encoding: str = "", extra: dict[str, str] | None = None) -> bytes:
    """A whole JSON answer in the shape of Go's server: long bodies in chunks, very long ones compressed."""
    body = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    headers = {"Cache-Control": "no-cache, private", "Content-Type": "application/json", **(extra or {})}
    if len(body) > GZIP_FROM_BYTES and "gzip" in accepted_encoding:
        body = gzip.compress(body, 1)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    if len(body) <= CHUNKED_FROM_BYTES:
        return head(status, headers | {"Content-Length": str(len(body))}) + body
    return head(status, headers | {"Transfer-Encoding": "chunked"}) + chunk(body) + END_OF_CHUNKS


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


END_OF_CHUNKS = b"0\r\n\r\n"
WATCH_HEAD = head(
    200,
    {"Cache-Control": "no-cache, private", "Content-Type": "application/json", "Transfer-Encoding": "chunked"},
)
