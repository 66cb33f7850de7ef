"""The store for production: each registration a Redis key whose TTL is the lease, each change announced over pub/sub.

Truth is what Redis holds; announcements are hints. A write is one script, atomic: compare, set with its TTL, count the
revision, announce. Every second the revision and the epoch are read on a connection that carries nothing else, and the
announcements are compared with it: what is still missing once a PING behind it was answered has been lost, and
everything is read again. Knows no clock but Redis's for the end of a lease; judges nothing but possible loss of data.
"""

import asyncio
import itertools
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from discovery.errors import Gone, Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.registrations import key_from_path, key_path
from discovery.stores import Deleted, Event, Health, Listed, Outcome, Put, Remaining, Stored
from discovery.stores.redis_address import Access, open_address
from discovery.stores.redis_link import Line, Refused, first_refusal, pack
from discovery.stores.redis_scripts import DELETE, END_SETTLING, ESTABLISH, PUT, REPLACE_EPOCH, SETTLE, Script
from discovery.stores.redis_subscription import Subscription

log = logging.getLogger(__name__)

CHECK_SECS = 0.8
SCAN_COUNT = 1000
READ_TIMEOUT_SECS = 1.0


class _Announcement(msgspec.Struct):
    epoch: str
    revision: int
    event: str
    pool: str
    lease_ms: int = 0
    registration: msgspec.Raw = msgspec.Raw()


_decode_announcement = msgspec.json.Decoder(_Announcement).decode
_encode_json = msgspec.json.Encoder().encode


class Names:
    """Every key and channel of one deployment. The braces put all of them into one slot of a Redis Cluster."""

    def __init__(self, prefix: str, database: int) -> None:
        self.root = f"{{{prefix}}}:"
        self.pools = f"{self.root}pool:"
        self.revision = f"{self.root}revision"
        self.epoch = f"{self.root}epoch"
        self.settling = f"{self.root}settling"
        self.changes = f"{self.root}changes" + (f"@{database}" if database else "")

    def pool(self, key: PoolKey) -> str:
        """The key that holds a pool's registration."""
        return self.pools + key_path(key)


class RedisStore:
    """Registrations in one Redis, shared by every replica that names the same server, database and prefix."""

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
        self._timeout_secs = timeout_secs
        self._read_timeout_secs = min(READ_TIMEOUT_SECS, timeout_secs)
        self._address = open_address(access, prefix=prefix, timeout_secs=timeout_secs - 0.1)
        self._names = Names(prefix, self._address.database)
        self._lease_secs = lease_secs
        self._counters = counters
        self._clock = clock
        self._writes = Line(self._address, timeout_secs - 0.1)
        self._reads = Line(self._address, self._read_timeout_secs)
        self._feed: Subscription | None = None
        self._epoch: str | None = None
        self._highest = 0
        self._candidate = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count())  # never the same one twice
        self._put_prefix = PUT.prefix(4 + 5, 4)
        self._shared_keys = b"".join(
            _bulk(name.encode()) for name in (self._names.revision, self._names.epoch, self._names.settling)
        )
        self._channel = _bulk(self._names.changes.encode())
        self._pools = self._names.pools.encode()
        self._own: set[int] = set()
        self._reported: set[str] = set()

    # ---- writing

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """See ``Store.put``."""
        path = key_path(key).encode()
        name, candidate, lease_ms = self._pools + path, next(self._candidate).encode(), b"%d" % round(lease_secs * 1000)
        command = b'%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n"%b"\r\n%b$%d\r\n%b\r\n' % (
            (self._put_prefix, len(name), name, self._shared_keys, len(value), value, len(lease_ms), lease_ms)
            + (len(path) + 2, path, self._channel, len(candidate), candidate)  # a path needs no escapes in JSON
        )
        status, found, told = await self._run(PUT, command)
        revision, epoch = _integer(found), told.decode(errors="replace")
        self._note(epoch, revision)
        if status and self._feed is not None and revision > self._feed.position:
            self._own.add(revision)
        return Outcome(status == 1, status > 0, revision, epoch)

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``."""
        path = key_path(key)
        answer = await self._run(
            DELETE,
            DELETE.command(
                [self._names.pools + path, self._names.revision, self._names.epoch, self._names.settling],
                [
                    _encode_json(path),
                    self._names.changes,
                    next(self._candidate),
                    self._lease_ms,
                    "" if instance_id is None else "=" + instance_id,
                ],
            ),
        )
        if answer == 0:
            return None
        revision, epoch = _integer(answer[0]), answer[1].decode(errors="replace")
        self._note(epoch, revision)
        return Deleted(key, epoch, revision)

    async def settle(self, reason: str, secs: float | None = None) -> None:
        """See ``Store.settle``; for one lease where nothing else is said."""
        ms = round((self._lease_secs if secs is None else secs) * 1000)
        await self._run(SETTLE, SETTLE.command([self._names.settling], [reason, ms]))

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``."""
        await self._run(END_SETTLING, END_SETTLING.command([self._names.settling], [reason]))

    async def _run(self, script: Script, command: bytes) -> Any:
        """The answer of a script, loaded when the server does not know it (any more)."""
        (answer,) = await self._writes.call(command)
        if isinstance(answer, Refused) and str(answer).startswith("NOSCRIPT"):
            (answer,) = await self._writes.call(script.with_source(command))
        if isinstance(answer, Refused):
            raise self._refusal(answer, "item" if str(answer).startswith("WRONGTYPE") else "writes")
        return answer

    # ---- reading

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """See ``Store.remaining``."""
        commands = [b"*2\r\n$4\r\nPTTL\r\n" + _bulk(self._pools + key_path(key).encode()) for key in keys]
        commands.append(pack("GET", self._names.epoch))
        *times, epoch = await self._read(b"".join(commands), len(commands))
        return Remaining(
            [None if ms == -2 else self._left(ms) for ms in times], epoch.decode(errors="replace") if epoch else None
        )

    async def list_all(self) -> Listed:
        """See ``Store.list_all``."""
        self._drop_feed()
        feed = self._feed = await Subscription.open(self._address, self._names.changes, self._read_timeout_secs)
        self._counters.feed_connections.inc()
        try:
            health, loss = await self._check()
            items = await self._read_all()
            if (await self._read_health()).epoch != health.epoch:
                raise Gone("loss", "the epoch changed while Redis was read")
            await feed.barrier()
        except BaseException:
            self._drop_feed()
            raise
        feed.epoch, feed.position = health.epoch, health.revision
        self._own.clear()
        return Listed(health, items, loss)

    async def _read_all(self) -> dict[PoolKey, Stored]:
        items: dict[PoolKey, Stored] = {}
        cursor = b"0"
        while True:
            (answer,) = await self._read(pack("SCAN", cursor, "MATCH", self._names.pools + "*", "COUNT", SCAN_COUNT))
            cursor, names = answer
            if names:
                await self._read_some(names, items)
            if cursor == b"0":
                return items

    async def _read_some(self, names: list[bytes], items: dict[PoolKey, Stored]) -> None:
        commands = pack("MGET", *names) + b"".join(pack("PTTL", name) for name in names)
        values, *times = await self._read(commands, 1 + len(names))
        for name, value, ms in zip(names, values, times, strict=True):
            if ms == -2:
                continue
            try:
                if value is None:
                    raise ValueError("it is not a string")
                key = key_from_path(name[len(self._names.pools) :].decode())
            except ValueError as error:
                self._report_foreign(name, str(error))
            else:
                items[key] = Stored(value, self._left(ms))

    async def _check(self) -> tuple[Health, str | None]:
        """The store's health, and why data may have been lost; makes the epoch where there is none.

        Whoever notices a loss replaces the epoch, so that all replicas share this one loss.
        """
        epoch_before, highest_before = self._epoch, self._highest
        health = await self._read_health()
        loss = None
        if not health.epoch:
            await self._establish(
                ESTABLISH, [self._names.epoch, self._names.settling], "Redis holds no epoch: it is new, or was emptied"
            )
            health = await self._read_health()
        elif epoch_before == health.epoch and health.revision < highest_before:
            loss = f"Redis went back from revision {highest_before} to {health.revision}"
            await self._establish(REPLACE_EPOCH, [self._names.epoch, self._names.settling], loss, health.epoch)
            health = await self._read_health()
        if loss is None and epoch_before not in (None, health.epoch):
            loss = "Redis has a new epoch: it was emptied, or another replica saw a loss"
        self._note(health.epoch, health.revision)
        return health, loss

    async def _establish(self, script: Script, keys: list[str], reason: str, expected: str = "") -> None:
        await self._run(script, script.command(keys, [next(self._candidate), reason, self._lease_ms, expected]))

    async def _read_health(self) -> Health:
        asked_at = self._clock()
        names = self._names
        (values,) = await self._read(pack("MGET", names.revision, names.epoch, names.settling))
        revision, epoch, settling = values
        return Health(
            asked_at,
            epoch.decode(errors="replace") if epoch else "",
            _integer(revision),
            settling.decode(errors="replace") if settling is not None else None,
        )

    async def _read(self, commands: bytes, expected: int = 1) -> list[Any]:
        replies = await self._reads.call(commands, expected)
        if refusal := first_refusal(replies):
            raise self._refusal(refusal)
        return replies

    # ---- watching

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """See ``Store.watch``."""
        feed = self._feed
        if feed is None:
            raise Gone("feed", "the subscription ended before it was watched")
        feed.watched = True
        tasks = [
            asyncio.create_task(self._keep(feed, self._checks)),
            asyncio.create_task(self._keep(feed, self._reread)),
        ]
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

    async def _keep(self, feed: Subscription, work: Callable[[Subscription], Awaitable[None]]) -> None:
        """Run a side task of the watch; its error ends the watch."""
        try:
            await work(feed)
        except (Gone, Unavailable) as error:
            feed.push(error)
        except Exception as error:  # the watch must not go on deaf because of a fault of ours
            log.exception("a side task of the watch on Redis failed")
            feed.push(Gone("fault", f"a fault in the watch: {type(error).__name__}"))

    async def _checks(self, feed: Subscription) -> None:
        while True:
            await feed.nudged(CHECK_SECS * random.uniform(0.8, 1.0))  # noqa: S311
            health, loss = await self._check()
            if loss is not None or health.epoch != feed.epoch:
                raise Gone("loss", loss or "another epoch")
            await feed.barrier()
            if feed.position < health.revision:
                raise Gone("gap", f"announcements up to {health.revision} are missing from {feed.position} on")
            feed.push(health)

    async def _reread(self, feed: Subscription) -> None:
        """A full list once per lease: what was changed by hand shows up, and no fault of ours lasts."""
        while True:
            await asyncio.sleep(self._lease_secs * random.uniform(0.8, 1.0))  # noqa: S311
            before = await self._read_health()
            items = await self._read_all()
            after = await self._read_health()
            await feed.barrier()
            if before.epoch == after.epoch == feed.epoch:
                feed.push(Listed(before, items))

    def _follow(self, feed: Subscription, item: Any) -> Event | None:
        if isinstance(item, asyncio.Future):
            if not item.done():
                item.set_result(None)
            return None
        if isinstance(item, Gone | Unavailable):
            raise item
        if not isinstance(item, bytes):
            return item  # type: ignore[no-any-return]
        if self._own and self._is_own(feed, item):
            return None
        try:
            told = _decode_announcement(item)
            key = key_from_path(told.pool)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            self._ignore(f"it is no announcement of ours ({error})")
            return None
        if told.epoch != feed.epoch:
            self._counters.announcements_ignored.inc()
            feed.nudge()  # a check will tell whether it is the epoch that is new, or the announcement that is foreign
            return None
        if told.revision <= feed.position:
            return None
        if told.revision != feed.position + 1:
            raise Gone("gap", f"announcement {told.revision} came after {feed.position}")
        feed.position = told.revision
        self._note(told.epoch, told.revision)
        if told.event == "delete":
            return Deleted(key, told.epoch, told.revision)
        return Put(key, bytes(told.registration), told.lease_ms / 1000, told.epoch, told.revision)

    # ---- the rest

    async def close(self) -> None:
        """See ``Store.close``."""
        self._drop_feed()
        await self._writes.close()
        await self._reads.close()

    def describe(self) -> dict[str, object]:
        """See ``Store.describe``."""
        feed = self._feed
        return {
            "kind": "redis",
            "address": str(self._address),
            "prefix": self._names.root,
            "epoch": self._epoch,
            "revision": self._highest,
            "feed": None
            if feed is None
            else {"position": feed.position, "last_sign_of_life_secs": round(feed.silent_secs(), 3)},
        }

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_secs * 1000)

    def _left(self, ms: int) -> float:
        """Seconds left; a key that somebody set by hand without a TTL is asked about again after a lease."""
        return self._lease_secs if ms == -1 else max(0, ms) / 1000

    def _is_own(self, feed: Subscription, message: bytes) -> bool:
        """Whether the next announcement is of a write whose outcome was taken already: it need not be read."""
        head = b'{"epoch":"%b","revision":%d,' % (feed.epoch.encode(), feed.position + 1)
        if feed.position + 1 not in self._own or not message.startswith(head):
            return False
        feed.position += 1
        self._own.discard(feed.position)
        return True

    def _note(self, epoch: str, revision: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._highest = epoch, revision
        elif revision > self._highest:
            self._highest = revision

    def _drop_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _refusal(self, error: Refused, extent: Literal["source", "writes", "item"] = "source") -> Unavailable:
        return Unavailable(f"Redis at {self._address} refused: {str(error)[:200]}", extent=extent)

    def _ignore(self, why: str) -> None:
        self._counters.announcements_ignored.inc()
        self._report("announcement", f"an announcement on {self._names.changes} is ignored: {why}")

    def _report_foreign(self, name: bytes, why: str) -> None:
        shown = name.decode(errors="backslashreplace")
        self._report(shown, f"the key {shown} is skipped: {why}")

    def _report(self, what: str, text: str) -> None:
        if what not in self._reported and len(self._reported) < 1000:
            self._reported.add(what)
            log.warning("%s (further ones are only counted)" if what == "announcement" else "%s", text)


def _bulk(part: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(part), part)


def _integer(text: bytes | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        raise Unavailable(
            "the revision in Redis is not a number: delete it, and replicas read everything again"
        ) from None
