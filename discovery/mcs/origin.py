"""Whose slice is it: the Service, its namespace and the cluster that it comes from, per implementation.

Pure; the first step of ``slices`` for every object. Marks of one writer are believed from that writer alone: kube's own
controllers copy every label of a Service to its slices, so a label proves nothing there; Karmada's name for a Service
means something only in its own slices. What cannot be told is refused, never guessed.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from discovery.mcs.endpoint_slice import EndpointSlice, Metadata, decode_endpoint

Cause = Literal["no_source_cluster", "unreadable_name", "no_service"]

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MCS_SERVICE = "multicluster.kubernetes.io/service-name"
MCS_SOURCE = "multicluster.kubernetes.io/source-cluster"

NATIVE_WRITERS = frozenset({"endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"})
CILIUM_MESH = "endpointslice-mesh-controller.cilium.io"
KARMADA_DISPATCH = "endpointslice-dispatch-controller.karmada.io"
KARMADA_IMPORT = "endpointslice-controller.karmada.io"

LIGHTHOUSE_NAMESPACE = "lighthouse.submariner.io/sourceNamespace"
OLD_LIGHTHOUSE_SERVICE = "lighthouse.submariner.io/sourceName"
OLD_LIGHTHOUSE_CLUSTER = "lighthouse.submariner.io/sourceCluster"
SUBMARINER_CLUSTER = "submariner-io/clusterID"
LIGHTHOUSE_REFLECTED = "lighthouse.submariner.io/reflected-from"
LINKERD_CLUSTER = "mirror.linkerd.io/cluster-name"

KARMADA_PROVIDER = "endpointslice.karmada.io/provision-cluster"
KARMADA_WORK_NAMESPACE = "work.karmada.io/namespace"
KARMADA_EXECUTION = "karmada-es-"

LONGEST_UNCUT_SERVICE = 57
"""Kubernetes cuts ``<service>-`` to 58 characters before it makes a slice's name of it."""

_derived_by_hash = re.compile(r"derived-[0-9a-v]{10}").fullmatch
_made_at_random = re.compile(r"[a-z0-9]{5}").fullmatch
_karmada_cluster = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,46}[a-z0-9])?").fullmatch


class Rules(msgspec.Struct, frozen=True):
    """What is known of the watched cluster before its first slice.

    ``mode`` says whose marks are believed. With ``local_cluster_id`` the cluster's own Services count, under that name.
    ``is_control_plane``: it is Karmada's control plane, where alone a slice's work namespace names its source.
    """

    mode: Literal["mcs", "karmada"]
    local_cluster_id: str | None = None
    is_control_plane: bool = False


class Origin(NamedTuple):
    """Where a slice's endpoints really are; ``native``: kube itself made it for a Service of this cluster."""

    cluster_id: str
    namespace: str
    service: str
    native: bool = False


class Refused(NamedTuple):
    """An import that cannot be used; ``service`` is empty where that too is unknown, ``text`` one line for people."""

    cause: Cause
    namespace: str
    service: str
    text: str


def origin_of(found: EndpointSlice, rules: Rules) -> Origin | Refused | None:
    """Where the slice comes from; None where it is no import at all: other writers', or this cluster's own."""
    labels = found.metadata.labels or {}
    if LIGHTHOUSE_REFLECTED in labels:  # a second copy of an import, under another name
        return None
    if labels.get(MANAGED_BY) in NATIVE_WRITERS:
        return _native(found.metadata, labels, rules.local_cluster_id)
    if rules.mode == "karmada":
        return _karmada(found.metadata, labels, rules.is_control_plane)
    return _multicluster(found, labels)


# ---- this cluster's own


def _native(metadata: Metadata, labels: Mapping[str, str], local: str | None) -> Origin | None:
    """A Service of this cluster; whatever its labels say, it is never another cluster's."""
    if local is None or LINKERD_CLUSTER in labels:  # a mirrored Service looks native, and leads elsewhere
        return None
    service = labels.get(SERVICE_NAME, "")
    if labels.get(MCS_SOURCE) == local and _derived_by_hash(service):  # older Cilium, for its own exports
        service = labels.get(MCS_SERVICE, "")
    return Origin(local, metadata.namespace, service, native=True) if service else None


# ---- implementations that set the labels of the standard, and older ones


def _multicluster(found: EndpointSlice, labels: Mapping[str, str]) -> Origin | Refused | None:
    namespace = labels.get(LIGHTHOUSE_NAMESPACE) or found.metadata.namespace  # a broker holds all in one namespace
    service = _multicluster_service(labels)
    if not service:
        return _without_service(found.metadata, labels, namespace) if labels.get(MCS_SOURCE) else None
    cluster_id = _multicluster_source(found, labels)
    return Origin(cluster_id, namespace, service) if cluster_id else _without_source(found.metadata, namespace, service)


def _multicluster_service(labels: Mapping[str, str]) -> str:
    if service := labels.get(MCS_SERVICE):
        return service
    if labels.get(MANAGED_BY) == CILIUM_MESH:  # a global Service that is no MCS export
        return labels.get(SERVICE_NAME, "")
    return labels.get(OLD_LIGHTHOUSE_SERVICE, "")


def _multicluster_source(found: EndpointSlice, labels: Mapping[str, str]) -> str:
    for label in (MCS_SOURCE, OLD_LIGHTHOUSE_CLUSTER, SUBMARINER_CLUSTER):
        if cluster_id := labels.get(label):
            return cluster_id
    return _node_of_all(found) if labels.get(MANAGED_BY) == CILIUM_MESH else ""


def _node_of_all(found: EndpointSlice) -> str:
    """The node that every endpoint names: Cilium writes the cluster's name there."""
    nodes = set()
    for raw in found.endpoints or ():
        try:
            nodes.add(decode_endpoint(raw).node_name or "")
        except msgspec.MsgspecError:
            continue
    return nodes.pop() if len(nodes) == 1 else ""


# ---- Karmada


def _karmada(metadata: Metadata, labels: Mapping[str, str], is_control_plane: bool) -> Origin | Refused | None:
    annotations = metadata.annotations or {}
    dispatched = labels.get(MANAGED_BY) == KARMADA_DISPATCH
    if not dispatched and not _is_karmada_import(metadata.name, labels, annotations):
        return None
    service = labels.get(MCS_SERVICE) or _karmada_service(labels.get(SERVICE_NAME, ""), dispatched)
    if not service:
        return _without_service(metadata, labels, metadata.namespace)
    cluster_id = labels.get(MCS_SOURCE) or annotations.get(KARMADA_PROVIDER)
    if not cluster_id and not dispatched and is_control_plane and not _is_member_copy(labels, annotations):
        cluster_id = _work_cluster(annotations) or _work_cluster(labels)
    cluster_id = cluster_id or _cluster_in_name(metadata.name, service, dispatched)
    if cluster_id:
        return Origin(cluster_id, metadata.namespace, service)
    return _unreadable(metadata, service)


def _is_karmada_import(name: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    if writer := labels.get(MANAGED_BY):
        return writer == KARMADA_IMPORT
    return (  # older versions do not sign
        name.startswith("imported-")
        and labels.get(SERVICE_NAME, "").startswith("derived-")
        and _has_prefix("work.karmada.io/", labels, annotations)
    )


def _karmada_service(service_name: str, dispatched: bool) -> str:
    """The Service's name; an import leads one ``derived-`` before it, and a DGD may itself be called so."""
    if dispatched:
        return service_name
    return service_name.removeprefix("derived-") if service_name.startswith("derived-") else ""


def _is_member_copy(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Whether it travelled from the control plane to a member: its work namespace then names where it went."""
    return (
        "resourcetemplate.karmada.io/uid" in annotations
        or "karmada.io/managed" in labels
        or _has_prefix("resourcebinding.karmada.io/", labels, annotations)
    )


def _work_cluster(marks: Mapping[str, str]) -> str:
    namespace = marks.get(KARMADA_WORK_NAMESPACE, "")
    return namespace.removeprefix(KARMADA_EXECUTION) if namespace.startswith(KARMADA_EXECUTION) else ""


def _cluster_in_name(name: str, service: str, dispatched: bool) -> str:
    """What stands before the Service in ``<cluster>-<service>-<random>``; empty where the name has another form.

    Names that Kubernetes made leave one reading alone. A Service's name that had to be cut, or a slice that was named
    by hand, may leave several.
    """
    rest = name if dispatched else name.removeprefix("imported-")
    if len(service) > LONGEST_UNCUT_SERVICE or (not dispatched and rest == name):
        return ""
    head, _, end = rest.rpartition("-")
    cluster_id = head.removesuffix(f"-{service}")
    sound = cluster_id != head and _made_at_random(end) and _karmada_cluster(cluster_id)
    return cluster_id if sound else ""


def _has_prefix(prefix: str, *marks: Iterable[str]) -> bool:
    return any(key.startswith(prefix) for keys in marks for key in keys)


# ---- refusals


def _without_service(metadata: Metadata, labels: Mapping[str, str], namespace: str) -> Refused:
    text = (
        f"EndpointSlice {metadata.namespace}/{metadata.name} names a source cluster, but no Service: "
        f"it needs the label {MCS_SERVICE}"
        if labels.get(MCS_SOURCE)
        else f"EndpointSlice {metadata.namespace}/{metadata.name} is Karmada's, but its label {SERVICE_NAME} "
        "does not name an imported Service"
    )
    return Refused("no_service", namespace, labels.get(SERVICE_NAME, ""), text)


def _without_source(metadata: Metadata, namespace: str, service: str) -> Refused:
    text = (
        f"slices of Service {namespace}/{service} do not say which cluster they come from, for example EndpointSlice "
        f"{metadata.namespace}/{metadata.name}: the MCS implementation must set the label {MCS_SOURCE}"
    )
    return Refused("no_source_cluster", namespace, service, text)


def _unreadable(metadata: Metadata, service: str) -> Refused:
    text = (
        f"slices of Service {metadata.namespace}/{service} do not say which cluster they come from, for example "
        f"EndpointSlice {metadata.namespace}/{metadata.name}: its name is not <cluster>-<service>-<5 characters>; "
        f"keep the Service's name within {LONGEST_UNCUT_SERVICE} characters and its slices named by Kubernetes, "
        "or watch Karmada's control plane"
    )
    return Refused("unreadable_name", metadata.namespace, service, text)
