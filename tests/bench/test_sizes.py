"""The arithmetic of S1, M2 and M5: what is beside what, what is flat, and how late the last stream may be."""

import pytest

from tests.bench.fanout import LIMITS, Sample, _rows
from tests.bench.goals import Row
from tests.bench.load import mark
from tests.bench.scale import lag_allowed
from tests.bench.sizes import _changes, _flatness


def costs(**samples):
    each = {}
    for name, sample in samples.items():
        row = Row("M2", name, "us", None)
        row.add(sample)
        each[int(name.removeprefix("of_"))] = row
    return each


@pytest.mark.parametrize(("dearest", "met"), [(75, True), (76, False)])
def test_the_dearest_size_is_beside_the_cheapest_wherever_they_are(dearest, met):
    flat = _flatness("change", "us", costs(of_100=60, of_1000=dearest, of_10000=50))
    assert flat.figure == pytest.approx(dearest / 50)
    assert flat.met is met


def test_a_megabyte_of_a_small_list_may_be_dear_but_one_of_a_large_list_not():
    each = costs(of_100=600, of_1000=200, of_10000=150, of_100000=320)
    assert _flatness("GET", "us/MB", each).figure == pytest.approx(1.6)
    assert _flatness("GET", "us/MB", each).reference_name == "1,000 pools"


@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_changes_go_round_as_many_pools_of_every_size_and_come_from_all_of_it(size):
    bodies = _changes(size)
    assert len(bodies) == 200
    assert all(mark(1) in body for body in bodies[:100])
    assert all(mark(2) in body for body in bodies[100:])
    assert b"pool-%06d" % (size // 100 * 99) in bodies[-1]


@pytest.mark.parametrize(("processors", "times"), [(1, 5.0), (2, 5.0), (4, 2.5), (8, 1.25), (64, 1.25)])
def test_the_last_stream_of_four_replicas_may_be_later_only_by_what_processors_are_missing(processors, times):
    assert lag_allowed(processors) == pytest.approx(times)


def test_where_memory_is_not_asked_for_no_row_wants_the_reference_for_it():
    named = {row.reference_name for row, _ in _rows(1000, ["fanout-transport", "fanout-queue"])}
    assert named == {"fanout-transport", "fanout-queue"}
    assert {field for _, field in _rows(1000, LIMITS)} < set(Sample._fields)
