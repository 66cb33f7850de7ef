"""What the dates of answers tell of the table's clock."""

import itertools
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.stores.dynamodb.clock import APART_SECS, TableClock, seconds_of

AHEAD = 1_800_000_000.25


def answered(clock: TableClock, ahead: float, sent_at: float, took: float, late: float = 0.5) -> None:
    """An answer whose date was made ``late`` of the way between question and answer."""
    clock.observe(float(int(sent_at + took * late + ahead)), sent_at, sent_at + took)


def test_one_answer_tells_the_time_within_half_a_second_and_half_of_its_way() -> None:
    clock = TableClock()
    assert not clock.known
    answered(clock, AHEAD, 100.0, 0.02)
    assert clock.known
    assert abs(clock.at(100.0) - (100.0 + AHEAD)) <= 0.51


@given(
    ahead=st.floats(1.7e9, 1.9e9),
    asked=st.lists(st.tuples(st.floats(0.1, 2.0), st.floats(0.001, 0.3), st.floats(0.0, 1.0)), min_size=1, max_size=40),
)
def test_answers_never_lead_away_from_the_true_time(ahead: float, asked: list[tuple[float, float, float]]) -> None:
    clock, now, widest = TableClock(), 50.0, 0.0
    for pause, took, late in asked:
        now += pause
        answered(clock, ahead, now, took, late)
        widest = max(widest, took)
        assert abs(clock.at(now) - (now + ahead)) <= (1.0 + widest) / 2 + 0.01


def test_answers_at_other_parts_of_a_second_narrow_it_down() -> None:
    clock = TableClock()
    for number in range(10):
        answered(clock, AHEAD, 100.0 + number * 1.1, 0.01)
    assert abs(clock.at(111.0) - (111.0 + AHEAD)) < 0.12


def test_servers_that_differ_by_little_do_not_throw_away_what_is_known() -> None:
    clock = TableClock()
    for number, apart in zip(range(60), itertools.cycle((0.0, APART_SECS / 3)), strict=False):
        answered(clock, AHEAD + apart, 100.0 + number * 1.03, 0.01)
        if number > 20:
            assert abs(clock.at(100.0) - (100.0 + AHEAD)) < APART_SECS


@pytest.mark.parametrize("jump", [-3600.0, -30.0, 30.0, 3600.0])
def test_a_clock_that_was_set_is_believed_at_once(jump: float) -> None:
    clock = TableClock()
    for number in range(10):
        answered(clock, AHEAD, 100.0 + number * 1.1, 0.01)
    answered(clock, AHEAD + jump, 120.0, 0.01)
    assert abs(clock.at(120.0) - (120.0 + AHEAD + jump)) <= 0.51


def test_dates_are_read_as_they_are_sent() -> None:
    assert seconds_of(formatdate(1_796_057_444, usegmt=True)) == 1_796_057_444.0
    assert seconds_of(None) is None
    assert seconds_of("tomorrow") is None
    assert seconds_of("") is None
