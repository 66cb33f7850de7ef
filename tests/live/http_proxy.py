"""A proxy before one replica, on a port of its own, that fails as proxies and networks do. Runs on the caller's loop.

It passes one request per connection and knows as much of HTTP as that takes. Faults of connections hit those that are
open; faults of answers hit the requests that come while they last.
"""

import asyncio
import socket
import struct
from collections.abc import Iterable

from tests.listening import stop_listening
from tests.live.signs import free_port

RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends a reset."""


class Passage:
    """One connection through the proxy."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.cut_after: int | None = None

    def reset(self) -> None:
        """End it at once, with whatever is under way."""
        self.flowing.set()
        connection = self.writer.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.writer.transport.abort()

    async def give(self, data: bytes) -> None:
        """To the client, as far as it gets."""
        await self.flowing.wait()
        if self.cut_after is not None and len(data) >= self.cut_after:
            self.writer.write(data[: self.cut_after])
            await self.writer.drain()
            self.reset()
            raise ConnectionResetError
        if self.cut_after is not None:
            self.cut_after -= len(data)
        self.writer.write(data)
        await self.writer.drain()


class HttpProxy:
    """``url`` leads to the replica at ``target_port``. What is wrong is set as attributes, and ended by ``heal``."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = free_port()
        self.requests = 0
        self.passages: set[Passage] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._forget()

    def _forget(self) -> None:
        self.status: int | None = None
        """Answered in place of the replica."""
        self.buffers = False
        """Whether answers are kept until they end, as streams never do."""
        self.cuts_after_secs: float | None = None
        """How long answers may take; then 504 where nothing was passed yet, else the end of the connection."""
        self.strips: frozenset[str] = frozenset()
        """Names of headers that are dropped from requests and answers."""
        self.swallows = False
        """Whether requests are taken and never answered."""
        self.delay_secs = 0.0
        self.piece_bytes: int | None = None
        """How large the pieces are in which answers arrive, a moment apart."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def refuse(self) -> None:
        """Nobody listens any more, and what was open is reset."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
        self.reset()

    def reset(self) -> None:
        for passage in list(self.passages):
            passage.reset()

    def freeze(self) -> None:
        """Nothing passes on what is open now."""
        for passage in self.passages:
            passage.flowing.clear()

    def cut_after(self, size: int) -> None:
        """What is open now is reset after so many bytes more."""
        for passage in self.passages:
            passage.cut_after = size

    async def heal(self) -> None:
        """Nothing is wrong any more; what is open and frozen flows again."""
        self._forget()
        for passage in self.passages:
            passage.cut_after = None
            passage.flowing.set()
        await self.listen()

    # one request

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        passage = Passage(writer)
        self._tasks.add(task)
        self.passages.add(passage)
        try:
            await self._serve(reader, passage)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self.passages.discard(passage)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, passage: Passage) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        left = asyncio.create_task(reader.read())
        answered = asyncio.create_task(self._answer(head, passage))
        try:
            await asyncio.wait((left, answered), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (left, answered):
                task.cancel()
            await asyncio.gather(left, answered, return_exceptions=True)

    async def _answer(self, head: bytes, passage: Passage) -> None:
        if self.swallows:
            await asyncio.Event().wait()
        if self.status is not None:
            await self._answer_itself(passage, self.status)
            return
        strips, buffers, piece, delay = self.strips, self.buffers, self.piece_bytes, self.delay_secs
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        passed = False
        try:
            writer.write(without(head, strips | {"connection"}, "Connection: close"))
            async with asyncio.timeout(self.cuts_after_secs):
                answer_head = without(await reader.readuntil(b"\r\n\r\n"), strips)
                if buffers:
                    body = await reader.read()
                    await self._pass(passage, answer_head + body, piece, delay)
                    return
                passed = True
                await self._pass(passage, answer_head, piece, delay)
                while chunk := await reader.read(65536):
                    await self._pass(passage, chunk, piece, delay)
        except TimeoutError:
            if not passed:
                await self._answer_itself(passage, 504)
        finally:
            writer.transport.abort()
        await passage.writer.drain()
        passage.writer.close()

    async def _pass(self, passage: Passage, data: bytes, piece: int | None, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        for start in range(0, len(data), piece or len(data)):
            await passage.give(data[start : start + (piece or len(data))])
            if piece:
                await asyncio.sleep(0.0005)

    async def _answer_itself(self, passage: Passage, status: int) -> None:
        body = b"<html>this is the proxy</html>"
        lines = [f"HTTP/1.1 {status} Whatever", "Content-Type: text/html", f"Content-Length: {len(body)}"]
        lines += ["Retry-After: 1"] if status == 503 else []
        await passage.give("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
        passage.writer.close()


def without(head: bytes, names: Iterable[str], *instead: str) -> bytes:
    """A head of a request or answer without headers of these names."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    kept = [line for line in lines if line.partition(":")[0].lower() not in names]
    return "\r\n".join([first, *kept, *instead, "", ""]).encode("latin-1")
