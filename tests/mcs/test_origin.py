"""Whose slice is it: every implementation that is known, and everything that must not be taken for an import."""

from typing import Any

import pytest

from discovery.mcs.origin import Origin, Refused, Rules, origin_of
from tests.mcs import shapes
from tests.mcs.shapes import (
    AWS,
    CILIUM_LOCAL,
    CILIUM_MESH,
    KARMADA_DISPATCH,
    KARMADA_IMPORT,
    KUBE,
    KUBE_MIRROR,
    LIGHTHOUSE,
    MANAGED_BY,
    MCS_SERVICE,
    MCS_SOURCE,
    SERVICE_NAME,
    Manifest,
    imported,
    manifest,
    ready,
    slice_of,
)

MCS = Rules("mcs")
MCS_HERE = Rules("mcs", "here")
MEMBER = Rules("karmada")
MEMBER_HERE = Rules("karmada", "here")
CONTROL_PLANE = Rules("karmada", is_control_plane=True)

WORK = "work.karmada.io/namespace"
EVERY_RULE = [MCS, MCS_HERE, MEMBER, MEMBER_HERE, CONTROL_PLANE]


def origin(found: Manifest, rules: Rules = MCS) -> Origin | Refused | None:
    return origin_of(slice_of(found), rules)


def karmada_import(name: str, service: str, marks: dict[str, str] | None = None, **annotations: str) -> Manifest:
    labels = {SERVICE_NAME: service, MANAGED_BY: KARMADA_IMPORT, **(marks or {})}
    return manifest(name, labels, annotations={key.replace("_", "/"): value for key, value in annotations.items()})


# ---- each implementation

IMPORTS: dict[str, tuple[Manifest, Rules, Origin]] = {
    "standard": (shapes.STANDARD, MCS, Origin("east-1", "llm", "llama-70b-pool-relay")),
    "standard, cluster with a dot": (shapes.TWIN_4, MCS, Origin("east-1.prod", "llm", "mixtral-frontend")),
    "standard, unsigned": (
        manifest("x", {MCS_SERVICE: "a-frontend", MCS_SOURCE: "c1"}),
        MCS,
        Origin("c1", "llm", "a-frontend"),
    ),
    "Lighthouse, member": (shapes.LIGHTHOUSE_CLUSTER_IP, MCS, Origin("east-1", "llm", "llama-70b-frontend")),
    "Lighthouse, broker": (
        imported(
            "a-frontend-7hbq2",
            "a-frontend",
            "east-1",
            LIGHTHOUSE,
            namespace="submariner-k8s-broker",
            marks={"lighthouse.submariner.io/sourceNamespace": "prod", "submariner-io/clusterID": "east-1"},
        ),
        MCS,
        Origin("east-1", "prod", "a-frontend"),
    ),
    "Lighthouse, headless: source-name is a slice's name": (
        imported(
            "a-frontend-7hbq2",
            "a-frontend",
            "east-1",
            LIGHTHOUSE,
            marks={"lighthouse.submariner.io/source-name": "a-frontend-zzzzz"},
        ),
        MCS,
        Origin("east-1", "llm", "a-frontend"),
    ),
    "Lighthouse 0.11": (
        manifest(
            "a-frontend-east-1",
            {
                MANAGED_BY: LIGHTHOUSE,
                "lighthouse.submariner.io/sourceCluster": "east-1",
                "lighthouse.submariner.io/sourceName": "a-frontend",
                "lighthouse.submariner.io/sourceNamespace": "prod",
            },
        ),
        MCS,
        Origin("east-1", "prod", "a-frontend"),
    ),
    "Lighthouse, cluster in the syncer's label alone": (
        manifest(
            "x", {MCS_SERVICE: "a-frontend", MCS_SOURCE: "", MANAGED_BY: LIGHTHOUSE, "submariner-io/clusterID": "e"}
        ),
        MCS,
        Origin("e", "llm", "a-frontend"),
    ),
    "the standard's source cluster before all others": (
        imported(
            "x",
            "a-frontend",
            "c1",
            marks={"lighthouse.submariner.io/sourceCluster": "c2", "submariner-io/clusterID": "c3"},
        ),
        MCS,
        Origin("c1", "llm", "a-frontend"),
    ),
    "Cilium, remote": (shapes.CILIUM_REMOTE, MCS, Origin("east-1", "llm", "llama-70b-pool-relay")),
    "Cilium, global Service without MCS": (
        manifest("x", {MANAGED_BY: CILIUM_MESH, SERVICE_NAME: "derived-x-frontend", MCS_SOURCE: "east-1"}),
        MCS,
        Origin("east-1", "llm", "derived-x-frontend"),
    ),
    "Cilium, cluster in nodeName alone": (
        manifest(
            "x",
            {MANAGED_BY: CILIUM_MESH, SERVICE_NAME: "a-frontend"},
            endpoints=[ready("10.0.0.1", nodeName="east-1"), ready("10.0.0.2", nodeName="east-1")],
        ),
        MCS,
        Origin("east-1", "llm", "a-frontend"),
    ),
    "Cilium, local": (
        imported("x", "a-frontend", "here", CILIUM_LOCAL, marks={SERVICE_NAME: "derived-a3acu3vo72"}),
        MCS,
        Origin("here", "llm", "a-frontend"),
    ),
    "Cilium, local, older: kube's slice of the derived Service": (
        imported("x", "a-frontend", "here", KUBE, marks={SERVICE_NAME: "derived-a3acu3vo72"}),
        MCS_HERE,
        Origin("here", "llm", "a-frontend", native=True),
    ),
    "AWS": (shapes.AWS_FROZEN, MCS, Origin("east-1", "llm", "llama-70b-pool-relay")),
    "mcs-api adds its derived Service's name": (
        imported("x", "a-frontend", "c1", marks={SERVICE_NAME: "derived-bcjlm50vuj"}),
        MCS,
        Origin("c1", "llm", "a-frontend"),
    ),
    "a Service that is called derived-": (
        imported("x", "derived-a-frontend", "c1", AWS, marks={SERVICE_NAME: "imported-ultuetgj2b"}),
        MCS,
        Origin("c1", "llm", "derived-a-frontend"),
    ),
    "Karmada import, control plane": (
        shapes.KARMADA_CONTROL_PLANE,
        CONTROL_PLANE,
        Origin("east-1", "llm", "llama-70b-pool-relay"),
    ),
    "Karmada import, control plane, by name alone": (
        shapes.KARMADA_CONTROL_PLANE,
        MEMBER,
        Origin("east-1", "llm", "llama-70b-pool-relay"),
    ),
    "Karmada import, member": (shapes.KARMADA_MEMBER, MEMBER, Origin("east-1", "llm", "llama-70b-frontend")),
    "Karmada import, member, though the flag says control plane": (
        shapes.KARMADA_MEMBER,
        CONTROL_PLANE,
        Origin("east-1", "llm", "llama-70b-frontend"),
    ),
    "Karmada import, control plane up to 1.9: labels, unsigned": (
        manifest(
            "imported-east-1-a-frontend-byhand",
            {SERVICE_NAME: "derived-a-frontend", WORK: "karmada-es-east-1", "work.karmada.io/name": "x"},
        ),
        CONTROL_PLANE,
        Origin("east-1", "llm", "a-frontend"),
    ),
    "Karmada import, annotation before label": (
        karmada_import(
            "imported-x-a-frontend-byhand",
            "derived-a-frontend",
            {WORK: "karmada-es-old"},
            **{"work.karmada.io_namespace": "karmada-es-new"},
        ),
        CONTROL_PLANE,
        Origin("new", "llm", "a-frontend"),
    ),
    "Karmada import, upgraded over 1.10: neither label nor annotation": (
        karmada_import(
            "imported-east-1-a-frontend-x7k2p", "derived-a-frontend", {"work.karmada.io/permanent-id": "5f0c2a1e"}
        ),
        CONTROL_PLANE,
        Origin("east-1", "llm", "a-frontend"),
    ),
    "Karmada import, unsigned, permanent id alone": (
        manifest(
            "imported-east-1-a-frontend-x7k2p",
            {SERVICE_NAME: "derived-a-frontend", "work.karmada.io/permanent-id": "5f0c2a1e"},
        ),
        MEMBER,
        Origin("east-1", "llm", "a-frontend"),
    ),
    "Karmada import of a DGD that is called derived-x": (
        karmada_import("imported-east-1-derived-x-frontend-x7k2p", "derived-derived-x-frontend"),
        MEMBER,
        Origin("east-1", "llm", "derived-x-frontend"),
    ),
    "Karmada import, cut name, in the control plane": (
        karmada_import(
            "imported-east-1-cut-x7k2p", f"derived-{'a' * 49}-frontend", **{"work.karmada.io_namespace": "karmada-es-e"}
        ),
        CONTROL_PLANE,
        Origin("e", "llm", f"{'a' * 49}-frontend"),
    ),
    "Karmada dispatch": (shapes.KARMADA_DISPATCHED, MEMBER, Origin("east-1", "llm", "llama-70b-pool-relay")),
    "Karmada dispatch, its Service is called derived-": (
        manifest(
            "east-1-derived-a-frontend-x7k2p",
            {SERVICE_NAME: "derived-a-frontend", MANAGED_BY: KARMADA_DISPATCH},
            annotations={"endpointslice.karmada.io/provision-cluster": "east-1"},
        ),
        MEMBER,
        Origin("east-1", "llm", "derived-a-frontend"),
    ),
    "Karmada dispatch, without annotation": (
        manifest(
            "east-1-a-frontend-x7k2p",
            {SERVICE_NAME: "a-frontend", MANAGED_BY: KARMADA_DISPATCH},
            annotations={WORK: "karmada-es-west-1"},
        ),
        CONTROL_PLANE,
        Origin("east-1", "llm", "a-frontend"),
    ),
    "Karmada dispatch, provider called imported-x": (
        manifest("imported-x-a-frontend-x7k2p", {SERVICE_NAME: "a-frontend", MANAGED_BY: KARMADA_DISPATCH}),
        MEMBER,
        Origin("imported-x", "llm", "a-frontend"),
    ),
    "native, with the cluster's id": (
        manifest("a-frontend-abcde", {SERVICE_NAME: "a-frontend", MANAGED_BY: KUBE}),
        MCS_HERE,
        Origin("here", "llm", "a-frontend", native=True),
    ),
    "native, mirrored from hand-made Endpoints": (
        manifest("a-frontend-abcde", {SERVICE_NAME: "a-frontend", MANAGED_BY: KUBE_MIRROR}),
        MCS_HERE,
        Origin("here", "llm", "a-frontend", native=True),
    ),
    "native, in a Karmada provider, of a propagated Service": (
        manifest(
            "imported-a-frontend-abcde",
            {SERVICE_NAME: "derived-a-frontend", MANAGED_BY: KUBE, "work.karmada.io/permanent-id": "5f0c2a1e"},
        ),
        MEMBER_HERE,
        Origin("here", "llm", "derived-a-frontend", native=True),
    ),
    "native, its owner put MCS labels on the Service": (
        imported("x", "b-frontend", "elsewhere", KUBE, marks={SERVICE_NAME: "a-frontend"}),
        MCS_HERE,
        Origin("here", "llm", "a-frontend", native=True),
    ),
    "native, its owner put this cluster's name on the Service": (
        imported("x", "b-frontend", "here", KUBE, marks={SERVICE_NAME: "a-frontend"}),
        MCS_HERE,
        Origin("here", "llm", "a-frontend", native=True),
    ),
    "native, of a derived Service that is called another cluster's": (
        imported("x", "a-frontend", "elsewhere", KUBE, marks={SERVICE_NAME: "derived-a3acu3vo72"}),
        MCS_HERE,
        Origin("here", "llm", "derived-a3acu3vo72", native=True),
    ),
    "native, another namespace by a copied label": (
        manifest(
            "x",
            {SERVICE_NAME: "a-frontend", MANAGED_BY: KUBE, "lighthouse.submariner.io/sourceNamespace": "elsewhere"},
        ),
        MCS_HERE,
        Origin("here", "llm", "a-frontend", native=True),
    ),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_the_origin_of_each_implementations_slices(case: str) -> None:
    found, rules, expected = IMPORTS[case]
    assert origin(found, rules) == expected


# ---- what is no import

NO_IMPORT: dict[str, tuple[Manifest, list[Rules]]] = {
    "F41 no labels at all": (manifest("x"), EVERY_RULE),
    "F41 empty labels": (manifest("x", {}), EVERY_RULE),
    "F41 the plain service name alone": (manifest("x", {SERVICE_NAME: "p1-pool-relay"}), EVERY_RULE),
    "the API server's own": (manifest("kubernetes", {SERVICE_NAME: "kubernetes"}, namespace="default"), EVERY_RULE),
    "native, no id of this cluster": (
        manifest("x", {SERVICE_NAME: "a-frontend", MANAGED_BY: KUBE}),
        [MCS, MEMBER, CONTROL_PLANE],
    ),
    "native with a user's own MCS labels": (
        imported("x", "a-frontend", "elsewhere", KUBE, marks={SERVICE_NAME: "a-frontend"}),
        [MCS, MEMBER, CONTROL_PLANE],
    ),
    "native of a derived Service, no id of this cluster": (
        imported("x", "a-frontend", "here", KUBE, marks={SERVICE_NAME: "derived-a3acu3vo72"}),
        [MCS, MEMBER, CONTROL_PLANE],
    ),
    "mirrored with a user's own MCS labels": (
        imported("x", "a-frontend", "elsewhere", KUBE_MIRROR, marks={SERVICE_NAME: "a-frontend"}),
        [MCS, MEMBER, CONTROL_PLANE],
    ),
    "native without a Service": (manifest("x", {MANAGED_BY: KUBE}), EVERY_RULE),
    "Linkerd's mirror": (
        manifest(
            "x",
            {SERVICE_NAME: "a-frontend", MANAGED_BY: KUBE_MIRROR, "mirror.linkerd.io/cluster-name": "east"},
        ),
        EVERY_RULE,
    ),
    "Lighthouse's reflected second copy": (
        manifest(
            "x",
            {
                SERVICE_NAME: "a-frontend-east-1",
                "app.kubernetes.io/managed-by": "lighthouse-clusterlocal-reflector",
                "lighthouse.submariner.io/reflected-from": "a-frontend-7hbq2",
                "lighthouse.submariner.io/sourceName": "a-frontend",
                "lighthouse.submariner.io/sourceCluster": "east-1",
            },
        ),
        EVERY_RULE,
    ),
    "Karmada's, where MCS is watched": (shapes.KARMADA_CONTROL_PLANE, [MCS, MCS_HERE]),
    "Karmada's dispatched, where MCS is watched": (shapes.KARMADA_DISPATCHED, [MCS, MCS_HERE]),
    "another MCS implementation's, where Karmada is watched": (shapes.STANDARD, [MEMBER, MEMBER_HERE, CONTROL_PLANE]),
    "Cilium's, where Karmada is watched": (shapes.CILIUM_REMOTE, [MEMBER, MEMBER_HERE, CONTROL_PLANE]),
    "an unknown writer in Karmada's dress": (
        manifest(
            "imported-east-1-a-frontend-x7k2p",
            {SERVICE_NAME: "derived-a-frontend", MANAGED_BY: "other", "work.karmada.io/permanent-id": "x"},
        ),
        EVERY_RULE,
    ),
    "unsigned, imported- and derived-, but nothing of Karmada": (
        manifest("imported-east-1-a-frontend-x7k2p", {SERVICE_NAME: "derived-a-frontend"}),
        EVERY_RULE,
    ),
    "unsigned, a Service that Karmada propagated": (
        manifest("a-frontend-x7k2p", {SERVICE_NAME: "derived-a-frontend", "work.karmada.io/permanent-id": "x"}),
        EVERY_RULE,
    ),
    "unsigned, imported-, of a Service without derived-": (
        manifest("imported-a-frontend-x7k2p", {SERVICE_NAME: "a-frontend", "work.karmada.io/permanent-id": "x"}),
        EVERY_RULE,
    ),
}


@pytest.mark.parametrize("case", NO_IMPORT)
def test_what_is_no_import(case: str) -> None:
    found, every_rules = NO_IMPORT[case]
    for rules in every_rules:
        assert origin(found, rules) is None, rules


# ---- what is refused


def named(name: str, service: str = "derived-a-frontend", **more: Any) -> Manifest:
    return karmada_import(name, service, **more)


REFUSED: dict[str, tuple[Manifest, Rules, str, str]] = {
    "F41 no source cluster": (shapes.NO_SOURCE, MCS, "no_source_cluster", "llama-70b-frontend"),
    "F41 no source cluster, though this cluster has an id": (
        shapes.NO_SOURCE,
        MCS_HERE,
        "no_source_cluster",
        "llama-70b-frontend",
    ),
    "F41 empty source cluster": (imported("x", "a-frontend", ""), MCS, "no_source_cluster", "a-frontend"),
    "a source cluster and no Service": (
        manifest("x", {MCS_SOURCE: "c1", SERVICE_NAME: "a-frontend"}),
        MCS,
        "no_service",
        "a-frontend",
    ),
    "Cilium, no cluster at all": (
        manifest("x", {MANAGED_BY: CILIUM_MESH, SERVICE_NAME: "a-frontend"}, endpoints=["10.0.0.1"]),
        MCS,
        "no_source_cluster",
        "a-frontend",
    ),
    "Cilium, nodes of two clusters": (
        manifest(
            "x",
            {MANAGED_BY: CILIUM_MESH, SERVICE_NAME: "a-frontend"},
            endpoints=[ready("10.0.0.1", nodeName="c1"), ready("10.0.0.2", nodeName="c2")],
        ),
        MCS,
        "no_source_cluster",
        "a-frontend",
    ),
    "nodeName of another writer": (
        manifest("x", {MCS_SERVICE: "a-frontend"}, endpoints=[ready("10.0.0.1", nodeName="c1")]),
        MCS,
        "no_source_cluster",
        "a-frontend",
    ),
    "Karmada import without derived-": (
        named("imported-e-a-frontend-x7k2p", "a-frontend"),
        MEMBER,
        "no_service",
        "a-frontend",
    ),
    "Karmada import, name cut": (
        named(f"imported-e-{'a' * 49}-frontend-x7k2p", f"derived-{'a' * 49}-frontend"),
        MEMBER,
        "unreadable_name",
        f"{'a' * 49}-frontend",
    ),
    "Karmada import, slice named by hand": (named("imported-e-a-frontend-1"), MEMBER, "unreadable_name", "a-frontend"),
    "Karmada import, slice named by hand, no end": (
        named("imported-e-a-frontend"),
        MEMBER,
        "unreadable_name",
        "a-frontend",
    ),
    "Karmada import, slice of another name": (named("imported-e-b-x7k2p"), MEMBER, "unreadable_name", "a-frontend"),
    "Karmada import, no cluster in the name": (
        named("imported-a-frontend-x7k2p"),
        MEMBER,
        "unreadable_name",
        "a-frontend",
    ),
    "Karmada import, the Service is only the end of a word": (
        named("imported-e-aa-frontend-x7k2p"),
        MEMBER,
        "unreadable_name",
        "a-frontend",
    ),
    "Karmada import, name without imported-": (
        named("east-1-a-frontend-x7k2p"),
        MEMBER,
        "unreadable_name",
        "a-frontend",
    ),
    "Karmada import, cluster longer than Karmada's longest": (
        named(f"imported-{'e' * 49}-a-frontend-x7k2p"),
        MEMBER,
        "unreadable_name",
        "a-frontend",
    ),
    "Karmada import, member, work namespace is where it went": (
        named("imported-by-hand", **{"work.karmada.io_namespace": "karmada-es-west-1"}),
        MEMBER,
        "unreadable_name",
        "a-frontend",
    ),
    "Karmada import, control plane, foreign work namespace": (
        named("imported-by-hand", **{"work.karmada.io_namespace": "elsewhere"}),
        CONTROL_PLANE,
        "unreadable_name",
        "a-frontend",
    ),
    "Karmada dispatch, by hand": (
        manifest("by-hand", {SERVICE_NAME: "a-frontend", MANAGED_BY: KARMADA_DISPATCH}),
        MEMBER,
        "unreadable_name",
        "a-frontend",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_and_never_guessed(case: str) -> None:
    found, rules, cause, service = REFUSED[case]
    refused = origin(found, rules)
    assert isinstance(refused, Refused), refused
    assert refused[:3] == (cause, "llm", service)
    assert found["metadata"]["name"] in refused.text
    assert "\n" not in refused.text


@pytest.mark.parametrize(
    "mark",
    [
        {"labels": {"resourcebinding.karmada.io/permanent-id": "c2e8b7f0"}},
        {"labels": {"karmada.io/managed": "true"}},
        {"annotations": {"resourcetemplate.karmada.io/uid": ""}},
        {"annotations": {"resourcebinding.karmada.io/name": "x"}},
    ],
    ids=str,
)
def test_any_mark_of_a_members_copy_outweighs_its_work_namespace(mark: dict[str, dict[str, str]]) -> None:
    found = karmada_import("imported-east-1-a-frontend-x7k2p", "derived-a-frontend", mark.get("labels"))
    found["metadata"]["annotations"] = {WORK: "karmada-es-west-1", **mark.get("annotations", {})}
    assert origin(found, CONTROL_PLANE) == Origin("east-1", "llm", "a-frontend")


def test_a_broken_endpoint_does_not_hide_the_cluster_that_all_others_name() -> None:
    labels = {MANAGED_BY: CILIUM_MESH, SERVICE_NAME: "a-frontend"}
    found = manifest("x", labels, endpoints=[{"nodeName": 7}, ready("10.0.0.2", nodeName="c2")])
    assert origin(found) == Origin("c2", "llm", "a-frontend")


def test_a_refusal_says_where_the_slice_is_and_what_to_do() -> None:
    refused = origin(imported("x", "a-frontend", "", marks={"lighthouse.submariner.io/sourceNamespace": "prod"}))
    assert isinstance(refused, Refused)
    assert refused.namespace == "prod"
    assert "prod/a-frontend" in refused.text
    assert "llm/x" in refused.text
    assert MCS_SOURCE in refused.text
