"""When the end of a lease may be acted on: every rule as a short history with the right answer at each moment."""

from hypothesis import given
from hypothesis import strategies as st

from discovery.stores.holds import Holds

LEASE = 15.0


def healthy(now: float = 0.0) -> Holds:
    holds = Holds(LEASE)
    holds.answered(now)
    return holds


def test_a_healthy_store_is_acted_on_at_once() -> None:
    holds = healthy()
    assert holds.acts_at(100.0, holds.readable_secs(100.0))
    assert holds.next_action(100.0) is None
    assert holds.loss(100.0) is None


def test_nothing_is_acted_on_from_the_first_failed_call_to_one_lease_after_the_store_answers() -> None:
    holds = healthy()
    assert holds.failed(100.0)
    assert not holds.failed(101.0)
    assert holds.failing_since == 100.0
    overdue = holds.readable_secs(105.0)
    assert not holds.acts_at(200.0, overdue)
    assert holds.answered(120.0) == 20.0
    assert not holds.acts_at(134.9, overdue)
    assert holds.next_action(121.0) == 135.0
    assert holds.acts_at(135.0, overdue)


def test_an_answer_without_an_outage_begins_no_hold() -> None:
    holds = healthy()
    assert holds.answered(50.0) is None
    assert holds.acts_at(50.0, holds.readable_secs(50.0))


def test_a_loss_holds_for_one_lease_and_says_why() -> None:
    holds = healthy()
    holds.lost(100.0, "a new epoch")
    assert holds.loss(114.9) == "a new epoch"
    assert holds.loss(115.0) is None
    assert not holds.acts_at(114.9, holds.readable_secs(100.0))
    assert holds.acts_at(115.0, holds.readable_secs(100.0))


def test_a_second_loss_holds_for_one_lease_from_then_on() -> None:
    holds = healthy()
    holds.lost(100.0, "first")
    holds.lost(110.0, "second")
    assert holds.loss(120.0) == "second"
    assert not holds.acts_at(120.0, holds.readable_secs(100.0))


def test_however_many_losses_follow_a_pool_outlives_its_lease_by_two_leases_at_most() -> None:
    holds = healthy()
    overdue = holds.readable_secs(100.0)
    for now in range(100, 131, 5):
        holds.lost(float(now), "an evicting store")
    assert not holds.acts_at(129.9, overdue)
    assert holds.acts_at(130.0, overdue)


def test_time_in_which_the_store_could_not_be_read_does_not_count_against_a_pool() -> None:
    holds = healthy()
    overdue = holds.readable_secs(100.0)
    for start in range(100, 200, 10):  # readable for one second in ten
        holds.failed(start + 1.0)
        holds.answered(start + 10.0)
    assert holds.readable_secs(200.0) - overdue == 10.0
    assert not holds.acts_at(200.0, overdue)


steps = st.lists(st.tuples(st.sampled_from(["failed", "answered", "lost", "wait"]), st.floats(0.1, 40.0)), max_size=30)


@given(steps)
def test_no_history_ends_a_hold_early_or_keeps_a_pool_for_ever(history: list[tuple[str, float]]) -> None:
    holds, now = healthy(), 0.0
    overdue, failing, hold_until = holds.readable_secs(now), False, float("-inf")
    for word, secs in history:
        now += secs
        if word == "failed":
            holds.failed(now)
            failing = True
        elif word == "answered":
            holds.answered(now)
            hold_until = now + LEASE if failing else hold_until
            failing = False
        elif word == "lost":
            holds.lost(now, "loss")
            hold_until = max(hold_until, now + LEASE)
        bound = holds.readable_secs(now) - overdue >= 2 * LEASE
        assert holds.acts_at(now, overdue) == (not failing and (now >= hold_until or bound))
        assert holds.readable_secs(now) <= now


def test_a_loss_does_not_end_while_the_store_fails() -> None:
    holds = Holds(LEASE)
    holds.answered(0.0)
    holds.lost(0.0, "leases had ended")
    holds.failed(1.0)
    assert holds.loss(50 * LEASE) == "leases had ended"
    holds.answered(50 * LEASE)
    assert holds.loss(51 * LEASE - 0.1) == "leases had ended"
    assert holds.loss(51 * LEASE) is None


def test_an_outage_that_begins_after_a_loss_is_over_is_none() -> None:
    holds = Holds(LEASE)
    holds.answered(0.0)
    holds.lost(0.0, "leases had ended")
    holds.failed(LEASE + 1)
    assert holds.loss(LEASE + 2) is None
    holds.lost(LEASE + 3, "another")
    assert holds.loss(9 * LEASE) == "another"
