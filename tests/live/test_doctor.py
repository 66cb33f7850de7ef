"""``discovery doctor`` against a replica that watches a cluster in which ten things, and then more, are wrong."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.commands.program import DISCOVERY, environment
from tests.live.clusters import Cluster
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign
from tests.mcs.api_objects import CLUSTER_PROPERTIES, SLICES
from tests.mcs.shapes import MCS_SERVICE, RELAY, manifest

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

MakeCluster = Callable[..., Cluster]
UNREADY = {"addresses": ["10.1.0.9"], "conditions": {"ready": False}}


class Said(NamedTuple):
    """What the program printed."""

    code: int
    lines: list[str]
    problems: list[str]


def doctor(replica: Replica, *words: str) -> Said:
    done = subprocess.run(
        [*DISCOVERY, "doctor", "--url", replica.url, *words],
        capture_output=True,
        env=environment(),
        timeout=10,
        check=False,
        text=True,
    )
    return Said(done.returncode, done.stdout.splitlines(), done.stderr.splitlines())


# What is wrong, the pool that is asked about, and how its first line begins and what else it must name.
PLANTED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "registered under another cluster's name": (
        "us-east1/prod/llama",
        "check that cluster_id is the pool's MCS cluster name: llama-pool-relay in prod is imported from 'us-east-1'",
        ("registered as 'us-east1'",),
    ),
    "registered under a name of which nothing is imported": (
        "eu-wset-1/prod/qwen",
        "check that cluster_id is the pool's MCS cluster name: nothing is imported from 'eu-wset-1', the nearest is "
        "'eu-west-1'",
        (),
    ),
    "the relay Service is not exported": (
        "us-east-1/prod/mixtral",
        "check that mixtral-pool-relay in prod is exported by 'us-east-1'",
        ("is not listed",),
    ),
    "the relay Service has several ports": (
        "us-east-1/prod/gemma",
        "Service prod/gemma-pool-relay of cluster us-east-1 has several TCP ports (metrics 9090, relay 5561)",
        ("--relay-port-name", "is not listed"),
    ),
    "the frontends' port has another name": (
        "us-east-1/prod/phi",
        "Service prod/phi-frontend of cluster us-east-1 has slices without a TCP port named http (found: web 8000)",
        ("--frontend-port-name", "listed without frontends"),
    ),
    "the frontend Service is not exported": (
        "us-east-1/prod/nova",
        "check that nova-frontend is exported",
        ("listed without frontends",),
    ),
    "the relays left": (
        "us-east-1/prod/olmo",
        "check that the relays of olmo register here",
        ("Ready", "its lease is over"),
    ),
    "slices do not say where they come from": (
        "eu-west-1/prod/yi",
        "slices of Service prod/yi-pool-relay do not say which cluster they come from",
        ("multicluster.kubernetes.io/source-cluster", "is not listed"),
    ),
    "registered in another namespace": (
        "us-east-1/pord/falcon",
        "check namespace: falcon-pool-relay of 'us-east-1' is imported in 'prod'",
        ("registered in 'pord'",),
    ),
    "the local cluster under another name": (
        "hub/prod/aya",
        "check cluster_id: this cluster's MCS name is 'hub-1'",
        ("registered as 'hub'",),
    ),
    "registered under another name": (
        "us-east-1/prod/deepseek",
        "check dgd_name: 'us-east-1' exports deep-seek-pool-relay in prod, which nobody registered",
        ("is not listed",),
    ),
    "no relay is ready": (
        "eu-west-1/prod/grok",
        "Service prod/grok-pool-relay of cluster eu-west-1 has no ready endpoint (1 of 1",
        ("is not listed",),
    ),
}
FINE = "us-east-1/prod/fine"


def plant(cluster: Cluster, replica: Replica) -> None:
    """Everything that is wrong, and one pool that is not."""
    unsourced = manifest("yi-1", {MCS_SERVICE: "yi-pool-relay"}, namespace="prod", endpoints=["10.1.0.8"])
    value = {"kind": "ClusterProperty", "metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": "hub-1"}}
    for one in (value, unsourced):
        cluster.call("apply", manifest=one)
    for name in ("llama", "phi", "nova", "olmo", "falcon", "deep-seek"):
        cluster.relays(f"us-east-1/prod/{name}", "10.1.0.1")
    cluster.relays("us-east-1/prod/gemma", "10.1.0.2", ports=[RELAY, {"name": "metrics", "port": 9090}])
    cluster.relays("eu-west-1/prod/grok", UNREADY)
    cluster.relays("hub-1/prod/aya", "10.1.0.3")
    cluster.frontends("us-east-1/prod/mixtral", "10.2.0.1")
    cluster.frontends("us-east-1/prod/phi", "10.2.0.2", ports=[{"name": "web", "port": 8000}])
    cluster.pool(FINE)
    replica.start()
    for name in (FINE, *(pool for pool, *_ in PLANTED.values())):
        replica.register(name)
    assert replica.delete("us-east-1/prod/olmo").status == 204


def test_the_first_line_names_each_of_the_planted_misconfigurations(
    debian_redis: RedisServer, make_watching: MakeReplica, make_cluster: MakeCluster
) -> None:
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before", "NX")  # else it settles for a lease, and says so
    cluster = make_cluster(resources=[SLICES, CLUSTER_PROPERTIES])
    replica = make_watching(hub=cluster, redis_url=debian_redis.url, lease=60, heartbeat=5)
    plant(cluster, replica)
    await_sign(lambda: replica.lists(FINE, "us-east-1/prod/phi", "us-east-1/prod/nova"), 5, "what is right is listed")
    for what, (name, begin, more) in PLANTED.items():
        said = doctor(replica, name, "-o", "wide")
        assert said.lines[0].startswith(begin), (what, said)
        assert all(words in said.lines[0] for words in more), (what, said)
        lease = ["  lease"] if said.lines[1].startswith("  registration: lives") else []
        facts = ["  registration", "  relays", "  frontends", *lease]
        assert [line.split(":")[0] for line in said.lines[1:]] == facts
        assert said.code == (0 if "listed without" in said.lines[0] else 1), what
    assert doctor(replica, FINE)[:2] == (0, [f"the pool {FINE} is listed with 1 frontend"])


def test_of_all_pools_those_that_are_not_listed_are_named(
    make_watching: MakeReplica, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(resources=[SLICES, CLUSTER_PROPERTIES])
    replica = make_watching(hub=cluster, lease=60, heartbeat=5)
    plant(cluster, replica)
    everything = json.loads("\n".join(doctor(replica, "-o", "json").lines))
    explained: dict[str, dict[str, Any]] = {
        "/".join((one["cluster_id"], one["namespace"], one["dgd_name"])): one for one in everything["pools"]
    }
    listed = {name for name, one in explained.items() if one["listed"]}
    assert listed == {FINE, "us-east-1/prod/phi", "us-east-1/prod/nova"}
    assert {name for name, *_ in PLANTED.values()} <= set(explained)
    names = doctor(replica, "-o", "name")
    assert (names.code, set(names.lines)) == (1, set(explained) - listed)


def test_a_suffix_that_no_service_has(make_watching: MakeReplica, make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.pool(FINE)
    replica = make_watching(hub=cluster, lease=60, heartbeat=5, flags=("--relay-service-suffix=-relays",)).start()
    replica.register(FINE)
    said = doctor(replica, FINE)
    assert said.code == 1
    assert said.lines[0].startswith("check --relay-service-suffix: ")
    assert "'-relays'" in said.lines[0]


def test_a_watcher_that_fails(make_watching: MakeReplica, make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.pool(FINE)
    replica = make_watching(hub=cluster, lease=60, heartbeat=5).start()
    cluster.down()

    def trouble() -> str:
        return replica.get("/status").json["watchers"][0]["incomplete_because"] or ""

    await_sign(lambda: "cannot be reached" in trouble(), 10, "the watcher fails")
    replica.register(FINE)
    replica.register("us-east-1/prod/new")
    said = doctor(replica, FINE, "us-east-1/prod/new")
    assert said.code == 1
    assert said.lines[0].startswith("hub: ")
    assert "its slices may be missing, and the registered pool us-east-1/prod/new is not listed" in said.lines[0]
    assert said.lines[1] == f"the pool {FINE} is listed with 1 frontend"
    check_same_words(replica, said, "a watcher fails, its last view stays: hub: ")


def test_a_watcher_that_never_listed_is_named_before_the_first_list(
    make_watching: MakeReplica, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster()
    cluster.pool(FINE)
    cluster.call("forbid", verb="list")
    replica = make_watching(hub=cluster, lease=60, heartbeat=5).start(sign="/healthz")
    await_sign(lambda: b"list" in replica.get("/readyz").body, 10, "the watcher is refused")
    replica.register(FINE)
    said = doctor(replica, FINE)
    assert said.code == 1
    check_same_words(replica, said, "a watcher fails: hub: ")
    assert said.lines[0].startswith("hub: ")


def test_a_store_that_fails(debian_redis: RedisServer, make_watching: MakeReplica, make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.pool(FINE)
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before", "NX")
    replica = make_watching(hub=cluster, redis_url=debian_redis.url, lease=60, heartbeat=5).start()
    await_sign(lambda: replica.pools().complete, 5, "it is complete")
    debian_redis.kill()

    def status(field: str) -> str | None:
        """A reason, without the seconds that grow while somebody reads it."""
        found = replica.get("/status").json
        return without_secs(str(found["store"].get(field) or found.get(field) or ""))

    await_sign(lambda: status("failing_because") and "not confirmed" in status("incomplete_because"), 10, "it fails")
    said = doctor(replica, FINE)
    assert said.code == 1
    assert [without_secs(line) for line in said.lines] == [
        f"{status('incomplete_because')}: so registrations may be missing, and the pool {FINE}, "
        "which is Ready, has none"
    ]
    check_same_words(replica, said, f"the store fails, the last list stays: {status('failing_because')}")


def test_a_store_that_settles_and_a_replica_that_shuts_down(
    debian_redis: RedisServer, make_replica: MakeReplica
) -> None:
    replica = make_replica(redis_url=debian_redis.url, lease=60, heartbeat=5, flags=("--drain-delay-secs", "20"))
    replica.start()
    check_same_words(replica, doctor(replica), "the list is not complete: the store is settling: ")
    replica.terminate()
    await_sign(lambda: replica.says("/readyz", 503), 5, "it drains")
    check_same_words(replica, doctor(replica), "this replica is shutting down")


def check_same_words(replica: Replica, said: Said, begin: str) -> None:
    """`/status`, `/readyz`, `doctor` and the log have one sentence for the same thing, up to seconds that grow."""
    answer, probe = replica.get("/status").json, replica.get("/readyz").json
    problems = [without_secs(problem) for problem in answer["problems"]]
    assert [problem for problem in problems if problem.startswith(begin)] != [], problems
    assert [without_secs(line) for line in said.problems if "pool is known" not in line] == [
        f"discovery: {problem}" for problem in problems
    ]
    assert without_secs(probe["detail"]) == without_secs(answer["detail"])
    assert without_secs(probe["detail"]) in problems

    def unsaid() -> list[str]:
        lines = replica.log.splitlines()
        log = [without_secs(json.loads(line)["message"] if line.startswith("{") else line) for line in lines]
        return [problem for problem in problems if not any(problem in line for line in log)]

    # The log tells of a change when the store is heard or tried next, whoever asks before that.
    await_sign(lambda: not unsaid(), 5, f"the log says {unsaid()} too")


def without_secs(text: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "… s", text)
