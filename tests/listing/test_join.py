"""Registrations become listings; addresses that two pools claim are counted."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.listing.join import Join
from discovery.mcs.slices import Endpoints
from discovery.model import PoolKey, Registration
from discovery.registrations import parse
from tests.http.in_process import fields


def key(name: str) -> PoolKey:
    return PoolKey("c1", "n1", name)


def registration(name: str, *relays: str, **more: Any) -> Registration:
    return parse(json.dumps(fields(name, relays=[f"http://{relay}" for relay in relays], **more)).encode())


def test_a_registration_is_listed_with_its_own_addresses() -> None:
    said = registration("p1", "10.0.0.1:1", frontends=["http://10.0.0.2:2"], capabilities=["chat"], instance_id="i")
    [(listed_key, fragment)] = Join().registered([(key("p1"), said)], 0.0)
    assert listed_key == key("p1")
    assert fragment is not None
    assert fragment.key == key("p1")
    listed = json.loads(fragment.body)
    assert listed["relays"] == ["http://10.0.0.1:1"]
    assert {name: listed[name] for name in json.loads(msgspec.json.encode(said))} == json.loads(
        msgspec.json.encode(said)
    )


def test_a_pool_without_registration_leaves_and_others_are_not_touched() -> None:
    join = Join()
    join.registered([(key("p1"), registration("p1")), (key("p2"), registration("p2"))], 0.0)
    assert join.registered([(key("p1"), None)], 0.0) == [(key("p1"), None)]
    assert join.registered([(key("never"), None)], 0.0) == [(key("never"), None)]


def test_changes_keep_their_order() -> None:
    changes = [(key(name), registration(name)) for name in ("b", "c", "a")]
    assert [changed for changed, _ in Join().registered(changes, 0.0)] == [key("b"), key("c"), key("a")]


def test_f15_an_address_that_a_new_pool_took_over_is_counted_until_the_old_one_leaves() -> None:
    join = Join()
    join.registered([(key("old"), registration("old", "10.0.0.7:1"))], 0.0)
    assert join.shared_relay_addresses == 0
    join.registered([(key("new"), registration("new", "10.0.0.7:1"))], 0.0)
    assert join.shared_relay_addresses == 1
    join.registered([(key("third"), registration("third", "10.0.0.7:1", "10.0.0.8:1"))], 0.0)
    assert join.shared_relay_addresses == 1, "it is one address, however many pools claim it"
    join.registered([(key("third"), registration("third", "10.0.0.8:1"))], 0.0)
    join.registered([(key("old"), None)], 0.0)
    assert join.shared_relay_addresses == 0


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.sets(st.sampled_from(["h1", "h2", "h3"]))), max_size=20)
)
def test_the_count_of_shared_addresses_follows_from_what_is_registered(
    steps: list[tuple[str, set[str] | None]],
) -> None:
    join, relays = Join(), dict[str, set[str]]()
    for name, said in steps:
        join.registered([(key(name), None if said is None else registration(name, *said))], 0.0)
        relays[name] = said or set()
        users = [address for claimed in relays.values() for address in claimed]
        assert join.shared_relay_addresses == len({address for address in users if users.count(address) > 1})


# ---- two sides

LEASE = 6.0
SAY_AT = 2 * LEASE + LEASE / 3
"""When a pool that is alone in being one-sided is named: after two leases, and a heartbeat's time for others."""


class Sides:
    """A join over addresses that the test sets, with a clock of the test's own."""

    def __init__(self) -> None:
        self.seen: dict[PoolKey, Endpoints] = {}
        self.now = 100.0
        self.join = Join(self.seen.get, lease_secs=LEASE)
        assert self.join.due(self.now, all_read=True) == []

    def register(self, *names: str) -> None:
        self.join.registered([(key(name), registration(name)) for name in names], self.now)

    def deregister(self, *names: str) -> None:
        self.join.registered([(key(name), None) for name in names], self.now)

    def see(self, name: str, relays: int = 1, frontends: int = 1) -> bool:
        """Addresses come or go; whether the pool is listed then."""
        addresses = [
            tuple(f"http://{kind}{n}:1" for n in range(count))
            for kind, count in zip("rf", (relays, frontends), strict=True)
        ]
        self.seen[key(name)] = Endpoints(*addresses)
        if not relays and not frontends:
            del self.seen[key(name)]
        [(_, fragment)] = self.join.seen([key(name)], self.now)
        return fragment is not None

    def due(self, after: float = 0.0) -> list[str]:
        self.now += after
        return self.join.due(self.now, all_read=True)


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(("relays", "frontends"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_pool_is_listed_while_both_sides_agree(registered: bool, relays: int, frontends: int) -> None:
    sides = Sides()
    if registered:
        sides.register("p1")
    assert sides.see("p1", relays, frontends) == (registered and relays > 0)
    expected = {(True, 0): "registered", (False, 1): "ready"}.get((registered, relays))
    state = sides.join.one_sided.get(key("p1"))
    assert (state.side if state else None) == expected


def test_the_addresses_are_those_of_the_view_and_all_else_is_the_registrations() -> None:
    sides = Sides()
    sides.seen[key("p1")] = Endpoints(("http://r:1",), ("http://f:1",))
    said = registration("p1", "10.0.0.1:1", frontends=["http://10.0.0.2:2"], capabilities=["chat"], instance_id="i")
    [(_, fragment)] = sides.join.registered([(key("p1"), said)], 0.0)
    assert fragment is not None
    listed = json.loads(fragment.body)
    assert (listed["relays"], listed["frontends"]) == (["http://r:1"], ["http://f:1"])
    assert (listed["capabilities"], listed["instance_id"]) == (["chat"], "i")


@pytest.mark.parametrize("first_gone", ["registration", "relays"])
def test_a_pool_leaves_with_the_first_side_that_goes(first_gone: str) -> None:
    sides = Sides()
    sides.register("p1")
    assert sides.see("p1")
    if first_gone == "registration":
        assert sides.join.registered([(key("p1"), None)], sides.now) == [(key("p1"), None)]
        assert sides.join.one_sided[key("p1")].side == "ready"
    else:
        assert not sides.see("p1", relays=0)
        assert sides.join.one_sided[key("p1")].side == "registered"


@pytest.mark.parametrize("side", ["registered", "ready"])
def test_a_one_sided_pool_is_said_once_after_two_leases_from_when_it_became_one(side: str) -> None:
    sides = Sides()
    sides.now += 1000
    sides.register("p1") if side == "registered" else sides.see("p1")
    assert sides.due(2 * LEASE - 0.1) == []
    assert sides.due(LEASE / 3 + 0.1) == [f"the pool c1/n1/p1 is only {side}"]
    assert sides.due(100 * LEASE) == []


def test_events_that_change_nothing_do_not_start_patience_anew() -> None:
    sides = Sides()
    sides.register("p1")
    for _ in range(10):
        sides.now += SAY_AT / 10
        sides.register("p1")
        sides.see("p1", relays=0)
    assert len(sides.due()) == 1


@pytest.mark.parametrize("how", ["agree", "both gone"])
def test_it_is_forgotten_when_both_agree_or_both_are_gone_and_can_be_said_again(how: str) -> None:
    sides = Sides()
    for _ in range(3):
        sides.register("p1")
        assert len(sides.due(SAY_AT)) == 1
        sides.see("p1") if how == "agree" else sides.deregister("p1")
        assert sides.join.one_sided == {}
        sides.see("p1", 0, 0)


def test_a_pool_that_agreed_in_time_is_never_said() -> None:
    sides = Sides()
    sides.register("p1")
    assert sides.due(2 * LEASE) == []
    sides.see("p1")
    assert sides.due(SAY_AT) == []


@pytest.mark.parametrize(("count", "lines"), [(1, 1), (19, 19), (20, 1), (1000, 1)])
def test_many_that_are_due_together_are_one_line(count: int, lines: int) -> None:
    sides = Sides()
    names = [f"p{number:04}" for number in range(count)]
    sides.register(*names)
    said = sides.due(SAY_AT)
    assert len(said) == lines
    assert sides.due(SAY_AT) == []
    if lines == 1 < count:
        assert said[0].startswith(f"{count} pools are known of one side only ({count} only registered, 0 only Ready)")
        assert "c1/n1/p0000, c1/n1/p0001" in said[0]
        assert said[0].endswith("/status lists all")


def test_what_one_cause_reaches_within_a_heartbeat_is_said_together() -> None:
    sides = Sides()
    for number in range(100):  # relays beat at different moments of one heartbeat interval
        sides.register(f"p{number}")
        sides.now += LEASE / 3 / 100
    said = [line for _ in range(200) for line in sides.due(LEASE / 20)]
    assert len(said) == 1
    assert said[0].startswith("100 pools")


def test_before_both_sides_were_read_nothing_is_said_and_patience_begins_after_that() -> None:
    sides = Sides()
    sides.register("p1", "p2")
    sides.see("p2", frontends=0)
    sides.now += 10 * LEASE
    assert sides.join.due(sides.now, all_read=False) == []
    assert sides.due(1) == []
    assert sides.due(LEASE) == ["the pool c1/n1/p2 is listed without frontends"]
    assert sides.due(SAY_AT) == ["the pool c1/n1/p1 is only registered"]


def test_a_pool_without_frontends_is_said_once_and_again_after_they_came_back() -> None:
    sides = Sides()
    sides.register("p1")
    for _ in range(3):
        assert sides.see("p1", frontends=0)
        assert sides.due(1) == []
        sides.see("p1", frontends=0)
        assert len(sides.due(LEASE)) == 1
        sides.see("p1", relays=2, frontends=0)
        assert sides.due(LEASE) == []
        sides.see("p1", frontends=1)
        assert sides.due(LEASE) == []


def test_a_pool_that_is_not_listed_is_not_said_to_be_without_frontends() -> None:
    sides = Sides()
    sides.see("p1", frontends=0)
    assert sides.due(LEASE) == []
    sides.register("p1")
    sides.deregister("p1")
    assert all("frontends" not in line for line in sides.due(SAY_AT))


def test_what_somebody_else_has_said_is_not_said_again() -> None:
    sides = Sides()
    sides.register("p1", "p2")
    sides.join.told([key("p1")])
    assert sides.due(SAY_AT) == ["the pool c1/n1/p2 is only registered"]


def test_f15_addresses_that_two_pools_have_in_mcs_are_counted() -> None:
    sides = Sides()
    sides.register("old", "new")
    sides.see("old")
    assert sides.join.shared_relay_addresses == 0
    sides.see("new")
    assert sides.join.shared_relay_addresses == 1
    sides.deregister("old")
    assert sides.join.shared_relay_addresses == 0
