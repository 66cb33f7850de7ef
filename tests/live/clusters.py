"""Watched clusters: fake API servers that hold the imports of pools, and replicas that watch them.

Each server runs in a thread of the test's own process; what a replica sees of it goes over a real socket.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.live.replica import Replica
from tests.live.signs import await_sign
from tests.mcs.api_process import ApiServerThread, write_kubeconfig
from tests.mcs.shapes import RELAY, Manifest, imported

AN_ENDED_WATCH_IS_RESUMED_SECS = 5.0


class Cluster(ApiServerThread):
    """One watched cluster. Addresses stand for ready endpoints; anything else is an endpoint as in JSON."""

    def relays(self, pool: str, *endpoints: Any, suffix: str = "", **more: Any) -> None:
        """Import the pool's relay Service, in one slice or in one more."""
        self.call("apply", manifest=service_slice(pool, "pool-relay", endpoints, suffix, **{"ports": [RELAY]} | more))

    def frontends(self, pool: str, *endpoints: Any, suffix: str = "", **more: Any) -> None:
        """Import the pool's frontend Service, in one slice or in one more."""
        self.call("apply", manifest=service_slice(pool, "frontend", endpoints, suffix, **more))

    def pool(self, pool: str, relay: str = "10.1.0.1", frontend: str = "10.2.0.1") -> None:
        """Import both Services of a pool."""
        self.frontends(pool, frontend)
        self.relays(pool, relay)

    def withdraw(self, pool: str, kind: str = "pool-relay", suffix: str = "") -> None:
        """Delete a slice of the pool."""
        self.call("delete", name=slice_name(pool, kind, suffix), namespace=pool.split("/")[1])

    def down(self) -> None:
        """Cut every connection and listen no more."""
        self.call("close")

    def up(self) -> None:
        """Listen again, on the port of before."""
        self.call("accept")

    def force_relist(self) -> None:
        """Forget all versions and end all watches: whoever watches has to list again, and has done so on return."""
        seen = self.call("state")["requests"]
        self.call("expire")
        self.call("apply", manifest={"metadata": {"name": f"other-{seen}", "namespace": "other"}})
        self.call("expire")
        open_watches = self.call("state")["watches"]
        self.call("end_watches")
        await_sign(
            lambda: self.count("list", seen) >= open_watches and self.call("state")["watches"] >= open_watches,
            AN_ENDED_WATCH_IS_RESUMED_SECS,
            "all that is watched was listed again",
        )

    def count(self, verb: str, since: int = 0) -> int:
        """How many requests of a verb were answered with 200, from a place in the log on."""
        log = self.call("requests_since", number=since)
        return sum(request["verb"] == verb and request["status"] == 200 for request in log)


def slice_name(pool: str, kind: str, suffix: str = "") -> str:
    """What a pool's slice is called here."""
    cluster_id, _, dgd_name = pool.split("/")
    return f"{dgd_name}-{kind}-of-{cluster_id}{suffix}"


def service_slice(pool: str, kind: str, endpoints: Iterable[Any], suffix: str = "", **more: Any) -> Manifest:
    """A slice of one of a pool's Services, as an implementation of the standard imports it."""
    cluster_id, namespace, dgd_name = pool.split("/")
    service = f"{dgd_name}-{kind}"
    return imported(
        slice_name(pool, kind, suffix), service, cluster_id, namespace=namespace, endpoints=tuple(endpoints), **more
    )


def watching(directory: Path, mode: str = "mcs", **clusters: Any) -> tuple[str, ...]:
    """Flags of a replica that watches these clusters, one context each; a cluster, or a cluster and its user."""
    users = {name: said if isinstance(said, tuple) else (said, {}) for name, said in clusters.items()}
    contexts = {name: (cluster.url, user) for name, (cluster, user) in users.items()}
    path = write_kubeconfig(directory / f"kubeconfig-{'-'.join(clusters)}", **contexts)
    flags = ["--pool-discovery", mode, "--kubeconfig", str(path), "--log-format", "json"]
    return (*flags, *(word for name in clusters for word in ("--kube-context", name)))


def warnings(replica: Replica, *words: str) -> list[str]:
    """The warnings so far in which all these words are."""
    lines = [json.loads(line) for line in replica.log.splitlines() if line.startswith("{")]
    said = [line["message"] for line in lines if line["level"] == "warning"]
    return [message for message in said if all(word in message for word in words)]
