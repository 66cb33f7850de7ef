"""Registrations in a table joined with what watched clusters import, in each mode, on two replicas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clusters import Cluster, slice_name, watching
from tests.live.dynamodb.conftest import StartReplicas
from tests.live.dynamodb.replicas import await_agreed, await_listed
from tests.live.relay import Relay
from tests.live.signs import await_sign
from tests.live.traffic import Traffic
from tests.mcs.shapes import KARMADA_CONTROL_PLANE

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

OF_KARMADA = "east-1/llm/llama-70b"
"""The pool whose relays the slice of Karmada's control plane holds."""


def _by_mcs(cluster: Cluster) -> tuple[str, str, str]:
    cluster.relays("c1/n1/p1", "10.1.0.1")
    return "c1/n1/p1", slice_name("c1/n1/p1", "pool-relay"), "n1"


def _by_karmada(cluster: Cluster) -> tuple[str, str, str]:
    cluster.call("apply", manifest=KARMADA_CONTROL_PLANE)
    slice_metadata: dict[str, Any] = KARMADA_CONTROL_PLANE["metadata"]
    return OF_KARMADA, slice_metadata["name"], slice_metadata["namespace"]


@pytest.mark.parametrize(("mode", "import_one"), [("mcs", _by_mcs), ("karmada", _by_karmada)], ids=["mcs", "karmada"])
def test_a_pool_is_listed_while_both_sides_agree(
    start_replicas: StartReplicas,
    traffic: Traffic,
    tmp_path: Path,
    mode: str,
    import_one: Callable[[Cluster], tuple[str, str, str]],
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    a, b = start_replicas(lease=3, flags=watching(tmp_path, mode, hub=cluster))
    name, slice_of_it, namespace = import_one(cluster)
    alone = Relay(traffic, [a, b], "c9/n9/not-imported")
    Relay(traffic, [a, b], name)
    await_listed((a, b), [name], 4)
    await_sign(lambda: alone.accepted, 5, "the other one is registered")
    await_agreed((a, b))
    assert a.pools().names == [name], "the other one is not imported"
    assert a.pools().pools[name]["relays"] != ["http://10.0.0.1:9000"], "addresses are those of the cluster"
    cluster.call("delete", name=slice_of_it, namespace=namespace)
    for replica in (a, b):
        await_sign(lambda r=replica: not r.lists(name), 3, f"it has left {replica.name}")
    await_agreed((a, b))
