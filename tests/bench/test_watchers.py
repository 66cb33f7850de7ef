"""The arithmetic of many watchers: who has seen what, and when a subscriber is current."""

import math

import pytest

from tests.bench.goals import NONE_AT_ALL, Bound
from tests.bench.load import get_request, mark, registration
from tests.bench.mixed import heartbeats
from tests.bench.plan import FULL, QUICK
from tests.bench.storm import Read, delays, last_mark
from tests.bench.watchers import Sightings

MS = 1_000_000


def test_a_mark_is_seen_by_all_when_the_last_watcher_has_it():
    sightings = Sightings(2)
    sightings.take(0, mark(1) + mark(2), 10)
    sightings.take(1, mark(1), 30)
    assert sightings.by_all(1)
    assert not sightings.by_all(2)
    assert sightings.times() == {1: 30}


def test_a_mark_that_one_watcher_sees_twice_does_not_stand_for_another_watcher():
    sightings = Sightings(2)
    for now in (10, 20):
        sightings.take(0, mark(1), now)
    assert sightings.times() == {}


@pytest.mark.parametrize("cut", range(1, len(mark(7))))
def test_a_mark_in_two_reads_is_seen_with_the_second_one(cut):
    sightings, text = Sightings(1), mark(7)
    sightings.take(0, b"x" * 100 + text[:cut], 10)
    sightings.take(0, text[cut:] + b"x" * 100, 20)
    assert sightings.times() == {7: 20}
    assert last_mark(text[:cut]) == 0
    assert last_mark(text[:cut] + text[cut:]) == 7


def test_the_last_mark_of_a_read_is_the_last_whole_one():
    assert last_mark(registration(0, 5) + registration(1, 6)) == 6
    assert last_mark(b"nothing") == last_mark(b"") == last_mark(b'5-end"') == 0


def test_a_subscriber_is_current_with_every_change_up_to_the_one_that_it_read():
    due = [10 * MS, 20 * MS, 30 * MS]
    reads = [[Read(25 * MS, 0, 8), Read(40 * MS, 8, 9)], [Read(31 * MS, 6, 9)]]
    assert sorted(delays(due, reads, first_number=7)) == [1.0, 5.0, 10.0, 11.0, 15.0, 21.0]


def test_heartbeats_go_round_the_pools_with_a_new_quantity_each_time():
    bodies = [registration(index) for index in range(3)]
    request = heartbeats(bodies, 2)
    first, again, other = request(0), request(3), request(1)
    assert b'"quantity":12000' in first
    assert b'"quantity":12001' in again
    assert first.replace(b"12000", b"12001") == again
    assert b"pool-000001" in other
    assert len(first) == len(again) == len(other)


def test_an_eased_bound_is_met_a_tenth_away_and_nothing_at_all_stays_nothing():
    assert Bound(">=", 0.6).eased(0.9).value == pytest.approx(0.54)
    assert Bound("<=", 0.9).eased(0.9).value == pytest.approx(1.0)
    assert NONE_AT_ALL.eased(0.9) == NONE_AT_ALL
    assert not Bound("<=", 1).eased(0.9).holds(math.nan)


def test_a_run_is_about_all_sizes_that_a_goal_names_or_those_asked_for():
    assert FULL.of_sizes((100, 1000)) == [100, 1000]
    assert QUICK.of_sizes((100, 1000)) == [1000]


def test_a_request_has_the_headers_that_are_asked_for():
    assert get_request("/a", "X: 1") == b"GET /a HTTP/1.1\r\nHost: bench\r\nX: 1\r\n\r\n"
    assert get_request("/a") == b"GET /a HTTP/1.1\r\nHost: bench\r\n\r\n"
