"""Registrations become listings; addresses that two pools claim are counted."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from discovery.listing.join import Join
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
