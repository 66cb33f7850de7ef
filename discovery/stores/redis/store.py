"""The store for production: each registration a Redis key whose TTL is the lease, each change announced over pub/sub.

Truth is what Redis holds; announcements are hints. A write is one script, atomic: compare, set with its TTL, count the
revision, announce. Every second the revision and the epoch are read on a connection that carries nothing else, and the
announcements are compared with it: what is still missing once a PING behind it was answered has been lost, and
everything is read again. Knows no clock but Redis's for the end of a lease; judges nothing but possible loss of data.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from discovery.errors import Gone, Unavailable
from discovery.logs import event
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import CONFIRMED_FOR_SECS, Deleted, Event, Health, Listed, Outcome, Put, Remaining
from discovery.stores.redis.address import Access, open_address
from discovery.stores.redis.announcements import Announcements
from discovery.stores.redis.names import Names
from discovery.stores.redis.reading import Reader, State
from discovery.stores.redis.server import Server
from discovery.stores.redis.signs import Life
from discovery.stores.redis.subscription import Inbox, NoChannel, Subscription
from discovery.stores.redis.writing import Writer

log = logging.getLogger(__name__)

CHECK_SECS = 0.8
READ_TIMEOUT_SECS = 1.0
"""The least; whoever gives a store of another region more time for writes gives its reads two thirds of that."""
SUBSCRIBE_AGAIN_SECS = 3.0


class RedisStore:
    """Registrations in one Redis, shared by every replica that names the same server, database and prefix."""

    confirmed_for_secs = CONFIRMED_FOR_SECS
    ends_leases = True

    def __init__(
        self,
        access: Access,
        *,
        prefix: str,
        lease_secs: float,
        timeout_secs: float,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_timeout_secs = min(max(READ_TIMEOUT_SECS, timeout_secs * 2 / 3), timeout_secs)
        address = open_address(access, prefix=prefix, timeout_secs=timeout_secs - 0.1)
        self._server = Server(address, timeout_secs - 0.1, self._read_timeout_secs, clock)
        self._names = Names(prefix, address.database)
        self._lease_secs = lease_secs
        self._counters = counters
        self._clock = clock
        self._writer = Writer(self._server, self._names, lease_secs, counters, self._written)
        self._reader = Reader(self._server, self._names, lease_secs, self._report, clock)
        self._announcements = Announcements(self._names.changes, counters, self._report)
        self._life = Life(lease_secs)
        self._feed: Inbox | None = None
        self._has_subscribed = False
        self._refused: str | None = None
        self._untold_loss: str | None = None
        self._reported: set[str] = set()
        counters.feed_silent.read_by(self._server.silent_secs)

    # ---- writing

    def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Coroutine[Any, Any, Outcome]:
        """See ``Store.put``."""
        return self._writer.put(key, value, lease_secs)

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``."""
        return await self._writer.delete(key, instance_id)

    async def settle(self, reason: str, secs: float, known_until: float | None = None) -> None:
        """See ``Store.settle``."""
        await self._writer.settle(reason, secs)

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``."""
        await self._writer.end_settling(reason)

    def _written(self, epoch: str, revision: int, own: bool) -> None:
        self._life.wrote(epoch, revision)
        feed = self._feed
        if own and feed is not None and epoch == feed.epoch and revision > feed.position:
            feed.own.add(revision)

    # ---- reading

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """See ``Store.remaining``: void also where the server does not look as it did when it was last checked."""
        secs, epoch, signs = await self._reader.leases(keys)
        if self._life.contradicted(signs, self._clock()):
            self._nudge()
            return Remaining(secs, None)
        return Remaining(secs, epoch)

    async def list_all(self) -> Listed:
        """See ``Store.list_all``."""
        self._drop_feed()
        await self._reader.state()  # a server that is not to be used says so before anything is subscribed to
        feed = self._feed = await self._open_feed()
        self._server.follow(feed)
        try:
            health, _ = await self._check()
            self._check_node(feed)
            connection = self._server.reads.generation
            items = await self._reader.items(health.asked_at)
            await self._check_unchanged(health, connection)
            feed.epoch, feed.position = health.epoch, health.revision
            await feed.barrier()
        except BaseException:
            self._drop_feed()
            raise
        loss, self._untold_loss = self._untold_loss, None
        return Listed(health, items, loss)

    async def _open_feed(self) -> Inbox:
        """A subscription; where Redis has begun to refuse it, a feed that is told nothing and goes by the revision.

        At the start there is no such way out: whoever forgot the right shall hear of it before it serves anybody.
        """
        try:
            feed = await self._subscribe()
        except NoChannel as error:
            if not self._has_subscribed:
                raise
            if self._refused is None:
                text = "%s; until then the revision is read each second instead"
                event(log, logging.WARNING, "store.refuses", text, error.detail, cause="subscribe")
            self._refused = error.detail
            return Inbox()
        if self._refused is not None:
            at = self._server.address
            event(log, logging.INFO, "store.accepts", "Redis at %s lets the store subscribe again", at, store=str(at))
        self._refused, self._has_subscribed = None, True
        return feed

    async def _subscribe(self) -> Subscription:
        try:
            feed = await Subscription.open(self._server.address, self._names.changes, self._read_timeout_secs)
        except NoChannel:
            self._counters.announcements_refused.inc()
            raise
        self._counters.feed_connections.inc()
        return feed

    def _check_node(self, feed: Inbox) -> None:
        """A PING behind the announcements proves something only on the server that the revision is read from."""
        node = self._server.reads.node
        if feed.node and node and feed.node != node:
            raise Gone("moved", f"announcements come from {feed.node}, and Redis is read at {node}")

    async def _check_unchanged(self, health: Health, connection: int) -> None:
        """What was read since ``health`` is of one server and one life of the store, or is void."""
        after = await self._reader.state()
        if self._server.reads.generation != connection:
            raise Gone("moved", "the connection was made anew while Redis was read")
        if after.health.epoch != health.epoch:
            raise Gone("loss", "the epoch changed while Redis was read")
        if sign := self._life.contradicted(after.signs, self._clock()):
            raise Gone("loss", f"while Redis was read: {sign}")

    async def _check(self) -> tuple[Health, str | None]:
        """The store's health, and why data may have been lost; makes the epoch where there is none.

        Whoever notices a loss replaces the epoch, so that all replicas share this one loss. Only then what the server
        says now is taken for known: a replacement that failed is tried again.
        """
        known, highest = self._life.epoch, self._life.revision
        seen, loss = await self._reader.state(), None
        if not seen.health.epoch:
            await self._writer.establish_epoch("Redis holds no epoch: it is new, or was emptied")
            seen = await self._reader.state()
        elif loss := self._sign_of_loss(known, seen, highest):
            void = seen.health.epoch
            await self._writer.replace_epoch(void, loss)
            seen = await self._reader.state()
            if seen.health.epoch == void:
                raise Unavailable(f"Redis at {self._server.address} did not take a new epoch after a loss: {loss}")
        if loss is None and known not in (None, seen.health.epoch):
            loss = "Redis has a new epoch: it was emptied, or another replica saw a loss"
        self._life.adopt(seen.health.epoch, seen.health.revision, seen.signs, loss, self._clock())
        self._untold_loss = loss or self._untold_loss
        return seen.health, loss

    def _sign_of_loss(self, known: str | None, seen: State, highest: int) -> str | None:
        if self._life.is_past(seen.health.epoch):
            return "Redis is back in a life that was over: another server answers, or old data"
        if known != seen.health.epoch:
            return None
        if seen.health.revision < highest:
            return f"Redis went back from revision {highest} to {seen.health.revision}"
        return self._life.contradicted(seen.signs, self._clock())

    def share(self, value_of: Callable[[PoolKey], bytes | None]) -> None:
        """See ``Store.share``."""
        self._reader.value_of = value_of

    # ---- watching

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """See ``Store.watch``."""
        feed = self._feed
        if feed is None:
            raise Gone("feed", "the subscription ended before it was watched")
        await feed.barrier()  # taking a long list is no silence of the feed's
        feed.watched = True
        works = (
            [self._checks, self._reread] if feed.subscribed else [self._checks, self._reread, self._try_to_subscribe]
        )
        tasks = [asyncio.create_task(self._keep(feed, work)) for work in works]
        try:
            while True:
                for item in feed.take():
                    if (event := self._follow(feed, item)) is not None:
                        yield event
                await feed.wait()
        finally:
            for task in tasks:
                task.cancel()
            self._drop_feed()

    def _follow(self, feed: Inbox, item: object) -> Event | None:
        match item:
            case bytes():
                event = self._announcements.read(feed, item)
                if event is not None:
                    self._life.wrote(event.epoch, event.revision)
                return event
            case asyncio.Future():
                if not item.done():
                    item.set_result(None)
                return None
            case Gone() | Unavailable():
                raise item
            case Put() | Deleted() | Health() | Listed():
                return item
        raise TypeError(f"a feed holds {type(item).__name__}")

    async def _keep(self, feed: Inbox, work: Callable[[Inbox], Awaitable[None]]) -> None:
        """Run a side task of the watch; its error ends the watch."""
        try:
            await work(feed)
        except (Gone, Unavailable) as error:
            feed.push(error)
        except Exception as error:  # the watch must not go on deaf because of a fault of ours
            log.exception("a side task of the watch on Redis failed")
            feed.push(Gone("fault", f"a fault in the watch: {type(error).__name__}"))

    async def _checks(self, feed: Inbox) -> None:
        while True:
            await feed.nudged(CHECK_SECS * random.uniform(0.8, 1.0))  # noqa: S311
            health, loss = await self._check()
            if loss is not None or health.epoch != feed.epoch:
                raise Gone("loss", loss or "another epoch")
            self._check_node(feed)
            await feed.barrier()
            if feed.position >= health.revision:
                feed.push(health)
            elif feed.subscribed:
                raise Gone("gap", f"announcements up to {health.revision} are missing from {feed.position} on")
            else:
                feed.position = health.revision
                await self._list_again(feed)

    async def _reread(self, feed: Inbox) -> None:
        """A full list once per lease: what was changed by hand shows up, and no fault of ours lasts."""
        while True:
            await asyncio.sleep(self._lease_secs * random.uniform(0.8, 1.0))  # noqa: S311
            await self._list_again(feed)

    async def _list_again(self, feed: Inbox) -> None:
        before = (await self._reader.state()).health
        connection = self._server.reads.generation
        items = await self._reader.items(before.asked_at)
        await self._check_unchanged(before, connection)
        await feed.barrier()
        if before.epoch == feed.epoch:
            feed.push(Listed(before, items))

    async def _try_to_subscribe(self, feed: Inbox) -> None:
        """End a watch without announcements as soon as they may be subscribed to."""
        while True:
            await asyncio.sleep(SUBSCRIBE_AGAIN_SECS * random.uniform(0.8, 1.0))  # noqa: S311
            try:
                (await self._subscribe()).close()
            except Unavailable:
                continue  # an outage is noticed by the checks
            raise Gone("feed", "announcements may be subscribed to again")

    # ---- the rest

    async def close(self) -> None:
        """See ``Store.close``."""
        self._drop_feed()
        await self._server.close()

    def describe(self) -> dict[str, object]:
        """See ``Store.describe``."""
        feed = self._feed
        return {
            "kind": "redis",
            "address": str(self._server.address),
            "node": self._server.reads.node,
            "prefix": self._names.root,
            "epoch": self._life.epoch,
            "revision": self._life.revision,
            "feed": None
            if feed is None
            else {
                "position": feed.position,
                "last_sign_of_life_secs": round(feed.silent_secs(), 3),
            },
            "feed_refused": self._refused,
        }

    def _drop_feed(self) -> None:
        self._feed = None
        self._server.drop_feed()

    def _nudge(self) -> None:
        if self._feed is not None:
            self._feed.nudge()

    def _report(self, what: str, text: str) -> None:
        if what not in self._reported and len(self._reported) < 1000:
            self._reported.add(what)
            line = "%s (further ones are only counted)" if what == "announcement" else "%s"
            event(log, logging.WARNING, "store.odd", line, text, cause=what)
