"""The event loop, in a thread of its own, on which relays and routers of a test live.

The test itself stays plain code that kills, freezes and waits; nothing it does delays a heartbeat or a poll.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import aiohttp

Result = TypeVar("Result")


class Traffic:
    """A running loop with one HTTP client; ``spawn`` begins an actor, ``call`` runs something and waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="traffic", daemon=True)
        self._thread.start()
        self._actors: list[Future[Any]] = []
        self.session: aiohttp.ClientSession = self.call(self._open())

    async def _open(self) -> aiohttp.ClientSession:
        # A connection for each request: whom a pooled connection would meet depends on history, and after a
        # restart it would fail for reasons that have nothing to do with the test.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, connect=5)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True)

    def call(self, work: Coroutine[Any, Any, Result], *, within: float = 30) -> Result:
        """Run ``work`` on the loop and give its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within)

    def soon(self, work: Callable[[], object]) -> None:
        """Run a plain function on the loop's thread."""
        self._loop.call_soon_threadsafe(work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        """Begin an actor that runs until it ends by itself or the traffic is closed."""
        actor = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._actors.append(actor)
        return actor

    def close(self) -> None:
        """End all actors and the loop; an actor that had failed fails the test here."""
        failures = [actor.exception() for actor in self._actors if actor.done() and not actor.cancelled()]
        for actor in self._actors:
            actor.cancel()
        self.call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for failure in failures:
            if failure is not None:
                raise failure

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.gather(*others, return_exceptions=True)
        await self.session.close()
