"""An event loop in a thread of its own, and coroutines that other threads run on it and wait for.

Begun by the first call and ended by ``close``, which first leaves every block that was entered. Knows nothing of what
is run. Made for ``sync``.
"""

import asyncio
import atexit
import concurrent.futures.thread
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Block = AbstractAsyncContextManager[Any]
Work = Callable[[], Coroutine[Any, Any, Result]]


class Closed(RuntimeError):
    """The client was closed before that call, or during it."""

    def __init__(self) -> None:
        super().__init__("the client is closed: make calls within its block")


class Background:
    """The loop on which one object lives, and what is entered there; ``whole`` is entered first and left last.

    May be called by any thread but its own. A call that is interrupted, as by Ctrl-C, cancels its coroutine and waits
    until that has undone what it began.
    """

    def __init__(self, whole: Block) -> None:
        self._whole = whole
        self._process = os.getpid()
        self._lock = threading.RLock()  # a handler of a signal may close what it interrupts
        self._thread: _LoopThread | None = None
        self._closed = False

    def run(self, work: Work[Result]) -> Result:
        """What ``work()`` gives or raises; ``Closed`` where the loop ended or ends."""
        return _Call(self._begun(), work).result()

    def enter(self, block: Block) -> None:
        """Enter a block; whoever is interrupted in that has not entered it."""
        thread = self._begun()
        try:
            _Call(thread, lambda: thread.enter(block)).result()
        except BaseException:
            self.leave(block)  # where it was entered just before this was interrupted
            raise

    def leave(self, block: Block) -> None:
        """Leave a block; fine when it was left before, and after a fork, where it is the other process's to leave."""
        thread = self._thread
        if thread is not None and thread.is_here:
            with suppress(Closed):  # which leaves all blocks
                _Call(thread, lambda: thread.leave(block)).result()

    def close(self) -> None:
        """Leave all blocks and end the thread, for ever; fine when that was done before."""
        self._look_for_a_fork()
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._collected.detach()
            thread.begin_to_end()
            thread.wait_for_end()

    def _look_for_a_fork(self) -> None:
        """What was not begun before a fork may begin here. Who held the lock then does not exist here."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()

    def _begun(self) -> "_LoopThread":
        self._look_for_a_fork()
        with self._lock:
            if self._closed:
                raise Closed
            if self._thread is None:
                self._thread = _LoopThread(self._whole)
                self._collected = weakref.finalize(self, _forgotten, self._thread)
                self._collected.atexit = False
            return self._thread


class _LoopThread:
    """The thread. It holds nothing of those who call it, so that what they forget is collected."""

    def __init__(self, whole: Block) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls: set[asyncio.Task[Any]] = set()
        self.ending: asyncio.Task[None] | None = None
        self._whole = whole
        self._entered: list[Block] = []
        self._leaving: set[asyncio.Task[Any] | None] = set()
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._over = False
        self._entering = self.loop.create_task(self._whole.__aenter__())  # before all that the loop is told
        self._thread = threading.Thread(target=self._turn, name="discovery client", daemon=True)
        self._thread.start()
        _running.add(self)

    @property
    def is_here(self) -> bool:
        """False in a process that was forked from the one in which it runs."""
        return self._process == os.getpid()

    def do(self, step: Callable[[], object]) -> None:
        """Have the loop do that, after all that it was told before; raises ``Closed`` where it has ended."""
        if not self.is_here:
            raise RuntimeError("the client was in use before the process forked: make one in each process")
        if threading.current_thread() is self._thread:
            raise RuntimeError("the client's own thread, as in a handler of its logs, would wait for itself")
        with self._lock:
            if self._over:
                raise Closed
            self.loop.call_soon_threadsafe(step)

    async def enter(self, block: Block) -> None:
        await block.__aenter__()
        self._entered.append(block)

    async def leave(self, block: Block) -> None:
        if block not in self._entered:
            return
        self._entered.remove(block)
        task = asyncio.current_task()
        self._leaving.add(task)
        try:
            await block.__aexit__(None, None, None)
        finally:
            self._leaving.discard(task)

    def begin_to_end(self) -> None:
        """From any thread, at any moment, once or more often."""
        if self.is_here:
            with suppress(RuntimeError):  # of a loop that is closed: it has ended
                self.loop.call_soon_threadsafe(self._begin_to_end)

    def wait_for_end(self) -> None:
        """Until the thread is over. Within it, and after a fork, there is nothing to wait for."""
        if self.is_here and threading.current_thread() is not self._thread:
            self._thread.join()

    def _begin_to_end(self) -> None:
        if self.ending is None:
            self.ending = self.loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            for task in self.calls - self._leaving:
                task.cancel()
            leaving = {asyncio.create_task(self.leave(block)) for block in self._entered}
            if unfinished := leaving | self.calls:
                await asyncio.wait(unfinished)
            await self._whole.__aexit__(None, None, None)
        finally:
            self.loop.stop()

    def _turn(self) -> None:
        try:
            self.loop.run_forever()
            rest = asyncio.all_tasks(self.loop)
            for task in rest:
                task.cancel()
            self.loop.run_until_complete(_ended(rest))
            with self._lock:
                self._over = True  # what the loop was told before, it does now
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


class _Call(Generic[Result]):
    """One coroutine on the loop, and the thread that waits for it."""

    def __init__(self, thread: _LoopThread, work: Work[Result]) -> None:
        self._thread = thread
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        self._outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def result(self) -> Result:
        self._thread.do(self._begin)
        try:
            return self._outcome.result()
        except BaseException:
            if not self._outcome.done():
                self._thread.do(self._cancel)
                concurrent.futures.wait([self._outcome])
            raise

    def _begin(self) -> None:
        if self._thread.ending is not None:
            self._outcome.set_exception(Closed())
            return
        self._task = self._thread.loop.create_task(self._whole())
        self._thread.calls.add(self._task)
        self._task.add_done_callback(self._end)

    async def _whole(self) -> Result:
        """The call and what it does: also a call that cannot be made, as with an unknown argument, has to end."""
        return await self._work()

    def _end(self, task: asyncio.Task[Result]) -> None:
        self._thread.calls.discard(task)
        if task.cancelled():
            self._outcome.set_exception(Closed())
        elif (error := task.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


_running: "weakref.WeakSet[_LoopThread]" = weakref.WeakSet()


def _end_all() -> None:
    """What was never closed is closed at the end of the process: no pool stays that was to be deregistered."""
    threads = list(_running)
    for thread in threads:
        thread.begin_to_end()
    for thread in threads:
        thread.wait_for_end()


# Before Python waits for threads, which themselves may wait for a client; ``atexit`` comes after that. And before the
# pools of threads end, without which no name is resolved: what was registered later is called earlier.
getattr(threading, "_register_atexit", atexit.register)(_end_all)


def _forgotten(thread: _LoopThread) -> None:
    """Nobody can call it any more. Collected on whatever thread, under whatever lock: so nothing is waited for."""
    warnings.warn("a client of the discovery service was never closed", ResourceWarning, stacklevel=2)
    thread.begin_to_end()
