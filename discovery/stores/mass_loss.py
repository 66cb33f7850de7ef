"""Mass loss: when nearly everything ends at once, the fault is more likely on our side than in all clusters. Pure.

Facts and ``now`` in, answers out; all times are seconds of one monotonic clock. Before the replica drops pools whose
leases ended it has the remaining leases of all pools asked for (a survey), and says here which pools are to go. Where
every cluster then has lost most of its pools, a hold begins, in which ended pools are kept. Knows nothing of the
store's own troubles: those are in ``holds``.
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from discovery.model import PoolKey
from discovery.stores.holds import least_left_secs

SURVEY_SECS = 1.0
LEASES_TO_COUNT = 3
CLUSTERS_AT_LEAST = 2
POOLS_AT_LEAST = 3

REASON = "mass loss: most pools of every cluster ended within one lease"
"""What replicas tell each other through the store; the same on all of them, so that each may take it back."""


class Aged(Protocol):
    """A pool that the replica lists; ``known_since`` is when it began to, without a gap."""

    known_since: float


class ClusterLoss(NamedTuple):
    """How many of a cluster's counted pools are lost."""

    cluster_id: str
    pools: int
    lost: int


class Joined(NamedTuple):
    """Another replica has begun a hold, in which this one keeps ended pools too."""


class Ended(NamedTuple):
    """The end of a hold. ``kept`` are the pools that may be dropped now.

    Of a hold that another replica began, the number of lost pools is not known.
    """

    lasted_secs: float
    kept: list[PoolKey]
    lost: int | None = None
    back: int = 0
    half_are_back: bool = False


class Survey:
    """Who was lost at one moment, of the pools that count; a pool that is lost later is added."""

    def __init__(self, taken_at: float, epoch: str | None, counted: Mapping[PoolKey, bool]) -> None:
        self.taken_at = taken_at
        self.epoch = epoch
        self.lost = {key for key, lost in counted.items() if lost}
        self._counted = counted
        self._pools = Counter(key.cluster_id for key in counted)
        self._lost = Counter(key.cluster_id for key in self.lost)
        self._spared = {name for name in self._pools if not self._most_are_lost(name)}

    def lose(self, key: PoolKey) -> None:
        """This pool is lost, where it counts."""
        if key in self.lost or key not in self._counted:
            return
        self.lost.add(key)
        self._lost[key.cluster_id] += 1
        if self._most_are_lost(key.cluster_id):
            self._spared.discard(key.cluster_id)

    def _most_are_lost(self, cluster_id: str) -> bool:
        return 2 * self._lost[cluster_id] > self._pools[cluster_id]

    @property
    def shows_mass_loss(self) -> bool:
        """Whether enough pools of enough clusters count, and every cluster lost more than half of its pools."""
        enough = len(self._pools) >= CLUSTERS_AT_LEAST and len(self._counted) >= POOLS_AT_LEAST
        return enough and not self._spared

    def clusters(self) -> list[ClusterLoss]:
        """The figures, the largest cluster first."""
        found = [ClusterLoss(name, pools, self._lost[name]) for name, pools in self._pools.items()]
        return sorted(found, key=lambda cluster: (-cluster.pools, cluster.cluster_id))


class _Hold:
    """A hold: when it began, and who was lost and is back."""

    def __init__(self, now: float, secs: float, lost: set[PoolKey]) -> None:
        self.began_at = now
        self.until = now + secs
        self.lost = lost
        self.back: set[PoolKey] = set()
        self.half_back_at: float | None = None


class MassLoss:
    """What one replica knows of pools that end together. ``hold_secs`` of 0 switches all of it off."""

    def __init__(
        self, *, lease_secs: float, heartbeat_secs: float, hold_secs: float, local_cluster_id: str | None
    ) -> None:
        self._lease_secs = lease_secs
        self._least_left_secs = least_left_secs(lease_secs, heartbeat_secs)
        self.hold_secs = hold_secs
        self._local_cluster_id = local_cluster_id
        self._survey: Survey | None = None
        self._dropped: OrderedDict[PoolKey, float] = OrderedDict()
        self._released: set[PoolKey] = set()
        self._kept: set[PoolKey] = set()
        self._hold: _Hold | None = None  # begun by this replica
        self._told = False
        self._joined: _Hold | None = None
        self._first_listed_at = float("-inf")

    # ---- what others ask

    @property
    def holding(self) -> bool:
        """Whether a hold runs that this replica began."""
        return self._hold is not None

    @property
    def kept(self) -> int:
        """How many ended pools are kept."""
        return len(self._kept)

    def until(self) -> float | None:
        """When the running hold ends at the latest, whoever began it; None where none runs."""
        hold = self._hold or self._joined
        return None if hold is None else hold.until

    def keeps(self, key: PoolKey, known_since: float, now: float) -> bool:
        """Whether this ended pool is kept for now: those that lived long, and those whose age is not known.

        A pool that a hold has kept already is not kept by the next one.
        """
        if self.until() is None or key in self._released:
            return False
        return known_since <= max(self._counted_since(now), self._first_listed_at)

    def _counted_since(self, now: float) -> float:
        return now - LEASES_TO_COUNT * self._lease_secs

    def _counts(self, key: PoolKey) -> bool:
        return key.cluster_id != self._local_cluster_id and key not in self._released

    # ---- before pools are dropped

    def needs_survey(self, pools: Mapping[PoolKey, Aged], now: float, epoch: str | None) -> bool:
        """Whether the leases of all pools have to be asked for before any is dropped.

        Not within a second of the last survey, nor where too few pools count for any answer to matter.
        """
        if self.hold_secs <= 0 or self._hold is not None:
            return False
        survey = self._survey
        if survey is not None and survey.epoch == epoch and now - survey.taken_at < SURVEY_SECS:
            return False
        if self._enough_count(pools, now):
            return True
        self._survey = Survey(now, epoch, {})
        return False

    def _enough_count(self, pools: Mapping[PoolKey, Aged], now: float) -> bool:
        self._forget_old_drops(now)
        clusters: set[str] = set()
        for number, key in enumerate(itertools.chain(self._dropped, self._counted(pools, now)), 1):
            clusters.add(key.cluster_id)
            if len(clusters) >= CLUSTERS_AT_LEAST and number >= POOLS_AT_LEAST:
                return True
        return False

    def _counted(self, pools: Mapping[PoolKey, Aged], now: float) -> Iterator[PoolKey]:
        since, local, no_more = self._counted_since(now), self._local_cluster_id, self._released | self._kept
        for key, pool in pools.items():
            if pool.known_since <= since and key.cluster_id != local and key not in no_more:
                yield key

    def _forget_old_drops(self, now: float) -> None:
        while self._dropped and next(iter(self._dropped.values())) < now - self._lease_secs:
            self._dropped.popitem(last=False)

    def surveyed(
        self, pools: Mapping[PoolKey, Aged], left_secs: Mapping[PoolKey, float | None], now: float, epoch: str | None
    ) -> None:
        """What the store said of the leases of all pools; None for one that it holds no longer."""
        self._released = {key for key in self._released if key in pools and self._is_lost(key, left_secs)}
        self._survey = self._taken(pools, left_secs, now, epoch)
        if (hold := self._hold) is None:
            return
        hold.back = {
            key for key in hold.lost if key in pools and key in left_secs and not self._is_lost(key, left_secs)
        }
        if 2 * len(hold.back) < len(hold.lost):
            hold.half_back_at = None
        elif hold.half_back_at is None:
            hold.half_back_at = now

    def _taken(
        self, pools: Mapping[PoolKey, Aged], left_secs: Mapping[PoolKey, float | None], now: float, epoch: str | None
    ) -> Survey:
        self._forget_old_drops(now)
        counted = {key: self._is_lost(key, left_secs) for key in self._counted(pools, now)}
        return Survey(now, epoch, counted | dict.fromkeys(self._dropped, True))

    def _is_lost(self, key: PoolKey, left_secs: Mapping[PoolKey, float | None]) -> bool:
        left = left_secs.get(key, float("inf"))
        return left is None or left <= self._least_left_secs

    def begins(self, ended: Iterable[PoolKey], now: float) -> list[ClusterLoss] | None:
        """These pools are to be dropped. Where that makes it a mass loss: its figures, and a hold has begun."""
        survey = self._survey
        if survey is None or self.hold_secs <= 0 or self._hold is not None:
            return None
        for key in ended:
            survey.lose(key)
        if not survey.shows_mass_loss:
            return None
        self._hold, self._joined = _Hold(now, self.hold_secs, set(survey.lost)), None
        self._told = True
        self._dropped.clear()
        return survey.clusters()

    # ---- what became of a pool

    def keep(self, key: PoolKey) -> None:
        """This ended pool is kept."""
        self._kept.add(key)
        if self._hold is not None and self._counts(key):
            self._hold.lost.add(key)

    def dropped(self, key: PoolKey, known_since: float, now: float) -> None:
        """This pool was dropped at the end of its lease."""
        if self.hold_secs > 0 and self._counts(key) and known_since <= self._counted_since(now):
            self._dropped[key] = now
        self._released.discard(key)

    def registered(self, key: PoolKey) -> None:
        """A pool appeared, or one that had ended is back."""
        self._dropped.pop(key, None)
        self._released.discard(key)
        self._kept.discard(key)

    def deregistered(self, key: PoolKey) -> None:
        """A pool left of its own will: it was not lost."""
        self.registered(key)
        if self._hold is not None:
            self._hold.lost.discard(key)

    # ---- the end, and the holds of others

    def listed(self, now: float) -> None:
        """The store was read for the first time: the ages of the pools found there are not known."""
        self._first_listed_at = now

    def ended(self, now: float) -> Ended | None:
        """Where a hold is over by now: how it went."""
        hold = self._hold
        if hold is None:
            return self._left(now) if self._joined is not None and now >= self._joined.until else None
        half_are_back = hold.half_back_at is not None and now >= hold.half_back_at + self._lease_secs
        if now < hold.until and not half_are_back:
            return None
        self._hold = None
        self._released |= hold.lost - hold.back
        return Ended(now - hold.began_at, self._release(), len(hold.lost), len(hold.back), half_are_back)

    def told(self, settling: str | None, now: float) -> Joined | Ended | None:
        """What the store says: of another replica's hold, which begins or ends for this one too."""
        says, said, self._told = settling == REASON, self._told, settling == REASON
        if self._joined is not None and not says:
            return self._left(now)
        if says and not said and self._hold is None and self.hold_secs > 0:
            self._joined = _Hold(now, self.hold_secs, set())
            return Joined()
        return None

    def _left(self, now: float) -> Ended | None:
        joined, self._joined = self._joined, None
        return None if joined is None else Ended(now - joined.began_at, self._release())

    def _release(self) -> list[PoolKey]:
        """No hold begins over what was kept in this one."""
        kept = list(self._kept)
        self._released.update(kept)
        self._kept.clear()
        self._survey = None
        return kept
