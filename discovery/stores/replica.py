"""What this process knows of the store: registrations, leases, and whether that is the whole truth.

It follows the store's feed and takes the outcomes of its own writes at once. ``entries`` says which of two things told
is newer, ``lease_ends`` which pools are gone, ``holds`` and ``mass_loss`` when that may be acted on. Each change goes
to one listener, together with completeness. Knows nothing of Kubernetes, HTTP, or which store it is.
"""

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import NamedTuple

from discovery import feed, problems, registrations
from discovery.backoff import Backoff
from discovery.errors import Gone, Rejected, Unavailable
from discovery.logs import event
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.registrations import Heartbeat
from discovery.stores import CONFIRMED_FOR_SECS, Deleted, Event, Health, Listed, Put, Store
from discovery.stores.alarms import Alarms
from discovery.stores.entries import Change, Entries, Known
from discovery.stores.epochs import Epochs
from discovery.stores.holds import Holds, least_left_secs
from discovery.stores.lease_ends import LeaseEnds
from discovery.stores.mass_loss import REASON, Joined, MassLoss
from discovery.stores.settling import Settling

__all__ = ["Change", "Known", "Replica"]

log = logging.getLogger(__name__)

REFUSED_FOR_SECS = 2.0
SHORT_LEASE_SECS = 8.0
"""Under a lease below it a relay that is refused once has no second to lose: all come back after one, unspread."""
AT_ONCE = 100
"""Registrations that are decoded before the loop turns: a few milliseconds, in which heartbeats and probes wait."""
UNREAD = "nothing was read yet"
BACKOFF_SECS = (0.05, 0.5)
"""With the store's own pause between attempts and a check it stays below the two seconds that a recovery may take."""


class Missing(NamedTuple):
    """Why registrations may be missing: a fixed word, and what people are told."""

    word: str
    text: str


class Replica:
    """The registrations of one store as this process knows them.

    ``on_change(changes, complete, complete_until)`` is called from the event loop with what changed, whether the
    registrations are the whole truth, and the clock's time until which that may be claimed. What is found before the
    store was read once goes to ``on_found``, part by part, where there is one.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease_secs: float,
        heartbeat_secs: float,
        max_pools: int,
        max_pools_per_cluster: int = 0,
        counters: Counters,
        on_change: Callable[[Sequence[Change], bool, float], None],
        on_found: Callable[[Sequence[Change]], None] | None = None,
        mass_loss_hold_secs: float = 0.0,
        local_cluster_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._lease_secs = lease_secs
        self._long_outage_secs = least_left_secs(lease_secs, heartbeat_secs)
        self._retry_after_secs = 1 if lease_secs >= SHORT_LEASE_SECS else 0
        self._max_pools = max_pools
        self._max_pools_per_cluster = max_pools_per_cluster
        self._counters = counters
        self._created, self._changed, self._renewed = map(counters.registrations.of, ("created", "changed", "renewed"))
        self._on_change = on_change
        self._clock = clock
        self._epochs = Epochs()
        self._holds = Holds(lease_secs)
        self._mass_loss = MassLoss(
            lease_secs=lease_secs,
            heartbeat_secs=heartbeat_secs,
            hold_secs=mass_loss_hold_secs,
            local_cluster_id=local_cluster_id,
        )
        store.share(self._value_of)
        alarms = Alarms()
        self._entries = Entries(self._epochs, alarms, self._mass_loss, counters, clock)
        self._ends = LeaseEnds(
            store,
            self._entries,
            alarms,
            self._epochs,
            self._holds,
            self._mass_loss,
            lease_secs=lease_secs,
            least_left_secs=self._long_outage_secs,
            counters=counters,
            failed=self._failed,
            publish=self._publish,
            mass_loss_changed=self._mass_loss_changed,
            clock=clock,
        )
        self._to_others = Settling(store, self._failed)
        self._confirmed_at = float("-inf")
        self._settling: str | None = None
        self._listed = False
        self._running_out = 0
        self._near_misses: set[PoolKey] = set()
        self._early: dict[PoolKey, Registration | None] = {}
        self._on_found = self._early.update if on_found is None else on_found
        self._last_error = ""
        self._refused_at = float("-inf")
        self._item_error = ""
        self._read_again: dict[str, float] = {}
        self._whole: str | None = UNREAD

    # ---- what others ask

    @property
    def listed(self) -> bool:
        """Whether the store was read once."""
        return self._listed

    def __len__(self) -> int:
        return len(self._entries.by_key)

    def _value_of(self, key: PoolKey) -> bytes | None:
        entry = self._entries.by_key.get(key)
        return None if entry is None else entry.value

    def incomplete(self) -> str | None:
        """Why the registrations may be less than the whole truth at this moment; None where they are whole."""
        missing = self.missing()
        return None if missing is None else missing.text

    def missing(self) -> Missing | None:
        """The same, with the word that metrics have for it."""
        now = self._clock()
        if not self._listed:
            return Missing("unread", f"the store has not been read yet{self._cause()}")
        if (silent := now - self._confirmed_at) >= self._confirmed_for_secs():
            text = f"the store has not confirmed the registrations for {silent:.1f} s{self._cause()}"
            return Missing("unconfirmed", text)
        if self._mass_loss.holding:
            return Missing("mass_loss", f"{REASON}; {self._mass_loss.kept} ended pools are kept for now")
        if self._settling is not None:
            return Missing("settling", f"the store is settling: {self._settling}")
        if loss := self._holds.loss(now):
            text = "data may have been lost" if self._store.ends_leases else "pools may be missing"
            return Missing("data_loss", f"{text}: {loss}")
        if self._store.ends_leases and (overdue := len(self._entries.overdue)):
            return Missing(
                "held", f"{overdue} pools are held over the end of their leases after trouble with the store"
            )
        return None

    def _confirmed_for_secs(self) -> float:
        """While the store fails only the shortest time counts; a store that reads for long does not fail by that."""
        return CONFIRMED_FOR_SECS if self._holds.failing_since is not None else self._store.confirmed_for_secs

    @property
    def held(self) -> int:
        """How many pools are listed over the end of their leases."""
        return len(self._entries.overdue)

    @property
    def running_out(self) -> int:
        """How many leases had little left when all were read last."""
        return self._running_out

    @property
    def keeps_lost_pools(self) -> bool:
        """Whether a hold over a mass loss runs, whoever began it."""
        return self._mass_loss.until() is not None

    @property
    def unconfirmed_secs(self) -> float | None:
        """Seconds since the store last confirmed what is known here; None before the first time."""
        return None if self._confirmed_at == float("-inf") else self._clock() - self._confirmed_at

    def _cause(self) -> str:
        return f": {self._last_error}" if self._last_error else ""

    def failing(self) -> str | None:
        """The last error while the store fails; None while it answers."""
        return self._last_error if self._holds.failing_since is not None else None

    def known(self) -> Iterator[Known]:
        """Every registration, sorted by pool key."""
        now = self._clock()
        for key in sorted(self._entries.by_key):
            entry = self._entries.by_key[key]
            yield Known(key, entry.value, max(0.0, entry.ends_at - now))

    def lease_left_secs(self, key: PoolKey) -> float | None:
        """What the pool's lease has left, as last confirmed; None where it is not registered."""
        entry = self._entries.by_key.get(key)
        return None if entry is None else round(max(0.0, entry.ends_at - self._clock()), 3)

    # ---- what relays ask

    async def put(self, heartbeat: Heartbeat) -> bool:
        """Register or renew; True where the pool was not there before. Raises ``Unavailable`` when not confirmed."""
        key, value, registration = heartbeat
        if key not in self._entries.by_key:
            self._check_room(key.cluster_id)
        asked_at = self._clock()
        try:
            outcome = await self._store.put(key, value, self._lease_secs)
        except Unavailable as error:
            self._write_failed(error, asked_at, "a registration cannot be stored, the others can")
            raise
        self._check_epoch(outcome.epoch)
        (self._created if outcome.created else self._changed if outcome.changed else self._renewed).inc()
        if registration is None and outcome.changed:
            registration = registrations.decode_own(value)
        ends_at = asked_at + self._lease_secs
        changes = self._entries.put(key, value, outcome.epoch, outcome.revision, ends_at, registration)
        if changes is not None:
            self._publish(changes)
        return outcome.created

    def _check_room(self, cluster_id: str) -> None:
        """Whether a new pool is taken: by what this replica knows, so several together may take a few more at once."""
        if len(self._entries.by_key) >= self._max_pools:
            raise Rejected(
                507, "Too many pools", f"This service keeps at most {self._max_pools:,} pools (--max-pools)."
            )
        most = self._max_pools_per_cluster
        if most and self._entries.in_cluster[cluster_id] >= most:
            raise Rejected(
                429,
                "Too many pools of one cluster",
                f"This service keeps at most {most:,} pools of one cluster (--max-pools-per-cluster).",
                headers=(("retry-after", str(random.randint(20, 40))),),  # noqa: S311
            )

    async def delete(self, key: PoolKey, instance_id: str | None) -> None:
        """Deregister. Raises ``Unavailable`` when not confirmed."""
        asked_at = self._clock()
        try:
            deleted = await self._store.delete(key, instance_id)
        except Unavailable as error:
            self._write_failed(error, asked_at, "a pool cannot be deregistered; registrations are taken")
            raise
        if deleted is not None:
            self._check_epoch(deleted.epoch)
            self._apply_deleted(deleted)
        self._counters.deregistrations.of("kept" if deleted is None else "done").inc()

    def _check_epoch(self, epoch: str) -> None:
        """A write that went to a store of the past is nothing that others will ever see."""
        if self._epochs.is_past(epoch):
            raise Unavailable(
                "not confirmed: the store was replaced meanwhile", retry_after_secs=self._retry_after_secs
            )

    # ---- what runs all the time

    async def run(self) -> None:
        """Follow the store until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._ends.run())

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                match event:
                    case Put():
                        self._apply_announced(event)
                    case Deleted():
                        self._apply_deleted(event)
                    case Health():
                        if self._confirm(event):
                            self._heed_others(event)
                        self._publish([])
                    case Listed():
                        await self._apply_listed(event)
                        event.items.clear()  # the feed keeps the list, and with it every value of that moment, for long
                    case feed.Interrupted():
                        self._interrupted(event.error)

    def _events(self) -> AsyncGenerator[Listed | Event | feed.Interrupted, None]:
        return feed.follow(self._store, Backoff(*BACKOFF_SECS))

    def _interrupted(self, error: Gone | Unavailable) -> None:
        self._counters.relisted(error)
        if isinstance(error, Unavailable):
            self._failed(error)
            self._publish([])
        else:
            self._tell_of_reading(error)

    def _tell_of_reading(self, error: Gone) -> None:
        """Once in a lease for each cause: a network that flaps is no news each time, and is counted."""
        now = self._clock()
        if now - self._read_again.get(error.cause, float("-inf")) >= self._lease_secs:
            self._read_again[error.cause] = now
            text = "reading the store again: %s"
            event(log, logging.INFO, "store.reread", text, error.detail, cause=error.cause)

    def _write_failed(self, error: Unavailable, asked_at: float, refused: str) -> None:
        """Where the store was read while a write waited in vain, only writes fail: a read is no end of that."""
        error.retry_after_secs = self._retry_after_secs
        if error.extent == "source" and self._confirmed_at > asked_at:
            error = Unavailable(error.detail, retry_after_secs=error.retry_after_secs, extent="writes")
        self._failed(error, refused)

    def _failed(self, error: Unavailable, refused: str = "a request is refused, others are taken") -> None:
        if error.extent == "item":
            if error.detail != self._item_error:
                event(log, logging.WARNING, "store.refuses", "%s: %s", refused, error.detail, cause=error.detail)
            self._item_error = error.detail
            return
        now = self._clock()
        if error.extent == "writes":
            self._refused_at = now
        self._last_error = error.detail
        if self._holds.failed(now):
            self._counters.store_outages.inc()
            self._ends.store_answers(False)
            text = problems.store_fails(error.detail) if self._listed else str(self.incomplete())
            event(log, logging.WARNING, "store.failing", "%s", text, cause=error.detail)

    def _confirm(self, health: Health, loss: str | None = None) -> bool:
        """The store was read: its epoch and revision are known as of when they were asked for. False: of the past.

        ``loss`` is why data may have been lost, where the store knows more of it than that the epoch is another.
        """
        now = self._clock()
        life = self._epochs.adopt(health, now)
        if life == "past":
            return False
        if loss is not None or life == "new":
            self._lost(loss or "the store has a new epoch: it was emptied, or a replica noticed a loss")
            if loss is not None and not self._store.ends_leases:
                # Also the only way to learn that nobody can write, for a replica that no relay asks.
                self._to_others.tell(loss, self._lease_secs, health.asked_at, lasting=True)
        silent_secs = health.asked_at - self._confirmed_at
        self._confirmed_at = max(self._confirmed_at, health.asked_at)
        self._settling = health.settling
        failing_since = self._holds.failing_since
        if failing_since is not None and health.asked_at < max(failing_since, self._refused_at + REFUSED_FOR_SECS):
            return True  # asked before the failure, or the store can be read but has just refused a write
        lasted = self._holds.answered(now)
        self._ends.store_answers(True)
        if lasted is not None and failing_since is not None:
            refused_secs = self._refused_at - failing_since
            lasted = max(silent_secs, refused_secs if refused_secs >= 0 else lasted)
            self._recovered(now, lasted, failing_since)
        return True

    def _recovered(self, now: float, lasted: float, failing_since: float) -> None:
        """The end of an outage; a replica that started in one does not know how long it lasted, but what it saw.

        Where the store ends no leases by itself, a replica that was there before lacks nothing: it kept all pools.
        """
        known = lasted < float("inf")
        secs = lasted if known else now - failing_since
        shown = f"{secs:.1f} s" if known else f"more than {secs:.1f} s"
        text = "the store answers again after %s; lease ends are held for %g s"
        event(log, logging.WARNING, "store.recovered", text, shown, self._lease_secs, lasted_secs=round(secs, 3))
        if lasted >= self._long_outage_secs:
            reason = f"an outage of {shown}, in which live leases may have ended"
            if self._store.ends_leases or not known:
                self._holds.lost(now, reason)
            self._to_others.tell(reason, self._lease_secs, failing_since)

    def _lost(self, reason: str) -> None:
        now = self._clock()
        if self._store.ends_leases and self._holds.loss(now) is None:  # else it goes on, which is no news
            text = "the store may have lost data, pools stay for %g s: %s"
            event(log, logging.WARNING, "store.data_lost", text, self._lease_secs, reason, cause=reason)
        self._holds.lost(now, reason)
        self._to_others.data_lost()

    # ---- a hold over a mass loss, of this replica or another

    def _mass_loss_changed(self) -> None:
        if self._mass_loss.holding:
            self._whole = self.incomplete()  # the line about the mass loss says so already
        self._attend_settling()
        self._publish([])

    def _heed_others(self, health: Health) -> None:
        now = self._clock()
        if not self._holds.quiet(now) and health.settling != REASON:
            told = None  # the word may be lost, and is told again
        else:
            told = self._mass_loss.told(health.settling, now)
        if isinstance(told, Joined):
            text = f"{problems.not_complete(REASON)}; another replica saw it, and pools that end stay here too"
            event(log, logging.WARNING, "list.incomplete", "%s", text, cause="a mass loss, seen by another replica")
            self._whole = self.incomplete()
        elif told is not None:
            self._ends.release(told)
        self._attend_settling()

    def _attend_settling(self) -> None:
        now = self._clock()
        until = self._mass_loss.until() if self._mass_loss.holding else None
        self._to_others.attend(None if until is None else until - now, may_end=self._holds.quiet(now))

    # ---- applying what the store tells

    def _apply_announced(self, event: Put) -> None:
        ends_at = self._clock() + event.lease_secs
        changes = self._entries.put(event.key, event.value, event.epoch, event.revision, ends_at)
        if changes is not None:
            self._publish(changes)

    def _apply_deleted(self, event: Deleted) -> None:
        if changes := self._entries.deleted(event):
            self._publish(changes)

    async def _apply_listed(self, listed: Listed) -> None:
        """What has to be decoded is decoded in parts, between which the loop turns.

        The parts of the first list are also applied one by one: nobody sees that it is not whole yet. A later one is
        applied at once, since what is published is never half of it.
        """
        self._look_at_leases(listed)
        if self._listed:
            decoded = await self._decode_news(listed)
            if not self._confirm(listed.health, listed.loss):
                return
            changes = self._entries.listed(listed, decoded)
        else:
            if not self._confirm(listed.health, listed.loss):
                return
            await self._find(listed)
            self._entries.ask_about_lacking(listed)
            self._listed = True
            self._mass_loss.listed(self._clock())
            changes = list(self._early.items())
            self._early.clear()
        self._heed_others(listed.health)
        self._publish(changes)

    def _look_at_leases(self, listed: Listed) -> None:
        least = self._long_outage_secs
        running_out = {key for key, stored in listed.items.items() if stored.remaining_secs < least}
        # A store that is listed once in a lease tells of each missed heartbeat once; one that is listed each second
        # tells of it again and again.
        news = running_out if self._store.ends_leases else running_out - self._near_misses
        self._running_out, self._near_misses = len(running_out), running_out
        self._counters.near_misses.inc(len(news))

    async def _decode_news(self, listed: Listed) -> dict[PoolKey, Registration | None]:
        found: dict[PoolKey, Registration | None] = {}
        for key, stored in listed.items.items():
            if self._entries.is_news(key, stored.value):
                found[key] = self._entries.decode(key, stored.value)
                if len(found) % AT_ONCE == 0:
                    await asyncio.sleep(0)
        return found

    async def _find(self, listed: Listed) -> None:
        items = iter(listed.items.items())
        while part := list(itertools.islice(items, AT_ONCE)):
            self._publish(self._entries.some_listed(listed.health, part))
            await asyncio.sleep(0)

    def _publish(self, changes: Sequence[Change]) -> None:
        if not self._listed:
            self._on_found(changes)
            return
        reason = self.incomplete()
        if (reason is None) != (self._whole is None) or self._whole is UNREAD:
            if reason is None:
                event(log, logging.INFO, "list.complete", "the list is complete")
            else:
                event(log, logging.WARNING, "list.incomplete", "%s", problems.not_complete(reason), cause=reason)
        self._whole = reason
        self._on_change(changes, reason is None, self._confirmed_at + self._confirmed_for_secs())
