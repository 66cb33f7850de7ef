"""What this process knows of the store: registrations, leases, and whether that is the whole truth.

It follows the store's feed, takes the outcomes of its own writes at once, and asks the store about every lease that
seems to end before it drops a pool. ``holds`` says when a lease end may be acted on. Each change goes to one listener,
together with completeness. Knows nothing of Kubernetes, HTTP, or which store it is.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import NamedTuple

from discovery import feed, registrations
from discovery.backoff import Backoff
from discovery.errors import Gone, Rejected, Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.registrations import Heartbeat
from discovery.stores import Deleted, Event, Health, Listed, Put, Remaining, Store
from discovery.stores.alarms import Alarms
from discovery.stores.epochs import Epochs
from discovery.stores.holds import Holds

log = logging.getLogger(__name__)

CONFIRMED_FOR_SECS = 2.0
REFUSED_FOR_SECS = 2.0
BACKOFF_SECS = (0.05, 0.5)
"""With the store's own pause between attempts and a check it stays below the two seconds that a recovery may take."""
QUESTION_PAUSE_SECS = 0.02
QUESTION_KEYS = 1000
VOID_PAUSE_SECS = 0.2
REMEMBER_DELETED_SECS = 10.0

Change = tuple[PoolKey, Registration | None]


class Entry:
    """One pool as the store last told of it; ``ends_at`` is an alarm for a question, never a verdict."""

    __slots__ = ("alarm", "alternations", "ends_at", "epoch", "previous", "revision", "touched", "value")

    def __init__(self, value: bytes, epoch: str, revision: int) -> None:
        self.value = value
        self.epoch = epoch
        self.revision = revision
        self.ends_at = 0.0
        self.alarm = 0
        self.touched = 0
        self.previous: int | None = None
        self.alternations = 0


class Known(NamedTuple):
    """One registration for people: as stored, and the seconds its lease had left when last confirmed."""

    key: PoolKey
    value: bytes
    lease_left_secs: float


class Replica:
    """The registrations of one store as this process knows them.

    ``on_change(changes, complete, complete_until)`` is called from the event loop with what changed, whether the
    registrations are the whole truth, and the clock's time until which that may be claimed.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease_secs: float,
        heartbeat_secs: float,
        max_pools: int,
        counters: Counters,
        on_change: Callable[[Sequence[Change], bool, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._lease_secs = lease_secs
        self._long_outage_secs = max(lease_secs - 2 * heartbeat_secs, lease_secs / 3)
        self._max_pools = max_pools
        self._counters = counters
        self._on_change = on_change
        self._clock = clock
        self._entries: dict[PoolKey, Entry] = {}
        self._deleted: OrderedDict[PoolKey, tuple[str, int, float]] = OrderedDict()
        self._overdue: dict[PoolKey, float] = {}
        self._alarms = Alarms()
        self._answering = asyncio.Event()
        self._numbers = itertools.count(1)
        self._holds = Holds(lease_secs)
        self._epochs = Epochs()
        self._confirmed_at = float("-inf")
        self._settling: str | None = None
        self._listed = False
        self._early: dict[PoolKey, Registration | None] = {}
        self._last_error = ""
        self._refused_at = float("-inf")
        self._item_error = ""
        self._settle_task: asyncio.Task[None] | None = None
        self._whole: str | None = "nothing was read yet"

    # ---- what others ask

    @property
    def listed(self) -> bool:
        """Whether the store was read once."""
        return self._listed

    def __len__(self) -> int:
        return len(self._entries)

    def incomplete(self) -> str | None:
        """Why the registrations may be less than the whole truth at this moment; None where they are whole."""
        now = self._clock()
        if not self._listed:
            return f"the store has not been read yet{self._cause()}"
        if (silent := now - self._confirmed_at) >= CONFIRMED_FOR_SECS:
            return f"the store has not confirmed its revision for {silent:.1f} s{self._cause()}"
        if self._settling is not None:
            return f"the store is settling: {self._settling}"
        if loss := self._holds.loss(now):
            return f"data may have been lost: {loss}"
        if self._overdue:
            return f"{len(self._overdue)} pools are held over the end of their leases after trouble with the store"
        return None

    def _cause(self) -> str:
        return f": {self._last_error}" if self._last_error else ""

    def failing(self) -> str | None:
        """The last error while the store fails; None while it answers."""
        return self._last_error if self._holds.failing_since is not None else None

    def known(self) -> Iterator[Known]:
        """Every registration, sorted by pool key."""
        now = self._clock()
        for key in sorted(self._entries):
            entry = self._entries[key]
            yield Known(key, entry.value, max(0.0, entry.ends_at - now))

    # ---- what relays ask

    async def put(self, heartbeat: Heartbeat) -> bool:
        """Register or renew; True where the pool was not there before. Raises ``Unavailable`` when not confirmed."""
        key, value, registration = heartbeat
        if key not in self._entries and len(self._entries) >= self._max_pools:
            raise Rejected(
                507, "Too many pools", f"This service keeps at most {self._max_pools:,} pools (--max-pools)."
            )
        asked_at = self._clock()
        try:
            outcome = await self._store.put(key, value, self._lease_secs)
        except Unavailable as error:
            self._failed(error)
            raise
        if registration is None and outcome.changed:
            registration = registrations.decode_own(value)
        self._apply_put(key, value, outcome.epoch, outcome.revision, asked_at + self._lease_secs, registration)
        return outcome.created

    async def delete(self, key: PoolKey, instance_id: str | None) -> None:
        """Deregister. Raises ``Unavailable`` when not confirmed."""
        try:
            deleted = await self._store.delete(key, instance_id)
        except Unavailable as error:
            self._failed(error)
            raise
        if deleted is not None:
            self._apply_deleted(deleted)

    # ---- what runs all the time

    async def run(self) -> None:
        """Follow the store until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._ask_about_ends())

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                match event:
                    case Put():
                        ends_at = self._clock() + event.lease_secs
                        self._apply_put(event.key, event.value, event.epoch, event.revision, ends_at)
                    case Deleted():
                        self._apply_deleted(event)
                    case Health():
                        self._confirm(event)
                        self._publish([])
                    case Listed():
                        self._apply_listed(event)
                    case feed.Interrupted():
                        self._interrupted(event.error)

    def _events(self) -> AsyncGenerator[Listed | Event | feed.Interrupted, None]:
        return feed.follow(self._store, Backoff(*BACKOFF_SECS))

    def _interrupted(self, error: Gone | Unavailable) -> None:
        self._counters.relisted(error.cause if isinstance(error, Gone) else "unavailable")
        if isinstance(error, Unavailable):
            self._failed(error)
            self._publish([])
        else:
            log.info("reading the store again: %s", error.detail)

    def _failed(self, error: Unavailable) -> None:
        if error.extent == "item":
            if error.detail != self._item_error:
                log.warning("a registration cannot be stored, the others can: %s", error.detail)
            self._item_error = error.detail
            return
        now = self._clock()
        if error.extent == "writes":
            self._refused_at = now
        self._last_error = error.detail
        if self._holds.failed(now):
            self._answering.clear()
            log.warning("the store fails, the last list stays: %s", error.detail)

    def _confirm(self, health: Health) -> bool:
        """The store was read: its epoch and revision are known as of when they were asked for. False: of the past."""
        now = self._clock()
        life = self._epochs.adopt(health, now)
        if life == "past":
            return False
        if life == "new":
            self._lost("the store has a new epoch: it was emptied, or a replica noticed a loss")
        silent_secs = health.asked_at - self._confirmed_at
        self._confirmed_at = max(self._confirmed_at, health.asked_at)
        self._settling = health.settling
        failing_since = self._holds.failing_since
        if failing_since is not None and health.asked_at < max(failing_since, self._refused_at + REFUSED_FOR_SECS):
            return True  # asked before the failure, or the store can be read but has just refused a write
        lasted = self._holds.answered(now)
        self._answering.set()
        if lasted is not None and failing_since is not None:
            refused_secs = self._refused_at - failing_since
            lasted = max(silent_secs, refused_secs if refused_secs >= 0 else lasted)
            log.warning("the store answers again after %.1f s; lease ends are held for %g s", lasted, self._lease_secs)
            if lasted >= self._long_outage_secs:
                self._settle(now, f"an outage of {lasted:.1f} s, in which live leases may have ended")
        return True

    def _settle(self, now: float, reason: str) -> None:
        self._holds.lost(now, reason)
        if self._settle_task is None or self._settle_task.done():
            self._settle_task = asyncio.create_task(self._settle_store(reason))

    async def _settle_store(self, reason: str) -> None:
        try:
            await self._store.settle(reason, self._lease_secs)
        except Unavailable as error:
            self._failed(error)

    def _lost(self, reason: str) -> None:
        log.warning("the store may have lost data, pools stay for %g s: %s", self._lease_secs, reason)
        self._holds.lost(self._clock(), reason)

    # ---- applying what the store tells

    def _apply_put(
        self,
        key: PoolKey,
        value: bytes,
        epoch: str,
        revision: int,
        ends_at: float,
        registration: Registration | None = None,
    ) -> None:
        """The pool is ``value`` as of ``revision``, unless something newer is known."""
        if self._epochs.is_past(epoch) or self._newer_known(key, epoch, revision):
            return
        entry = self._entries.get(key)
        changes: list[Change] = []
        if entry is None or entry.value != value:
            registration = registration or self._decode(key, value)
            if registration is None:
                return
            changes.append((key, registration))
        if entry is None:
            entry = self._entries[key] = Entry(value, epoch, revision)
            self._alarms.set(entry, key, ends_at)
        elif changes:
            self._note_alternation(key, entry, value)
            entry.value = value
        entry.epoch, entry.revision, entry.touched = epoch, revision, next(self._numbers)
        entry.ends_at = ends_at
        if self._deleted:
            self._deleted.pop(key, None)
        was_overdue = self._overdue.pop(key, None) is not None
        if changes or was_overdue:
            self._publish(changes)

    def _newer_known(self, key: PoolKey, epoch: str, revision: int) -> bool:
        entry = self._entries.get(key)
        if entry is not None and entry.epoch == epoch and entry.revision > revision:
            return True
        deleted = self._deleted.get(key)
        return deleted is not None and deleted[0] == epoch and deleted[1] >= revision

    def _apply_deleted(self, event: Deleted) -> None:
        if self._epochs.is_past(event.epoch) or self._newer_known(event.key, event.epoch, event.revision):
            return
        now = self._clock()
        self._deleted[event.key] = (event.epoch, event.revision, now)
        while self._deleted and next(iter(self._deleted.values()))[2] < now - REMEMBER_DELETED_SECS:
            self._deleted.popitem(last=False)
        self._overdue.pop(event.key, None)
        if self._entries.pop(event.key, None) is not None:
            self._publish([(event.key, None)])

    def _apply_listed(self, listed: Listed) -> None:
        health = listed.health
        if not self._confirm(health):
            return
        if listed.loss is not None:
            self._lost(listed.loss)
        now = self._clock()
        changes: list[Change] = []
        for key, stored in listed.items.items():
            if not self._newer_known(key, health.epoch, health.revision):
                ends_at = health.asked_at + stored.remaining_secs
                if change := self._apply_one_listed(key, stored.value, health, ends_at):
                    changes.append(change)
        for key, entry in self._entries.items():
            if key not in listed.items and not (entry.epoch == health.epoch and entry.revision > health.revision):
                self._alarms.set(entry, key, now)
        if not self._listed:
            self._listed = True
            changes = [*self._early.items(), *changes]
            self._early.clear()
        self._publish(changes)

    def _apply_one_listed(self, key: PoolKey, value: bytes, health: Health, ends_at: float) -> Change | None:
        entry = self._entries.get(key)
        change: Change | None = None
        if entry is None or entry.value != value:
            registration = self._decode(key, value)
            if registration is None:
                return None
            change = (key, registration)
            if entry is None:
                entry = self._entries[key] = Entry(value, health.epoch, health.revision)
                self._alarms.set(entry, key, ends_at)
            entry.value = value
        entry.epoch, entry.revision, entry.touched = health.epoch, health.revision, next(self._numbers)
        entry.ends_at = max(entry.ends_at, ends_at)
        self._overdue.pop(key, None)
        return change

    def _decode(self, key: PoolKey, value: bytes) -> Registration | None:
        try:
            registration = registrations.decode(value)
            if registration.key != key:
                raise ValueError(f"it is about {registration.key}")
        except ValueError as error:
            self._counters.registrations_ignored.inc()
            log.warning("the stored value of pool %s is skipped: %s", key, error)
            return None
        return registration

    def _note_alternation(self, key: PoolKey, entry: Entry, value: bytes) -> None:
        if entry.previous == hash(value):
            entry.alternations += 1
            self._counters.alternating_registrations.inc()
            if entry.alternations == 2:
                log.warning("the relays of pool %s send different registrations in turn; the latest wins", key)
        entry.previous = hash(entry.value)

    def _publish(self, changes: Sequence[Change]) -> None:
        if not self._listed:
            self._early.update(changes)
            return
        reason = self.incomplete()
        if (reason is None) != (self._whole is None):
            if reason is None:
                log.info("the list is complete")
            else:
                log.warning("the list is not complete: %s", reason)
        self._whole = reason
        self._on_change(changes, reason is None, self._confirmed_at + CONFIRMED_FOR_SECS)

    # ---- the ends of leases

    async def _ask_about_ends(self) -> None:
        while True:
            await self._answering.wait()
            due = self._alarms.due(self._entries, self._clock())
            if due:
                batches = [due[start : start + QUESTION_KEYS] for start in range(0, len(due), QUESTION_KEYS)]
                await asyncio.gather(*map(self._ask, batches))
                await asyncio.sleep(QUESTION_PAUSE_SECS)
            else:
                await self._alarms.next(self._clock())

    async def _ask(self, due: list[PoolKey]) -> None:
        epoch, mark, asked_at = self._epochs.present, next(self._numbers), self._clock()
        try:
            answer = await self._store.remaining(due)
        except Unavailable as error:
            self._failed(error)
            self._ask_again(due, self._clock())
            return
        if answer.epoch != epoch or self._epochs.present != epoch:
            self._ask_again(due, self._clock() + VOID_PAUSE_SECS)
            return
        self._judge(due, answer, mark, asked_at)

    def _ask_again(self, due: list[PoolKey], at: float) -> None:
        for key in due:
            if (entry := self._entries.get(key)) is not None:
                self._alarms.set(entry, key, max(at, entry.ends_at))

    def _judge(self, due: list[PoolKey], answer: Remaining, mark: int, asked_at: float) -> None:
        now = self._clock()
        changes: list[Change] = []
        held = len(self._overdue)
        readable_secs = self._holds.readable_secs(now)
        acts_at_once = self._holds.acts_at(now, readable_secs)
        for key, left in zip(due, answer.secs, strict=True):
            entry = self._entries.get(key)
            if entry is None:
                continue
            if entry.touched > mark:
                self._alarms.set(entry, key, entry.ends_at)
            elif left is not None:
                self._overdue.pop(key, None)
                self._alarms.set(entry, key, asked_at + left)
            elif acts_at_once or self._holds.acts_at(now, self._overdue.setdefault(key, readable_secs)):
                del self._entries[key]
                self._overdue.pop(key, None)
                changes.append((key, None))
            else:
                self._alarms.set(entry, key, self._held_until(now, self._overdue[key]))
        if changes or held != len(self._overdue):
            self._publish(changes)

    def _held_until(self, now: float, overdue_since: float) -> float:
        bound = now + 2 * self._lease_secs - (self._holds.readable_secs(now) - overdue_since)
        hold_ends = self._holds.next_action(now)
        return max(now + QUESTION_PAUSE_SECS, bound if hold_ends is None else min(hold_ends, bound))
