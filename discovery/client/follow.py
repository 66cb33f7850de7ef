"""Follows the pools: a list that is kept current for as long as a block runs.

Two tasks keep it: ``channel`` hears of changes at once, by a stream where one comes through, and ``looks`` asks
whenever nothing has confirmed the list for a moment. Here is what they come to: the snapshot, who waits for the next
one, what is wrong, and pools that nobody has shown for too long.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self
from weakref import WeakKeyDictionary

from discovery.client.answers import all_of
from discovery.client.blocks import Blocks, not_twice
from discovery.client.channel import SILENCE_SECS, Channel
from discovery.client.kept import DOUBT_SECS, KeptList
from discovery.client.looks import QUIET_SECS, Looks
from discovery.client.reach import Reach
from discovery.client.service import Pairs, path_of, target
from discovery.client.snapshot import Snapshot
from discovery.errors import DiscoveryError, Misconfigured, Rejected, Unavailable
from discovery.logs import event
from discovery.model import Listing, PoolKey

OUTSIDE = "following begins with its block: async with client.follow() as pools"

logger = logging.getLogger(__name__)


class Pools:
    """The pools as they are now, within an ``async with`` block; entering it waits for the first list.

    ``snapshot`` is always the current list and costs nothing when it did not change. Iterating gives a new snapshot for
    each change since the block was entered, ``changed`` waits for the next one that the calling task has not looked at;
    changes that come faster than they are read are given as one. All of it belongs to the loop that entered the block;
    snapshots may go anywhere.

    The list is current within about two seconds of whatever happens. While no server can be reached the last list
    stays: ``snapshot.age`` grows, ``trouble`` says why, and from 5 s on ``snapshot.complete`` is false, since pools
    may have come meanwhile; with the first sign that the list still holds it is what the service said again. So a
    router sends requests to what is listed, and says that a model does not exist only while ``complete``.

    Entering raises ``Rejected`` when the service refuses, and ``Unavailable`` when there is no list within
    ``patience_secs``, after at least one attempt per base URL. Later failures are told by logs and ``trouble`` alone.
    """

    def __init__(
        self,
        reach: Reach,
        query: Pairs,
        *,
        patience_secs: float,
        quiet_secs: float = QUIET_SECS,
        silence_secs: float = SILENCE_SECS,
        blocks: Blocks | None = None,
    ) -> None:
        self.trouble: str | None = None
        self._blocks = blocks
        self._reach = reach
        self._patience_secs = patience_secs
        self._kept = KeptList(max(DOUBT_SECS, 3 * quiet_secs))
        self._channel = Channel(
            reach,
            target(path_of("pools", "events"), query),
            self._kept,
            silence_secs=silence_secs,
            changed=self._publish,
            heard=self._heard,
            failed=self._stream_failed,
        )
        self._looks = self._channel.looks = Looks(
            reach,
            target(path_of("pools"), query),
            self._kept,
            quiet_secs=quiet_secs,
            told=lambda: self._channel.tells,
            overtook=self._channel.overtaken,
            changed=self._publish,
            heard=self._look_heard,
        )
        self._version = 0
        self._entered_version = 0
        self._looked: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._changed = asyncio.Event()
        self._closed = False
        self._doubted = False
        self._told_otherwise: dict[PoolKey, Listing | None] = {}
        self._stream_failure: DiscoveryError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] | None = None
        self._give_up_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The list as it is now."""
        if self._loop is None:
            raise RuntimeError(OUTSIDE)
        self._look()
        return self._kept.shown(self._loop.time())

    @property
    def step(self) -> str:
        """By which way changes are heard of: ``stream``, ``long poll``, or ``poll`` where both are broken."""
        return self._channel.ways.step.value

    async def __aenter__(self) -> Self:
        not_twice(self._loop)
        if self._blocks is not None:
            self._blocks.enter(self._end)
        self._loop = asyncio.get_running_loop()
        self._first = self._loop.create_future()
        self._give_up_at = self._loop.time() + self._patience_secs
        self._tasks = [
            asyncio.create_task(self._channel.run(), name="follow pools"),
            asyncio.create_task(self._looks.run(), name="look after pools"),
        ]
        try:
            await self._first
        except BaseException:
            await self._end()
            raise
        self._entered_version = self._version
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

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
            raise RuntimeError(OUTSIDE)
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

    async def _end(self) -> None:
        """Leave the block; whoever waits for a change is told."""
        self._closed = True
        self._wake()
        self._disarm()
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            if self._blocks is not None:
                self._blocks.leave(self._end)
            await self._reach.close()

    # ---- what the two tasks tell

    def _look_heard(self, failure: DiscoveryError | None) -> None:
        """A look was answered, or why it was not."""
        self._channel.plain_requests(work=failure is None)
        if failure is None:
            self._heard()
        elif not self._kept.started:
            self._no_list_yet(failure)
        elif not self._channel.tells or self._kept.doubted(self._now()):
            self._fail(failure)

    def _stream_failed(self, failure: DiscoveryError) -> None:
        self._stream_failure = failure

    def _no_list_yet(self, failure: DiscoveryError) -> None:
        self.trouble = str(failure)
        hopeless = isinstance(failure, Rejected | Misconfigured)
        if self._first is None or self._first.done() or not (hopeless or self._now() >= self._give_up_at):
            return
        told = [each for each in (self._stream_failure, failure) if isinstance(each, Unavailable)]
        self._first.set_exception(failure if hopeless else all_of(told))

    def _heard(self) -> None:
        """Somebody answered; where that confirmed the list, all is well."""
        if not self._kept.started or self._kept.doubted(self._now()):
            return
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        if self.trouble is not None:
            count = len(self._kept.assembly)
            event(logger, logging.INFO, "stream.regained", "following %d pools again", count)
            self.trouble = None
        if self._doubted or self._told_otherwise != self._kept.told_otherwise():
            self._doubted = False
            self._publish()
        if self._timer is None:
            self._arm()

    def _fail(self, failure: DiscoveryError) -> None:
        if self.trouble is None:
            text = "cannot follow the pools, keeping the last %d: %s"
            count = len(self._kept.assembly)
            event(logger, logging.WARNING, "stream.lost", text, count, failure, cause=str(failure))
        self.trouble = str(failure)

    # ---- changes, and what time alone brings

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _publish(self) -> None:
        self._version += 1
        self._told_otherwise = self._kept.told_otherwise()
        self._wake()
        self._arm()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _arm(self) -> None:
        """See again when the list comes into doubt, a pool has gone unseen for too long, or lags must be over."""
        self._disarm()
        times = [at for at in (self._kept.doubtful_at, self._kept.assembly.next_drop) if at is not None]
        if (settles_at := self._kept.settles_at) is not None and settles_at > self._now():
            times.append(settles_at)
        at = min(times)
        self._timer = asyncio.get_running_loop().call_at(max(at, self._now()) + 0.001, self._see_again)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _see_again(self) -> None:
        self._timer = None
        if self._kept.doubted(self._now()):
            if not self._doubted:
                self._doubted = True
                self._fail(
                    Unavailable(self.trouble or f"nothing was heard of the service for {self._kept.doubt_secs:g} s")
                )
                self._publish()
            return  # until it is heard of again; meanwhile nobody could show a pool
        if (settles_at := self._kept.settles_at) is not None and settles_at <= self._now():
            self._looks.hurry()
        if self._kept.assembly.drop_unseen(self._now()):
            text = "gave up pools that incomplete lists have not shown for five minutes"
            event(logger, logging.WARNING, "stream.pools_dropped", text)
            self._publish()
        self._arm()


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # another thread, which has no loop
        return None
