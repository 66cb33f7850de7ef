"""When ended pools are kept because nearly everything ended at once: the rule, its edges, and how a hold ends.

Most tests live through a course of heartbeats in which the rule is asked at the end of each lease, as the replica
does; the shortest histories ask it directly.
"""

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.model import PoolKey
from discovery.stores.mass_loss import REASON, Ended, Joined, MassLoss

LEASE, HEARTBEAT, HOLD = 15.0, 5.0, 60.0
EPOCH = "e1"


def key(cluster: int | str, pool: int = 0) -> PoolKey:
    return PoolKey(f"c{cluster}", "n", f"p{pool}")


@dataclass
class Pool:
    """One pool and its relay: it beats from ``born`` on every heartbeat interval, until ``silent`` seconds."""

    born: float
    silent: float
    known_since: float = field(default=0.0)

    def ends_at(self, heartbeat: float, lease: float, now: float) -> float:
        """The end of the lease that runs at ``now``."""
        beats = int(max(0.0, min(now, self.silent) - self.born) // heartbeat)
        return self.born + beats * heartbeat + lease


class Course:
    """Pools that beat and fall silent, and a rule that is asked whenever a lease ends."""

    def __init__(
        self,
        pools: dict[PoolKey, Pool],
        *,
        lease: float = LEASE,
        heartbeat: float = HEARTBEAT,
        hold: float = HOLD,
        local: str | None = None,
    ) -> None:
        self.lease, self.heartbeat = lease, heartbeat
        self.rule = MassLoss(lease_secs=lease, heartbeat_secs=heartbeat, hold_secs=hold, local_cluster_id=local)
        self.pools = pools
        self.listed = dict(pools)
        for pool in pools.values():
            pool.known_since = pool.born
        self.gone: dict[PoolKey, float] = {}
        self.held: set[PoolKey] = set()
        self.begun: list[float] = []
        self.over: list[tuple[float, Ended]] = []
        self.surveys: list[float] = []
        numbers = itertools.count()
        self._look = itertools.count()
        self._agenda = [(pool.born + lease, next(numbers), key) for key, pool in pools.items()]
        heapq.heapify(self._agenda)
        self._numbers = numbers

    def left(self, now: float) -> dict[PoolKey, float | None]:
        """What the store says of the leases of all listed pools."""
        found: dict[PoolKey, float | None] = {}
        for name, pool in self.listed.items():
            left = pool.ends_at(self.heartbeat, self.lease, now) - now
            found[name] = left if left > 0 else None
        return found

    def run(self, until: float) -> "Course":
        while self._agenda and self._agenda[0][0] <= until:
            now, _, name = heapq.heappop(self._agenda)
            if name is None:
                self._attend(now)
            elif name in self.listed and name not in self.held:
                ends_at = self.listed[name].ends_at(self.heartbeat, self.lease, now)
                if ends_at > now:
                    heapq.heappush(self._agenda, (ends_at, next(self._numbers), name))
                else:
                    self._judge(name, now)
        return self

    def _judge(self, name: PoolKey, now: float) -> None:
        self._end(now)
        if self.rule.needs_survey(self.listed, now, EPOCH):
            self.surveys.append(now)
            self.rule.surveyed(self.listed, self.left(now), now, EPOCH)
        if self.rule.begins([name], now) is not None:
            self.begun.append(now)
            heapq.heappush(self._agenda, (now + 1, next(self._numbers), None))
        if self.rule.keeps(name, self.listed[name].known_since, now):
            self.rule.keep(name)
            self.held.add(name)
        else:
            self._drop(name, now)

    def _drop(self, name: PoolKey, now: float) -> None:
        self.rule.dropped(name, self.listed[name].known_since, now)
        del self.listed[name]
        self.gone[name] = now

    def _attend(self, now: float) -> None:
        self._end(now)
        if self.rule.holding:
            self.rule.surveyed(self.listed, self.left(now), now, EPOCH)
            for name in [name for name in self.held if self.left(now)[name] is not None]:
                self.held.discard(name)
                self.rule.registered(name)
                ends_at = self.listed[name].ends_at(self.heartbeat, self.lease, now)
                heapq.heappush(self._agenda, (ends_at, next(self._numbers), name))
            self._end(now)
        if self.rule.holding:
            heapq.heappush(self._agenda, (min(now + 1, self.rule.until() or 0), next(self._numbers), None))

    def _end(self, now: float) -> None:
        if ended := self.rule.ended(now):
            self.over.append((now, ended))
            for name in ended.kept:
                self.held.discard(name)
                self._drop(name, now)


def end_of(pool: Pool, heartbeat: float = HEARTBEAT, lease: float = LEASE) -> float:
    """When the last lease of this pool ends."""
    return pool.ends_at(heartbeat, lease, float("inf"))


# ---- the edges, as properties

rhythms = st.tuples(st.floats(0.5, 10.0), st.floats(3.01, 6.0)).map(lambda it: (it[0], it[0] * it[1]))
"""Heartbeat and lease; with a lease of three heartbeats and more the rule wakes before the first pool is dropped."""

shapes = st.lists(st.integers(1, 6), min_size=2, max_size=5).filter(lambda shape: sum(shape) >= 3)
"""How many pools each cluster has."""


@st.composite
def fleets(draw: st.DrawFn, least_age: float = 3.0, most_age: float = 20.0) -> tuple[float, float, dict[PoolKey, Pool]]:
    """Pools whose heartbeats are spread, and which all live at moment 0, as many leases old as said."""
    heartbeat, lease = draw(rhythms)
    pools = {}
    for cluster, size in enumerate(draw(shapes)):
        for number in range(size):
            age = draw(st.floats(least_age, most_age)) * lease
            pools[key(cluster, number)] = Pool(born=-age, silent=float("inf"))
    return heartbeat, lease, pools


@settings(deadline=None)
@given(fleets())
def test_when_all_clusters_are_cut_at_once_not_even_the_first_pool_is_dropped(
    fleet: tuple[float, float, dict[PoolKey, Pool]],
) -> None:
    heartbeat, lease, pools = fleet
    for pool in pools.values():
        pool.silent = 0.0
    course = Course(pools, heartbeat=heartbeat, lease=lease)
    first = min(end_of(pool, heartbeat, lease) for pool in pools.values())
    course.run(first + HOLD - 0.01)
    assert course.gone == {}, "all were three leases old when the first lease ended"
    assert course.begun == [first]
    course.run(first + HOLD + 3 * lease)
    assert set(course.gone) == set(pools), "a hold has an end"
    assert len(course.begun) == 1, "it does not begin again for what it just dropped"
    assert not course.over[0][1].half_are_back


@settings(deadline=None)
@given(fleets(), st.integers(0, 4))
def test_one_dead_cluster_leaves_at_the_ends_of_its_leases(
    fleet: tuple[float, float, dict[PoolKey, Pool]], which: int
) -> None:
    heartbeat, lease, pools = fleet
    dead = {name for name in pools if name.cluster_id == f"c{which}"}
    for name in dead:
        pools[name].silent = 0.0
    course = Course(pools, heartbeat=heartbeat, lease=lease).run(5 * lease)
    assert course.begun == []
    assert course.gone == {name: end_of(pools[name], heartbeat, lease) for name in dead}


@settings(deadline=None)
@given(fleets(least_age=0.0, most_age=1.5))
def test_pools_that_lived_for_less_than_three_leases_just_expire(
    fleet: tuple[float, float, dict[PoolKey, Pool]],
) -> None:
    heartbeat, lease, pools = fleet
    for pool in pools.values():
        pool.silent = 0.0
    course = Course(pools, heartbeat=heartbeat, lease=lease).run(5 * lease)
    assert course.begun == []
    assert course.gone == {name: end_of(pool, heartbeat, lease) for name, pool in pools.items()}


@settings(deadline=None)
@given(fleets(), st.randoms(use_true_random=False))
def test_a_slow_trickle_is_no_mass_loss(fleet: tuple[float, float, dict[PoolKey, Pool]], random: object) -> None:
    heartbeat, lease, pools = fleet
    names = list(pools)
    random.shuffle(names)  # type: ignore[attr-defined]
    for place, name in enumerate(names):
        pools[name].silent = place * 3.5 * lease
    course = Course(pools, heartbeat=heartbeat, lease=lease).run((len(names) + 2) * 3.5 * lease)
    assert course.begun == []
    assert course.gone == {name: end_of(pool, heartbeat, lease) for name, pool in pools.items()}


@settings(deadline=None)
@given(fleets(), st.sampled_from(["off", "one cluster", "two pools", "the local cluster is one of two"]))
def test_where_the_rule_does_not_apply_the_store_is_not_even_asked(
    fleet: tuple[float, float, dict[PoolKey, Pool]], why: str
) -> None:
    heartbeat, lease, pools = fleet
    if why == "one cluster":
        pools = {name: pool for name, pool in pools.items() if name.cluster_id == "c0"}
    elif why == "two pools":
        pools = {name: pool for name, pool in pools.items() if name in (key(0), key(1))}
    elif why == "the local cluster is one of two":
        pools = {name: pool for name, pool in pools.items() if name.cluster_id in ("c0", "c1")}
    for pool in pools.values():
        pool.silent = 0.0
    local = "c1" if why == "the local cluster is one of two" else None
    hold = 0.0 if why == "off" else HOLD
    course = Course(pools, heartbeat=heartbeat, lease=lease, hold=hold, local=local).run(5 * lease)
    assert course.begun == course.surveys == []
    assert course.gone == {name: end_of(pool, heartbeat, lease) for name, pool in pools.items()}


def shows_mass_loss(
    now: float,
    lease: float,
    heartbeat: float,
    listed: dict[PoolKey, tuple[float, float | None]],
    dropped: dict[PoolKey, float],
    local: str,
) -> bool:
    """The rule as it is promised, in the plainest words; ``listed`` gives age and remaining lease."""
    clusters: dict[str, list[bool]] = {}
    for name, (age, left) in listed.items():
        if age >= 3 * lease and name.cluster_id != local:
            lost = left is None or left <= max(lease - 2 * heartbeat, lease / 3)
            clusters.setdefault(name.cluster_id, []).append(lost)
    for name, at in dropped.items():
        if now - at <= lease and name.cluster_id != local:
            clusters.setdefault(name.cluster_id, []).append(True)
    pools = [lost for each in clusters.values() for lost in each]
    return len(clusters) >= 2 and len(pools) >= 3 and all(sum(each) > len(each) / 2 for each in clusters.values())


facts = st.dictionaries(
    st.builds(key, st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.sampled_from([10.0, 44.0, 45.0, 46.0, 500.0]), st.sampled_from([None, 0.5, 4.9, 5.0, 5.1, 9.9, 14.0])),
    max_size=12,
)


@settings(deadline=None)
@given(facts, st.dictionaries(st.builds(key, st.integers(0, 3), st.integers(4, 6)), st.integers(0, 30), max_size=6))
def test_the_rule_is_the_one_that_is_promised(
    listed: dict[PoolKey, tuple[float, float | None]], dropped_ago: dict[PoolKey, int]
) -> None:
    now = 1000.0
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id="c3")
    dropped = {name: now - ago for name, ago in dropped_ago.items()}
    for name, at in sorted(dropped.items(), key=lambda item: item[1]):
        rule.dropped(name, at - 3 * LEASE, at)
    pools = {name: Pool(born=0, silent=0, known_since=now - age) for name, (age, _) in listed.items()}
    ended = [name for name, (_, left) in listed.items() if left is None]
    if rule.needs_survey(pools, now, EPOCH):
        rule.surveyed(pools, {name: left for name, (_, left) in listed.items()}, now, EPOCH)
    begun = rule.begins(ended, now) is not None
    assert begun == shows_mass_loss(now, LEASE, HEARTBEAT, listed, dropped, "c3")
    for name, (age, _) in listed.items():
        assert rule.keeps(name, pools[name].known_since, now) == (begun and age >= 3 * LEASE)


# ---- how a hold goes on and ends


def cut(shape: Iterable[int] = (3, 3), returns: dict[PoolKey, float] | None = None) -> Course:
    """All clusters are cut at 0 with spread heartbeats; those named come back at a moment, and are new lives then."""
    pools = {}
    for cluster, size in enumerate(shape):
        for number in range(size):
            pools[key(cluster, number)] = Pool(born=-100.0 - number, silent=0.0)
    return Course(pools)


def comes_back(course: Course, name: PoolKey, at: float) -> None:
    pool = course.listed[name]
    course.listed[name] = Pool(born=at, silent=float("inf"), known_since=pool.known_since)


def test_the_hold_ends_one_lease_after_half_of_the_lost_are_back() -> None:
    course = cut().run(20.0)
    begun = course.begun[0]
    for number in range(2):
        comes_back(course, key(0, number), 20.0)
    course.run(40.0)
    assert course.over == []
    comes_back(course, key(1, 0), 40.0)
    course.run(80.0)
    ((at, ended),) = course.over
    assert 40.0 + LEASE <= at <= 40.0 + LEASE + 2.1
    assert (ended.lost, ended.back, ended.half_are_back) == (6, 3, True)
    assert at < begun + HOLD
    assert set(course.gone) == {key(0, 2), key(1, 1), key(1, 2)}


def test_the_end_moves_away_again_when_those_that_are_back_are_lost_anew() -> None:
    course = cut().run(20.0)
    for number in range(3):
        comes_back(course, key(0, number), 20.0)
    course.run(22.0)
    for number in range(3):
        course.listed[key(0, number)].silent = 21.0
    course.run(course.begun[0] + HOLD - 0.1)
    assert course.over == []
    assert course.gone == {}
    course.run(course.begun[0] + HOLD + 1)
    assert len(course.gone) == 6


def test_a_pool_that_ends_during_the_hold_is_kept_too_and_counts_for_its_end() -> None:
    course = cut((3, 3, 6))
    for number in range(2):
        course.pools[key(2, number)].silent = float("inf")
    course.run(30.0)
    assert len(course.begun) == 1
    for number in range(2):
        course.pools[key(2, number)].silent = 20.0
    course.run(course.begun[0] + HOLD - 0.1)
    assert course.gone == {}
    course.run(course.begun[0] + HOLD)
    ((_, ended),) = course.over
    assert (ended.lost, ended.back) == (12, 0)


def test_young_pools_and_deregistered_ones_leave_during_a_hold_and_the_local_clusters_stay() -> None:
    rule = begun_rule(local="c9")
    assert not rule.keeps(key(5), 1000.0 - 3 * LEASE + 0.1, 1000.0)
    assert rule.keeps(key(5), 1000.0 - 3 * LEASE, 1000.0)
    assert rule.keeps(key(9), 0.0, 1000.0)
    rule.keep(key(9))
    rule.keep(key(0, 0))
    rule.deregistered(key(0, 0))
    ended = rule.ended(1000.0 + HOLD)
    assert ended is not None
    assert (ended.kept, ended.lost) == ([key(9)], 3)


def begun_rule(hold: float = HOLD, local: str | None = None, now: float = 1000.0) -> MassLoss:
    """A rule that has just begun a hold: two pools in each of two clusters are lost."""
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=hold, local_cluster_id=local)
    survey(rule, FOUR, now)
    figures = rule.begins(FOUR, now)
    assert figures == [("c0", 2, 2), ("c1", 2, 2)]
    return rule


FOUR = [key(0, 0), key(0, 1), key(1, 0), key(1, 1)]
OLD = {name: Pool(0, 0, known_since=0.0) for name in FOUR}


def survey(rule: MassLoss, lost: Iterable[PoolKey], now: float, alive: Iterable[PoolKey] = ()) -> None:
    """Every pool is old; those that are lost are gone from the store."""
    left = dict.fromkeys(lost, None) | dict.fromkeys(alive, LEASE)
    rule.surveyed({name: Pool(0, 0, known_since=0.0) for name in left}, left, now, EPOCH)


def test_what_a_hold_kept_to_its_end_begins_no_other_and_is_kept_by_none() -> None:
    rule = begun_rule()
    for name in FOUR:
        rule.keep(name)
    now = 1000.0 + HOLD
    assert rule.ended(now) is not None
    survey(rule, FOUR, now)
    assert rule.begins(FOUR, now) is None
    others = [key(2, number) for number in range(2)] + [key(3, 0)]
    survey(rule, [*FOUR, *others], now + 2)
    assert rule.begins(others, now + 2) == [("c2", 2, 2), ("c3", 1, 1)], "another loss is another hold"
    assert not rule.keeps(FOUR[0], 0.0, now + 2)


def test_what_a_short_hold_left_alive_but_late_begins_no_other_hold() -> None:
    rule = begun_rule(hold=1.0)
    assert rule.ended(1001.0) is not None
    late = dict.fromkeys(FOUR, 3.0)
    rule.surveyed({name: Pool(0, 0) for name in FOUR}, late, 1001.0, EPOCH)
    assert rule.begins(FOUR, 1001.0) is None


def test_what_was_dropped_before_a_short_hold_counts_no_more_after_it() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=1.0, local_cluster_id=None)
    for name in FOUR:
        rule.dropped(name, 0.0, 999.0)
    more = [key(0, 2), key(1, 2)]
    survey(rule, more, 1000.0)
    assert rule.begins(more, 1000.0) is not None
    assert rule.ended(1001.0) is not None
    survey(rule, [], 1002.0, alive=[key(0, 3), key(1, 3)])
    assert rule.begins([], 1002.0) is None


def test_nobody_is_asked_for_a_survey_while_a_hold_runs() -> None:
    rule = begun_rule()
    assert not rule.needs_survey(OLD, 1002.0, EPOCH)
    rule.ended(1000.0 + HOLD)
    survey(rule, [], 1000.0 + HOLD, alive=FOUR)
    assert rule.needs_survey(OLD, 1002.0 + HOLD, EPOCH)


def test_a_pool_that_came_back_counts_again() -> None:
    rule = begun_rule()
    for name in FOUR:
        rule.keep(name)
    rule.ended(1000.0 + HOLD)
    survey(rule, [], 1100.0, alive=FOUR)
    survey(rule, FOUR, 1200.0)
    assert rule.begins(FOUR, 1200.0) is not None


def test_a_pool_that_was_dropped_and_is_back_is_not_lost() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    for name in FOUR[:2]:
        rule.dropped(name, 0.0, 995.0)
        rule.registered(name)
    survey(rule, FOUR[2:], 1000.0)
    assert rule.begins(FOUR[2:], 1000.0) is None


def test_a_survey_serves_for_a_second_and_only_for_its_epoch() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    pools = {name: Pool(0, 0, known_since=0.0) for name in FOUR}
    assert rule.needs_survey(pools, 1000.0, EPOCH)
    rule.surveyed(pools, dict.fromkeys(FOUR, LEASE), 1000.0, EPOCH)
    assert not rule.needs_survey(pools, 1000.9, EPOCH)
    assert rule.needs_survey(pools, 1000.9, "e2")
    rule.surveyed(pools, dict.fromkeys(FOUR, LEASE), 1000.9, "e2")
    assert rule.needs_survey(pools, 1001.9, "e2")


def test_what_is_dropped_on_one_survey_adds_up() -> None:
    """A survey is used as it was taken, plus what was dropped since."""
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    survey(rule, [], 1000.0, alive=FOUR)
    for place, name in enumerate(FOUR):
        assert (rule.begins([name], 1000.1 + place / 10) is not None) == (place == 3)
        if place < 3:
            rule.dropped(name, 0.0, 1000.1 + place / 10)


# ---- holds of other replicas


def test_a_replica_joins_the_hold_of_another_and_leaves_with_it() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    rule.listed(1000.0)
    assert rule.told(None, 1000.0) is None
    assert rule.told("an outage", 1000.5) is None
    assert rule.told(REASON, 1001.0) == Joined()
    assert rule.told(REASON, 1002.0) is None
    assert not rule.holding
    assert rule.keeps(key(0), 1000.0, 1003.0), "the age of what was there before this replica is not known"
    assert not rule.keeps(key(1), 1000.5, 1003.0), "a pool that is known to be young just expires"
    rule.keep(key(0))
    assert rule.told(None, 1010.0) == Ended(9.0, [key(0)])
    assert not rule.keeps(key(0), 1000.0, 1010.0)


def test_a_replica_that_joined_begins_its_own_hold_when_it_sees_the_loss_itself() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    assert rule.told(REASON, 1000.0) == Joined()
    assert rule.needs_survey(OLD, 1001.0, EPOCH)
    survey(rule, FOUR, 1001.0)
    assert rule.begins(FOUR, 1001.0) is not None
    assert rule.told(None, 1002.0) is None, "its own hold does not end with that of the other"
    assert rule.until() == 1001.0 + HOLD


def test_what_is_kept_for_another_replica_counts_for_no_hold_of_this_one_when_it_is_old_enough() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    rule.told(REASON, 1000.0)
    for name in FOUR:
        rule.keep(name)
    survey(rule, FOUR, 1050.0)
    assert rule.begins(FOUR, 1050.0) is None
    assert rule.until() == 1000.0 + HOLD


def test_what_was_kept_for_another_replica_begins_no_hold_here() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    rule.told(REASON, 1000.0)
    for name in FOUR:
        rule.keep(name)
    assert rule.told(None, 1050.0) is not None
    survey(rule, FOUR, 1050.0)
    assert rule.begins(FOUR, 1050.0) is None


def test_a_hold_that_was_over_before_the_store_showed_its_word_is_joined_by_nobody_here() -> None:
    rule = begun_rule(hold=0.4)
    assert rule.ended(1000.4) is not None
    assert rule.told(REASON, 1000.5) is None


def test_a_hold_of_another_replica_ends_here_after_its_time_also_where_its_end_was_not_heard() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=HOLD, local_cluster_id=None)
    assert rule.told(REASON, 1000.0) == Joined()
    rule.keep(key(0))
    assert rule.ended(1000.0 + HOLD - 0.1) is None
    assert rule.ended(1000.0 + HOLD) == Ended(HOLD, [key(0)])
    assert rule.told(REASON, 1000.0 + HOLD + 1) is None, "the same word begins no second hold"
    assert rule.told(None, 1000.0 + HOLD + 2) is None
    assert rule.told(REASON, 1000.0 + HOLD + 3) == Joined()


def test_a_replica_that_holds_itself_joins_nobody_not_even_after_its_end() -> None:
    rule = begun_rule()
    assert rule.told(None, 1000.1) is None
    assert rule.told(REASON, 1001.0) is None
    ended = rule.ended(1000.0 + HOLD)
    assert ended is not None
    assert ended.lost == 4
    assert rule.told(REASON, 1000.0 + HOLD + 0.5) is None
    assert rule.until() is None


def test_where_it_is_switched_off_nobody_is_joined() -> None:
    rule = MassLoss(lease_secs=LEASE, heartbeat_secs=HEARTBEAT, hold_secs=0.0, local_cluster_id=None)
    assert rule.told(REASON, 1000.0) is None
    assert not rule.keeps(key(0), 0.0, 1000.0)
