"""Follows the pools: a stream of events that becomes a list, kept current for as long as a block runs.

One task reads one stream at a time, and begins another whenever that one ends, breaks or falls silent; meanwhile the
last list stays. What an event means is for ``snapshot``; how a server is reached is for ``transport``.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self
from weakref import WeakKeyDictionary

from discovery.backoff import Backoff
from discovery.client import sse
from discovery.client.answers import one_line
from discovery.client.reach import EventStream, Reach
from discovery.client.service import STREAM_OPENS_SECS, Pairs, Request, path_of, target
from discovery.client.snapshot import Assembly, Snapshot
from discovery.errors import DiscoveryError, Misconfigured, Rejected, Unavailable
from discovery.logs import event

SILENCE_SECS = 40.0
LONGEST_RETRY_SECS = 60.0
REJECTED_SECS = 5.0

logger = logging.getLogger(__name__)


class Pools:
    """The pools as they are now, within an ``async with`` block; entering it waits for the first list.

    ``snapshot`` is always the current list and costs nothing when it did not change. Iterating gives a new snapshot for
    each change since the block was entered, ``changed`` waits for the next one that the calling task has not looked at;
    changes that come faster than they are read are given as one. While no server can be reached the last list stays,
    ``snapshot.age`` grows, and ``trouble`` says why.

    Entering raises ``Rejected`` when the service refuses, and ``Unavailable`` when there is no list within
    ``patience_secs``, after at least one attempt per base URL. Later failures are told by logs and ``trouble`` alone.
    """

    def __init__(self, reach: Reach, query: Pairs, *, patience_secs: float, silence_secs: float = SILENCE_SECS) -> None:
        self.trouble: str | None = None
        self._reach = reach
        self._target = target(path_of("pools", "events"), query)
        self._patience_secs = patience_secs
        self._silence_secs = silence_secs
        self._assembly = Assembly()
        self._token: str | None = None
        self._between_changes = True
        self._confirmed_at = float("-inf")
        self._retry_secs = 1.0
        self._backoff = Backoff(0.5, 10.0)
        self._version = 0
        self._entered_version = 0
        self._looked: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._changed = asyncio.Event()
        self._closed = False
        self._lost_at: float | None = None
        self._drop_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The list as it is now; may be read from any thread."""
        if self._loop is None:
            raise RuntimeError("following begins with its block: async with client.follow() as pools")
        self._look()
        exact = self._between_changes and not self._assembly.merged
        age = self._loop.time() - self._confirmed_at
        return Snapshot(self._assembly.complete, self._assembly.pools, self._token if exact else None, age)

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("a block of client.follow() is entered once: call follow() again for another")
        self._loop = asyncio.get_running_loop()
        first: asyncio.Future[None] = self._loop.create_future()
        self._task = asyncio.create_task(self._keep_reading(first), name="follow pools")
        try:
            await first
        except BaseException:
            await self._close()
            raise
        self._entered_version = self._version
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def __aiter__(self) -> AsyncIterator[Snapshot]:
        seen = self._entered_version
        while await self.changed(seen):
            seen = self._version
            yield self.snapshot

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version

    def changed(self, since: int | None = None) -> Coroutine[Any, Any, bool]:
        """Wait for a change that the calling task has not seen; false when the block has ended.

        A task has seen what ``snapshot`` gave it and ``changed`` told it of; at first, what was there when the block
        was entered. So no change is lost between two calls, however many tasks wait, and each is told once.
        It may be cancelled, given a time limit, or made a task of its own: it counts for the task that called it.
        With ``since`` it waits until ``version`` is no longer that, whatever the task has seen.
        """
        if self._loop is None:
            raise RuntimeError("following begins with its block: async with client.follow() as pools")
        task = _running_task()
        if since is None:
            since = self._entered_version if task is None else self._looked.get(task, self._entered_version)
        return self._wait_for_change(since, task)

    async def _wait_for_change(self, since: int, task: asyncio.Task[Any] | None) -> bool:
        while self._version == since and not self._closed:
            await self._changed.wait()
        if self._closed:
            await asyncio.sleep(0)  # whoever asks again and again after the end must not stop all else
            return False
        self._look(task)
        return True

    def _look(self, task: asyncio.Task[Any] | None = None) -> None:
        if task := task or _running_task():
            self._looked[task] = self._version

    async def _close(self) -> None:
        self._closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._disarm()
        await self._reach.close()

    async def _keep_reading(self, first: asyncio.Future[None]) -> None:
        give_up_at = self._now() + self._patience_secs
        while not self._closed:
            failure = await self._read_until_it_ends(first)
            self._reach.move_on()
            if failure is not None and not first.done():
                hopeless = isinstance(failure, Rejected | Misconfigured) or self._now() >= give_up_at
                if hopeless:
                    first.set_exception(failure)
                    return
            wait = self._wait_after(failure)
            left = give_up_at - self._now()
            await asyncio.sleep(wait if first.done() else max(0.05, min(wait, left)))

    async def _read_until_it_ends(self, first: asyncio.Future[None]) -> DiscoveryError | None:
        """One stream; what it ended with. Whatever goes wrong with one stream, the next one is tried."""
        try:
            # In the middle of a change our list is none that was ever published. Tokens are made of content: were the
            # service back at the remembered one, it would have nothing to send. So ask for everything.
            resume = {"Last-Event-ID": self._token} if self._token and self._between_changes else {}
            async with self._reach.stream(Request("GET", self._target, resume)) as stream:
                self._heard_again()
                await self._read(stream, first)
                if not first.done():  # what is no stream of ours may end so each time, and would be asked for ever
                    raise Unavailable(f"{stream.base} ended the stream of pools before it sent a list")
        except DiscoveryError as error:
            failure: DiscoveryError | None = error
        except Exception as error:  # the task must outlive whatever one stream brings
            logger.exception("reading the pools failed in a way that was not foreseen")
            self._between_changes = False
            failure = Unavailable(f"reading the pools failed: {one_line(str(error))}")
        else:
            failure = None
        self._lost(failure)
        return failure

    async def _read(self, stream: EventStream, first: asyncio.Future[None]) -> None:
        parser = sse.Parser()
        while chunk := await stream.read(self._silence_secs if first.done() else STREAM_OPENS_SECS):
            self._take(parser, chunk, stream.base)
            if self._assembly.started and not first.done():
                first.set_result(None)

    def _take(self, parser: sse.Parser, chunk: bytes, base: str) -> None:
        now, changed = self._now(), False
        try:
            for event in parser.feed(chunk):
                changed |= self._assembly.apply(event.name, event.data, now)
                self._between_changes = event.id is not None
                if event.id is not None:
                    self._token = event.id
        except ValueError as error:
            self._between_changes = False
            raise Unavailable(f"{base} sent an event that cannot be read: {one_line(str(error))}") from error
        finally:
            if parser.retry_secs is not None:
                self._retry_secs = min(parser.retry_secs, LONGEST_RETRY_SECS)
            if changed:
                self._publish()
        if self._assembly.started:
            self._confirmed_at = now
            self._backoff.reset()
            self._good(base)

    def _good(self, base: str) -> None:
        if self.trouble is not None:
            text = "following %d pools at %s again"
            event(logger, logging.INFO, "stream.regained", text, len(self._assembly), base)
            self.trouble = None

    def _lost(self, failure: DiscoveryError | None) -> None:
        """The stream is gone; a clean end is no trouble, since the server only sends us elsewhere."""
        self._disarm()
        if self._lost_at is None:
            self._lost_at = self._now()
        if failure is not None:
            if self.trouble is None and self._assembly.started:
                text = "lost the stream of pools, keeping the last %d: %s"
                event(logger, logging.WARNING, "stream.lost", text, len(self._assembly), failure, cause=str(failure))
            self.trouble = str(failure)

    def _heard_again(self) -> None:
        if self._lost_at is not None:
            self._assembly.not_counting(self._now() - self._lost_at)
            self._lost_at = None
        self._arm()

    def _wait_after(self, failure: DiscoveryError | None) -> float:
        spread = random.uniform(1.0, 1.5)  # noqa: S311 - spreads clients, hides nothing
        if isinstance(failure, Rejected | Misconfigured):
            return REJECTED_SECS * spread
        asked = failure.retry_after_secs if isinstance(failure, Unavailable) else 0
        return max((asked or self._retry_secs) * spread, self._backoff.next())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _publish(self) -> None:
        self._version += 1
        self._wake()
        self._arm()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _arm(self) -> None:
        self._disarm()
        if (at := self._assembly.next_drop) is not None:
            wait = max(0.0, at - self._now())
            self._drop_timer = asyncio.get_running_loop().call_later(wait, self._drop_unseen)

    def _disarm(self) -> None:
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None

    def _drop_unseen(self) -> None:
        if self._assembly.drop_unseen(self._now()):
            text = "gave up pools that incomplete lists have not shown for five minutes"
            event(logger, logging.WARNING, "stream.pools_dropped", text)
            self._publish()
        else:
            self._arm()


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # another thread, which has no loop
        return None
