"""One question put to several places: one after the other, and the next one early where the one before is slow.

A place that does not even take the connection costs a moment, and one that took it but says nothing costs a little
more; neither costs its deadline. Only what may be asked twice is asked at a second place while a first still has it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from enum import IntEnum
from typing import Any, Generic, TypeVar

from discovery.client.answers import RejectedHere, all_of
from discovery.client.places import Place
from discovery.errors import Unavailable

CONNECTS_SECS = 0.3
"""How long a connection may take to be taken until the next place is tried beside. RFC 8305 has it from 0.25 s on."""
ANSWERS_SECS = 2.0
"""How long the head of an answer may take until the next place is asked too."""

Result = TypeVar("Result")


class Stage(IntEnum):
    """How far an attempt has come."""

    CONNECTING = 0
    ASKED = 1
    ANSWERED = 2


class Progress:
    """Of one attempt at one place; whoever makes the attempt says how far it has come."""

    def __init__(self, place: Place, moved: asyncio.Event, *, beside: bool = False) -> None:
        self.place = place
        self.beside = beside
        self.kept = False
        """Whether it uses a connection that was there before."""
        self.stage = Stage.CONNECTING
        self.since = asyncio.get_running_loop().time()
        self._moved = moved

    def reach(self, stage: Stage) -> None:
        """It has come this far."""
        if stage > self.stage:
            self.stage = stage
            self.since = asyncio.get_running_loop().time()
            self._moved.set()


class Race(Generic[Result]):
    """Attempts at places in turn, until one gives a result.

    An attempt fails by ``Unavailable`` or ``RejectedHere``; anything else it raises ends the race. ``again`` says that
    a second place may be asked while a first has the question. ``discard`` takes a result that came too late.
    """

    def __init__(
        self,
        places: Iterable[Place],
        attempt: Callable[[Progress], Coroutine[Any, Any, Result]],
        *,
        again: bool,
        discard: Callable[[Result], None] = lambda _: None,
    ) -> None:
        self.failures: list[Unavailable | RejectedHere] = []
        self._waiting = deque(places)
        self._attempt = attempt
        self._again = again
        self._discard = discard
        self._moved = asyncio.Event()
        self._running: dict[asyncio.Task[Result], Progress] = {}
        self._left: list[asyncio.Task[Result]] = []

    async def run(self) -> tuple[Place, Result]:
        """The place of the first result, and that result; raises one error for all places where none gives one."""
        try:
            while self._waiting or self._running:
                self._begin_what_is_due()
                await self._until_something_happens()
                for task in [task for task in self._running if task.done()]:
                    place = self._running.pop(task).place
                    try:
                        return place, task.result()
                    except (Unavailable, RejectedHere) as failure:
                        self.failures.append(failure)
                self._leave_behind()
            raise all_of(self.failures)
        finally:
            await self._end()

    @property
    def _foremost(self) -> Stage:
        return max((progress.stage for progress in self._running.values()), default=Stage.CONNECTING)

    def _begin_what_is_due(self) -> None:
        if self._waiting and self._due_in() <= 0:
            progress = Progress(self._waiting.popleft(), self._moved, beside=self._foremost is Stage.ASKED)
            task = asyncio.create_task(self._attempt(progress), name=f"asking {progress.place.name}")
            task.add_done_callback(lambda _: self._moved.set())
            self._running[task] = progress

    def _due_in(self) -> float:
        """Seconds until the next place is to be tried."""
        if not self._running:
            return 0.0
        foremost = self._foremost
        if foremost is Stage.ANSWERED or (foremost is Stage.ASKED and not self._again):
            return float("inf")
        patience = CONNECTS_SECS if foremost is Stage.CONNECTING else ANSWERS_SECS
        newest = max(progress.since for progress in self._running.values())
        return newest + patience - asyncio.get_running_loop().time()

    async def _until_something_happens(self) -> None:
        wait = self._due_in() if self._waiting else float("inf")
        try:
            async with asyncio.timeout(None if wait == float("inf") else wait):
                await self._moved.wait()
        except TimeoutError:
            pass
        self._moved.clear()

    def _leave_behind(self) -> None:
        """Once one is connected none of the others need be; they have been told nothing yet, and may be tried later."""
        foremost = self._foremost
        for task, progress in list(self._running.items()):
            overtaken = progress.stage < foremost and not (foremost is Stage.ASKED and progress.beside)
            if overtaken and not task.done():
                task.cancel()
                self._left.append(task)
                del self._running[task]
                self._waiting.appendleft(progress.place)

    async def _end(self) -> None:
        tasks = [*self._left, *self._running]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                self._discard(outcome)
