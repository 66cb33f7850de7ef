"""Selectors find every slice that can be told whose it is, each once, and little else."""

from typing import Any

import pytest

from discovery.mcs.origin import Origin, Rules, origin_of
from discovery.mcs.selectors import selectors_for
from tests.mcs.api_objects import selector
from tests.mcs.shapes import (
    CILIUM_MESH,
    KARMADA_SHAPES,
    KUBE,
    KUBE_MIRROR,
    MANAGED_BY,
    MCS_SERVICE,
    MCS_SOURCE,
    SERVICE_NAME,
    STANDARD_SHAPES,
    manifest,
    slice_of,
)

PERMANENT_ID = "work.karmada.io/permanent-id"

CILIUM_GLOBAL = manifest(
    "llama-frontend-east-1-x2x2x",
    {MANAGED_BY: CILIUM_MESH, SERVICE_NAME: "llama-frontend", MCS_SOURCE: "east-1"},
)
OLD_LIGHTHOUSE = manifest(
    "llama-frontend-east-1",
    {"lighthouse.submariner.io/sourceName": "llama-frontend", "lighthouse.submariner.io/sourceCluster": "east-1"},
)
OLD_KARMADA = manifest(
    "imported-east-1-llama-frontend-x7k2p",
    {SERVICE_NAME: "derived-llama-frontend", "work.karmada.io/name": "x", "work.karmada.io/namespace": "karmada-es-w"},
)
NATIVE = manifest("llama-frontend-abcde", {MANAGED_BY: KUBE, SERVICE_NAME: "llama-frontend"})
NATIVE_OF_AN_EXPORT = manifest(
    "llama-frontend-bcdef", {MANAGED_BY: KUBE, SERVICE_NAME: "llama-frontend", MCS_SERVICE: "x", MCS_SOURCE: "y"}
)
NATIVE_UNDER_KARMADA = manifest(
    "llama-frontend-cdefg",
    {MANAGED_BY: KUBE, SERVICE_NAME: "llama-frontend", PERMANENT_ID: "x", "work.karmada.io/name": "y"},
)
BY_HAND = manifest("llama-frontend-defgh", {MANAGED_BY: KUBE_MIRROR, SERVICE_NAME: "llama-frontend"})
FOREIGN = manifest("something", {"app": "else"})

MCS, KARMADA = [*STANDARD_SHAPES, CILIUM_GLOBAL, OLD_LIGHTHOUSE], [*KARMADA_SHAPES, OLD_KARMADA]
NATIVES = [NATIVE, NATIVE_OF_AN_EXPORT, NATIVE_UNDER_KARMADA, BY_HAND]
EVERYTHING = [*MCS, *KARMADA, *NATIVES, FOREIGN]
RULES = [
    Rules(mode="mcs"),
    Rules(mode="mcs", local_cluster_id="west-1"),
    Rules(mode="karmada"),
    Rules(mode="karmada", local_cluster_id="west-1"),
    Rules(mode="karmada", is_control_plane=True),
]


def found_by(rules: Rules, found: dict[str, Any]) -> list[str]:
    labels = found["metadata"].get("labels", {})
    return [text for text in selectors_for(rules) if selector(text)(labels)]


def is_known(rules: Rules, found: dict[str, Any]) -> bool:
    return isinstance(origin_of(slice_of(found), rules), Origin)


@pytest.mark.parametrize("rules", RULES, ids=repr)
def test_what_can_be_told_whose_it_is_is_found_by_one_selector(rules: Rules) -> None:
    known = [found for found in EVERYTHING if is_known(rules, found)]
    assert known
    assert {found["metadata"]["name"]: len(found_by(rules, found)) for found in known} == {
        found["metadata"]["name"]: 1 for found in known
    }


@pytest.mark.parametrize("rules", RULES, ids=repr)
def test_nothing_is_found_twice(rules: Rules) -> None:
    assert all(len(found_by(rules, found)) <= 1 for found in EVERYTHING)


@pytest.mark.parametrize("rules", RULES, ids=repr)
@pytest.mark.parametrize("native", NATIVES, ids=lambda found: found["metadata"]["name"])
def test_the_clusters_own_services_are_read_only_where_they_count(rules: Rules, native: dict[str, Any]) -> None:
    assert len(found_by(rules, native)) == (rules.local_cluster_id is not None)


@pytest.mark.parametrize("rules", RULES[:4], ids=repr)
def test_what_has_nothing_to_do_with_it_is_not_read(rules: Rules) -> None:
    assert found_by(rules, FOREIGN) == []


def test_every_known_implementation_is_among_those_tested() -> None:
    assert all(is_known(Rules(mode="mcs"), found) for found in (CILIUM_GLOBAL, OLD_LIGHTHOUSE))
    assert is_known(Rules(mode="karmada"), OLD_KARMADA)
    assert is_known(Rules(mode="mcs", local_cluster_id="west-1"), BY_HAND)
