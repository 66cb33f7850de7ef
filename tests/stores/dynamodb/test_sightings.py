"""Liveness by observed renewal: rules as tables, and a world of writers with any clocks against what is promised."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.model import PoolKey
from discovery.stores.dynamodb.items import Item
from discovery.stores.dynamodb.sightings import Found, Sightings, WholeRead

LEASE = 15.0
AHEAD = 1_800_000_000.0
KEY, OTHER = PoolKey("c", "n", "a"), PoolKey("c", "n", "b")
HOUR = 3600.0


class Table:
    """A table whose clock is ``AHEAD`` of the reader's, and one reader of it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rows: dict[PoolKey, Item] = {}
        self.sightings = Sightings(LEASE)
        self.asked_at = 0.0

    def write(
        self, key: PoolKey = KEY, *, value: bytes = b"v", clock: float = 0.0, lease: float | None = LEASE
    ) -> None:
        """A renewal by a writer whose clock is off by ``clock``."""
        ends = self.now + AHEAD + clock + (lease or LEASE)
        self.rows[key] = Item(key, value, round(ends * 1000), lease)

    def begin(self) -> tuple[int, float]:
        return self.sightings.begin(), self.now

    def end(self, begun: tuple[int, float], rows: dict[PoolKey, Item] | None = None) -> list[PoolKey]:
        number, self.asked_at = begun
        found = {key: Found(item, self.now, self.now + AHEAD) for key, item in (rows or self.rows).items()}
        return self.sightings.apply(WholeRead(number, self.asked_at, self.asked_at + AHEAD, found))

    def read(self) -> list[PoolKey]:
        return self.end(self.begin())

    def listed(self, key: PoolKey = KEY) -> bool:
        return key in self.sightings.running(self.asked_at)

    def left(self, key: PoolKey = KEY) -> float | None:
        return self.sightings.left_secs(key, self.asked_at, self.asked_at)


@pytest.fixture
def table() -> Table:
    return Table()


def test_on_first_sight_the_end_is_judged_by_the_clock_of_the_table(table: Table) -> None:
    table.write(clock=-5.0)
    table.write(OTHER, clock=-LEASE - 1)
    table.read()
    assert table.left() == pytest.approx(10.0, abs=0.01)
    assert not table.listed(OTHER)


def test_what_says_that_it_lives_for_ever_lives_one_lease_from_its_first_sight(table: Table) -> None:
    table.write(clock=24 * HOUR)
    table.read()
    assert table.left() == pytest.approx(LEASE)
    table.now += LEASE
    table.read()
    assert not table.listed()


@pytest.mark.parametrize("clock", [-HOUR, -1.0, 0.0, 1.0, HOUR])
def test_a_renewal_that_is_seen_counts_by_whatever_clock_it_was_written(table: Table, clock: float) -> None:
    table.write()
    table.read()
    for _ in range(10):
        table.now += 5.0
        table.write(clock=clock)
        table.now += 0.5
        table.read()
        assert table.left() == pytest.approx(LEASE)


def test_a_smaller_end_is_a_renewal_too(table: Table) -> None:
    table.write(clock=HOUR)
    table.read()
    table.now += 10.0
    table.write(clock=-HOUR)
    table.read()
    assert table.left() == pytest.approx(LEASE)


def test_what_was_seen_unchanged_for_a_lease_is_over_and_not_new_when_seen_again(table: Table) -> None:
    table.write(clock=HOUR)
    table.read()
    for _ in range(5):
        table.now += LEASE
        table.read()
        assert not table.listed()
        assert table.left() is None


def test_an_item_renewed_after_it_was_over_lives(table: Table) -> None:
    table.write()
    table.read()
    table.now += 2 * HOUR
    table.read()
    assert not table.listed()
    table.write()
    table.read()
    assert table.left() == pytest.approx(LEASE)


def test_renewals_while_nothing_could_be_read_keep_a_pool(table: Table) -> None:
    table.write()
    table.read()
    table.now += 55.0
    table.write()
    table.now += 5.0
    table.read()
    assert table.listed()


def test_a_pool_that_appeared_between_two_reads_was_written_in_between(table: Table) -> None:
    table.write(OTHER)
    table.read()
    table.now += 0.7
    table.write(clock=-LEASE - 0.3)
    table.now += 0.4
    table.read()
    assert table.listed(), "by its own word it is over, but the last read did not have it"
    assert table.sightings.missed == 0


def test_a_pool_that_came_and_ended_while_nothing_could_be_read_is_over_and_counted(table: Table) -> None:
    table.write(OTHER)
    table.read()
    table.now += 1.0
    table.write()
    table.now += 60.0
    table.read()
    assert not table.listed()
    assert table.sightings.missed == 1
    table.read()
    assert table.sightings.missed == 0


def test_an_item_put_by_hand_with_an_end_of_yesterday_is_over(table: Table) -> None:
    table.write(OTHER)
    table.read()
    table.now += 1.0
    table.write(clock=-24 * HOUR)
    table.read()
    assert not table.listed()


def test_an_item_says_how_long_its_lease_is_and_one_that_does_not_has_ours(table: Table) -> None:
    table.read()
    table.write(lease=3.0)
    table.write(OTHER, lease=None)
    table.read()
    assert (table.left(), table.left(OTHER)) == (pytest.approx(3.0), pytest.approx(LEASE))


# ---- what leaves


def test_what_is_no_longer_there_has_left_but_not_what_was_over_before(table: Table) -> None:
    table.write()
    table.write(OTHER, clock=-HOUR)
    table.read()
    table.rows.clear()
    table.rows[PoolKey("c", "n", "c")] = Item(PoolKey("c", "n", "c"), b"v", 0, None)
    assert table.read() == [KEY]
    assert table.read() == []


def test_a_write_of_ours_is_newer_than_a_read_that_began_before_it(table: Table) -> None:
    table.write(value=b"old")
    before = dict(table.rows)
    table.read()
    begun = table.begin()
    ends_ms = round((table.now + AHEAD + LEASE) * 1000) + 7
    table.sightings.wrote(KEY, b"new", ends_ms, table.now + LEASE)
    table.sightings.wrote(OTHER, b"new", ends_ms, table.now + LEASE)
    assert table.end(begun, before) == []
    assert table.sightings.value(KEY) == b"new"
    assert table.listed(OTHER)
    assert table.end(table.begin(), before) == [OTHER]


def test_a_removal_of_ours_is_newer_than_a_read_that_began_before_it(table: Table) -> None:
    table.write()
    table.read()
    begun = table.begin()
    table.sightings.removed(KEY)
    assert table.end(begun) == []
    assert not table.listed()
    table.read()
    assert table.listed(), "whoever registers after a removal is seen by the next read"


def test_removals_that_no_read_ever_follows_are_not_remembered_for_ever(table: Table) -> None:
    for number in range(10_050):
        table.sightings.removed(PoolKey("c", "n", str(number)))
    assert len(table.sightings._removed) == 10_000


def test_a_renewal_never_writes_the_end_that_is_there(table: Table) -> None:
    table.sightings.wrote(KEY, b"v", 5000, 1.0)
    assert table.sightings.mark(KEY, 5000) == 5001
    assert table.sightings.mark(KEY, 5002) == 5002
    assert table.sightings.mark(OTHER, 5000) == 5000


def test_what_was_replaced_lived_if_its_lease_ran_by_what_was_seen_of_it(table: Table) -> None:
    table.write(clock=HOUR)
    table.read()
    there = table.rows[KEY]
    assert table.sightings.lives(there, table.now, table.now + AHEAD)
    table.now += LEASE + 1
    assert not table.sightings.lives(there, table.now, table.now + AHEAD), "seen unchanged for a lease"
    unseen = there._replace(lease_ends_ms=round((table.now + AHEAD + 1) * 1000))
    assert table.sightings.lives(unseen, table.now, table.now + AHEAD)
    assert not table.sightings.lives(unseen, table.now, table.now + AHEAD + 2)


# ---- an outage before the first read


@pytest.mark.parametrize(
    ("ended_ago", "renewed_ago", "suspected"),
    [
        ([], [1, 2], 0),
        ([], [], 0),
        ([20, 30], [], 2),
        ([20, 20, 20], [4, 4], 3),
        ([20, 21], [1, 2, 0.5, 1], 2),
        ([20, 21], [1, 2, 4, 5], 0),
        ([20], [1, 2, 0.5, 1], 1),
        ([20], [1, 2, 4, 1], 0),
        ([20], [], 1),
        ([40], [], 0),
        ([40], [1], 0),
        ([40, 60, 100, 140], [1], 0),
        ([40, 41, 100, 140], [1], 2),
        ([2 * HOUR] * 9, [4], 9),
        ([2 * HOUR] * 9, [4] * 9, 0),
        ([25 * HOUR] * 9, [4], 0),
        ([25 * HOUR] * 9, [], 0),
    ],
)
def test_a_first_read_that_finds_ended_leases_may_follow_an_outage(
    ended_ago: list[float], renewed_ago: list[float], suspected: int
) -> None:
    table, found = Table(), {}
    ends = [-secs for secs in ended_ago] + [LEASE - secs for secs in renewed_ago]
    for number, left in enumerate(ends):
        key = PoolKey("c", "n", str(number))
        item = Item(key, b"v", round((table.now + AHEAD + left) * 1000), LEASE)
        found[key] = Found(item, table.now, table.now + AHEAD)
    assert WholeRead(1, table.now, table.now + AHEAD, found).lapsed_in_outage(LEASE) == suspected


# ---- a world

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([-HOUR, -2.0, 0.0, 0.3, HOUR])),
        st.tuples(st.just("read"), st.floats(0.0, 0.3)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 4.0, 14.0, 16.0, 60.0])),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(STEPS)
def test_no_living_pool_is_over_and_no_dead_one_stays(steps: list[tuple[str, Any]]) -> None:
    """Once it was seen: alive for a lease from its last write, and over a lease after the first read that saw that."""
    table = Table()
    table.write()
    table.read()
    written_at, seen_at = table.now, table.now
    for what, how in steps:
        table.now += 0.01
        if what == "write":
            table.write(clock=how)
            written_at = table.now
        elif what == "wait":
            table.now += how
        else:
            begun = table.begin()
            table.now += how
            assert table.end(begun) == []
            if seen_at < written_at:
                seen_at = table.now
            if begun[1] < written_at + LEASE:
                assert table.listed()
            if begun[1] > seen_at + LEASE:
                assert not table.listed()
