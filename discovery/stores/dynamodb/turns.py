"""Work that is done by one at a time, and of which whoever asks gets a turn that begins after the question.

All who ask while a turn runs share the next one. What an answer of the past could not tell (whether a lease was renewed
until now) the next turn does.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from discovery.errors import Unavailable

Result = TypeVar("Result")


class Turns(Generic[Result]):
    """Turns of ``work``, whose beginnings are at least ``least_secs`` apart."""

    def __init__(
        self, work: Callable[[], Awaitable[Result]], least_secs: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work = work
        self._least_secs = least_secs
        self._clock = clock
        self._not_before = float("-inf")
        self._running: asyncio.Task[Result] | None = None
        self._waiting: asyncio.Task[Result] | None = None
        self._closed = False
        self.began_at = float("-inf")

    def put_off(self, secs: float) -> None:
        """No turn begins for so long."""
        self._not_before = self._clock() + secs

    async def next(self) -> Result:
        """What the next turn gives, or raises."""
        if self._closed:
            raise Unavailable("the store is closed")
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._turn(self._running))
            self._waiting.add_done_callback(_retrieved)
        turn = self._waiting
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            if turn.cancelled() and not _is_told_to_end():
                raise Unavailable("the store is closed") from None
            raise

    async def _turn(self, before: "asyncio.Task[Result] | None") -> Result:
        if before is not None:
            await asyncio.wait([before])
        while (pause := max(self._not_before, self.began_at + self._least_secs) - self._clock()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(pause)
        self._running, self._waiting = self._waiting, None
        self.began_at = self._clock()
        return await self._work()

    async def close(self) -> None:
        """End what runs; whoever waits for it gets ``Unavailable``."""
        self._closed = True
        for task in (self._waiting, self._running):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


def _is_told_to_end() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _retrieved(task: "asyncio.Task[Result]") -> None:
    """Whoever asked may be gone; then nobody else reads the error."""
    if not task.cancelled():
        task.exception()
