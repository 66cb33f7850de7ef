"""What a cluster says of itself, besides its slices: its name in the cluster set, and whether it is Karmada's.

All of it is optional: asked once at startup and by ``doctor``, and a service runs without an answer.
"""

import msgspec

from discovery.mcs.kube_answers import Failure
from discovery.mcs.kube_connection import ClusterConnection

_ABOUT_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _PropertySpec(msgspec.Struct, frozen=True):
    value: str


class _Property(msgspec.Struct, frozen=True):
    spec: _PropertySpec


class _ServiceSpec(msgspec.Struct, frozen=True):
    types: tuple[str, ...] | None = None


class _MultiClusterService(msgspec.Struct, frozen=True):
    spec: _ServiceSpec = _ServiceSpec()


class _MultiClusterServices(msgspec.Struct, frozen=True):
    items: tuple[_MultiClusterService, ...] | None


async def cluster_id(connection: ClusterConnection) -> str | None:
    """The cluster's name in its cluster set, from its ClusterProperty; None where it has none that we may read.

    Raises ``Failure`` where that cannot be told now.
    """
    for version in _ABOUT_VERSIONS:
        path = f"/apis/about.k8s.io/{version}/clusterproperties/cluster.clusterset.k8s.io"
        try:
            body = await connection.read(path, {}, "get clusterproperties.about.k8s.io")
            return msgspec.json.decode(body, type=_Property).spec.value.strip() or None
        except Failure as error:
            if error.kind in ("denied", "foreign"):
                return None
            if error.kind != "missing":
                raise
        except _UNREADABLE:
            return None
    return None


async def is_karmada_control_plane(connection: ClusterConnection) -> bool:
    """Whether this is a Karmada API server, which alone knows member clusters. Raises ``Failure``."""
    try:
        await connection.read("/apis/cluster.karmada.io", {}, "get the API group cluster.karmada.io")
    except Failure as error:
        if error.kind == "missing":
            return False
        raise
    return True


async def has_multi_cluster_services(connection: ClusterConnection, namespace: str | None = None) -> bool | None:
    """Whether Karmada's control plane has a MultiClusterService across clusters; None where that cannot be read.

    What those import reaches member clusters only: a watcher of the control plane sees none of it.
    """
    within = f"namespaces/{namespace}/" if namespace else ""
    path = f"/apis/networking.karmada.io/v1alpha1/{within}multiclusterservices"
    try:
        body = await connection.read(path, {"limit": "500"}, "list multiclusterservices.networking.karmada.io")
        found = msgspec.json.decode(body, type=_MultiClusterServices).items or ()
    except Failure as error:
        return False if error.kind == "missing" else None
    except _UNREADABLE:
        return None
    return any("CrossCluster" in (service.spec.types or ()) for service in found)
