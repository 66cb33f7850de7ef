"""The arithmetic of K1 and K2: what is imported, what each event makes of it, and when that was seen."""

import argparse
import json
from collections import Counter

import pytest

from discovery.mcs.names import Names
from discovery.mcs.origin import Rules
from discovery.mcs.slices import Slices
from discovery.model import PoolKey
from tests.bench.arguments import minutes
from tests.bench.goals import NONE_AT_ALL
from tests.bench.imports import FRONTEND_SLICES, FRONTENDS, RELAY_SLICES, SLICES, ImportedPools
from tests.bench.load import CannotMeasure
from tests.bench.plan import FULL, QUICK
from tests.bench.watching import EventRows, Seen, Sent, Window, delays, first_list
from tests.mcs.shapes import slice_of

COUNT = 40
A, B = ("c1", "n1", "a"), ("c1", "n1", "b")
BEFORE, AFTER = frozenset({"http://10.0.0.1:8000", "http://10.0.0.2:8000"}), frozenset({"http://10.0.0.1:8000"})
MS = 1_000_000


def seen_by_the_service(slices, key):
    found = slices.endpoints(PoolKey(*key))
    return frozenset((*found.relays, *found.frontends))


@pytest.fixture(name="pools")
def pools_fixture():
    return ImportedPools(COUNT)


@pytest.fixture(name="view")
def view_fixture(pools):
    slices = Slices(Names(), Rules("mcs", None, False))
    assert not slices.relist(slice_of(found) for found in pools.slices()).warnings
    return slices


def test_the_goal_is_about_2_000_pools_in_10_000_slices_in_every_plan():
    assert {plan.watched_pools * SLICES for plan in (FULL, QUICK)} == {10_000}


def test_every_slice_has_a_name_and_every_endpoint_an_address_of_its_own(pools):
    slices = list(pools.slices())
    addresses = [endpoint["addresses"][0] for found in slices for endpoint in found["endpoints"]]
    assert len({found["metadata"]["name"] for found in slices}) == len(slices) == COUNT * SLICES
    assert len(set(addresses)) == len(addresses) == COUNT * (RELAY_SLICES + FRONTEND_SLICES * FRONTENDS)
    assert 1000 < len(json.dumps(slices[0])) < len(json.dumps(slices[-1])) < 4000  # as long as real ones


def test_the_service_makes_of_the_slices_the_pools_that_are_registered_with_the_addresses_that_are_expected(
    pools, view
):
    assert view.pool_keys() == {PoolKey(*key) for key in pools.urls()}
    for key, urls in pools.urls().items():
        assert seen_by_the_service(view, key) == urls
        assert len(urls) == RELAY_SLICES + FRONTEND_SLICES * FRONTENDS


def test_every_event_changes_one_pool_to_what_it_says_and_the_next_turn_changes_it_back(pools, view):
    there = {(found["metadata"]["namespace"], found["metadata"]["name"]) for found in pools.slices()}
    known, calls = pools.urls(), Counter()
    for number in range(2 * COUNT):
        event = pools.event(number)
        if event.call == "delete":
            place = (event.arguments["namespace"], event.arguments["name"])
            there.remove(place)
            touched = view.remove(next(name for name in map(slice_name, pools.slices()) if name == place), "")
        else:
            found = slice_of(event.arguments["manifest"])
            there.add(tuple(found.name))
            touched = view.apply(found)
        assert touched.keys == {PoolKey(*event.key)}
        assert seen_by_the_service(view, event.key) == event.urls != known[event.key]
        known[event.key] = event.urls
        calls[event.call] += 1
    assert known == pools.urls()
    assert len(there) == COUNT * SLICES
    assert calls == {"apply": 2 * COUNT - COUNT // 10, "delete": COUNT // 10}


def slice_name(found):
    return slice_of(found).name


def test_the_first_turn_touches_every_pool_once_so_that_a_change_is_alone_on_its_pool_for_long(pools):
    assert {pools.event(number).key for number in range(COUNT)} == pools.urls().keys()


def test_an_event_took_until_its_pool_was_first_shown_as_the_event_left_it():
    sent = [Sent(10 * MS, A, AFTER), Sent(20 * MS, B, AFTER)]
    seen = [
        Seen(12 * MS, A, BEFORE),  # older news
        Seen(13 * MS, B, AFTER),  # the state of before the event
        Seen(15 * MS, A, AFTER),
        Seen(23 * MS, B, AFTER),
        Seen(99 * MS, A, AFTER),
    ]
    assert delays(sent, seen) == ([5.0, 3.0], 0)


def test_an_event_that_was_never_shown_as_it_was_is_missing_and_not_quick():
    assert delays([Sent(10 * MS, A, AFTER)], [Seen(11 * MS, B, AFTER), Seen(12 * MS, A, BEFORE)]) == ([], 1)
    assert delays([Sent(10 * MS, A, AFTER)], [Seen(12 * MS, A, frozenset())]) == ([], 1)


@pytest.mark.parametrize(
    ("other", "unmet"),
    [
        ({}, []),
        ({"service_cpu": 0.51}, ["service_cpu"]),
        ({"p99_ms": 101.0}, ["p99_ms"]),
        ({"missing": 1}, ["missing"]),
        ({"lists": 1}, ["lists"]),
        ({"server_cpu": 0.9}, []),
        ({"pace": 90.0}, ["pace"]),
    ],
)
def test_each_goal_is_judged_by_its_own_sample(other, unmet):
    rows = EventRows.of(FULL)
    rows.add(Window(0.5, 2.0, 100.0, 0, 0, 0.1, 100.0)._replace(**other))
    assert [name for name, row in rows._asdict().items() if row.met is False] == unmet


def test_one_relist_in_one_round_is_not_met():
    rows = EventRows.of(FULL)
    good = Window(0.1, 2.0, 9.0, 0, 0, 0.1, 100.0)
    for window in (good, good._replace(lists=3), good):
        rows.add(window)
    assert rows.lists.bound == NONE_AT_ALL
    assert rows.lists.met is False


def test_slices_were_asked_for_when_the_first_list_was():
    requests = [{"verb": "get", "at": 1.0}, {"verb": "list", "at": 3.5}, {"verb": "list", "at": 3.0}]
    assert first_list([*requests, {"verb": "watch", "at": 2.0}]) == 3.0
    with pytest.raises(CannotMeasure, match="before it asked"):
        first_list(requests[:1])


@pytest.mark.parametrize("text", ["0", "-1", "ten", "nan", "601", "inf"])
def test_minutes_that_are_none_are_refused(text):
    assert minutes("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="at most 600"):
        minutes(text)
