"""Listings as targets: what becomes an address, what becomes a label, and what no registration can spoil."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.errors import Rejected
from discovery.listing.scrape_targets import MOST_REPEATED_BYTES, ROLES, body, target_groups
from discovery.registrations import listing, parse

SMALLEST = {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p1", "model": "m"}
KEY = {name: SMALLEST[name] for name in ("cluster_id", "namespace", "dgd_name")}
PLAIN = SMALLEST | {"role": "frontend", "__scheme__": "http"}


def raw(roles: tuple[str, ...] = ROLES, **fields: Any) -> bytes:
    return body([target_groups(listing(parse(json.dumps(SMALLEST | fields).encode())), roles)])


def groups(roles: tuple[str, ...] = ROLES, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(raw(roles, **fields))
    return found


def labels(**fields: Any) -> dict[str, str]:
    (group,) = groups(frontends=["http://10.0.0.1:8000"], **fields)
    assert group["targets"] == ["10.0.0.1:8000"]
    found: dict[str, str] = group["labels"]
    return found


# ---- addresses


@pytest.mark.parametrize(
    ("url", "target", "scheme", "path"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000", "http", None),
        ("http://10.0.0.1:8000/", "10.0.0.1:8000", "http", None),
        ("http://10.0.0.1", "10.0.0.1:80", "http", None),
        ("https://gateway.example.com", "gateway.example.com:443", "https", None),
        ("HTTPS://Gateway:8443", "Gateway:8443", "https", None),
        ("http://[2001:db8::1]:8000", "[2001:db8::1]:8000", "http", None),
        ("https://[::1]", "[::1]:443", "https", None),
        ("http://h:00080/x", "h:80", "http", "/x"),
        ("http://h:8000/pools/a/", "h:8000", "http", "/pools/a"),
        ("http://h/a%20b%2Fc/ü?q=1#f", "h:80", "http", "/a b/c/ü"),
        ("http://h?q=/x", "h:80", "http", None),
        ("http://h#/x", "h:80", "http", None),
        ("http://h/%ff", "h:80", "http", "/\ufffd"),
        ("http://h/x:1/y@z", "h:80", "http", "/x:1/y@z"),
    ],
)
@pytest.mark.parametrize(("field", "role"), [("frontends", "frontend"), ("relays", "relay")])
def test_a_url_is_an_address_with_its_port_a_scheme_and_a_path(
    url: str, target: str, scheme: str, path: str | None, field: str, role: str
) -> None:
    (group,) = groups(**{field: [url]})
    assert group["targets"] == [target]
    assert group["labels"]["__scheme__"] == scheme
    assert group["labels"]["role"] == role
    assert group["labels"].get("__metrics_path__") == (None if path is None else f"{path}/metrics")
    assert group["labels"].get("__meta_discovery_path") == path


def test_targets_of_one_kind_share_their_labels() -> None:
    frontends = ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "https://10.0.0.3", "http://10.0.0.1:8000/x"]
    assert groups(frontends=frontends, relays=["http://10.0.0.9:9000"]) == [
        {"targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "labels": PLAIN},
        {
            "targets": ["10.0.0.1:8000"],
            "labels": PLAIN | {"__metrics_path__": "/x/metrics", "__meta_discovery_path": "/x"},
        },
        {"targets": ["10.0.0.3:443"], "labels": PLAIN | {"__scheme__": "https"}},
        {"targets": ["10.0.0.9:9000"], "labels": PLAIN | {"role": "relay"}},
    ]


def test_the_same_target_is_there_once() -> None:
    frontends = ["http://h", "http://h:80", "http://h/?a", "http://h/?b", "HTTP://h/"]
    assert groups(frontends=frontends) == [{"targets": ["h:80"], "labels": PLAIN}]


def test_a_pool_without_addresses_has_no_group() -> None:
    assert raw() == b"[]"
    assert body([]) == b"[]"
    assert body([b"", b'{"a":1}', b"", b"{}"]) == b'[{"a":1},{}]'


@pytest.mark.parametrize("roles", [("frontend",), ("relay",), ROLES])
def test_only_the_roles_that_are_asked_for(roles: tuple[str, ...]) -> None:
    found = groups(roles, frontends=["http://f"], relays=["http://r"])
    assert [group["labels"]["role"] for group in found] == list(roles)


# ---- labels


def test_what_is_not_said_is_no_label() -> None:
    assert labels() == PLAIN
    empty = {"location": {"region": "", "zone": None}, "instance_id": "", "metadata": {"a": ""}, "capabilities": []}
    assert labels(**empty) == PLAIN


def test_all_that_is_said_is_a_label() -> None:
    found = labels(
        location={"region": "us-east-1", "zone": "use1-az2", "latitude": 1},
        instance_id="i1",
        capabilities=["tools", "chat"],
        capacity=[{"resource": "gpu", "quantity": 1}],
        metadata={"team": "a", "cost-center": "7", "größe": "xl"},
    )
    assert found == PLAIN | {
        "region": "us-east-1",
        "zone": "use1-az2",
        "__meta_discovery_instance_id": "i1",
        "__meta_discovery_capabilities": ",chat,tools,",
        "__meta_discovery_metadata_team": "a",
        "__meta_discovery_metadata_cost_center": "7",
        "__meta_discovery_metadata_gr__e": "xl",
    }


@pytest.mark.parametrize(
    ("metadata", "value"),
    [
        ({"a.b": "dot", "a-b": "dash"}, "dash"),
        ({"a_b": "exact", "a-b": "dash", "a.b": "dot"}, "exact"),
        ({"a/b": "slash", "a_b": ""}, None),
    ],
)
def test_of_names_that_become_one_label_the_exact_one_counts_else_the_first(
    metadata: dict[str, str], value: str | None
) -> None:
    for order in (metadata, dict(reversed(metadata.items()))):
        assert labels(metadata=order).get("__meta_discovery_metadata_a_b") == value


# ---- what registrations cannot spoil

FIELDS = (
    "__scheme__",
    "__address__",
    "role",
    "instance",
    "job",
    "",
    "\x00",
    "\ud7ff",
    "\U0010ffff",
    '"',
    "\\",
    "ſ",
    "٣",
)
texts = st.one_of(st.sampled_from(FIELDS), st.text(max_size=5))


@given(
    st.fixed_dictionaries(
        dict.fromkeys(SMALLEST, texts),
        optional={
            "frontends": st.lists(
                texts.map(lambda text: f"http://h/{text}") | texts.map(lambda text: f"http://{text}")
            ),
            "relays": st.lists(texts.map(lambda text: f"https://h{text}")),
            "capabilities": st.lists(texts),
            "location": st.fixed_dictionaries({"region": texts, "zone": texts}),
            "instance_id": texts,
            "metadata": st.dictionaries(texts, texts),
        },
    )
)
def test_whatever_is_registered_prometheus_takes_the_answer(fields: dict[str, Any]) -> None:
    try:
        taken = listing(parse(json.dumps(fields).encode()))
    except Rejected:
        return
    plain = {"cluster_id", "namespace", "dgd_name", "model", "region", "zone", "role"}
    found = json.loads(body([target_groups(taken)]))
    assert bool(found) == bool(taken.frontends or taken.relays)
    for group in found:
        assert set(group) == {"targets", "labels"}
        assert group["targets"]
        for target in group["targets"]:
            assert re.fullmatch(r"([^/\[\]:?#@]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]*", target)
        for name, value in group["labels"].items():
            assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)
            assert name in plain or name.startswith("__meta_discovery_") or name in ("__scheme__", "__metrics_path__")
            assert value
            value.encode()
        assert {name: group["labels"][name] for name in KEY} == {name: fields[name] for name in KEY}
        assert group["labels"]["__scheme__"] in ("http", "https")
        assert group["labels"]["role"] in ROLES


def test_a_pool_of_many_paths_repeats_no_more_than_its_key() -> None:
    frontends = [f"http://h/{number}" for number in range(1000)]
    long = {"metadata": {"a": "x" * 20_000}, "location": {"region": "y" * 10_000}}
    assert len(raw(frontends=frontends, **long)) < MOST_REPEATED_BYTES
    assert groups(frontends=frontends, **long)[0] == {
        "targets": ["h:80"],
        "labels": KEY
        | {
            "role": "frontend",
            "__scheme__": "http",
            "__metrics_path__": "/0/metrics",
            "__meta_discovery_path": "/0",
        },
    }
    assert groups(frontends=frontends)[0]["labels"]["model"] == "m"
    assert groups(frontends=frontends[:8], **long)[7]["labels"]["region"] == "y" * 10_000
