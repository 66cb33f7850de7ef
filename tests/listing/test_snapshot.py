"""Listings as bytes: fragments, filters, bodies and their tags, and the frames of events."""

import json
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.listing import snapshot
from discovery.listing.snapshot import EVERYTHING, Filter, pool_fragment, router_fragment
from discovery.model import Listing, Router
from tests.http.in_process import pool

texts = st.text(st.characters(codec="utf-8"), max_size=8)
fragments = st.lists(texts.map(lambda text: json.dumps({"x": text}).encode()), max_size=40)


# ---- one listing


def test_a_fragment_is_the_listing_as_json_under_its_key() -> None:
    fragment = pool_fragment(pool("p1", instance_id="i", capacity=[{"resource": "gpu", "quantity": 2}]))
    assert fragment.key == ("c1", "n1", "p1")
    assert json.loads(fragment.body) == {
        "cluster_id": "c1",
        "namespace": "n1",
        "dgd_name": "p1",
        "model": "m",
        "relays": [],
        "frontends": [],
        "capabilities": [],
        "capacity": [{"resource": "gpu", "quantity": 2}],
        "location": {},
        "instance_id": "i",
        "metadata": {},
    }


@pytest.mark.parametrize(
    "change",
    [
        {"model": "m2"},
        {"instance_id": "i2"},
        {"metadata": {"a": "b"}},
        {"frontends": ["http://a"]},
        {"cluster_id": "c"},
    ],
)
def test_a_listing_that_says_something_else_has_another_digest_and_token(change: dict[str, Any]) -> None:
    one, same, other = pool_fragment(pool()), pool_fragment(pool()), pool_fragment(pool(**change))
    assert (one.digest, one.token) == (same.digest, same.token)
    assert one.digest != other.digest
    assert one.token != other.token


def test_a_token_fits_a_header_and_an_event() -> None:
    token = pool_fragment(pool()).token
    assert len(token) == 32
    assert set(token) <= set("0123456789abcdef")


def test_a_router_is_listed_by_its_id() -> None:
    fragment = router_fragment(Router("router-0", "http://10.0.1.5:9000"))
    assert fragment.key == ("router-0",)
    assert json.loads(fragment.body) == {"id": "router-0", "url": "http://10.0.1.5:9000"}


# ---- filters

POOL = pool("p1", capabilities=["chat", "tools"], location={"region": "eu"})


def only(**wanted: set[str]) -> Filter:
    return Filter(**{name: frozenset(values) for name, values in wanted.items()})


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        ({}, True),
        ({"model": {"m"}}, True),
        ({"model": {"M"}}, False),
        ({"model": {"other", "m"}}, True),
        ({"cluster_id": {"c1"}}, True),
        ({"cluster_id": {"c2"}}, False),
        ({"cluster_id": {"c2", "c1"}}, True),
        ({"namespace": {"n1"}}, True),
        ({"namespace": {"n"}}, False),
        ({"namespace": {"n", "n1"}}, True),
        ({"region": {"eu"}}, True),
        ({"region": {"us"}}, False),
        ({"region": {"us", "eu"}}, True),
        ({"capability": {"chat"}}, True),
        ({"capability": {"chat", "tools"}}, True),
        ({"capability": {"chat", "vision"}}, False),
        ({"capability": {"vision"}}, False),
        ({"model": {"m"}, "cluster_id": {"c1"}, "namespace": {"n1"}, "region": {"eu"}, "capability": {"chat"}}, True),
        ({"model": {"m"}, "cluster_id": {"c2"}}, False),
        ({"model": {"m"}, "namespace": {"c1"}}, False),
        ({"region": {"eu"}, "capability": {"vision"}}, False),
    ],
)
def test_a_filter_sees_what_matches_in_every_field(wanted: dict[str, set[str]], seen: bool) -> None:
    assert only(**wanted).matches(POOL) is seen


def test_a_pool_without_a_region_is_in_no_region() -> None:
    assert not only(region={"None"}).matches(pool())
    assert not only(region={""}).matches(pool())


def test_the_empty_filter_is_everything() -> None:
    assert only() == EVERYTHING
    assert EVERYTHING.matches(pool())


listings = st.builds(
    lambda name, cluster, region, capabilities, model: pool(
        name,
        cluster_id=cluster,
        model=model,
        capabilities=capabilities,
        location={} if region is None else {"region": region},
    ),
    st.sampled_from(["p1", "p2"]),
    st.sampled_from(["c1", "c2"]),
    st.sampled_from([None, "eu", "us"]),
    st.lists(st.sampled_from(["chat", "tools", "vision"])),
    st.sampled_from(["m", "n"]),
)


@given(
    listings,
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.sets(st.sampled_from(["m", "n"])),
            "cluster_id": st.sets(st.sampled_from(["c1", "c2"])),
            "region": st.sets(st.sampled_from(["eu", "us"])),
            "capability": st.sets(st.sampled_from(["chat", "tools", "vision"])),
        },
    ),
)
def test_filters_combine_as_and_of_fields_and_or_of_values(listed: Listing, wanted: dict[str, set[str]]) -> None:
    alone = [
        any(only(**{name: {value}}).matches(listed) for value in values)
        for name, values in wanted.items()
        if values and name != "capability"
    ]
    alone += [only(capability={value}).matches(listed) for value in wanted.get("capability", ())]
    assert only(**wanted).matches(listed) == all(alone)


FIELDS = {
    "model": st.sets(st.sampled_from(["m", "n"])),
    "cluster_id": st.sets(st.sampled_from(["c1", "c2"])),
    "capability": st.sets(st.sampled_from(["chat", "tools", "vision"])),
    "region": st.sets(st.sampled_from(["eu", "us"])),
}


@given(listings, listings, st.lists(st.fixed_dictionaries({}, optional=FIELDS), min_size=5, max_size=5))
def test_listings_of_a_pool_that_are_seen_alike_are_so_by_every_filter(
    old: Listing, new: Listing, wanted: list[dict[str, set[str]]]
) -> None:
    if old.key == new.key and snapshot.seen_alike(old, new):
        assert all(only(**fields).matches(old) == only(**fields).matches(new) for fields in wanted)


def test_what_filters_do_not_look_at_leaves_a_listing_seen_alike() -> None:
    capabilities, location = ["chat"], {"region": "eu"}
    seen = pool("p1", capabilities=capabilities, location=location)
    assert snapshot.seen_alike(
        seen, pool("p1", capabilities=capabilities, location={"region": "eu", "zone": "z"}, instance_id="i")
    )
    for change in ({"model": "n"}, {"capabilities": []}, {"location": {"region": "us"}}, {"location": {}}):
        other = pool("p1", **({"capabilities": capabilities, "location": location} | change))
        assert not snapshot.seen_alike(seen, other)
    assert not snapshot.seen_alike(Router("r", "http://a"), Router("r", "http://a"))


# ---- the whole list


@given(fragments, st.booleans())
def test_a_body_is_one_json_document_however_it_is_cut(parts: list[bytes], complete: bool) -> None:
    whole = snapshot.body("pools", complete, parts)
    assert json.loads(whole) == {"complete": complete, "pools": [json.loads(part) for part in parts]}
    for at_once in (1, 3, 1000):
        cut = [snapshot.joined(parts[start : start + at_once]) for start in range(0, len(parts), at_once)]
        pieces = list(snapshot.body_pieces("pools", complete, cut))
        assert b"".join(pieces) == whole
        assert len(pieces) == max(1, len(cut))


@given(st.data(), st.dictionaries(st.sampled_from("abcde"), st.sampled_from(["m", "n", "o"])))
def test_a_tag_tells_the_content_and_not_the_way_to_it(data: Any, final: dict[str, str]) -> None:
    """Whatever was listed, changed or removed on the way: equal content has equal tags."""
    detours = data.draw(st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from(["m", "n", "x", None]))))
    order = data.draw(st.permutations(list(final.items())))
    total, members = 0, dict[str, int]()
    for name, model in [*detours, *((name, None) for name in "abcdefg" if name not in final), *order]:
        digest = pool_fragment(pool(name, model=model)).digest if model else 0
        total = snapshot.digest_sum(total, members.pop(name, 0), digest)
        if digest:
            members[name] = digest
    straight = 0
    for name, model in sorted(final.items()):
        straight = snapshot.digest_sum(straight, 0, pool_fragment(pool(name, model=model)).digest)
    assert total == straight
    assert snapshot.token(total, True) == snapshot.token(straight, True)
    assert snapshot.token(total, True) != snapshot.token(total, False)


def test_lists_that_differ_in_one_pool_have_different_tags() -> None:
    def tag(first: str, second: str) -> str:
        digests = [pool_fragment(pool("a", model=first)).digest, pool_fragment(pool("b", model=second)).digest]
        return snapshot.token(reduce(lambda total, digest: snapshot.digest_sum(total, 0, digest), digests, 0), True)

    assert len({tag("m", "m"), tag("m", "n"), tag("n", "m"), tag("n", "n")}) == 4, "who has which model must count"


def test_an_empty_list_has_a_tag_too() -> None:
    assert len(snapshot.token(0, True)) == 32
    assert snapshot.body("routers", False, []) == b'{"complete":false,"routers":[]}'


# ---- frames


def test_frames_are_events_as_the_standard_has_them() -> None:
    fragment = pool_fragment(pool("p\u2028\U0001f600", model="a\r\nb\0"))
    assert snapshot.put_frame(fragment) == b"event: put\ndata: " + fragment.body + b"\n"
    assert not set(fragment.body) & {0, 10, 13}, "a raw line end would end the event"
    assert snapshot.delete_frame(("c/1", "n", "p")) == (
        b'event: delete\ndata: {"cluster_id":"c/1","namespace":"n","dgd_name":"p"}\n'
    )
    assert snapshot.delete_frame(("router-0",)) == b'event: delete\ndata: {"id":"router-0"}\n'
    assert snapshot.complete_frame(True) == b'event: complete\ndata: {"complete":true}\n'
    assert snapshot.complete_frame(False) == b'event: complete\ndata: {"complete":false}\n'


def test_only_the_last_frame_of_a_published_list_has_an_id() -> None:
    frames = [snapshot.complete_frame(False), snapshot.delete_frame(("c", "n", "p")), snapshot.complete_frame(True)]
    joined = snapshot.join_frames(frames, "abc")
    assert joined.count(b"\n\n") == 3
    assert joined.endswith(b'data: {"complete":true}\nid: abc\n\n')
    assert joined.count(b"id: ") == 1
    assert snapshot.join_frames(frames[:1], "abc") == b'event: complete\ndata: {"complete":false}\nid: abc\n\n'
