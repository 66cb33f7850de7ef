"""The client through a thousand random faults, on virtual time: all it shows was told, and soon it is current again."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client_faults.course import BABBLE, NAMES, Course

pytestmark = pytest.mark.timeout(120)

FAULTS_AT_LEAST = 1000

which = st.integers(0, 2)
secs = st.sampled_from([0.05, 0.4, 1.0, 3.0, 12.0])
waits = st.sampled_from([0.0, 0.002, 0.05, 0.4, 1.1, 3.0])
number = st.integers(0, 29)
operations = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=4)
changes = st.lists(operations, min_size=1, max_size=4)


def step(word: str, *what: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(word), *what, waits)


proxies = ["status", "later", "page", "wrong", "truncated", "no HTTP", "nothing", "hangs", "buffers", "cuts"]
proxies += ["strips", "no streams"]
steps = st.one_of(
    step("change", operations),
    step("undone", st.sampled_from(NAMES), operations),
    step("doubt"),
    step("lag", which, st.sampled_from([0.0, 0.02, 0.3, 1.5])),
    step("fall behind", which, st.sampled_from([0.3, 1.0, 1.5]), operations),
    step("cut", which),
    step("cut amid", st.integers(1, 900), operations),
    step("cut amid", st.integers(1, 900), operations),
    step("freeze", which, secs, st.sampled_from(["thaw", "cut", "never"])),
    step("pause", which, secs),
    step("refuse", which, secs),
    step("vanish", which, secs),
    step("names", st.sampled_from(["fails", "hangs"]), secs),
    step("restart", which, secs, st.sampled_from([0.0, 0.7, 2.0]), st.integers(0, 4), changes),
    step("stall", secs, st.sampled_from(["thaw", "cut", "never"]), changes),
    step("slow", st.sampled_from([0.2, 0.5, 0.9]), changes),
    step("drain", which, secs),
    step("pieces", st.sampled_from([1, 7, 200]), st.sampled_from([0.0, 0.002, 0.02]), secs),
    step("babble", st.sampled_from(range(len(BABBLE))), operations),
    step("proxy", which, st.sampled_from(proxies), number, secs),
    step("proxy", which, st.sampled_from(proxies), number, secs),
    step("proxy", which, st.sampled_from(proxies), number, secs),
)
bursts = st.lists(st.lists(steps, min_size=3, max_size=12), min_size=1, max_size=3)
courses = {
    "way": st.sampled_from(["URLs", "addresses", "balancer"]),
    "count": st.integers(1, 3),
    "seed": st.integers(0, 2**16),
    "drawn": bursts,
}
RARELY = (HealthCheck.too_slow, HealthCheck.data_too_large)
MOST = settings(deadline=None, suppress_health_check=RARELY)


def through(examples: settings) -> tuple[int, int]:
    """Runs courses; how many faults there were, and how many snapshots were judged."""
    counts = [0, 0]

    @examples
    @given(**courses)
    def run(way: str, count: int, seed: int, drawn: list[list[tuple[Any, ...]]]) -> None:
        course = Course(way, count)
        course.run(seed, drawn)
        counts[0] += course.faults
        counts[1] += course.oracle.judged

    run()
    return counts[0], counts[1]


def test_through_a_thousand_random_faults() -> None:
    """The same ones each time, so that no run fails by chance; others are for the soak."""
    faults, judged = through(settings(MOST, max_examples=120, derandomize=True, database=None))
    print(f"{faults} faults, {judged} snapshots judged")
    assert faults >= FAULTS_AT_LEAST
    assert judged > faults


@pytest.mark.live  # not real processes, but nothing for the fast tests either
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_through_many_thousand_faults_by_chance() -> None:
    faults, judged = through(settings(MOST, max_examples=3000))
    print(f"{faults} faults, {judged} snapshots judged")
