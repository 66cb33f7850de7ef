"""An event loop whose clock jumps to the next timer as soon as nothing else is left to do: hours in milliseconds.

For logic without sockets only; a loop that waits for real input and output must not jump.
"""

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that begins at ``start`` seconds and never waits."""

    _scheduled: list[asyncio.TimerHandle]
    _ready: list[asyncio.Handle]
    _timer_cancelled_count: int

    def __init__(self, start: float = 1000.0) -> None:
        super().__init__()
        self._now = start

    def time(self) -> float:
        """The virtual clock."""
        return self._now

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            # Left in place, the clock would jump to it alone, and what is due next would be waited for in earnest.
            heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run ``work`` to its end."""
        return self.run_until_complete(work)

    def pass_time(self, secs: float) -> None:
        """Let everything that is due happen until ``secs`` seconds are over."""
        self.run_until_complete(asyncio.sleep(secs))

    def shut(self) -> None:
        """Cancel what still runs and close the loop."""
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.close()
