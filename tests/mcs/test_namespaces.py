"""Watchers of single namespaces over one connection, as where there are Roles and no ClusterRole."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from discovery.mcs import watch as module
from discovery.mcs.names import Names
from discovery.mcs.origin import Rules
from discovery.mcs.watch import Watcher
from discovery.metrics import Counters
from discovery.model import PoolKey
from tests.mcs.api_objects import CLUSTER_PROPERTIES, CLUSTERS, MULTI_CLUSTER_SERVICES, SLICES
from tests.mcs.api_server import ApiServer
from tests.mcs.kube_feed import PACE, connect, eventually
from tests.mcs.shapes import RELAY, Manifest, imported

MANY = 40
"""Namespaces whose watches are more than the connections that a client opens by default."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits between attempts."""
    monkeypatch.setattr(module, "BACKOFF_SECS", (0.02, 0.1))


def relay(namespace: str, name: str = "p1") -> Manifest:
    return imported(name, f"{name}-pool-relay", "c1", namespace=namespace, endpoints=["10.0.0.1"], ports=[RELAY])


def sees(watcher: Watcher, namespace: str, name: str = "p1") -> bool:
    return watcher.endpoints(PoolKey("c1", namespace, name)) is not None


@contextlib.asynccontextmanager
async def watch(
    server: ApiServer, directory: Path, *namespaces: str, rules: Rules | None = None
) -> AsyncIterator[list[Watcher]]:
    """A watcher for each namespace, all of one context."""
    connection = connect(server, directory)
    watchers = [
        Watcher(
            connection,
            Names(),
            rules or Rules("mcs"),
            counters=Counters(),
            on_change=lambda _: None,
            namespace=namespace,
            pace=PACE,
        )
        for namespace in namespaces
    ]
    tasks = [asyncio.create_task(watcher.run()) for watcher in watchers]
    try:
        yield watchers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(watcher.close() for watcher in watchers))


def whole(*watchers: Watcher) -> Callable[[], bool]:
    return lambda: all(watcher.incomplete() is None for watcher in watchers)


async def test_each_sees_its_namespace_and_asks_for_nothing_else(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.roles = {"prod", "staging"}
        server.apply_all([relay("prod"), relay("dev")])
        async with watch(server, tmp_path, "prod", "staging") as (prod, staging):
            await eventually(whole(prod, staging))
            await eventually(lambda: len(server.watches) == 6)
            server.apply(relay("staging"))
            await eventually(lambda: sees(staging, "staging"))
            assert [sees(prod, "prod"), sees(prod, "staging"), sees(prod, "dev")] == [True, False, False]
            assert [sees(staging, "prod"), sees(staging, "dev")] == [False, False]
            assert [prod.describe()["name"], staging.describe()["name"]] == ["east/prod", "east/staging"]
        assert {request.path for request in server.requests if request.verb in ("list", "watch")} == {
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices" for namespace in ("prod", "staging")
        }


async def test_one_without_a_role_takes_nothing_from_the_others_and_says_which_role_it_needs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ApiServer() as server:
        server.roles = {"prod"}
        server.apply_all([relay("prod"), relay("staging")])
        async with watch(server, tmp_path, "prod", "staging") as (prod, staging):
            await eventually(lambda: prod.listed and "(403)" in (staging.incomplete() or ""))
            said = staging.incomplete() or ""
            assert said.startswith(
                "east: not allowed to list endpointslices.discovery.k8s.io in staging (403): bind a Role in namespace "
                "staging with apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list]"
            )
            assert f"a watcher fails: {said}" in caplog.messages
            assert (prod.incomplete(), staging.listed) == (None, False)
            server.apply(relay("prod", "p2"))
            await eventually(lambda: sees(prod, "prod", "p2"))
            server.roles = {"prod", "staging"}
            await eventually(whole(staging))
            assert sees(staging, "staging")
            assert not [text for text in caplog.messages if "east/prod" in text]


async def test_rights_that_roles_cannot_give_are_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The cluster's own name is no namespace's: with Roles alone nobody may read it."""
    async with ApiServer(resources=[SLICES, CLUSTER_PROPERTIES]) as server:
        server.roles = {"prod"}
        name = "cluster.clusterset.k8s.io"
        server.apply({"kind": "ClusterProperty", "metadata": {"name": name}, "spec": {"value": "east-1"}})
        async with watch(server, tmp_path, "prod") as (prod,):
            await eventually(lambda: 403 in [request.status for request in server.requests if request.verb == "get"])
            await eventually(whole(prod))
            assert (prod.cluster_id, prod.listed) == (None, True)
        assert caplog.messages == []


async def test_a_role_is_enough_for_all_that_is_asked_of_karmada(tmp_path: Path) -> None:
    async with ApiServer(resources=[SLICES, CLUSTERS, MULTI_CLUSTER_SERVICES]) as server:
        server.roles = {"prod", "staging"}
        service = {"metadata": {"name": "s", "namespace": "prod"}, "spec": {"types": ["CrossCluster"]}}
        server.apply({"kind": "MultiClusterService", **service})
        async with watch(server, tmp_path, "prod", "staging", rules=Rules("karmada")) as (prod, staging):
            await eventually(whole(prod, staging))
            assert prod.rules.is_control_plane
            assert (prod.warning or "").startswith("east/prod: a Karmada control plane has no slices")
            assert staging.warning is None
        assert 403 not in {request.status for request in server.requests}


async def test_watches_of_many_namespaces_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with ApiServer() as server:
        namespaces = [f"n{number}" for number in range(MANY)]
        async with watch(server, tmp_path, *namespaces) as watchers:
            await eventually(lambda: len(server.watches) == 3 * MANY, 10)
            await eventually(whole(*watchers))
            server.apply_all([relay(namespace) for namespace in namespaces])
            await eventually(lambda: all(map(sees, watchers, namespaces)))
