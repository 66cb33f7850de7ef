"""A release through its life, against a fake of the API server: install, upgrade, roll back, uninstall.

The fake keeps objects, refuses what schemas and immutable fields forbid, and runs nothing. So this says that Helm gets
everything applied and taken away again, in an order and a shape that a server takes, and which objects there are then;
that the pods run is said by ``test_process``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.charts.cluster import Cluster
from tests.charts.engine import CHART, Engine, Refused
from tests.charts.golden import SETUPS
from tests.charts.test_rendering import supported


class Releases:
    """Helm and its cluster."""

    def __init__(self, engine: Engine, cluster: Cluster, kubeconfig: str) -> None:
        self.cluster = cluster
        self._engine = engine
        self._kubeconfig = kubeconfig

    def do(self, action: str, *arguments: Any, **options: Any) -> Any:
        return self._engine.ask(
            "release", action=action, kubeconfig=self._kubeconfig, arguments=list(arguments), options=options
        )


@pytest.fixture
def helm(engine: Engine, tmp_path: Path) -> Iterator[Releases]:
    with Cluster(supported()[0]) as cluster:
        yield Releases(engine, cluster, cluster.kubeconfig(tmp_path))


def test_a_release_through_its_life(helm: Releases) -> None:
    chart, setup = str(CHART), SETUPS["trial"]
    installed = helm.do("install", chart, "discovery", setup)
    assert installed["status"] == "deployed"
    assert "discovery" in installed["notes"]
    first = helm.cluster.names()
    assert {"Deployment/discovery", "Service/discovery", "StatefulSet/discovery-redis"} <= first

    upgraded = helm.do("upgrade", chart, "discovery", setup | SETUPS["clusters"])
    assert upgraded["revision"] == 2
    assert helm.cluster.get("Deployment", "discovery")["spec"]["replicas"] == 3
    assert "StatefulSet/discovery-redis" not in helm.cluster.names(), "with a Redis of one's own the chart has none"
    assert "ServiceExport/discovery" in helm.cluster.names()

    helm.do("rollback", "discovery", version=1)
    assert helm.cluster.names() == first
    assert helm.cluster.get("Deployment", "discovery")["spec"]["replicas"] == 2

    helm.do("uninstall", "discovery")
    assert helm.cluster.names() == set()


def test_a_generated_password_of_redis_stays_over_upgrades(helm: Releases) -> None:
    helm.do("install", str(CHART), "discovery")
    secret = helm.cluster.get("Secret", "discovery-redis")
    helm.do("upgrade", str(CHART), "discovery", {"replicaCount": 3})
    assert helm.cluster.get("Secret", "discovery-redis")["data"] == secret["data"]
    assert secret["data"]


def contents(cluster: Cluster) -> dict[str, Any]:
    """Every object, without what the server itself adds."""
    return {
        path: each | {"metadata": {key: text for key, text in each["metadata"].items() if key != "resourceVersion"}}
        for path, each in cluster.objects.items()
    }


@pytest.mark.parametrize("setup", SETUPS)
def test_an_upgrade_without_a_change_changes_nothing(helm: Releases, setup: str) -> None:
    values = SETUPS[setup] if setup != "trial" else {}
    helm.do("install", str(CHART), "discovery", values)
    before = contents(helm.cluster)
    helm.do("upgrade", str(CHART), "discovery", values)
    assert contents(helm.cluster) == before
    helm.do("uninstall", "discovery")
    assert helm.cluster.names() == set()


def test_two_releases_live_side_by_side(helm: Releases) -> None:
    helm.do("install", str(CHART), "east", SETUPS["clusters"])
    east = helm.cluster.names()
    helm.do("install", str(CHART), "west", SETUPS["clusters"])
    assert len(helm.cluster.names()) == 2 * len(east)
    helm.do("uninstall", "west")
    assert helm.cluster.names() == east


def test_the_fake_refuses_a_change_of_what_may_not_change(helm: Releases) -> None:
    """So that the tests above mean something."""
    helm.do("install", str(CHART), "discovery", SETUPS["clusters"])
    with pytest.raises(Refused, match="may not change"):
        helm.do(
            "upgrade",
            str(CHART),
            "discovery",
            SETUPS["clusters"] | {"nameOverride": "other", "fullnameOverride": "discovery"},
        )
