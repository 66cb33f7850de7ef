"""What stands before the replicas: a balancer of TCP connections that follows ``/readyz`` as a Kubernetes Service does.

A new connection goes to one of the replicas that were ready when they were last asked, and to no other if that one
does not take it. Connections that are open stay where they are.
"""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

from tests.live.replica import Replica
from tests.live.signs import free_port

PROBE_SECS = 0.1
PROBE_TIMEOUT_SECS = 1.0


class Balancer:
    """Listens on a port of its own, in a thread; to clients it looks like a replica with a name and a URL."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.name = "balancer"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ready: set[Replica] = set()
        self._turns = itertools.cycle(replicas)
        self._replicas = len(replicas)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer", daemon=True)
        self._thread.start()
        self._call(self._start(replicas))

    def close(self) -> None:
        """End every connection and the thread."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _start(self, replicas: Sequence[Replica]) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, backlog=1024)
        self._probes = [asyncio.create_task(self._probe(replica)) for replica in replicas]

    async def _stop(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _probe(self, replica: Replica) -> None:
        while True:
            ready = False
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(PROBE_TIMEOUT_SECS):
                    ready = await _says_ready(replica.port)
            (self.ready.add if ready else self.ready.discard)(replica)
            await asyncio.sleep(PROBE_SECS)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            chosen = next(replica for replica in itertools.islice(self._turns, self._replicas) if replica in self.ready)
            behind = await asyncio.open_connection("127.0.0.1", chosen.port)
        except (StopIteration, OSError):
            writer.transport.abort()
            return
        with contextlib.suppress(asyncio.CancelledError):  # at the end of the test; the loop would complain of it
            await asyncio.gather(_pass(reader, behind[1]), _pass(behind[0], writer))


async def _says_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return (await reader.readline()).startswith(b"HTTP/1.1 200")
    finally:
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Whoever ends one side ends the other; a reset goes through as one."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        writer.transport.abort()
    finally:
        writer.close()
