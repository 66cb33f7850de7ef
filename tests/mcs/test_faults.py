"""What people are told: each fault once per Service until it heals, and why a Service gives nothing usable."""

from typing import Any

import pytest

from discovery.mcs.names import Names, RouterService
from discovery.mcs.origin import Rules
from discovery.mcs.slices import SKIPPED, Notice, Slices, Touched
from discovery.model import PoolKey
from tests.mcs.shapes import HTTP, MCS_SERVICE, RELAY, Manifest, imported, manifest, slice_of

WRONG = [{"name": "web", "port": 8000}]
UNREADY = {"addresses": ["10.0.0.1"], "conditions": {"ready": False}}
LEAVING = {"addresses": ["10.0.0.2"], "conditions": {"terminating": True}}


def frontend(name: str = "f", endpoints: Any = ("10.0.0.1",), ports: Any = WRONG, **more: Any) -> Manifest:
    return imported(name, "p1-frontend", more.pop("cluster", "c1"), endpoints=endpoints, ports=ports, **more)


def sourceless(name: str, service: str = "p1-frontend") -> Manifest:
    return manifest(name, {MCS_SERVICE: service}, endpoints=["10.0.0.1"])


def fresh(names: Names | None = None) -> Slices:
    return Slices(names or Names(), Rules("mcs"))


def apply(slices: Slices, found: Manifest) -> list[str]:
    return [warning.cause for warning in slices.apply(slice_of(found)).warnings]


def remove(slices: Slices, found: Manifest) -> Touched:
    return slices.remove(slice_of(found).name, "")


# ---- once, until it heals


def test_a_missing_port_is_told_once_per_service_and_not_per_event() -> None:
    slices = fresh()
    assert apply(slices, frontend()) == ["no_named_port"]
    assert apply(slices, frontend(endpoints=["10.0.0.1", "10.0.0.2"])) == []
    assert apply(slices, frontend("g", ["10.0.0.3"])) == []
    assert apply(slices, frontend(cluster="c2", name="h")) == ["no_named_port"], "another cluster's is another Service"
    assert slices.relist(map(slice_of, [frontend(), frontend("h", cluster="c2")])).warnings == ()
    assert slices.skipped()["no_port"] == 2


def test_a_list_tells_all_that_is_wrong_with_each_service() -> None:
    found = [frontend("a"), frontend("b", cluster="c2"), frontend("c", ports=[]), sourceless("d")]
    touched = fresh().relist(map(slice_of, found))
    told = ["no_named_port", "no_named_port", "no_ports", "no_source_cluster"]
    assert [warning.cause for warning in touched.warnings] == told


def test_of_more_endpoints_than_any_pool_has_the_first_are_listed_and_the_rest_is_told() -> None:
    slices = fresh()

    def crowd(number: int, size: int) -> Manifest:
        return frontend(f"f{number}", [f"10.{number}.{place // 250}.{place % 250}" for place in range(size)], [HTTP])

    told = [apply(slices, crowd(number, 1_000)) for number in range(10, 22)]
    assert told == [[]] * 10 + [["too_many_endpoints"], []], "told once"
    urls = slices.endpoints(PoolKey("c1", "llm", "p1")).frontends
    assert len(urls) == 10_000
    assert (urls[0], urls[-1]) == ("http://10.10.0.0:8000", "http://10.19.3.9:8000")
    (state,) = slices.services()
    assert (state.usable, state.fault) == (10_000, None)
    assert slices.skipped()["no_port"] == 0
    assert remove(slices, crowd(10, 1_000)).keys, "others take their places"
    assert slices.endpoints(PoolKey("c1", "llm", "p1")).frontends[-1] == "http://10.20.3.9:8000"
    assert apply(slices, crowd(21, 0)) == []
    notice = slices.apply(slice_of(crowd(21, 1_000))).warnings[0]
    assert (notice.cause, notice.service) == ("too_many_endpoints", "p1-frontend")
    assert "11,000 endpoints, of which the first 10,000 are listed" in notice.text


def test_a_port_that_came_and_went_is_told_again() -> None:
    slices = fresh()
    apply(slices, frontend())
    assert apply(slices, frontend(ports=[HTTP])) == []
    assert slices.skipped()["no_port"] == 0
    assert apply(slices, frontend()) == ["no_named_port"]


def test_one_slice_without_the_port_is_told_though_others_have_it() -> None:
    slices = fresh()
    assert apply(slices, frontend(ports=[HTTP])) == []
    assert apply(slices, frontend("g")) == ["no_named_port"]
    assert remove(slices, frontend("g")).warnings == ()
    assert apply(slices, frontend("g")) == ["no_named_port"]


def test_a_service_scaled_to_zero_and_back_is_not_told_again() -> None:
    slices = fresh()
    apply(slices, frontend())
    assert apply(slices, frontend(endpoints=None, ports=None)) == []
    assert apply(slices, frontend()) == []


def test_a_service_without_endpoints_is_nobodys_fault() -> None:
    slices = fresh()
    assert apply(slices, frontend(endpoints=None, ports=None)) == []
    assert apply(slices, frontend(endpoints=[], ports=WRONG)) == []
    assert slices.skipped() == dict.fromkeys(SKIPPED, 0)


def test_another_fault_of_the_same_service_is_told() -> None:
    slices = fresh()
    assert apply(slices, frontend()) == ["no_named_port"]
    assert apply(slices, frontend(ports=[{"name": "http"}])) == ["no_port_number"]
    assert apply(slices, frontend("g")) == ["no_named_port"]
    assert apply(slices, frontend("h", ports=[])) == ["no_ports"]


def test_several_ports_of_a_relay_whose_port_has_no_name() -> None:
    slices = fresh()

    def relay(name: str, *ports: Any) -> list[str]:
        return apply(slices, imported(name, "p1-pool-relay", "c1", endpoints=["10.0.0.1"], ports=ports))

    assert relay("r", RELAY) == []
    assert slices.pool_keys() == {PoolKey("c1", "llm", "p1")}
    # The Service has two ports, though no slice has both: which is the relay's cannot be told.
    assert relay("s", {"name": "metrics", "port": 9}) == ["several_ports"]
    assert not slices.pool_keys()
    assert slices.skipped()["no_port"] == 2
    assert relay("s", RELAY) == []
    assert slices.pool_keys()
    assert relay("s", {"name": "metrics", "port": 9, "protocol": "UDP"}, RELAY) == []


def test_a_refused_service_is_named_once_until_it_heals() -> None:
    slices = fresh()
    assert apply(slices, sourceless("a")) == ["no_source_cluster"]
    assert apply(slices, sourceless("b")) == []
    assert apply(slices, sourceless("b")) == []
    assert apply(slices, sourceless("c", "p2-frontend")) == ["no_source_cluster"]
    assert slices.skipped()["no_source_cluster"] == 3
    assert [one.service for one in slices.refused()] == ["p1-frontend", "p2-frontend"]
    assert slices.relist(map(slice_of, [sourceless("b")])).warnings == ()
    assert remove(slices, sourceless("b")).warnings == ()
    assert list(slices.refused()) == []
    assert slices.skipped() == dict.fromkeys(SKIPPED, 0)
    assert apply(slices, sourceless("b")) == ["no_source_cluster"]


def test_a_refused_service_that_is_no_pools_is_of_no_interest() -> None:
    slices = fresh(Names(router=RouterService("llm", "global-router")))
    assert apply(slices, sourceless("a", "mysql")) == []
    assert slices.skipped() == dict.fromkeys(SKIPPED, 0)
    assert apply(slices, sourceless("b", "global-router")) == ["no_source_cluster"]


def test_a_slice_of_which_not_even_the_service_is_known_is_named_itself() -> None:
    slices = fresh()
    found = manifest("nameless", {"multicluster.kubernetes.io/source-cluster": "c1"})
    [warning] = slices.apply(slice_of(found)).warnings
    assert warning[:3] == ("no_service", "llm", "nameless")


def test_the_refusal_that_is_named_does_not_depend_on_order() -> None:
    forth, back = fresh(), fresh()
    for name in "abc":
        apply(forth, sourceless(name))
    for name in "cba":
        apply(back, sourceless(name))
    assert list(forth.refused()) == list(back.refused())


# ---- why nothing is usable

REASONS: dict[str, tuple[Manifest, str, list[str]]] = {
    "no endpoints": (frontend(endpoints=[], ports=[HTTP]), "no_endpoints", ["no endpoints", "selector"]),
    "not ready": (frontend(endpoints=[UNREADY, LEAVING], ports=[HTTP]), "not_ready", ["2 of 2"]),
    "wrong port name": (frontend(), "no_named_port", ["named http", "web 8000", "--frontend-port-name"]),
    "wrong port name, and not ready": (frontend(endpoints=[UNREADY]), "no_named_port", ["named http"]),
    "no ports": (frontend(ports=[]), "no_ports", ["TCP port named http"]),
    "no number": (frontend(ports=[{"name": "http"}]), "no_port_number", ["number", "targetPort"]),
    "several ports": (
        imported("r", "p1-pool-relay", "c1", endpoints=["10.0.0.1"], ports=[RELAY, HTTP]),
        "several_ports",
        ["http 8000, relay 5561", "--relay-port-name"],
    ),
    "no ports of a relay": (
        imported("r", "p1-pool-relay", "c1", endpoints=["10.0.0.1"], ports=[]),
        "no_ports",
        ["a TCP port"],
    ),
    "host names": (frontend(endpoints=["a.example.com"], ports=[HTTP], family="FQDN"), "fqdn", ["host names"]),
    "host names of nobody": (frontend(endpoints=[], ports=[HTTP], family="FQDN"), "no_endpoints", []),
    "bad addresses": (frontend(endpoints=["010.0.0.1"], ports=[HTTP]), "bad_address", ["IP address"]),
    "router": (
        imported("r", "gr", "c1", endpoints=["10.0.0.1"], ports=[RELAY, HTTP], namespace="edge"),
        "several_ports",
        ["edge/gr", "--router-port-name"],
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_why_a_service_gives_nothing_usable(case: str) -> None:
    found, fault, words = REASONS[case]
    slices = fresh(Names(router=RouterService("edge", "gr")))
    warnings = slices.apply(slice_of(found)).warnings
    [state] = slices.services()
    assert (state.fault, state.usable, state.slices) == (fault, 0, 1)
    assert "\n" not in state.text
    for word in [*words, state.service.name, "c1"]:
        assert word in state.text
    assert [warning.text for warning in warnings] == ([state.text] if "port" in fault else [])


def test_a_service_that_is_usable_has_no_reason() -> None:
    slices = fresh()
    apply(slices, frontend(ports=[HTTP]))
    [state] = slices.services()
    assert state == (("c1", "llm", "p1-frontend"), "frontend", PoolKey("c1", "llm", "p1"), 1, 1, None, "")


def test_what_is_skipped_is_counted_as_long_as_it_is_there() -> None:
    slices = fresh()
    found = [
        frontend("a", ["nonsense", "10.0.0.1", "more"], ports=[7, HTTP, "x"]),
        frontend("b", ["a.example.com"], family="FQDN"),
        frontend("c"),
        sourceless("d"),
    ]
    counted = {"bad_address": 2, "bad_port": 2, "fqdn": 1, "no_port": 1, "no_source_cluster": 1}
    for _ in range(2):
        slices.relist(map(slice_of, found))
        assert slices.skipped() == {**dict.fromkeys(SKIPPED, 0), **counted}
    for one in found:
        remove(slices, one)
    assert slices.skipped() == dict.fromkeys(SKIPPED, 0)


def test_a_warning_says_what_whose_and_what_to_do() -> None:
    [warning] = fresh().apply(slice_of(frontend())).warnings
    assert warning == Notice(
        "no_named_port",
        "llm",
        "p1-frontend",
        "Service llm/p1-frontend of cluster c1 has slices without a TCP port named http (found: web 8000): "
        "name the Service's port so, or choose another with --frontend-port-name",
    )
