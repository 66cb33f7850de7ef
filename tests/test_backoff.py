"""Waits between attempts: they grow, they end growing, they are spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.backoff import Backoff


def test_the_ceiling_doubles_up_to_the_limit_and_starts_over_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0, dice=lambda: 1.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5


def test_the_whole_range_below_the_ceiling_is_drawn_from() -> None:
    rolls = iter([0.0, 0.5, 0.25])
    backoff = Backoff(1.0, 8.0, dice=lambda: next(rolls))
    assert [backoff.next() for _ in range(3)] == [0.0, 1.0, 1.0]


def test_the_own_dice_spread_many_who_failed_together() -> None:
    waits = [Backoff(1.0, 1.0).next() for _ in range(200)]
    assert max(waits) - min(waits) > 0.5


@given(st.floats(0.001, 10), st.floats(1, 100), st.lists(st.floats(0, 1), min_size=1, max_size=80))
def test_no_wait_is_negative_or_above_the_limit(first: float, factor: float, rolls: list[float]) -> None:
    limit = first * factor
    dice = iter(rolls)
    backoff = Backoff(first, limit, dice=lambda: next(dice))
    assert all(0 <= backoff.next() <= limit for _ in rolls)


@pytest.mark.parametrize(("first", "limit"), [(0, 1), (-1, 1), (2, 1)])
def test_senseless_bounds_are_refused(first: float, limit: float) -> None:
    with pytest.raises(ValueError, match="a backoff needs"):
        Backoff(first, limit)
