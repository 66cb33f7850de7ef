"""A TCP proxy between a replica and its server, to delay, freeze or cut single connections.

It reads nothing of the protocol except which commands pass, so that a fault can be aimed: at the connection that
subscribed, or at the answers to one command.
"""

import asyncio
import re
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.live.signs import free_port

Result = TypeVar("Result")


class Connection:
    """One proxied connection; ``words`` holds the command names that passed on it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.words: set[str] = set()
        self.open = True
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.hold_until = 0.0

    @property
    def subscribed(self) -> bool:
        """Whether a SUBSCRIBE passed here."""
        return "SUBSCRIBE" in self.words


class TcpProxy:
    """Listens on a port of its own and passes bytes to ``target_port``; runs in a thread."""

    def __init__(self, target_port: int, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        self.host = host
        self.port = port or free_port()
        self.target_port = target_port
        """Where new connections go; those that are open stay where they are."""
        self.connections: list[Connection] = []
        self.bars_subscriptions = False
        """Whether a connection on which SUBSCRIBE comes is reset."""
        self._black_hole = False
        self._bytes_per_sec = 0.0
        self._delay = 0.0
        self._delayed: re.Pattern[bytes] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._call(self._listen())

    @property
    def url(self) -> str:
        """What ``--redis-url`` takes to go through this proxy."""
        return f"redis://127.0.0.1:{self.port}"

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, self.host, self.port)

    # The faults

    def delay_answers(self, secs: float, to: str = "") -> None:
        """Hold back each answer for ``secs`` s, as a longer path would; with ``to``, only the answers to such commands.

        ``to`` is a pattern of commands. What is asked meanwhile does not prolong it: a path delays, it does not stop.
        """
        self._delayed = re.compile(to.encode(), re.IGNORECASE) if to else None
        self._delay = secs

    def freeze(self, *, subscribed: bool | None = None) -> int:
        """Pass nothing more on the open connections (of that kind), without closing them; gives their number."""
        return self._call(self._set_flowing(False, subscribed))

    def thaw(self) -> int:
        """Let all frozen connections flow again, and new ones too."""
        self._black_hole = False
        return self._call(self._set_flowing(True, None))

    def discard(self) -> int:
        """Break the frozen connections together with what is stuck in them; gives their number."""
        return self._call(self._discard())

    async def _discard(self) -> int:
        chosen = [each for each in self.connections if each.open and not each.flowing.is_set()]
        for connection in chosen:
            connection.client.transport.abort()
            connection.server.transport.abort()
        return len(chosen)

    def swallow(self) -> int:
        """Pass nothing more, on open connections and on new ones, and close none; gives how many are open."""
        self._black_hole = True
        return self.freeze()

    def trickle(self, bytes_per_sec: float) -> None:
        """Let answers through this slowly on each connection; 0 is as fast as they come."""
        self._bytes_per_sec = bytes_per_sec

    async def _set_flowing(self, flowing: bool, subscribed: bool | None) -> int:
        chosen = [each for each in self.connections if each.open and subscribed in (None, each.subscribed)]
        for connection in chosen:
            if flowing:
                connection.flowing.set()
            else:
                connection.flowing.clear()
        return len(chosen)

    def cut(self, *, subscribed: bool | None = None) -> int:
        """Break the open connections (of that kind) with a reset; gives their number."""
        return self._call(self._cut(subscribed))

    async def _cut(self, subscribed: bool | None) -> int:
        chosen = [each for each in self.connections if each.open and subscribed in (None, each.subscribed)]
        for connection in chosen:
            connection.client.transport.abort()
            connection.server.transport.abort()
        return len(chosen)

    def close(self) -> None:
        """End everything."""
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _shut(self) -> None:
        self._server.close()
        await self._cut(None)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # The passing of bytes

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(writer, to_server)
        if self._black_hole:
            connection.flowing.clear()
        self.connections.append(connection)
        pumps = [
            asyncio.create_task(self._requests(reader, connection)),
            asyncio.create_task(self._answers(from_server, connection)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            connection.open = False
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.transport.abort()
            to_server.transport.abort()
            self.connections = [each for each in self.connections if each is not connection]

    async def _requests(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        while chunk := await reader.read(65536):
            await connection.flowing.wait()
            for word in re.findall(rb"\r\n([A-Za-z]{3,12})\r\n", chunk):
                connection.words.add(word.decode().upper())
            if self.bars_subscriptions and connection.subscribed:
                connection.client.transport.abort()
                return
            now = time.monotonic()
            if self._delayed is not None and self._delayed.search(chunk) and connection.hold_until <= now:
                connection.hold_until = now + self._delay
            connection.server.write(chunk)
            await connection.server.drain()

    async def _answers(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(self._arrive(travelling, connection))
        try:
            while chunk := await reader.read(65536):
                delay = self._delay if self._delayed is None else 0.0
                travelling.put_nowait((max(time.monotonic() + delay, connection.hold_until), chunk))
        finally:
            arriving.cancel()

    async def _arrive(self, travelling: asyncio.Queue[tuple[float, bytes]], connection: Connection) -> None:
        while True:
            at, chunk = await travelling.get()
            while (wait := at - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            while self._bytes_per_sec and chunk:
                piece, chunk = chunk[:64], chunk[64:]
                await asyncio.sleep(len(piece) / self._bytes_per_sec)
                await connection.flowing.wait()
                connection.client.write(piece)
            await connection.flowing.wait()
            connection.client.write(chunk)
            await connection.client.drain()
