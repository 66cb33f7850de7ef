"""The fold: what is known after any course of events is what a fresh list would give, and only what changed is told."""

import sys
from collections.abc import Iterable
from typing import Any

import pytest

from discovery.mcs.endpoint_slice import SliceName
from discovery.mcs.names import Names, RouterService
from discovery.mcs.origin import Rules
from discovery.mcs.slices import SKIPPED, Endpoints, ServiceState, Slices, Touched
from discovery.model import PoolKey, Router
from tests.mcs import shapes
from tests.mcs.shapes import KUBE, MANAGED_BY, MCS_SERVICE, MCS_SOURCE, RELAY, SERVICE_NAME, Manifest, imported, ready
from tests.mcs.shapes import manifest as any_manifest

MCS = Rules("mcs")
P1 = PoolKey("c1", "llm", "p1")
EVERYTHING_DOCUMENTED = {
    PoolKey("east-1", "llm", "llama-70b"): Endpoints(
        ("http://10.20.0.7:5561", "http://10.40.2.9:5561", "http://10.50.1.4:5561"), ("http://172.30.14.8:80",)
    ),
    PoolKey("north-2", "llm", "llama-70b"): Endpoints((), ("http://[fd00:20::9]:8000",)),
    PoolKey("east-1.prod", "llm", "mixtral"): Endpoints((), ("http://10.21.4.2:8000",)),
    PoolKey("west-1", "llm", "qwen"): Endpoints(("http://10.60.0.1:5561", "http://10.60.0.5:5561"), ()),
    PoolKey("east-1", "llm", "gemma"): Endpoints(
        (), ("http://10.90.0.1:8000", "http://10.90.0.2:8000", "http://10.90.0.3:8000")
    ),
}
KARMADA_DOCUMENTED = {
    PoolKey("east-1", "llm", "llama-70b"): Endpoints(("http://10.30.0.5:5561",), ("http://10.30.0.8:8000",))
}


def folded(*found: Manifest, names: Names | None = None, rules: Rules = MCS) -> Slices:
    slices = Slices(names or Names(), rules)
    slices.relist(shapes.slice_of(one) for one in found)
    return slices


def known(slices: Slices) -> dict[PoolKey, Endpoints | None]:
    return {key: slices.endpoints(key) for key in slices.pool_keys()}


def state(slices: Slices, service: str, cluster: str = "c1") -> ServiceState:
    [found] = [one for one in slices.services() if (one.service.cluster_id, one.service.name) == (cluster, service)]
    return found


def relay(name: str, *endpoints: Any, service: str = "p1-pool-relay", cluster: str = "c1", **more: Any) -> Manifest:
    return imported(name, service, cluster, endpoints=endpoints, **{"ports": [RELAY], **more})


def frontend(name: str, *endpoints: Any, service: str = "p1-frontend", cluster: str = "c1", **more: Any) -> Manifest:
    return imported(name, service, cluster, endpoints=endpoints, **more)


def apply(slices: Slices, found: Manifest, **more: Any) -> Touched:
    return slices.apply(shapes.slice_of(found), **more)


def remove(slices: Slices, found: Manifest, **more: Any) -> Touched:
    metadata = found["metadata"]
    return slices.remove(SliceName(metadata["namespace"], metadata["name"]), metadata["uid"], **more)


def causes(touched: Touched) -> list[str]:
    return [warning.cause for warning in touched.warnings]


def urls(addresses: Iterable[str], port: int = 8000) -> tuple[str, ...]:
    return tuple(f"http://{address}:{port}" for address in addresses)


# ---- whole lists


def test_every_standard_shape_gives_what_is_documented() -> None:
    slices = folded(*shapes.STANDARD_SHAPES)
    assert known(slices) == EVERYTHING_DOCUMENTED
    assert slices.skipped() == {**dict.fromkeys(SKIPPED, 0), "no_source_cluster": 1, "no_port": 1}
    assert [one.service for one in slices.refused()] == ["llama-70b-frontend"]
    assert state(slices, "llama-8b-frontend", "south-3").fault == "no_named_port"
    assert state(slices, "phi-frontend", "east-1").fault == "no_endpoints"


@pytest.mark.parametrize("is_control_plane", [False, True])
def test_every_karmada_shape_gives_what_is_documented(is_control_plane: bool) -> None:
    slices = folded(*shapes.KARMADA_SHAPES, rules=Rules("karmada", is_control_plane=is_control_plane))
    assert known(slices) == KARMADA_DOCUMENTED
    assert slices.skipped() == dict.fromkeys(SKIPPED, 0)


def test_what_one_mode_reads_the_other_leaves() -> None:
    assert not folded(*shapes.KARMADA_SHAPES).pool_keys()
    assert not folded(*shapes.STANDARD_SHAPES, rules=Rules("karmada")).pool_keys()


def test_f43_equal_names_in_clusters_and_namespaces_stay_apart() -> None:
    slices = folded(
        relay("s1", "10.0.0.1"),
        relay("s2", "10.0.0.2", cluster="c2"),
        relay("s1", "10.0.0.3", namespace="n2"),
        relay("s3", "10.0.0.4", service="b-pool-relay", cluster="c-a"),
        relay("s4", "10.0.0.5", service="a-b-pool-relay", cluster="c"),
        relay("s5", "10.0.0.6", service="b-c-pool-relay", cluster="a"),
    )
    assert known(slices) == {
        PoolKey(*key): Endpoints(urls([address], 5561), ())
        for key, address in {
            ("c1", "llm", "p1"): "10.0.0.1",
            ("c2", "llm", "p1"): "10.0.0.2",
            ("c1", "n2", "p1"): "10.0.0.3",
            ("c-a", "llm", "b"): "10.0.0.4",
            ("c", "llm", "a-b"): "10.0.0.5",
            ("a", "llm", "b-c"): "10.0.0.6",
        }.items()
    }
    assert remove(slices, relay("s1")).keys == {P1}
    assert PoolKey("c1", "n2", "p1") in slices.pool_keys()


@pytest.mark.parametrize("service", ["pool-relay", "frontend", "p1", "frontend-p1", "p1-pool-relayed", "P1-FRONTEND"])
def test_what_is_only_the_suffix_or_has_none_is_no_pool(service: str) -> None:
    names = Names(relay_suffix="pool-relay", frontend_suffix="frontend")
    slices = folded(relay("s1", "10.0.0.1", service=service), names=names)
    assert not slices.pool_keys()
    assert not list(slices.services())


def test_other_suffixes() -> None:
    slices = folded(
        relay("s1", "10.0.0.1", service="p1-r"),
        frontend("s2", "10.0.0.2", service="p1-f"),
        frontend("s3", "10.0.0.3"),
        names=Names(relay_suffix="-r", frontend_suffix="-f"),
    )
    assert known(slices) == {P1: Endpoints(urls(["10.0.0.1"], 5561), urls(["10.0.0.2"]))}


# ---- one event after another


def test_each_event_tells_the_pools_that_it_changed_and_no_others() -> None:
    slices = folded(relay("other", "10.9.9.9", service="p2-pool-relay"))
    assert apply(slices, relay("r", "10.0.0.1")).keys == {P1}
    assert apply(slices, frontend("f", "10.0.0.2")).keys == {P1}
    assert slices.endpoints(P1) == Endpoints(urls(["10.0.0.1"], 5561), urls(["10.0.0.2"]))
    assert apply(slices, frontend("f", "10.0.0.2")) == Touched(), "the same again"
    assert apply(slices, frontend("f2", "10.0.0.2")) == Touched(), "another copy of the same"
    assert remove(slices, frontend("f")) == Touched(), "the copy is still there"
    assert remove(slices, frontend("f2")).keys == {P1}
    assert slices.endpoints(P1) == Endpoints(urls(["10.0.0.1"], 5561), ())
    assert remove(slices, relay("r")).keys == {P1}
    assert slices.endpoints(P1) is None
    assert slices.pool_keys() == {PoolKey("c1", "llm", "p2")}
    assert remove(slices, relay("r")) == Touched(), "gone already"


def test_a_relist_that_misses_objects_removes_them_and_tells_only_what_changed() -> None:
    slices = folded(relay("r", "10.0.0.1"), frontend("f", "10.0.0.2"), relay("q", "10.0.0.3", service="p2-pool-relay"))
    kept = [relay("q", "10.0.0.3", service="p2-pool-relay"), relay("n", "10.0.0.4", service="p3-pool-relay")]
    touched = slices.relist([shapes.slice_of(one) for one in kept])
    assert touched.keys == {P1, PoolKey("c1", "llm", "p3")}
    assert known(slices) == known(folded(*kept))
    assert slices.relist([]).keys == {PoolKey("c1", "llm", "p2"), PoolKey("c1", "llm", "p3")}
    assert not list(slices.services())


def test_f35_a_slice_that_was_replaced_unseen_shows_only_the_new_addresses() -> None:
    slices = folded(relay("r", "10.0.0.1", uid="old"))
    slices.relist([shapes.slice_of(relay("r", "10.0.0.2", uid="new"))])
    assert known(slices) == {P1: Endpoints(urls(["10.0.0.2"], 5561), ())}


def test_a_name_that_came_back_outlives_the_late_news_of_its_former_bearers_end() -> None:
    old, new = relay("r", "10.0.0.1", uid="old"), relay("r", "10.0.0.2", uid="new")
    slices = folded(old)
    apply(slices, new)
    assert remove(slices, old) == Touched()
    assert known(slices) == {P1: Endpoints(urls(["10.0.0.2"], 5561), ())}
    # The uid alone may be what changed.
    apply(slices, relay("r", "10.0.0.2", uid="newest"))
    assert remove(slices, new) == Touched()
    assert remove(slices, relay("r", uid="newest")).keys == {P1}


def test_without_a_uid_the_name_decides() -> None:
    slices = folded(relay("r", "10.0.0.1"))
    assert remove(slices, relay("r", uid="")).keys == {P1}
    slices = folded(relay("r", "10.0.0.1", uid=""))
    assert remove(slices, relay("r", uid="some")).keys == {P1}


def test_f41_labels_that_come_change_and_go_move_the_pool_and_leave_nothing_behind() -> None:
    slices = folded()

    def labelled(labels: dict[str, str]) -> Touched:
        return apply(slices, any_manifest("s", labels, endpoints=["10.0.0.1"], ports=[RELAY]))

    there = Endpoints(urls(["10.0.0.1"], 5561), ())
    assert labelled({}) == Touched()
    touched = labelled({MCS_SERVICE: "p1-pool-relay"})
    assert not touched.keys
    assert causes(touched) == ["no_source_cluster"]
    assert slices.skipped()["no_source_cluster"] == 1
    assert not slices.pool_keys()
    assert labelled({MCS_SERVICE: "p1-pool-relay", MCS_SOURCE: "c1"}) == Touched(frozenset({P1}))
    assert known(slices) == {P1: there}
    assert slices.skipped()["no_source_cluster"] == 0
    moved = labelled({MCS_SERVICE: "p1-pool-relay", MCS_SOURCE: "c2"})
    assert moved.keys == {P1, P1._replace(cluster_id="c2")}
    assert known(slices) == {P1._replace(cluster_id="c2"): there}
    renamed = labelled({MCS_SERVICE: "p2-pool-relay", MCS_SOURCE: "c2"})
    assert renamed.keys == {P1._replace(cluster_id="c2"), PoolKey("c2", "llm", "p2")}
    assert labelled({SERVICE_NAME: "p1-pool-relay"}).keys == {PoolKey("c2", "llm", "p2")}
    assert not slices.pool_keys()
    assert not list(slices.services())


def test_selectors_are_folded_apart_so_that_the_end_in_one_is_not_the_end_in_another() -> None:
    slices, found = Slices(Names(), MCS), relay("r", "10.0.0.1")
    apply(slices, found, selector="a")
    assert apply(slices, found, selector="b") == Touched()
    assert remove(slices, found, selector="a") == Touched()
    assert slices.pool_keys() == {P1}
    assert slices.relist([], selector="a") == Touched()
    assert slices.relist([], selector="b").keys == {P1}
    apply(slices, found, selector="a")
    assert remove(slices, found) == Touched()
    assert remove(slices, found, selector="a").keys == {P1}


# ---- overlaps, families, roles


def test_an_address_that_is_in_several_slices_is_usable_if_any_copy_is() -> None:
    bad = {"addresses": ["10.0.0.1"], "conditions": {"ready": False}}
    for copies in ([bad, ready("10.0.0.1")], [ready("10.0.0.1"), bad]):
        assert known(folded(frontend("f", *copies))) == {P1: Endpoints((), urls(["10.0.0.1"]))}
        slices = folded()
        for number, copy in enumerate(copies):
            apply(slices, frontend(f"f{number}", copy))
        assert known(slices) == {P1: Endpoints((), urls(["10.0.0.1"]))}


def test_a_reused_address_belongs_to_the_pod_that_runs() -> None:
    leaving = {
        "addresses": ["10.0.0.1"],
        "conditions": {"ready": False, "serving": True, "terminating": True},
        "targetRef": {"kind": "Pod", "name": "old"},
    }
    slices = folded(frontend("a", leaving), frontend("b", ready("10.0.0.1", targetRef={"kind": "Pod", "name": "new"})))
    assert known(slices) == {P1: Endpoints((), urls(["10.0.0.1"]))}


def test_an_address_in_another_spelling_is_the_same_endpoint() -> None:
    six = {"family": "IPv6"}
    slices = folded(frontend("a", "fd00:0:0::9", **six), frontend("b", "FD00::9", "fd00::0009", **six))
    assert known(slices) == {P1: Endpoints((), ("http://[fd00::9]:8000",))}


@pytest.mark.parametrize("ipv4_first", [True, False])
def test_f39_of_two_families_ipv4_is_listed_while_any_of_it_is_usable(ipv4_first: bool) -> None:
    four, six = frontend("f4", "10.0.0.1"), frontend("f6", "fd00::1", "fd00::2", family="IPv6")
    slices = folded()
    first, second = (four, six) if ipv4_first else (six, four)
    assert apply(slices, first).keys == {P1}
    assert apply(slices, second) == (Touched() if ipv4_first else Touched(frozenset({P1})))
    assert known(slices) == {P1: Endpoints((), urls(["10.0.0.1"]))}
    unready = frontend("f4", {"addresses": ["10.0.0.1"], "conditions": {"ready": False}})
    assert apply(slices, unready).keys == {P1}
    assert known(slices) == {P1: Endpoints((), urls(["[fd00::1]", "[fd00::2]"]))}
    apply(slices, four)
    assert remove(slices, six) == Touched()
    apply(slices, six)
    assert remove(slices, four).keys == {P1}
    assert known(slices) == {P1: Endpoints((), urls(["[fd00::1]", "[fd00::2]"]))}


def test_the_family_is_chosen_by_service_and_source_cluster() -> None:
    slices = folded(
        relay("r4", "10.0.0.1"),
        relay("r6", "fd00::1", family="IPv6"),
        frontend("f6", "fd00::2", family="IPv6"),
        frontend("g4", "10.0.0.3", cluster="c2"),
        frontend("g6", "fd00::3", cluster="c2", family="IPv6"),
    )
    assert slices.endpoints(P1) == Endpoints(urls(["10.0.0.1"], 5561), urls(["[fd00::2]"]))
    assert slices.endpoints(P1._replace(cluster_id="c2")) == Endpoints((), urls(["10.0.0.3"]))


def test_an_ipv4_address_without_a_port_does_not_hide_the_ipv6_one_that_has_it() -> None:
    slices = folded(frontend("f4", "10.0.0.1", ports=[]), frontend("f6", "fd00::1", family="IPv6"))
    assert known(slices) == {P1: Endpoints((), urls(["[fd00::1]"]))}


def test_families_that_one_writer_mixed_in_one_slice_are_told_apart_by_address() -> None:
    slices = folded(frontend("f", "10.0.0.1", "fd00::1"))
    assert known(slices) == {P1: Endpoints((), urls(["10.0.0.1"]))}


def test_port_numbers_may_differ_from_slice_to_slice() -> None:
    slices = folded(frontend("a", "10.0.0.1"), frontend("b", "10.0.0.2", ports=[{"name": "http", "port": 9}]))
    assert known(slices) == {P1: Endpoints((), ("http://10.0.0.1:8000", "http://10.0.0.2:9"))}
    slices = folded(relay("a", "10.0.0.1"), relay("b", "10.0.0.2", ports=[{"name": "relay", "port": 9}]))
    assert known(slices) == {P1: Endpoints(("http://10.0.0.1:5561", "http://10.0.0.2:9"), ())}


@pytest.mark.parametrize("https_first", [True, False])
def test_copies_that_differ_in_scheme_are_one_endpoint(https_first: bool) -> None:
    secure = frontend("a" if https_first else "b", "10.0.0.1", ports=[{**shapes.HTTP, "appProtocol": "https"}])
    plain = frontend("b" if https_first else "a", "10.0.0.1")
    slices = folded(*((secure, plain) if https_first else (plain, secure)))
    assert known(slices) == {P1: Endpoints((), ("https://10.0.0.1:8000",))}


def test_f40_a_pool_of_terminating_endpoints_leaves_and_comes_back_with_the_first_ready_one() -> None:
    leaving = {"addresses": ["10.0.0.1"], "conditions": {"ready": False, "serving": True, "terminating": True}}
    slices = folded(relay("r", leaving))
    assert not slices.pool_keys()
    assert state(slices, "p1-pool-relay").fault == "not_ready"
    assert apply(slices, relay("r", leaving, "10.0.0.2")).keys == {P1}
    assert apply(slices, relay("r", "10.0.0.2")) == Touched()


def test_a_thousand_endpoints_in_each_of_several_slices() -> None:
    addresses = [f"10.{slice_}.{number // 250}.{number % 250}" for slice_ in range(3) for number in range(1000)]
    found = [frontend(f"f{number}", *addresses[number * 1000 : number * 1000 + 1000]) for number in range(3)]
    [endpoints] = known(folded(*found)).values()
    assert endpoints == Endpoints((), tuple(sorted(urls(addresses))))


def test_a_services_addresses_are_sorted_as_text() -> None:
    [endpoints] = known(folded(frontend("a", "10.0.0.9", "10.0.0.10"), frontend("b", "10.0.0.1"))).values()
    assert endpoints == Endpoints((), urls(["10.0.0.10", "10.0.0.1", "10.0.0.9"]))


# ---- this cluster's own Services


def native(name: str, service: str, *endpoints: Any, **more: Any) -> Manifest:
    labels = {SERVICE_NAME: service, MANAGED_BY: KUBE}
    return any_manifest(name, labels, endpoints=endpoints, **{"ports": [RELAY], **more})


def test_own_services_count_where_the_cluster_has_a_name() -> None:
    own = native("n", "p1-pool-relay", "10.0.0.1")
    assert not folded(own).pool_keys()
    for mode in ("mcs", "karmada"):
        assert known(folded(own, rules=Rules(mode, "c1"))) == {P1: Endpoints(urls(["10.0.0.1"], 5561), ())}


def test_own_exports_that_are_handed_back_are_listed_only_where_kube_says_nothing_itself() -> None:
    own, back = native("n", "p1-pool-relay", "10.0.0.1"), relay("i", "172.30.0.1")
    slices = folded(back, rules=Rules("mcs", "c1"))
    assert known(slices) == {P1: Endpoints(urls(["172.30.0.1"], 5561), ())}
    assert apply(slices, own).keys == {P1}
    assert known(slices) == {P1: Endpoints(urls(["10.0.0.1"], 5561), ())}
    assert apply(slices, native("n", "p1-pool-relay")).keys == {P1}
    assert not slices.pool_keys(), "kube knows that there is none, whatever a copy still says"
    assert remove(slices, own).keys == {P1}


# ---- routers

ROUTERS = Names(router=RouterService("edge", "global-router", "http"))


def router(name: str, *endpoints: Any, cluster: str = "c1", namespace: str = "edge", **more: Any) -> Manifest:
    return imported(name, "global-router", cluster, endpoints=endpoints, namespace=namespace, **more)


def pod(address: str, name: str, **more: Any) -> Manifest:
    return ready(address, targetRef={"kind": "Pod", "name": name}, **more)


def test_routers_are_one_per_pod_under_cluster_and_pod_or_address() -> None:
    slices = folded(
        router("z", pod("10.0.0.1", "gr-0"), cluster="c2"),
        router("a", pod("10.0.0.1", "gr-0"), "10.0.0.2", ready("10.0.0.3", targetRef={"kind": "Service", "name": "s"})),
        router("c6", pod("fd00::1", "gr-0"), family="IPv6"),
        router("d6", "fd00:0::9", cluster="c3", family="IPv6"),
        router("elsewhere", "10.9.9.9", namespace="llm"),
        names=ROUTERS,
    )
    assert slices.routers() == (
        Router("c1/10.0.0.2", "http://10.0.0.2:8000"),
        Router("c1/10.0.0.3", "http://10.0.0.3:8000"),
        Router("c1/gr-0", "http://10.0.0.1:8000"),
        Router("c2/gr-0", "http://10.0.0.1:8000"),
        Router("c3/fd00::9", "http://[fd00::9]:8000"),
    )
    assert not slices.pool_keys()


def test_routers_keep_their_ids_over_relists_and_copies_and_changes_are_told() -> None:
    first = [router("a", pod("10.0.0.1", "gr-0"), pod("10.0.0.2", "gr-1"))]
    slices = folded(*first, names=ROUTERS)
    before = slices.routers()
    assert slices.relist(map(shapes.slice_of, [router("z", *first[0]["endpoints"][::-1])])) == Touched()
    assert slices.routers() == before
    assert apply(slices, router("copy", "10.0.0.1")) == Touched(), "a copy that does not name the pod"
    assert slices.routers() == before
    assert apply(slices, router("z", pod("10.0.0.3", "gr-0"), pod("10.0.0.2", "gr-1"))).routers
    assert slices.endpoints(P1) is None
    assert not apply(slices, relay("r", "10.0.0.1")).routers


@pytest.mark.parametrize("turned", [False, True])
def test_one_id_has_one_url_and_one_url_one_id(turned: bool) -> None:
    moved = [router("a", pod("10.0.0.1", "gr-0")), router("b", pod("10.0.0.2", "gr-0"))]
    reused = [router("a", pod("10.0.0.1", "new")), router("b", pod("10.0.0.1", "old"))]
    inside = [router("a", *(endpoint for one in reused for endpoint in one["endpoints"]))]
    inside += [router("a", *(endpoint for one in reused[::-1] for endpoint in one["endpoints"]))]
    assert folded(inside[turned], names=ROUTERS).routers() == (Router("c1/new", "http://10.0.0.1:8000"),)
    assert len(folded(*(moved[::-1] if turned else moved), names=ROUTERS).routers()) == 1
    assert folded(*(moved[::-1] if turned else moved), names=ROUTERS).routers()[0].url == "http://10.0.0.1:8000"
    assert folded(*(reused[::-1] if turned else reused), names=ROUTERS).routers() == (
        Router("c1/new", "http://10.0.0.1:8000"),
    )


def test_a_pod_whose_leaving_copy_is_still_listed_does_not_name_the_router() -> None:
    leaving = {**pod("10.0.0.1", "a-leaves"), "conditions": {"ready": False}}
    slices = folded(router("a", leaving), router("b", pod("10.0.0.1", "b-runs")), names=ROUTERS)
    assert slices.routers() == (Router("c1/b-runs", "http://10.0.0.1:8000"),)


def test_the_routers_service_is_no_pools_frontend() -> None:
    names = Names(router=RouterService("llm", "p1-frontend"))
    slices = folded(frontend("f", "10.0.0.1", ports=[{"port": 7}]), names=names)
    assert slices.routers() == (Router("c1/10.0.0.1", "http://10.0.0.1:7"),)
    assert slices.endpoints(P1) is None
    assert not slices.pool_keys()


# ---- cost


def calls_of(slices: Slices, found: Manifest) -> int:
    """How many Python calls one event costs: counted, since time would depend on the machine."""
    item, calls = shapes.slice_of(found), 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        slices.apply(item)
    finally:
        sys.setprofile(before)
    return calls


def test_an_event_costs_the_same_however_many_other_pools_there_are() -> None:
    costs = []
    for others in (1, 1000):
        slices = folded(*(relay(f"r{number}", "10.0.0.1", service=f"q{number}-pool-relay") for number in range(others)))
        apply(slices, relay("r", "10.0.0.1"))
        costs.append(calls_of(slices, relay("r", "10.0.0.1", "10.0.0.2")))
    assert costs[0] == costs[1] < 500
