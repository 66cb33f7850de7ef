"""The ends of leases: asks the store about each that seems to be over, and drops the pools that are gone.

Alarms say when to ask, ``holds`` and ``mass_loss`` when an end may be acted on. An answer counts only while nothing
newer is known: neither another epoch, nor a pool that was heard of after the question was sent.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from discovery import problems
from discovery.errors import Unavailable
from discovery.logs import event
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import Store
from discovery.stores.alarms import Alarms
from discovery.stores.entries import Change, Entries
from discovery.stores.epochs import Epochs
from discovery.stores.holds import Holds
from discovery.stores.mass_loss import REASON, SURVEY_SECS, ClusterLoss, Ended, MassLoss

log = logging.getLogger(__name__)

QUESTION_PAUSE_SECS = 0.02
QUESTION_KEYS = 1000
AGAIN_SECS = 0.2
CLUSTERS_SHOWN = 5


class _Answer(NamedTuple):
    """What the store said of some leases: seconds left, None for those that it holds no longer."""

    mark: int
    asked_at: float
    left_secs: Mapping[PoolKey, float | None]


class LeaseEnds:
    """Runs beside the feed of one replica. ``publish`` is called with what was dropped, or held, or no longer held."""

    def __init__(
        self,
        store: Store,
        entries: Entries,
        alarms: Alarms,
        epochs: Epochs,
        holds: Holds,
        mass_loss: MassLoss,
        *,
        lease_secs: float,
        least_left_secs: float,
        counters: Counters,
        failed: Callable[[Unavailable], None],
        publish: Callable[[Sequence[Change]], None],
        mass_loss_changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._entries = entries
        self._alarms = alarms
        self._epochs = epochs
        self._holds = holds
        self._mass_loss = mass_loss
        self._lease_secs = lease_secs
        self._least_left_secs = least_left_secs
        self._counters = counters
        self._failed = failed
        self._publish = publish
        self._mass_loss_changed = mass_loss_changed
        self._clock = clock
        self._answering = asyncio.Event()
        self._holding = asyncio.Event()

    def store_answers(self, answers: bool) -> None:
        """Whether it makes sense to ask."""
        if answers:
            self._answering.set()
        else:
            self._answering.clear()

    async def run(self) -> None:
        """Ask and drop until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_about_ends())
            tasks.create_task(self._attend_mass_loss())

    async def _ask_about_ends(self) -> None:
        while True:
            await self._answering.wait()
            due = self._alarms.due(self._entries.by_key, self._clock())
            if due:
                await self._look_at(due)
                await asyncio.sleep(QUESTION_PAUSE_SECS)
            else:
                await self._alarms.next(self._clock())

    # ---- asking

    async def _look_at(self, due: list[PoolKey]) -> None:
        answers = await self._ask_all(due)
        held = len(self._entries.overdue)
        ended = [key for answer in answers for key in self._still_ended(answer, answer.left_secs)]
        if self._may_drop(ended) and self._mass_loss.needs_survey(
            self._entries.by_key, self._clock(), self._epochs.present
        ):
            survey = await self._survey()
            if survey is None:
                self._ask_again(ended)
                return
            ended = self._still_ended(survey, ended)
        self._judge(ended, held)

    async def _ask_all(self, keys: list[PoolKey]) -> list[_Answer]:
        batches = _batches(keys)
        asking = []
        async with asyncio.TaskGroup() as tasks:
            for batch in batches:
                asking.append(tasks.create_task(self._ask(batch)))
                await asyncio.sleep(0)  # the store works at the first ones while the next ones are put together
        answers = [asked.result() for asked in asking]
        for batch, answer in zip(batches, answers, strict=True):
            if answer is None:
                self._ask_again(batch)
        return [answer for answer in answers if answer is not None]

    async def _ask(self, keys: list[PoolKey]) -> _Answer | None:
        """What the store says of these leases; None where it says nothing that counts."""
        epoch, mark, asked_at = self._epochs.present, self._entries.mark(), self._clock()
        try:
            answer = await self._store.remaining(keys)
        except Unavailable as error:
            self._failed(error)
            return None
        if answer.epoch != epoch or self._epochs.present != epoch:
            return None
        return _Answer(mark, asked_at, dict(zip(keys, answer.secs, strict=True)))

    def _ask_again(self, keys: Iterable[PoolKey]) -> None:
        at = self._clock() + AGAIN_SECS
        for key in keys:
            if (entry := self._entries.by_key.get(key)) is not None:
                self._alarms.again(entry, key, max(at, entry.ends_at))

    def _still_ended(self, answer: _Answer, keys: Iterable[PoolKey]) -> list[PoolKey]:
        """Those of the pools asked about whose leases are over; the others get their next alarm."""
        found = []
        for key in keys:
            entry = self._entries.by_key.get(key)
            if entry is None:
                continue
            left = answer.left_secs.get(key)
            if entry.touched > answer.mark:
                self._alarms.set(entry, key, entry.ends_at)
            elif left is not None:
                if left < self._least_left_secs:
                    self._counters.near_misses.inc()
                self._entries.lives(key, entry, answer.asked_at + left)
            else:
                found.append(key)
        return found

    async def _survey(self) -> _Answer | None:
        """Ask about all pools at once; None where that fails."""
        epoch, keys = self._epochs.present, list(self._entries.by_key)
        batches = _batches(keys)
        answers = [answer for answer in await asyncio.gather(*map(self._ask, batches)) if answer is not None]
        if len(answers) < len(batches) or self._epochs.present != epoch:
            return None
        now = self._clock()
        left_secs = {key: left for answer in answers for key, left in self._as_known(answer, now)}
        self._mass_loss.surveyed(self._entries.by_key, left_secs, now, epoch)
        first = min(answers, default=None, key=lambda answer: answer.mark)
        return None if first is None else _Answer(first.mark, first.asked_at, left_secs)

    def _as_known(self, answer: _Answer, now: float) -> Iterator[tuple[PoolKey, float | None]]:
        """The answer, but for pools that were heard of after the question."""
        for key, left in answer.left_secs.items():
            entry = self._entries.by_key.get(key)
            if entry is not None:
                yield key, entry.ends_at - now if entry.touched > answer.mark else left

    # ---- judging: from the last answer to the last word nothing is awaited

    def _may_drop(self, ended: Iterable[PoolKey]) -> bool:
        return any(map(self._acting(self._clock()), ended))

    def _acting(self, now: float) -> Callable[[PoolKey], bool]:
        """Whether the end of a pool's lease may be acted on at this moment; the same for all that were not held yet."""
        holds, overdue = self._holds, self._entries.overdue
        at_once = holds.acts_at(now, holds.readable_secs(now))
        return lambda key: holds.acts_at(now, overdue[key]) if key in overdue else at_once

    def _judge(self, ended: list[PoolKey], held: int) -> None:
        now = self._clock()
        self._end_hold(now)
        acts = self._acting(now)
        going = []
        for key in ended:
            if acts(key):
                going.append(key)
            else:
                self._hold(key, now, self._held_until(key, now))
        if loss := self._mass_loss.begins(going, now):
            self._begin_hold(loss)
        changes = self._drop(self._not_kept(going, now), now)
        if changes or held != len(self._entries.overdue):
            self._publish(changes)

    def _not_kept(self, going: list[PoolKey], now: float) -> list[PoolKey]:
        """Those that leave; a hold over a mass loss keeps the others."""
        kept_until = self._mass_loss.until()
        if kept_until is None:
            return going
        by_key = self._entries.by_key
        kept = {key for key in going if self._mass_loss.keeps(key, by_key[key].known_since, now)}
        for key in kept:
            self._mass_loss.keep(key)
            self._hold(key, now, kept_until)
        return [key for key in going if key not in kept]

    def _drop(self, going: list[PoolKey], now: float) -> list[Change]:
        self._counters.leases_expired.inc(len(going))
        changes: list[Change] = []
        for key in going:
            self._mass_loss.dropped(key, self._entries.by_key[key].known_since, now)
            changes += self._entries.drop(key)
        return changes

    def _hold(self, key: PoolKey, now: float, until: float) -> None:
        self._entries.overdue.setdefault(key, self._holds.readable_secs(now))
        self._alarms.again(self._entries.by_key[key], key, until)

    def _held_until(self, key: PoolKey, now: float) -> float:
        readable_secs = self._holds.readable_secs(now)
        bound = now + 2 * self._lease_secs - (readable_secs - self._entries.overdue.get(key, readable_secs))
        hold_ends = self._holds.next_action(now)
        return max(now + QUESTION_PAUSE_SECS, bound if hold_ends is None else min(hold_ends, bound))

    # ---- a hold over a mass loss

    def _begin_hold(self, loss: list[ClusterLoss]) -> None:
        shown = ", ".join(f"{each.cluster_id} {each.lost} of {each.pools}" for each in loss[:CLUSTERS_SHOWN])
        more = ", ..." if len(loss) > CLUSTERS_SHOWN else ""
        event(
            log,
            logging.ERROR,
            "pools.mass_loss",
            "%s: %d of %d pools of all %d clusters (%s%s), and these stay for up to %g s: check the ingress in front of"
            " the service, network policies and rollouts",
            problems.not_complete(REASON),
            sum(each.lost for each in loss),
            sum(each.pools for each in loss),
            len(loss),
            shown,
            more,
            self._mass_loss.hold_secs,
        )
        self._counters.mass_losses.inc()
        self._holding.set()
        self._mass_loss_changed()

    async def _attend_mass_loss(self) -> None:
        while True:
            while self._mass_loss.holding:
                left_secs = (self._mass_loss.until() or 0.0) - self._clock()
                await asyncio.sleep(max(0.0, min(SURVEY_SECS, left_secs)))
                self._end_hold(self._clock())
                if self._holds.quiet(self._clock()):
                    await self._survey()
                    self._end_hold(self._clock())
            self._holding.clear()
            await self._holding.wait()

    def _end_hold(self, now: float) -> None:
        if ended := self._mass_loss.ended(now):
            self.release(ended)

    def release(self, ended: Ended) -> None:
        """A hold is over: what is still gone is asked about once more, and leaves.

        Its time does not count for the holds after trouble with the store: those begin now, where one runs.
        """
        now = self._clock()
        if ended.lost is None:
            text = "the hold over a mass loss that another replica began is over after %.1f s"
            secs = ended.lasted_secs
            event(log, logging.WARNING, "pools.mass_loss_over", text, secs, lasted_secs=round(secs, 3))
        else:
            event(
                log,
                logging.WARNING,
                "pools.mass_loss_over",
                "the mass loss is over after %.1f s%s: %d of %d lost pools are back, what is still gone leaves",
                ended.lasted_secs,
                "" if ended.half_are_back else ", the longest that pools are kept",
                ended.back,
                ended.lost,
                lasted_secs=round(ended.lasted_secs, 3),
            )
        for key in ended.kept:
            if (entry := self._entries.by_key.get(key)) is not None:
                self._entries.overdue[key] = self._holds.readable_secs(now)
                self._alarms.again(entry, key, now)
        self._mass_loss_changed()


def _batches(keys: list[PoolKey]) -> list[list[PoolKey]]:
    return [keys[start : start + QUESTION_KEYS] for start in range(0, len(keys), QUESTION_KEYS)]
