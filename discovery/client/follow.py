"""Follows the pools: a stream of events that becomes a list, kept current for as long as a block runs.

One task reads one stream at a time, and begins another whenever that one ends, breaks or falls silent; meanwhile the
last list stays. What an event means is for ``snapshot``; how a server is reached is for ``transport``.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from discovery.backoff import Backoff
from discovery.client import sse
from discovery.client.answers import one_line
from discovery.client.service import STREAM_OPENS_SECS, Pairs, Request, path_of, target
from discovery.client.snapshot import Assembly, Snapshot
from discovery.errors import DiscoveryError, Misconfigured, Rejected, Unavailable
from discovery.logs import event

if TYPE_CHECKING:
    from discovery.client.transport import Connections, Stream

SILENCE_SECS = 40.0
LONGEST_RETRY_SECS = 60.0
REJECTED_SECS = 5.0

logger = logging.getLogger(__name__)


class Pools:
    """The pools as they are now, within an ``async with`` block; entering it waits for the first list.

    ``snapshot`` is always the current list and costs nothing when it did not change. Iterating gives a new snapshot for
    each change since the block was entered; changes that come faster than they are read are given as one. While no
    server can be reached the last list stays, ``snapshot.age`` grows, and ``trouble`` says why.

    Entering raises ``Rejected`` when the service refuses, and ``Unavailable`` when there is no list within
    ``patience_secs``, after at least one attempt per base URL. Later failures are told by logs and ``trouble`` alone.
    """

    def __init__(
        self, connections: "Connections", query: Pairs, *, patience_secs: float, silence_secs: float = SILENCE_SECS
    ) -> None:
        self.trouble: str | None = None
        self._connections = connections
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
        self._changed = asyncio.Event()
        self._closed = False
        self._lost_at: float | None = None
        self._drop_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The list as it is now."""
        exact = self._between_changes and not self._assembly.merged
        age = time.monotonic() - self._confirmed_at
        return Snapshot(self._assembly.complete, self._assembly.pools, self._token if exact else None, age)

    async def __aenter__(self) -> Self:
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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

    async def changed(self, since: int) -> bool:
        """Wait until ``version`` is no longer ``since``; false when the block has ended. May be cancelled freely."""
        while self._version == since and not self._closed:
            await self._changed.wait()
        return not self._closed

    async def _close(self) -> None:
        self._closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._disarm()
        await self._connections.close()

    async def _keep_reading(self, first: asyncio.Future[None]) -> None:
        give_up_at = time.monotonic() + self._patience_secs
        while not self._closed:
            failure = await self._read_until_it_ends(first)
            self._connections.move_on()
            if failure is not None and not first.done():
                hopeless = isinstance(failure, Rejected | Misconfigured) or time.monotonic() >= give_up_at
                if hopeless:
                    first.set_exception(failure)
                    return
            wait = self._wait_after(failure)
            left = give_up_at - time.monotonic()
            await asyncio.sleep(wait if first.done() else max(0.05, min(wait, left)))

    async def _read_until_it_ends(self, first: asyncio.Future[None]) -> DiscoveryError | None:
        """One stream; what it ended with. Whatever goes wrong with one stream, the next one is tried."""
        try:
            # In the middle of a change our list is none that was ever published. Tokens are made of content: were the
            # service back at the remembered one, it would have nothing to send. So ask for everything.
            resume = {"Last-Event-ID": self._token} if self._token and self._between_changes else {}
            async with self._connections.stream(Request("GET", self._target, resume)) as stream:
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

    async def _read(self, stream: "Stream", first: asyncio.Future[None]) -> None:
        parser = sse.Parser()
        while chunk := await stream.read(self._silence_secs if first.done() else STREAM_OPENS_SECS):
            self._take(parser, chunk, stream.base)
            if self._assembly.started and not first.done():
                first.set_result(None)

    def _take(self, parser: sse.Parser, chunk: bytes, base: str) -> None:
        now, changed = time.monotonic(), False
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
            self._lost_at = time.monotonic()
        if failure is not None:
            if self.trouble is None and self._assembly.started:
                text = "lost the stream of pools, keeping the last %d: %s"
                event(logger, logging.WARNING, "stream.lost", text, len(self._assembly), failure, cause=str(failure))
            self.trouble = str(failure)

    def _heard_again(self) -> None:
        if self._lost_at is not None:
            self._assembly.not_counting(time.monotonic() - self._lost_at)
            self._lost_at = None
        self._arm()

    def _wait_after(self, failure: DiscoveryError | None) -> float:
        spread = random.uniform(1.0, 1.5)  # noqa: S311 - spreads clients, hides nothing
        if isinstance(failure, Rejected | Misconfigured):
            return REJECTED_SECS * spread
        asked = failure.retry_after_secs if isinstance(failure, Unavailable) else 0
        return max((asked or self._retry_secs) * spread, self._backoff.next())

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
            wait = max(0.0, at - time.monotonic())
            self._drop_timer = asyncio.get_running_loop().call_later(wait, self._drop_unseen)

    def _disarm(self) -> None:
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None

    def _drop_unseen(self) -> None:
        if self._assembly.drop_unseen(time.monotonic()):
            text = "gave up pools that incomplete lists have not shown for five minutes"
            event(logger, logging.WARNING, "stream.pools_dropped", text)
            self._publish()
        else:
            self._arm()
