"""What a cluster says of itself: its name by the About API, and whether it is Karmada's control plane."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from discovery.mcs.cluster_facts import cluster_id, has_multi_cluster_services, is_karmada_control_plane
from discovery.mcs.kube import ClusterConnection, Failure
from tests.mcs.api_objects import CLUSTER_PROPERTIES
from tests.mcs.api_server import ALL_RESOURCES, ApiServer
from tests.mcs.kube_feed import connect


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(resources=ALL_RESOURCES) as server:
        yield server


@pytest.fixture
async def connection(server: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterConnection]:
    connection = connect(server, tmp_path)
    yield connection
    await connection.close()


def a_property(value: Any, name: str = "cluster.clusterset.k8s.io") -> dict[str, Any]:
    return {"kind": "ClusterProperty", "metadata": {"name": name}, "spec": {"value": value}}


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
async def test_the_clusters_name_is_read_in_whichever_version_is_served(
    server: ApiServer, connection: ClusterConnection, version: str
) -> None:
    server.resources[:] = [CLUSTER_PROPERTIES._replace(versions=(version,))]
    server.objects.apply(
        server.resources[0], {"metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": "e"}}
    )
    assert await cluster_id(connection) == "e"


async def test_other_properties_are_not_the_name(server: ApiServer, connection: ClusterConnection) -> None:
    server.apply(a_property("set-1", "clusterset.k8s.io"))
    assert await cluster_id(connection) is None
    server.apply(a_property(" east-1\n"))
    assert await cluster_id(connection) == "east-1"


async def test_without_the_about_api_there_is_no_name(server: ApiServer, connection: ClusterConnection) -> None:
    server.resources.clear()
    assert await cluster_id(connection) is None


@pytest.mark.parametrize("trouble", ["forbidden", "html", "odd"])
async def test_a_name_that_cannot_be_read_is_none(
    server: ApiServer, connection: ClusterConnection, trouble: str
) -> None:
    server.apply(a_property({"not": "text"} if trouble == "odd" else "east-1"))
    match trouble:
        case "forbidden":
            server.forbidden.add(("get", "clusterproperties"))
        case "html":
            server.fault("html", ("get",))
    assert await cluster_id(connection) is None


async def test_a_name_that_cannot_be_read_now_is_not_known_to_be_none(
    server: ApiServer, connection: ClusterConnection
) -> None:
    server.fault("status", ("get",), times=1, code=503)
    with pytest.raises(Failure, match="503"):
        await cluster_id(connection)
    server.fault("reset", ("get",))
    with pytest.raises(Failure, match="broke the connection off"):
        await cluster_id(connection)


async def test_the_control_plane_is_known_by_its_member_clusters(
    server: ApiServer, connection: ClusterConnection
) -> None:
    assert await is_karmada_control_plane(connection) is True
    server.resources[:] = ALL_RESOURCES[:2]
    assert await is_karmada_control_plane(connection) is False


async def test_a_server_that_does_not_answer_is_neither(server: ApiServer, connection: ClusterConnection) -> None:
    server.fault("status", ("get",), code=503)
    with pytest.raises(Failure):
        await is_karmada_control_plane(connection)


def a_service(name: str, *types: str) -> dict[str, Any]:
    return {
        "kind": "MultiClusterService",
        "metadata": {"name": name, "namespace": "llm"},
        "spec": {"types": list(types) or None},
    }


async def test_services_across_clusters_are_noticed(server: ApiServer, connection: ClusterConnection) -> None:
    assert await has_multi_cluster_services(connection) is False
    server.apply_all([a_service("a", "LoadBalancer"), a_service("b")])
    assert await has_multi_cluster_services(connection) is False
    server.apply(a_service("c", "CrossCluster"))
    assert await has_multi_cluster_services(connection) is True
    server.forbidden.add(("list", "multiclusterservices"))
    assert await has_multi_cluster_services(connection) is None
    server.resources.clear()
    assert await has_multi_cluster_services(connection) is False
