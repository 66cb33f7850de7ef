"""The lightest HTTP client that will do: one kept connection, one request at a time, ready bytes out.

It shares nothing with the product, and hundreds of requests a second cost a few percent of a core.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import cast

_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``head`` is all of its header as it came."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header, empty where it is not there."""
        found = re.search(rb"\r\n%b: *([^\r]*)" % name.encode(), self.head, re.IGNORECASE)
        return found[1].decode() if found else ""

    @property
    def closes(self) -> bool:
        """Whether the server asks for another connection."""
        return self.header("connection").lower() == "close"


class Wire(asyncio.Protocol):
    """A connection to one port of the loopback, opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[Reply] | None = None

    async def ask(self, request: bytes, within: float) -> Reply:
        """Send a whole request and give its answer; raises ``OSError`` or ``TimeoutError``, and is closed then."""
        try:
            async with asyncio.timeout(within):
                if self._transport is None or self._transport.is_closing():
                    await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)
                transport = cast(asyncio.Transport, self._transport)
                self._received.clear()
                self._answer = asyncio.get_running_loop().create_future()
                transport.write(request)
                reply = await self._answer
        except BaseException:
            self.close()
            raise
        if reply.closes:
            self.close()
        return reply

    def close(self) -> None:
        """Let go of the connection; the next request opens another."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error if isinstance(error, OSError) else ConnectionResetError("closed"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None or self._answer.done():
            return
        head = bytes(self._received[: end + 2])
        status = _STATUS.match(head)
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(self._received) - end - 4 >= size:
            body = bytes(self._received[end + 4 : end + 4 + size])
            self._answer.set_result(Reply(int(status[1]) if status else 0, head, body))


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A whole request; in the names of headers ``_`` stands for ``-``."""
    lines = [f"{method} {path} HTTP/1.1", "Host: service"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
