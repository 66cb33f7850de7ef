"""Any course of events ends where a fresh list of the last objects ends, and tells exactly what changed on its way.

A second, plain reading of the rules, which knows nothing of the fold, says what the end must be.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.mcs.endpoint_slice import SliceName
from discovery.mcs.names import Names, RouterService
from discovery.mcs.origin import Rules
from discovery.mcs.slices import Endpoints, Slices, Touched
from discovery.model import PoolKey
from tests.mcs.shapes import (
    KARMADA_SHAPES,
    KUBE,
    MANAGED_BY,
    MCS_SERVICE,
    MCS_SOURCE,
    SERVICE_NAME,
    STANDARD_SHAPES,
    Manifest,
    manifest,
    slice_of,
)
from tests.mcs.test_slices import EVERYTHING_DOCUMENTED, KARMADA_DOCUMENTED, known

HERE = "c1"
NAMES = Names(router=RouterService("llm", "global-router"))
RULES = Rules("mcs", HERE)
SUFFIXES = {"relays": "-pool-relay", "frontends": "-frontend"}

# ---- the shapes, in any order and any split

Event = tuple[str, Manifest]


def splits(found: Manifest) -> st.SearchStrategy[list[Event]]:
    """Ways in which an object comes to be as it is."""
    unready = [
        {**endpoint, "conditions": {"ready": False}} if isinstance(endpoint, dict) else endpoint
        for endpoint in found["endpoints"] or []
    ]
    former = {**found, "metadata": {**found["metadata"], "uid": "former"}}
    unlabelled = {**found, "metadata": {**found["metadata"], "labels": {}}}
    elsewhere = {**found["metadata"]["labels"], MCS_SOURCE: "elsewhere", MCS_SERVICE: "other-frontend"}
    steps: list[list[Event]] = [
        [],
        [("apply", {**found, "endpoints": None, "ports": None})],
        [("apply", {**found, "endpoints": unready})],
        [("apply", {**found, "endpoints": (found["endpoints"] or [])[:1]})],
        [("apply", found), ("remove", found)],
        [("apply", former), ("remove", former)],
        [("apply", unlabelled)],
        [("apply", {**found, "metadata": {**found["metadata"], "labels": elsewhere}})],
        [("relist", found)],
    ]
    late: list[list[Event]] = [[], [("remove", former)], [("apply", found)]]
    return st.builds(
        lambda before, after: [*(event for part in before for event in part), ("apply", found), *after],
        st.lists(st.sampled_from(steps), max_size=3),
        st.sampled_from(late),
    )


@st.composite
def interleaved(draw: st.DrawFn, found: tuple[Manifest, ...]) -> list[Event]:
    """Each object's events in their order, those of different objects in any."""
    courses = [draw(splits(one)) for one in found]
    turns = draw(st.permutations([number for number, course in enumerate(courses) for _ in course]))
    return [courses[number].pop(0) for number in turns]


def run(slices: Slices, events: Iterable[Event]) -> None:
    now: dict[SliceName, Manifest] = {}
    for kind, found in events:
        item = slice_of(found)
        match kind:
            case "apply":
                now[item.name] = found
                slices.apply(item)
            case "remove":
                if item.name in now and now[item.name]["metadata"]["uid"] == item.metadata.uid:
                    del now[item.name]
                slices.remove(item.name, item.metadata.uid)
            case _:
                slices.relist([slice_of(one) for one in now.values()])


@given(interleaved(STANDARD_SHAPES))
@settings(deadline=None)
def test_every_standard_shape_in_any_order_and_split(events: list[Event]) -> None:
    slices = Slices(Names(), Rules("mcs"))
    run(slices, events)
    assert known(slices) == EVERYTHING_DOCUMENTED


@given(interleaved(KARMADA_SHAPES), st.booleans())
@settings(deadline=None)
def test_every_karmada_shape_in_any_order_and_split(events: list[Event], is_control_plane: bool) -> None:
    slices = Slices(Names(), Rules("karmada", is_control_plane=is_control_plane))
    run(slices, events)
    assert known(slices) == KARMADA_DOCUMENTED


# ---- anything at all


# One choice among all that can be made of the values below is drawn many times faster than each value by itself.

ABSENT = object()


def every(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Every dictionary that takes one of the values for each name."""
    found = (zip(values, chosen, strict=True) for chosen in product(*values.values()))
    return [{name: value for name, value in pairs if value is not ABSENT} for pairs in found]


CONDITIONS = every(ready=[ABSENT, True, True, None, False], serving=[ABSENT, True, True, None, False])
ENDPOINTS = every(
    addresses=[["10.0.0.1"], ["10.0.0.2"], ["fd00::1"], ["fd00:0::1"], ["010.0.0.1"]],
    conditions=CONDITIONS,
    targetRef=[None, {"kind": "Pod", "name": "p-0"}, {"kind": "Pod", "name": "p-1"}],
)
PORTS = every(
    name=["http", "http", "relay", None],
    port=[80, 80, 81, 0, None],
    protocol=[ABSENT, "TCP", "UDP"],
    appProtocol=[ABSENT, "http", "https"],
)
SERVICES = ["a-pool-relay", "a-frontend", "b-frontend", "a-b-pool-relay", "other", "global-router"]
LABELS = st.one_of(
    st.just({}),
    st.sampled_from([{MCS_SERVICE: service} for service in SERVICES]),
    st.sampled_from([{SERVICE_NAME: service, MANAGED_BY: KUBE} for service in SERVICES]),
    *[st.sampled_from(every(**{MCS_SERVICE: SERVICES[:4], MCS_SOURCE: ["c1", "c2"]}))] * 3,
)
OBJECTS = st.builds(
    lambda name, labels, placed, endpoints, ports: manifest(name, labels, **placed, endpoints=endpoints, ports=ports),
    st.sampled_from("stuv"),
    LABELS,
    st.sampled_from(every(namespace=["llm", "llm", "n2"], uid="12", family=["IPv4", "IPv4", "IPv4", "FQDN"])),
    st.none() | st.lists(st.sampled_from(ENDPOINTS), max_size=3),
    st.none() | st.lists(st.sampled_from(PORTS), max_size=2),
)
COURSES = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), OBJECTS),
        st.tuples(st.just("apply"), OBJECTS),
        st.tuples(st.just("remove"), OBJECTS),
        st.tuples(st.just("relist"), st.lists(OBJECTS, max_size=6)),
    ),
    max_size=14,
)


def step(slices: Slices, there: dict[SliceName, Manifest], kind: str, given: Any) -> Touched:
    """One event, in the fold and in the plain record of what is there."""
    if kind == "relist":
        there.clear()
        there.update({slice_of(one).name: one for one in given})
        return slices.relist([slice_of(one) for one in given])
    item = slice_of(given)
    if kind == "apply":
        there[item.name] = given
        return slices.apply(item)
    if item.name in there and there[item.name]["metadata"]["uid"] == item.metadata.uid:
        del there[item.name]
    return slices.remove(item.name, item.metadata.uid)


def facts(slices: Slices) -> dict[str, Any]:
    """All that can be asked."""
    return {
        "pools": known(slices),
        "routers": slices.routers(),
        "services": sorted(slices.services()),
        "refused": sorted(slices.refused()),
        "skipped": slices.skipped(),
    }


@given(COURSES)
@settings(deadline=None, max_examples=300)
def test_any_course_ends_as_a_fresh_list_and_tells_what_changed(course: list[tuple[str, Any]]) -> None:
    slices, there = Slices(NAMES, RULES), dict[SliceName, Manifest]()
    for kind, given_ in course:
        before, routers = known(slices), slices.routers()
        touched = step(slices, there, kind, given_)
        after = known(slices)
        assert touched.keys == {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert touched.routers == (routers != slices.routers())
        assert after == plainly(there.values())
    fresh = Slices(NAMES, RULES)
    fresh.relist([slice_of(one) for one in reversed(there.values())])
    assert facts(slices) == facts(fresh)
    assert slices.relist([slice_of(one) for one in there.values()]) == Touched(), "the same list again changes nothing"


@given(COURSES)
@settings(deadline=None)
def test_a_warning_comes_again_only_after_its_service_was_seen_without_the_fault(course: list[tuple[str, Any]]) -> None:
    slices, there = Slices(NAMES, RULES), dict[SliceName, Manifest]()
    said: set[tuple[str, str, str, str]] = set()
    for kind, given_ in course:
        touched = step(slices, there, kind, given_)
        now = {(one.cause, one.namespace, one.service, one.text) for one in touched.warnings}
        assert len(now) == len(touched.warnings)
        assert step(slices, there, "relist", list(there.values())).warnings == ()
        refused = {(one.namespace, one.service) for one in slices.refused()}
        said = {one for one in said if one[0] != "no_source_cluster" or one[1:3] in refused}
        assert not {one for one in now & said if one[0] == "no_source_cluster"}
        said |= now


# ---- the rules read plainly


def plainly(found: Iterable[Manifest]) -> dict[PoolKey, Endpoints]:
    """What the rules give for these objects, without any state."""
    every = list(found)
    pools: dict[PoolKey, dict[str, tuple[str, ...]]] = {}
    for cluster, namespace, service in {bearer[:3] for one in every if (bearer := bearer_of(one))}:
        for side, suffix in SUFFIXES.items():
            if service.endswith(suffix) and (urls := urls_of(every, (cluster, namespace, service), side)):
                pools.setdefault(PoolKey(cluster, namespace, service[: -len(suffix)]), {})[side] = urls
    return {key: Endpoints(sides.get("relays", ()), sides.get("frontends", ())) for key, sides in pools.items()}


def bearer_of(found: Manifest) -> tuple[str, str, str, bool] | None:
    labels = found["metadata"]["labels"]
    namespace = found["metadata"]["namespace"]
    if MANAGED_BY in labels:
        return HERE, namespace, labels[SERVICE_NAME], True
    if MCS_SERVICE in labels and MCS_SOURCE in labels:
        return labels[MCS_SOURCE], namespace, labels[MCS_SERVICE], False
    return None


def urls_of(every: list[Manifest], service: tuple[str, str, str], side: str) -> tuple[str, ...]:
    mine = [one for one in every if (bearer := bearer_of(one)) and bearer[:3] == service]
    own = [one for one in mine if MANAGED_BY in one["metadata"]["labels"]]
    mine = [one for one in own or mine if one["addressType"] != "FQDN" and one["endpoints"]]
    names = [[port["name"] or "" for port in tcp(one)] for one in mine]
    if side == "relays" and (
        len({name for each in names for name in each}) > 1 or any(len(each) > 1 for each in names)
    ):
        return ()
    usable = set(endpoints_of(mine, side))
    best = 4 if any(address.version == 4 for address, _, _ in usable) else 6
    secure = {(address, number) for address, number, https in usable if https}
    return tuple(
        sorted(
            f"{'https' if (address, number) in secure else 'http'}://"
            f"{address if best == 4 else f'[{address}]'}:{number}"
            for address, number in {(address, number) for address, number, _ in usable if address.version == best}
        )
    )


def tcp(found: Manifest) -> list[Manifest]:
    return [port for port in found["ports"] or [] if port.get("protocol") in (None, "TCP")]


def endpoints_of(every: list[Manifest], side: str) -> Iterator[tuple[Any, int, bool]]:
    for one in every:
        ports = [port for port in tcp(one) if port["port"] and (side == "relays" or port["name"] == "http")]
        ports.sort(key=lambda port: (port["port"], port.get("appProtocol") == "https"))
        for endpoint in one["endpoints"] if ports else []:
            conditions = endpoint["conditions"]
            if conditions.get("ready") is False or conditions.get("serving") is False:
                continue
            try:
                address = ip_address(endpoint["addresses"][0])
            except ValueError:
                continue
            yield address, ports[0]["port"], ports[0].get("appProtocol") == "https"
