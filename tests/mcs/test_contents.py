"""Tables of conditions, ports and addresses: what of one slice counts, and what only costs itself."""

from typing import Any

import pytest

from discovery.mcs.contents import Contents, TcpPort, contents_of, parsed_address
from discovery.mcs.names import Names
from discovery.mcs.origin import Rules
from discovery.mcs.slices import Endpoints, ServiceState, Slices
from tests.mcs.shapes import HTTP, imported, slice_of

HTTP_PORT = TcpPort("http", 8000, False)


def contents(endpoints: Any = ("10.0.0.1",), ports: Any = (HTTP,), **more: Any) -> Contents:
    return contents_of(slice_of(imported("s", "p1-frontend", "c1", endpoints=endpoints, ports=ports, **more)))


def with_conditions(conditions: Any) -> Any:
    return {"addresses": ["10.0.0.1"], "conditions": conditions}


# ---- conditions


@pytest.mark.parametrize("ready", [None, True, False])
@pytest.mark.parametrize("serving", [None, True, False])
@pytest.mark.parametrize("terminating", [None, True, False])
def test_every_combination_of_conditions(ready: bool | None, serving: bool | None, terminating: bool | None) -> None:
    given = {"ready": ready, "serving": serving, "terminating": terminating}
    usable = ready in (None, True) and serving in (None, True) and terminating in (None, False)
    for conditions in (given, {name: value for name, value in given.items() if value is not None}):
        found = contents([with_conditions(conditions)])
        assert found.ipv4 == (("10.0.0.1",) if usable else ())
        assert found.unready == (0 if usable else 1)


def test_f37_missing_conditions_count_as_ready() -> None:
    endpoints = [
        {"addresses": ["10.0.0.1"]},
        {"addresses": ["10.0.0.2"], "conditions": {}},
        {"addresses": ["10.0.0.3"], "conditions": {"ready": None}},
        {"addresses": ["10.0.0.4"], "conditions": {"ready": False}},
        {"addresses": ["10.0.0.5"], "conditions": None},
    ]
    assert contents(endpoints).ipv4 == ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5")


# ---- addresses


@pytest.mark.parametrize(
    ("text", "family", "canonical"),
    [
        ("10.0.0.1", 4, "10.0.0.1"),
        ("fd00:20:0:0:0:0:0:9", 6, "fd00:20::9"),
        ("FD00:0:0::9", 6, "fd00::9"),
        ("::ffff:10.0.0.1", 4, "10.0.0.1"),
        ("127.0.0.1", 4, "127.0.0.1"),
    ],
)
def test_addresses_in_their_canonical_spelling(text: str, family: int, canonical: str) -> None:
    assert parsed_address(text) == (family, canonical)


BAD_ADDRESSES: list[Any] = [
    "",
    "010.0.0.1",
    "10.0.0.1:80",
    "10.0.0",
    "10.0.0.256",
    "relay.example.com",
    " 10.0.0.1",
    "[fd00::1]",
    "fe80::1%eth0",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
    "::ffff:0.0.0.0",
    "1" * 5000,
    None,
    7,
    ["10.0.0.7"],
]


@pytest.mark.parametrize("bad", BAD_ADDRESSES, ids=lambda bad: repr(bad)[:20])
def test_a_bad_address_costs_itself_alone(bad: Any) -> None:
    found = contents(["10.0.0.1", {"addresses": [bad]}, "10.0.0.2"])
    assert found.ipv4 == ("10.0.0.1", "10.0.0.2")
    assert found.ipv6 == ()
    assert (found.endpoints, found.unready, found.bad_addresses) == (3, 0, 1)


def test_what_is_far_too_long_for_an_address_is_not_remembered() -> None:
    before = parsed_address.cache_info()
    contents(["x" * 100_000])
    assert parsed_address.cache_info() == before


BROKEN_ENDPOINTS: list[Any] = [
    {},
    {"addresses": None},
    {"addresses": []},
    {"addresses": "10.0.0.7"},
    {"addresses": ["10.0.0.7"], "conditions": {"ready": "true"}},
    {"addresses": ["10.0.0.7"], "conditions": []},
    {"addresses": ["10.0.0.7"], "targetRef": "pod"},
    "10.0.0.7 in no object",
    None,
    7,
]


@pytest.mark.parametrize("broken", BROKEN_ENDPOINTS, ids=str)
def test_a_broken_endpoint_costs_itself_alone(broken: Any) -> None:
    found = imported("s", "p1-frontend", "c1", endpoints=["10.0.0.1"])
    found["endpoints"].append(broken)
    assert contents_of(slice_of(found)) == Contents((HTTP_PORT,), ("10.0.0.1",), endpoints=2, bad_addresses=1)


def test_of_several_addresses_of_an_endpoint_the_first_counts() -> None:
    assert contents([{"addresses": ["10.0.0.1", "10.0.0.2"]}]).ipv4 == ("10.0.0.1",)


def test_unknown_fields_cost_nothing() -> None:
    found = imported("s", "p1-frontend", "c1", endpoints=[{"addresses": ["10.0.0.1"], "hints": {"new": [1]}}])
    found |= {"new": {"deep": None}}
    found["metadata"]["managedFields"] = [{"manager": "x"}]
    assert contents_of(slice_of(found)).ipv4 == ("10.0.0.1",)


@pytest.mark.parametrize("missing", ["null", "absent", "empty"])
@pytest.mark.parametrize("part", ["endpoints", "ports", "both"])
def test_null_absent_and_empty_all_mean_empty(part: str, missing: str) -> None:
    found = imported("s", "p1-frontend", "c1", endpoints=["10.0.0.1"])
    for name in ("endpoints", "ports") if part == "both" else (part,):
        if missing == "absent":
            del found[name]
        else:
            found[name] = None if missing == "null" else []
    held = contents_of(slice_of(found))
    assert held.ipv4 == (() if part != "ports" else ("10.0.0.1",))
    assert held.ports == (() if part != "endpoints" else (HTTP_PORT,))
    assert (held.bad_addresses, held.bad_ports) == (0, 0)


def test_f39_host_names_are_skipped_and_counted() -> None:
    found = contents([{"addresses": ["relay.example.com"]}, {"addresses": ["10.0.0.1"]}], family="FQDN")
    assert found == Contents(endpoints=2, fqdn=True)


def test_a_slice_without_a_type_is_judged_by_its_addresses() -> None:
    found = imported("s", "p1-frontend", "c1", endpoints=["10.0.0.1", "fd00::1"])
    del found["addressType"]
    held = contents_of(slice_of(found))
    assert (held.ipv4, held.ipv6) == (("10.0.0.1",), ("fd00::1",))


# ---- ports: of a frontend by name, of a relay the only one

NO_NUMBERS: list[Any] = [None, 0, -1, 65536, 10**30]
PORTS: dict[str, tuple[Any, str | None, str | None]] = {
    # ports: the fault of a frontend with port name http, and that of a relay without one
    "F38 empty": ([], "no_ports", "no_ports"),
    "F38 null": (None, "no_ports", "no_ports"),
    "F38 [{}]": ([{}], "no_named_port", "no_port_number"),
    "F38 a name, no number": ([{"name": "http"}], "no_port_number", "no_port_number"),
    "F38 one unnamed": ([{"port": 7}], "no_named_port", None),
    "unnamed by an empty name": ([{"name": "", "port": 7}], "no_named_port", None),
    "unnamed by null": ([{"name": None, "port": 7, "protocol": None}], "no_named_port", None),
    "F38 second of two": ([{"name": "metrics", "port": 9}, {"name": "http", "port": 7}], None, "several_ports"),
    "first of two": ([{"name": "http", "port": 7}, {"name": "metrics", "port": 9}], None, "several_ports"),
    "F38 port 0": ([{"name": "", "port": 0}], "no_named_port", "no_port_number"),
    **{
        f"number {number}": ([{"name": "http", "port": number}], "no_port_number", "no_port_number")
        for number in NO_NUMBERS
    },
    "a number as text": ([{"name": "http", "port": "7"}], "no_named_port", "no_port_number"),
    "two unnamed": ([{"port": 7}, {"port": 8}], "no_named_port", "several_ports"),
    "UDP alone": ([{"name": "http", "port": 7, "protocol": "UDP"}], "no_ports", "no_ports"),
    "SCTP of the same name": (
        [{"name": "http", "port": 9, "protocol": "SCTP"}, {"name": "http", "port": 7, "protocol": "TCP"}],
        None,
        None,
    ),
    "another name": ([{"name": "grpc", "port": 7}], "no_named_port", None),
    "a name in capitals": ([{"name": "HTTP", "port": 7}], "no_named_port", None),
    "broken beside a good one": ([7, {"name": "http", "port": 7}], None, "several_ports"),
    "unknown appProtocol": ([{"name": "http", "port": 7, "appProtocol": "kubernetes.io/h2c"}], None, None),
}


def state(service: str, ports: Any, names: Names | None = None) -> tuple[ServiceState, tuple[str, ...]]:
    slices = Slices(names or Names(), Rules("mcs"))
    slices.apply(slice_of(imported("s", service, "c1", endpoints=["10.0.0.1"], ports=ports)))
    [found] = slices.services()
    assert found.key is not None
    relays, frontends = slices.endpoints(found.key) or Endpoints((), ())
    return found, relays + frontends


@pytest.mark.parametrize("case", PORTS)
def test_f38_which_port_counts(case: str) -> None:
    ports, as_frontend, as_relay = PORTS[case]
    for service, fault in (("p1-frontend", as_frontend), ("p1-pool-relay", as_relay)):
        found, urls = state(service, ports)
        assert found.fault == fault, service
        assert urls == (() if fault else ("http://10.0.0.1:7",)), service
        assert found.usable == len(urls)
        assert bool(found.text) == (fault is not None)


@pytest.mark.parametrize("case", PORTS)
def test_a_relays_port_may_have_a_name_as_well(case: str) -> None:
    ports, fault, _ = PORTS[case]
    found, _ = state("p1-pool-relay", ports, Names(relay_port_name="http"))
    assert found.fault == fault


@pytest.mark.parametrize(
    ("app_protocol", "scheme"),
    [(None, "http"), ("http", "http"), ("https", "https"), ("HTTPS", "https"), ("kubernetes.io/wss", "http")],
)
def test_the_scheme_follows_from_the_application_protocol(app_protocol: str | None, scheme: str) -> None:
    _, urls = state("p1-frontend", [{"name": "http", "port": 65535, "appProtocol": app_protocol}])
    assert urls == (f"{scheme}://10.0.0.1:65535",)
