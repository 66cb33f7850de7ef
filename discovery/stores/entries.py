"""What is known of each pool, and which of two things that were told of it is the newer one.

Stands between what a replica hears (its own writes, announcements, full lists) and what it publishes: each thing told
comes in here and gives the changes that follow from it. Judges no lease: it only sets the alarms.
"""

import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from discovery import registrations
from discovery.logs import event
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.stores import Deleted, Health, Listed, Stored
from discovery.stores.alarms import Alarms
from discovery.stores.epochs import Epochs
from discovery.stores.mass_loss import MassLoss

log = logging.getLogger(__name__)

REMEMBER_DELETED_SECS = 10.0
UNREADABLE_REMEMBERED = 1000

Change = tuple[PoolKey, Registration | None]
_NOTHING: Mapping[PoolKey, Registration | None] = MappingProxyType({})


class Entry:
    """One pool as the store last told of it; ``ends_at`` is an alarm for a question, never a verdict."""

    __slots__ = (
        "alarm",
        "alternations",
        "ends_at",
        "epoch",
        "known_since",
        "previous",
        "revision",
        "touched",
        "value",
    )

    def __init__(self, value: bytes, epoch: str, revision: int, known_since: float) -> None:
        self.value = value
        self.epoch = epoch
        self.revision = revision
        self.known_since = known_since
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


class Entries:
    """All pools. ``overdue`` holds those that ended and are kept, with the readable time at which that was found."""

    def __init__(
        self, epochs: Epochs, alarms: Alarms, mass_loss: MassLoss, counters: Counters, clock: Callable[[], float]
    ) -> None:
        self.by_key: dict[PoolKey, Entry] = {}
        self.in_cluster: Counter[str] = Counter()
        self.overdue: dict[PoolKey, float] = {}
        self._epochs = epochs
        self._alarms = alarms
        self._mass_loss = mass_loss
        self._counters = counters
        self._clock = clock
        self._deleted: OrderedDict[PoolKey, tuple[str, int, float]] = OrderedDict()
        self._numbers = itertools.count(1)
        self._unreadable: OrderedDict[PoolKey, int] = OrderedDict()

    def mark(self) -> int:
        """A number above ``touched`` of every entry: what is touched after this moment has a higher one."""
        return next(self._numbers)

    # ---- what is told

    def put(
        self,
        key: PoolKey,
        value: bytes,
        epoch: str,
        revision: int,
        ends_at: float,
        registration: Registration | None = None,
    ) -> list[Change] | None:
        """The pool is ``value`` as of ``revision``; None where nobody has to be told."""
        entry = self.by_key.get(key)
        if self._epochs.is_past(epoch) or self._newer_known(key, entry, epoch, revision):
            return None
        changes: list[Change] = []
        if entry is None or entry.value != value:
            registration = registration or self.decode(key, value)
            if registration is None:
                return None
            changes.append((key, registration))
        if entry is None:
            entry = self._add(key, value, epoch, revision, ends_at)
        elif changes:
            self._note_alternation(key, entry, value)
        entry.value = value  # also where it is equal: whoever gave it keeps it too, so that it is there once
        entry.epoch, entry.revision, entry.touched = epoch, revision, next(self._numbers)
        entry.ends_at = ends_at
        if self._deleted:
            self._deleted.pop(key, None)
        was_overdue = bool(self.overdue) and self._is_back(key, entry)
        return changes if changes or was_overdue else None

    def deleted(self, event: Deleted) -> list[Change]:
        """The pool deregistered."""
        known = self.by_key.get(event.key)
        if self._epochs.is_past(event.epoch) or self._newer_known(event.key, known, event.epoch, event.revision):
            return []
        now = self._clock()
        self._deleted[event.key] = (event.epoch, event.revision, now)
        while self._deleted and next(iter(self._deleted.values()))[2] < now - REMEMBER_DELETED_SECS:
            self._deleted.popitem(last=False)
        self._mass_loss.deregistered(event.key)
        return self.drop(event.key)

    def lives(self, key: PoolKey, entry: Entry, ends_at: float) -> None:
        """The store said that the lease runs until then."""
        self._alarms.set(entry, key, ends_at)
        if self.overdue.pop(key, None) is not None:
            self._mass_loss.registered(key)

    def drop(self, key: PoolKey) -> list[Change]:
        """The pool is no longer listed."""
        self.overdue.pop(key, None)
        if self.by_key.pop(key, None) is None:
            return []
        self.in_cluster[key.cluster_id] -= 1
        if not self.in_cluster[key.cluster_id]:
            del self.in_cluster[key.cluster_id]
        return [(key, None)]

    def listed(self, listed: Listed, decoded: Mapping[PoolKey, Registration | None]) -> list[Change]:
        """Everything that the store holds; ``decoded`` is what was decoded of it already.

        What it lacks is asked about at once; nothing is dropped here.
        """
        changes = self.some_listed(listed.health, listed.items.items(), decoded)
        self.ask_about_lacking(listed)
        return changes

    def some_listed(
        self,
        health: Health,
        items: Iterable[tuple[PoolKey, Stored]],
        decoded: Mapping[PoolKey, Registration | None] = _NOTHING,
    ) -> list[Change]:
        """A part of what the store holds."""
        changes: list[Change] = []
        for key, (value, remaining_secs) in items:
            entry = self.by_key.get(key)
            if not self._newer_known(key, entry, health.epoch, health.revision):
                ends_at = health.asked_at + remaining_secs
                if entry is None or entry.value != value:
                    registration = decoded[key] if key in decoded else self.decode(key, value)
                    if registration is None:
                        continue
                    changes.append((key, registration))
                    entry = entry or self._add(key, value, health.epoch, health.revision, ends_at)
                    entry.value = value
                self._confirmed(key, entry, health, ends_at)
        return changes

    def ask_about_lacking(self, listed: Listed) -> None:
        """What the store no longer holds is asked about at once."""
        health, now = listed.health, self._clock()
        for key, entry in self.by_key.items():
            if key not in listed.items and not (entry.epoch == health.epoch and entry.revision > health.revision):
                self._alarms.set(entry, key, now)

    def is_news(self, key: PoolKey, value: bytes) -> bool:
        """Whether the pool is not known with this value."""
        entry = self.by_key.get(key)
        return entry is None or entry.value != value

    def _confirmed(self, key: PoolKey, entry: Entry, health: Health, ends_at: float) -> None:
        entry.epoch, entry.revision, entry.touched = health.epoch, health.revision, next(self._numbers)
        entry.ends_at = max(entry.ends_at, ends_at)
        if self.overdue:
            self._is_back(key, entry)

    def _add(self, key: PoolKey, value: bytes, epoch: str, revision: int, ends_at: float) -> Entry:
        entry = self.by_key[key] = Entry(value, epoch, revision, self._clock())
        self.in_cluster[key.cluster_id] += 1
        self._alarms.set(entry, key, ends_at)
        self._mass_loss.registered(key)
        return entry

    def _is_back(self, key: PoolKey, entry: Entry) -> bool:
        """Whether this pool had ended; its alarm then stands where the hold was to end."""
        if key not in self.overdue:
            return False
        self.lives(key, entry, entry.ends_at)
        return True

    def _newer_known(self, key: PoolKey, entry: Entry | None, epoch: str, revision: int) -> bool:
        if entry is not None and entry.epoch == epoch and entry.revision > revision:
            return True
        deleted = self._deleted.get(key) if self._deleted else None
        return deleted is not None and deleted[0] == epoch and deleted[1] >= revision

    def decode(self, key: PoolKey, value: bytes) -> Registration | None:
        """What the store says of the pool; None, counted and told once, where it is foreign."""
        if self._unreadable.get(key) == hash(value):
            return None  # a store that lists all each second says so each time
        try:
            registration = registrations.decode(value)
            if registration.key != key:
                raise ValueError(f"it is about {registration.key}")
        except ValueError as error:
            self._counters.registrations_ignored.inc()
            self._unreadable[key] = hash(value)
            while len(self._unreadable) > UNREADABLE_REMEMBERED:
                self._unreadable.popitem(last=False)
            text = "the stored value of pool %s is skipped: %s"
            event(log, logging.WARNING, "pool.unreadable", text, key, error, pool=str(key), cause=str(error))
            return None
        return registration

    def _note_alternation(self, key: PoolKey, entry: Entry, value: bytes) -> None:
        if entry.previous == hash(value):
            entry.alternations += 1
            self._counters.alternating_registrations.inc()
            if entry.alternations == 2:
                text = "the relays of pool %s send different registrations in turn; the latest wins"
                event(log, logging.WARNING, "pool.alternating", text, key, pool=str(key))
        entry.previous = hash(entry.value)
