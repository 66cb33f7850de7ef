"""What a replica has the store tell all others: that lists are not complete for a while, and why.

A hold over a mass loss is told for as long as it may last, again where the store may have lost that word, and taken
back at its end. Writes in the background: an error is handed on, and for a hold the next check tries again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from discovery.errors import Unavailable
from discovery.stores import Store
from discovery.stores.mass_loss import REASON


class _Word(NamedTuple):
    """That an outage was; ``until`` is the loop's time until which it concerns others."""

    reason: str
    secs: float
    until: float
    known_until: float


class Settling:
    """``failed`` is called with each error of the store."""

    def __init__(self, store: Store, failed: Callable[[Unavailable], None]) -> None:
        self._store = store
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._about_hold: asyncio.Task[None] | None = None
        self._losses = 0
        self._told_after: int | None = None
        self._to_take_back = False
        self._word: _Word | None = None
        self._about_word: asyncio.Task[None] | None = None

    def tell(self, reason: str, secs: float, known_until: float, *, lasting: bool = False) -> None:
        """Tell it, of what those lack who had not read the store at ``known_until``; at each check until it is taken.

        ``lasting`` is what concerns others, and this replica, as long as the store takes no word.
        """
        since = asyncio.get_running_loop().time()
        self._word = _Word(reason, secs, float("inf") if lasting else since + secs, known_until)
        self._about_word = self._start(self._tell())

    def data_lost(self) -> None:
        """What the store was told may be gone."""
        self._losses += 1

    def attend(self, hold_left_secs: float | None, may_end: bool) -> None:
        """Called at each check with how long this replica's hold may last yet, None where none runs.

        The word stays while another reason may need it: the store keeps one at a time.
        """
        if self._word is not None and (self._about_word is None or self._about_word.done()):
            self._about_word = self._start(self._tell())
        if self._about_hold is not None and not self._about_hold.done():
            return
        if hold_left_secs is not None:
            if self._told_after != self._losses:
                self._about_hold = self._start(self._tell_of_hold(hold_left_secs))
        elif self._to_take_back and may_end:
            self._about_hold = self._start(self._take_back())

    async def _tell(self) -> None:
        word = self._word
        if word is None:
            return
        left_secs = min(word.secs, word.until - asyncio.get_running_loop().time())
        if left_secs <= 0 or await self._try(self._store.settle(word.reason, left_secs, word.known_until)):
            self._word = self._word if self._word is not word else None

    async def _tell_of_hold(self, secs: float) -> None:
        losses, self._to_take_back = self._losses, True
        if await self._try(self._store.settle(REASON, secs)):
            self._told_after = losses

    async def _take_back(self) -> None:
        self._told_after = None
        if await self._try(self._store.end_settling(REASON)):
            self._to_take_back = False

    async def _try(self, call: Coroutine[Any, Any, None]) -> bool:
        try:
            await call
        except Unavailable as error:
            self._failed(error)
            return False
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
