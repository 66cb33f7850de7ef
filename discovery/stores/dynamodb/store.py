"""The store in a table of DynamoDB, for replicas in several regions that share one global table.

A put writes the pool's item with a new end of its lease; each second everything is read again, which is all that there
is to hear of others. A lease runs as long as its item was seen to change, by this process's own clock; the table's
clock judges what is seen for the first time, and this replica's wall clock nothing. DynamoDB counts nothing, so the
revision is this store's own: it says which of its writes and reads came first, and means nothing to others.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import msgspec

from discovery.errors import Fault, Gone, Unavailable
from discovery.logs import event
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import CONFIRMED_FOR_SECS, Deleted, Event, Health, Listed, Outcome, Remaining
from discovery.stores.dynamodb import items
from discovery.stores.dynamodb.feed import Feed
from discovery.stores.dynamodb.items import Word
from discovery.stores.dynamodb.reading import Reading, read_all
from discovery.stores.dynamodb.refusals import Throttled
from discovery.stores.dynamodb.sightings import Sightings
from discovery.stores.dynamodb.table import ConditionFailed, Table, TooLarge
from discovery.stores.dynamodb.turns import Turns

log = logging.getLogger(__name__)

READ_SECS = 1.0
READ_AT_LEAST_SECS = 0.3
"""Between the beginnings of two reads, however many changes and questions want one."""
THROTTLED_SECS = (1.5, 4.0)
CLOCKS_APART_SECS = 1.0
"""By how much two replicas may differ in what the table's clock said."""
REPORTED = 1000


class _Instance(msgspec.Struct):
    instance_id: str | None = None


_decode_instance = msgspec.json.Decoder(_Instance).decode


class DynamoStore:
    """Registrations in one table, shared by every replica that names it, or its copy in another region."""

    def __init__(
        self,
        *,
        table: str,
        region: str | None,
        endpoint_url: str | None,
        lease_secs: float,
        timeout_secs: float,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = Table(table, region, endpoint_url, timeout_secs - 0.1, counters, clock)
        self._clock = clock
        self._lease_secs = lease_secs
        self._epoch = uuid.uuid4().hex
        self._revision = 0
        self._deleted_last = False
        self._sightings = Sightings(lease_secs)
        self._reads = Turns(self._read, READ_AT_LEAST_SECS, clock)
        self._feed: Feed | None = None
        self._follows = False
        self._last: Reading | None = None
        self._throttled = 0
        self._first_read_secs = float("inf")
        self._loss: str | None = None
        self._told: Word | None = None
        self._word: tuple[Word, float] | None = None
        self._reported: set[tuple[str, str]] = set()

    ends_leases = False

    @property
    def confirmed_for_secs(self) -> float:
        """See ``Store``: a list of several pages is as old as two reads take, and no worse while no page fails."""
        took_secs = 0.0 if self._last is None else self._last.done_at - self._last.read.asked_at
        return max(CONFIRMED_FOR_SECS, 2.5 * took_secs)

    # ---- writing

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """See ``Store.put``. Raises ``Rejected`` where the table can never hold it."""
        items.check_key(key)
        instance_id = _decode_instance(value).instance_id
        ends_ms: list[int] = []  # of each attempt

        def item() -> dict[str, Any]:
            ends_ms.append(self._sightings.mark(key, self._table_ms() + round(lease_secs * 1000)))
            return items.pool_item(key, value, instance_id, ends_ms[-1], lease_secs)

        async with self._table.deadline():
            await self._table.know_time()
            try:
                before = (await self._table.put(item)).before
            except TooLarge as error:
                raise items.too_large(Fault("$", str(error))) from None
        self._pass_removals()
        now = self._clock()
        if before is not None and before.lease_ends_ms in ends_ms[:-1]:
            before = self._sightings.item(key)  # it is ours, of an attempt whose answer was lost
        lived = before is not None and self._sightings.lives(before, now, self._table.clock.at(now))
        self._sightings.wrote(key, value, ends_ms[-1], now + lease_secs)
        if lived and before is not None and before.value == value:
            return Outcome(False, False, self._revision, self._epoch)
        self._changed(deleted=False)
        return Outcome(not lived, True, self._revision, self._epoch)

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``. Others see it in their next read."""
        item_key = items.pool_item_key(key)
        if item_key is not None:
            condition = None if instance_id is None else self._condition(key, instance_id)
            try:
                async with self._table.deadline():
                    await self._table.delete(item_key, condition)
            except ConditionFailed as error:
                if error.repeated:
                    self._nudge()  # it may be gone by an attempt whose answer was lost
                return None
        self._sightings.removed(key)
        self._changed(deleted=True)
        return Deleted(key, self._epoch, self._revision)

    def _condition(self, key: PoolKey, instance_id: str) -> dict[str, Any]:
        """That instance's registration is stored: it says so beside, or, written by hand, is the very one we know."""
        text, values = "instance_id = :instance", {":instance": {"S": instance_id}}
        known = self._sightings.value(key)
        if known is not None and _instance_of(known) == instance_id:
            text += " OR (attribute_not_exists(instance_id) AND registration = :known)"
            values[":known"] = {"S": known.decode()}
        return {"ConditionExpression": text, "ExpressionAttributeValues": values}

    def _pass_removals(self) -> None:
        """What is read or written after a removal was told is newer than it."""
        if self._deleted_last:
            self._revision += 1
            self._deleted_last = False

    def _changed(self, *, deleted: bool) -> None:
        self._revision += 1
        self._deleted_last = deleted
        self._nudge()

    async def settle(self, reason: str, secs: float, known_until: float | None = None) -> None:
        """See ``Store.settle``."""
        async with self._table.deadline():
            await self._table.know_time()
            lasts_ms = round(secs * 1000)
            known_until_ms = None if known_until is None else round(self._table.clock.at(known_until) * 1000)
            word = self._told = Word(reason, self._table_ms() + lasts_ms, known_until_ms, lasts_ms)
            condition = {
                "ConditionExpression": "attribute_not_exists(until_ms) OR until_ms < :until OR until_ms = :void",
                "ExpressionAttributeValues": {
                    ":until": {"N": str(word.until_ms)},
                    ":void": {"N": str(self._void_until_ms())},
                },
            }
            await self._unless(self._table.put(lambda: items.settling_item(word), condition))
        self._nudge()

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``: an item whose time is over, since that needs no right to delete."""
        condition = {
            "ConditionExpression": "#reason = :reason",
            "ExpressionAttributeNames": {"#reason": "reason"},
            "ExpressionAttributeValues": {":reason": {"S": reason}},
        }
        async with self._table.deadline():
            await self._table.know_time()
            over = items.settling_item(Word(reason, self._table_ms() - 1000))
            await self._unless(self._table.put(lambda: over, condition))
        self._nudge()

    async def _unless(self, write: Any) -> None:
        try:
            await write
        except ConditionFailed:
            return
        except TooLarge as error:
            raise Unavailable(f"{self._table} takes no such word: {error}", extent="item") from None

    # ---- reading: one read at a time, whoever wants it

    async def _read(self) -> None:
        self._pass_removals()
        revision, number = self._revision, self._sightings.begin()
        try:
            reading = await read_all(self._table, number, self._clock)
            self._throttled = 0
            self._last = reading
            self._report(reading.broken)
            self._apply(reading, revision)
        except Unavailable as error:
            self._failed(error)
            raise
        except Exception as error:  # whatever it is, reading goes on, and the list is not whole meanwhile
            log.exception("a read of the table failed")
            fault = Unavailable(f"a fault while {self._table} was read: {type(error).__name__}")
            self._failed(fault)
            raise fault from None

    def _apply(self, reading: Reading, revision: int) -> None:
        if self._first_read_secs == float("inf"):
            self._first_read_secs = reading.read.table_secs
            if lapsed := reading.read.lapsed_in_outage(self._lease_secs):
                self._loss = f"{lapsed} leases had ended before this replica started, maybe in an outage"
        gone = self._sightings.apply(reading.read)
        if missed := self._sightings.missed:
            self._loss = f"{missed} pools came while the table was not read, and their leases ended meanwhile"
        deleted = [Deleted(key, self._epoch, revision) for key in gone] if self._follows else []
        self._follows = True
        self._deleted_last = self._deleted_last or bool(deleted)
        if self._feed is not None:
            asked_at = reading.read.asked_at
            health = Health(asked_at, self._epoch, revision, self._settling(reading.word))
            loss, self._loss = self._loss, None
            self._feed.tell(deleted, Listed(health, self._sightings.running(asked_at), loss))

    def _settling(self, word: Word | None) -> str | None:
        if word is None or word.until_ms <= self._table_ms():
            return None
        if self._word is None or self._word[0] != word:
            lasts_secs = self._lease_secs if word.lasts_ms is None else word.lasts_ms / 1000
            self._word = (word, self._clock() + lasts_secs)
        if self._clock() > self._word[1]:
            return None  # by whatever clock it was written
        return None if self._was_there(word) else word.reason

    def _void_until_ms(self) -> int:
        """The end of the word that lies there where it has lasted for its time already; else one that none has."""
        return self._word[0].until_ms if self._word is not None and self._clock() > self._word[1] else -1

    def _was_there(self, word: Word) -> bool:
        """Whether this process knew what the word says that others may lack; of its own word it knows that."""
        if word.known_until_ms is None:
            return False
        return word == self._told or self._first_read_secs < word.known_until_ms / 1000 - CLOCKS_APART_SECS

    def _failed(self, error: Unavailable) -> None:
        self._follows = False
        if isinstance(error, Throttled):
            first, limit = THROTTLED_SECS
            self._reads.put_off(min(first * 2 ** min(self._throttled, 8), limit) * random.uniform(0.75, 1.25))  # noqa: S311
            self._throttled += 1
        if self._feed is not None:
            self._feed.end(error)

    async def list_all(self) -> Listed:
        """See ``Store.list_all``."""
        self._drop_feed()
        feed = self._feed = Feed()
        await self._reads.next()
        listed = feed.take_list()
        if listed is None:
            raise Gone("feed", "another list was begun meanwhile")
        return listed

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """See ``Store.remaining``: told by a whole read that begins after the question."""
        asked_at = self._clock()
        await self._reads.next()
        if self._last is None:
            raise Unavailable(f"{self._table} was not read")
        read_at = self._last.read.asked_at
        return Remaining([self._sightings.left_secs(key, read_at, asked_at) for key in keys], self._epoch)

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """See ``Store.watch``: a whole list each second, pools that deregistered before it, its health behind it."""
        feed = self._feed
        if feed is None:
            raise Gone("feed", "the watch was given up before it began")
        reading = asyncio.create_task(self._keep_reading(feed))
        try:
            while True:
                for told in feed.take():
                    yield told
                await feed.wait()
        finally:
            reading.cancel()
            if self._feed is feed:
                self._feed = None

    async def _keep_reading(self, feed: Feed) -> None:
        try:
            while True:
                pause = READ_SECS * random.uniform(0.9, 1.05)  # noqa: S311
                await feed.nudged(self._reads.began_at + pause - self._clock())
                await self._reads.next()
        except Unavailable as error:
            feed.end(error)
        except Exception as error:  # the watch must not go on deaf because of a fault of ours
            log.exception("reading the table failed")
            feed.end(Gone("fault", f"a fault in the watch: {type(error).__name__}"))

    def share(self, value_of: Callable[[PoolKey], bytes | None]) -> None:
        """See ``Store.share``: a value is kept from read to read while it is the same."""

    # ---- the rest

    async def close(self) -> None:
        """See ``Store.close``."""
        self._drop_feed()
        await self._reads.close()
        await self._table.close()

    def describe(self) -> dict[str, object]:
        """See ``Store.describe``."""
        last = self._last
        return {
            "kind": "dynamodb",
            "address": str(self._table),
            "table": self._table.name,
            "region": self._table.region,
            "endpoint": self._table.endpoint,
            "throttled": self._throttled > 0,
            "last_read": None
            if last is None
            else {
                "secs_ago": round(self._clock() - last.read.asked_at, 3),
                "took_secs": round(last.done_at - last.read.asked_at, 3),
                "items": len(last.read.items),
                "pages": last.pages,
                "read_units": last.read_units,
                "skipped": len(last.broken),
            },
        }

    def _table_ms(self) -> int:
        return round(self._table.clock.at(self._clock()) * 1000)

    def _drop_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.end(Gone("feed", "the table is listed anew"))

    def _nudge(self) -> None:
        if self._feed is not None:
            self._feed.nudge()

    def _report(self, broken: Iterable[tuple[str, str]]) -> None:
        for name, fault in broken:
            if (name, fault) not in self._reported and len(self._reported) < REPORTED:
                self._reported.add((name, fault))
                shown = ascii(name[:200])
                text = "the item %s of %s is skipped: %s"
                event(log, logging.WARNING, "store.odd", text, shown, self._table, fault, cause=shown)


def _instance_of(value: bytes) -> str | None:
    try:
        return _decode_instance(value).instance_id
    except ValueError:
        return None
