"""The join with what a watched cluster imports: pools, routers, leases, names, and what people are told."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import pytest

from tests.live import verdict
from tests.live.clusters import Cluster, service_slice, warnings, watching
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay
from tests.live.replica import Replica, pool
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic
from tests.mcs.api_objects import CLUSTER_PROPERTIES, CLUSTERS, MULTI_CLUSTER_SERVICES, SLICES
from tests.mcs.shapes import (
    HTTP,
    KARMADA_CONTROL_PLANE,
    KARMADA_DISPATCHED,
    KARMADA_MEMBER,
    KUBE,
    MANAGED_BY,
    MCS_SERVICE,
    MCS_SOURCE,
    RELAY,
    SERVICE_NAME,
    Manifest,
    imported,
    manifest,
    ready,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(40)]

SECOND_SIDE_SECS = 0.2
MakeCluster = Callable[..., Cluster]


class Watched(NamedTuple):
    """A replica that is ready and complete, and the cluster that it watches."""

    replica: Replica
    cluster: Cluster

    def pool(self, name: str) -> dict[str, Any]:
        """The listing of a pool."""
        listed: dict[str, Any] = self.replica.pools().pools[name]
        return listed

    def relays(self, name: str) -> list[str]:
        """The relays that are listed of a pool; empty where it is not listed."""
        return list(self.replica.pools().pools.get(name, {"relays": []})["relays"])

    def frontends(self, name: str) -> list[str]:
        """The frontends that are listed of a pool."""
        return list(self.pool(name)["frontends"])

    def one_sided(self, name: str) -> dict[str, Any] | None:
        """What ``/status`` says of a pool of which one side is missing."""
        found = [one for one in self.replica.get("/status").json["one_sided_pools"] if _name(one) == name]
        return found[0] if found else None


def _name(one: dict[str, Any]) -> str:
    return f"{one['cluster_id']}/{one['namespace']}/{one['dgd_name']}"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Shared by tests that use pools of their own: leases last for the whole suite, complete from the start."""
    directory = tmp_path_factory.mktemp("watched")
    with contextlib.ExitStack() as stack:
        server = RedisServer("redis", directory / "redis")
        stack.callback(server.close)
        server.start().cli("SET", "{discovery}:epoch", "in-use-before")
        cluster = stack.enter_context(Cluster())
        routers = ("--router-namespace", "global", "--router-service", "router", "--local-cluster-id", "home")
        flags = (*watching(directory, hub=cluster), *routers)
        replica = Replica(directory, redis_url=server.url, lease=120, heartbeat=30, flags=flags)
        stack.callback(replica.close)
        replica.start()
        await_sign(lambda: replica.pools().complete, 5, "complete")
        yield Watched(replica, cluster)


@pytest.fixture
def brief(make_watching: MakeReplica, make_cluster: MakeCluster) -> Watched:
    """A replica with leases of a second."""
    cluster = make_cluster()
    replica = make_watching(hub=cluster, lease=1.0, heartbeat=0.3).start()
    await_sign(lambda: replica.pools().complete, 5, "complete")
    return Watched(replica, cluster)


# ---- both sides


def test_a_pool_appears_with_the_second_side_and_leaves_with_the_first_that_goes(
    watched: Watched, traffic: Traffic
) -> None:
    replica, cluster = watched
    subscriber = Subscriber(traffic, [replica])
    await_sign(lambda: subscriber.connected, 5, "a stream")
    delays: list[float] = []
    for number in range(12):
        name, second = f"sides/n1/p{number}", time.monotonic()
        if number % 2:
            replica.register(name)
            second = time.monotonic()
            cluster.relays(name, "10.1.0.1")
        else:
            cluster.relays(name, "10.1.0.1")
            await_sign(lambda name=name: watched.one_sided(name), 2, "the slice was seen")
            second = replica.register(name)
        put = await_sign(lambda name=name: subscriber.told_of(name), 2, f"{name} appears")[0]
        assert (put.name, put.data["relays"]) == ("put", ["http://10.1.0.1:5561"])
        delays.append(put.at - second)
        if number % 3:
            cluster.withdraw(name)
        else:
            assert replica.delete(name).status == 204
        gone = await_sign(lambda name=name: subscriber.told_of(name)[1:], 2, f"{name} leaves")[0]
        assert gone.name == "delete"
        assert not replica.lists(name)
    assert median(delays) < SECOND_SIDE_SECS, delays
    assert subscriber.named("complete") == []
    assert subscriber.complete is True
    assert subscriber.faults == []


def test_addresses_in_the_body_are_ignored(watched: Watched) -> None:
    name = "ignored/n1/p1"
    watched.replica.register(name, relays=["http://10.9.9.9:1"], frontends=["http://10.9.9.9:2"], capabilities=["chat"])
    hold_for(0.3, lambda: not watched.replica.lists(name), "addresses of the body make no pool")
    watched.cluster.pool(name)
    await_sign(lambda: watched.relays(name), 2, "listed")
    listed = watched.pool(name)
    assert listed["relays"] == ["http://10.1.0.1:5561"]
    assert listed["frontends"] == ["http://10.2.0.1:8000"]
    assert listed["capabilities"] == ["chat"]
    before = watched.replica.pools().headers["etag"]
    watched.replica.register(name, relays=["http://10.9.9.8:1"], capabilities=["chat"])
    assert watched.replica.pools().headers["etag"] == before, "other addresses in the body are no change"


def test_f12_a_late_heartbeat_with_old_addresses_changes_no_address(watched: Watched) -> None:
    name = "late/n1/p1"
    watched.cluster.relays(name, "10.1.0.9")
    body = json.dumps(pool(name, relays=["http://10.0.0.1:9000"])).encode()
    head = f"POST /pools HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with watched.replica.connect() as slow:
        slow.sendall(head.encode() + body[:-1])
        watched.replica.register(name, relays=["http://10.0.0.1:9001"])
        await_sign(lambda: watched.relays(name) == ["http://10.1.0.9:5561"], 2, "listed at its address in MCS")
        before = watched.replica.pools().headers["etag"]
        slow.sendall(body[-1:])
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
    hold_for(0.3, lambda: watched.replica.pools().headers["etag"] == before, "the late heartbeat changes nothing")


def test_f52_a_new_instance_at_the_same_addresses_is_one_change(watched: Watched, traffic: Traffic) -> None:
    name = "instance/n1/p1"
    watched.cluster.pool(name)
    watched.replica.register(name, instance_id="g1")
    await_sign(lambda: watched.frontends(name), 2, "listed")
    subscriber = Subscriber(traffic, [watched.replica])
    await_sign(lambda: subscriber.connected, 5, "a stream")
    before = watched.replica.pools().headers["etag"]
    watched.replica.register(name, instance_id="g1")
    assert watched.replica.pools().headers["etag"] == before
    watched.replica.register(name, instance_id="g2")
    assert watched.replica.pools().headers["etag"] != before
    await_sign(lambda: subscriber.told_of(name), 1, "the stream tells of it")
    hold_for(0.3, lambda: [put.data["instance_id"] for put in subscriber.told_of(name)] == ["g2"], "once")


# ---- what slices come to


def test_a_deleted_frontend_slice_of_a_live_pool_leaves_the_pool_and_takes_the_frontends(brief: Watched) -> None:
    replica, cluster = brief
    name = "c1/n1/p1"
    cluster.pool(name)
    await_sign(lambda: replica.post(pool(name)).status == 200 and brief.frontends(name), 2, "listed with frontends")
    for said in (1, 2):
        cluster.withdraw(name, "frontend")
        await_sign(lambda: brief.frontends(name) == [], 1, "listed without frontends")

        def beat_until(said: int = said) -> bool:
            replica.register(name)
            return len(warnings(replica, name, "without frontends")) == said

        await_sign(beat_until, 5, f"warned {said} times", every=0.1)
        cluster.force_relist()
        hold_for(0.5, beat_until, "a relist says it no second time", every=0.1)
        cluster.frontends(name, "10.2.0.1")
        await_sign(lambda: brief.frontends(name), 1, "the frontend is back")
    assert warnings(replica, name, "without frontends")[0].startswith("check that p1-frontend is exported")


def test_an_ipv6_slice_that_is_ready_before_its_ipv4_twin_gives_way_to_it(watched: Watched, traffic: Traffic) -> None:
    name = "twins/n1/p1"
    watched.replica.register(name)
    subscriber = Subscriber(traffic, [watched.replica])
    await_sign(lambda: subscriber.connected, 5, "a stream")
    watched.cluster.relays(name, "fd00::7", suffix="-v6", family="IPv6")
    await_sign(lambda: watched.relays(name) == ["http://[fd00::7]:5561"], 2, "the IPv6 address alone")
    watched.cluster.relays(name, "10.1.0.7", suffix="-v4")
    await_sign(lambda: watched.relays(name) == ["http://10.1.0.7:5561"], 2, "the IPv4 address alone")
    watched.cluster.withdraw(name, suffix="-v4")
    await_sign(lambda: watched.relays(name) == ["http://[fd00::7]:5561"], 2, "the IPv6 address again")
    watched.cluster.withdraw(name, suffix="-v6")
    await_sign(lambda: not watched.replica.lists(name), 2, "gone with its last slice")
    await_sign(
        lambda: [event.name for event in subscriber.told_of(name)][-1:] == ["delete"], 1, "the stream's last word"
    )
    assert {len(event.data.get("relays", ())) for event in subscriber.told_of(name)} == {1, 0}, "never both at once"


def test_f37_a_missing_condition_counts_as_ready_and_false_does_not(watched: Watched) -> None:
    name = "f37/n1/p1"
    watched.replica.register(name)
    watched.cluster.relays(
        name,
        {"addresses": ["10.0.0.1"]},
        {"addresses": ["10.0.0.2"], "conditions": {}},
        {"addresses": ["10.0.0.3"], "conditions": {"ready": None}},
        {"addresses": ["10.0.0.4"], "conditions": {"ready": False}},
    )
    await_sign(lambda: watched.relays(name), 2, "listed")
    assert watched.relays(name) == [f"http://10.0.0.{number}:5561" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("number", "ports", "urls"),
    [
        (1, [], []),
        (2, None, []),
        (3, [{}], []),
        (4, [{"name": "http"}], []),
        (5, [{"port": 9000}], []),
        (6, [{"name": "metrics", "port": 9090}, {"name": "http", "port": 9000}], ["http://10.2.0.1:9000"]),
        (7, [{"name": "http", "port": 0}], []),
        (8, [{"name": "http", "port": 8000, "appProtocol": "https"}], ["https://10.2.0.1:8000"]),
    ],
)
def test_f38_only_a_named_port_with_a_number_gives_a_frontend(
    watched: Watched, number: int, ports: Any, urls: list[str]
) -> None:
    name = f"f38/n1/p{number}"
    watched.replica.register(name)
    watched.cluster.frontends(name, "10.2.0.1", ports=ports)
    watched.cluster.relays(name, "10.1.0.1", ports=[{"port": 9000}])
    await_sign(lambda: watched.relays(name) == ["http://10.1.0.1:9000"], 2, "a single unnamed port counts for relays")
    assert watched.frontends(name) == urls


def test_f40_a_pool_with_terminating_relays_alone_leaves_and_comes_back_with_its_first_ready_one(
    watched: Watched,
) -> None:
    name = "f40/n1/p1"
    going = {"addresses": ["10.1.0.1"], "conditions": {"ready": False, "serving": True, "terminating": True}}
    published = {"addresses": ["10.1.0.2"], "conditions": {"ready": True, "serving": False}}
    watched.replica.register(name)
    watched.cluster.relays(name, "10.1.0.1")
    await_sign(lambda: watched.relays(name), 2, "listed")
    watched.cluster.relays(name, going, published)
    await_sign(lambda: not watched.replica.lists(name), 2, "no relay can be used")
    watched.cluster.relays(name, going, published, "10.1.0.3")
    await_sign(lambda: watched.relays(name) == ["http://10.1.0.3:5561"], 2, "back with the ready one alone")


def test_f41_a_pool_moves_with_the_labels_of_its_slice_and_leaves_nothing_behind(watched: Watched) -> None:
    replica, cluster = watched
    names = [f"{cluster_id}/n41/p1" for cluster_id in ("f41a", "f41b", "home")]
    for name in names:
        replica.register(name)

    def labelled(**labels: str) -> None:
        cluster.call("apply", manifest=_slice("f41", labels, namespace="n41", endpoints=["10.1.0.1"], ports=[RELAY]))

    def listed() -> list[str]:
        return [name for name in replica.pools().names if name in names]

    labelled()
    labelled(service="p1-pool-relay")
    await_sign(lambda: warnings(replica, "n41/p1-pool-relay", "which cluster"), 2, "a slice without source is named")
    assert listed() == []
    for source, expected in (("f41a", [names[0]]), ("f41b", [names[1]])):
        labelled(service="p1-pool-relay", source=source)
        await_sign(lambda expected=expected: listed() == expected, 1, f"listed under {source} alone")
    labelled(service="other", source="f41b")
    await_sign(lambda: listed() == [], 1, "an unrelated Service is no pool")
    labelled(service="p1-pool-relay", source="f41a")
    await_sign(lambda: listed() == [names[0]], 1, "back")
    labelled(plain="p1-pool-relay")
    await_sign(lambda: listed() == [], 1, "with the plain label alone it is no import")


def _slice(name: str, labels: dict[str, str], **more: Any) -> Manifest:
    keys = {"service": MCS_SERVICE, "source": MCS_SOURCE, "plain": SERVICE_NAME}
    return manifest(name, {keys[key]: value for key, value in labels.items()}, **more)


def test_f43_equal_names_in_other_clusters_and_namespaces_and_dashes_stay_apart(watched: Watched) -> None:
    replica, cluster = watched
    names = ["f43a/n1/p1", "f43b/n1/p1", "f43a/n2/p1", "f43a/a/b-c", "f43a/a-b/c"]
    for number, name in enumerate(names, 1):
        replica.register(name)
        cluster.relays(name, f"10.4.0.{number}")
    await_sign(lambda: replica.lists(*names), 2, "as many entries as deployments")
    for number, name in enumerate(names, 1):
        assert watched.relays(name) == [f"http://10.4.0.{number}:5561"]
    cluster.withdraw(names[0])
    await_sign(lambda: not replica.lists(names[0]), 2, "it alone stops")
    assert replica.lists(*names[1:])
    replica.register("f43b/n9/p9")
    cluster.relays("f43a/n9/p9", "10.4.0.9")
    await_sign(lambda: watched.one_sided("f43a/n9/p9"), 2, "the slice was seen")
    assert not replica.lists("f43b/n9/p9"), "a slice of another cluster says nothing of it"


def test_f35_a_relist_drops_a_joined_pool_and_takes_a_replaced_slice_as_it_is(watched: Watched) -> None:
    replica, cluster = watched
    gone, replaced = "f35/n1/gone", "f35/n1/replaced"
    for name in (gone, replaced):
        replica.register(name)
        cluster.relays(name, "10.1.0.1")
    await_sign(lambda: replica.lists(gone, replaced), 2, "both are listed")
    cluster.call("refuse")
    cluster.call("cut_watches")
    await_sign(lambda: not replica.pools().complete, 5, "the watcher notices")
    cluster.withdraw(gone)
    cluster.withdraw(replaced)
    cluster.relays(replaced, "10.1.0.2")
    cluster.call("expire")
    assert replica.lists(gone, replaced), "the last view stays"
    cluster.up()
    await_sign(lambda: not replica.lists(gone), 5, "the relist lacks it")
    assert watched.relays(replaced) == ["http://10.1.0.2:5561"]
    await_sign(lambda: replica.pools().complete, 5, "complete again")


# ---- leases


def test_f42_a_pool_that_mcs_shows_ready_for_ever_leaves_at_the_end_of_its_lease_and_comes_back_with_a_beat(
    debian_redis: RedisServer, make_watching: MakeReplica, make_cluster: MakeCluster, traffic: Traffic
) -> None:
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    cluster, lease = make_cluster(), 2.0
    cluster.relays("c1/n1/p1", "10.1.0.1")
    replicas = [make_watching(name, hub=cluster, redis_url=debian_redis.url, lease=lease).launch() for name in "ab"]
    for replica in replicas:
        await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, "ready")
        await_sign(lambda replica=replica: replica.pools().complete, 5, "complete")
    relay = Relay(traffic, replicas, "c1/n1/p1", interval=0.5)
    await_sign(lambda: all(replica.lists("c1/n1/p1") for replica in replicas), 5, "listed on both")
    pollers = [Poller(traffic, [replica]) for replica in replicas]
    relay.stop()
    for replica in replicas:
        await_sign(lambda replica=replica: not replica.lists("c1/n1/p1"), lease + 2, f"gone from {replica.name}")
    polls = [poll for poller in pollers for poll in poller.stop()]
    assert verdict.dead(polls, [relay], lease) == []
    assert verdict.missing(polls, [relay]) == []
    assert all(poll.complete for poll in polls)
    replicas[0].register("c1/n1/p1")
    for replica in replicas:
        await_sign(lambda replica=replica: replica.lists("c1/n1/p1"), 1, f"back on {replica.name}")


def test_f15_an_address_that_a_new_pool_took_over_is_counted_until_the_old_pool_leaves(
    brief: Watched, traffic: Traffic
) -> None:
    replica, cluster = brief
    cluster.relays("c1/n1/old", "10.1.0.7")
    old = Relay(traffic, [replica], "c1/n1/old", interval=0.3)
    await_sign(lambda: replica.lists("c1/n1/old"), 2, "the old pool")
    old.stop()
    cluster.relays("c2/n1/new", "10.1.0.7")
    Relay(traffic, [replica], "c2/n1/new", interval=0.3)
    await_sign(lambda: brief.relays("c2/n1/new") == ["http://10.1.0.7:5561"], 0.5, "the new pool is right at once")
    poller = Poller(traffic, [replica])
    await_sign(lambda: replica.get("/status").json["shared_relay_addresses"] == 1, 0.5, "the overlap is counted")
    await_sign(lambda: not replica.lists("c1/n1/old"), 3, "the old pool is not renewed by that")
    assert verdict.dead(poller.stop(), [old], replica.lease) == []
    assert replica.get("/status").json["shared_relay_addresses"] == 0
    assert replica.lists("c2/n1/new")


# ---- what people are told


def test_a_one_sided_pool_is_named_once_after_two_leases_and_again_after_a_second_break(
    brief: Watched, traffic: Traffic
) -> None:
    replica, cluster = brief
    name = "c9/n1/p1"
    cluster.relays("c1/n2/another", "10.1.0.2")
    relay = Relay(traffic, [replica], name, interval=0.3)
    began = time.monotonic()
    told = await_sign(lambda: warnings(replica, name), 6, "named")
    assert time.monotonic() - began >= 2 * replica.lease
    assert len(told) == 1
    assert told[0].startswith("check that cluster_id is the pool's MCS cluster name")
    assert brief.one_sided(name)["side"] == "registered"
    hold_for(1.5, lambda: len(warnings(replica, name)) == 1, "never a second time")
    cluster.pool(name)
    await_sign(lambda: replica.lists(name), 1, "both sides agree")
    assert brief.one_sided(name) is None
    cluster.withdraw(name)
    await_sign(lambda: len(warnings(replica, name)) == 2, 6, "a second break is named again")
    assert relay.statuses() == [200] * len(relay.beats)


def test_a_one_sided_pool_is_forgotten_by_a_relist_without_it_and_can_be_named_again(brief: Watched) -> None:
    replica, cluster = brief
    name = "c1/n1/lone"
    for said in (1, 2):
        cluster.relays(name, "10.1.0.1")
        await_sign(lambda said=said: len(warnings(replica, name)) == said, 6, f"named {said} times")
        cluster.call("refuse")
        cluster.call("cut_watches")
        await_sign(lambda: not replica.pools().complete, 5, "the watcher notices")
        cluster.withdraw(name)
        cluster.call("expire")
        cluster.up()
        await_sign(lambda: brief.one_sided(name) is None, 5, "forgotten")
        await_sign(lambda: replica.pools().complete, 5, "complete again")
    assert all("is Ready, and no registration" in line for line in warnings(replica, name))


def test_a_thousand_one_sided_pools_at_once_are_one_line(make_watching: MakeReplica, make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    names = [f"c1/n1/p{number:04}" for number in range(1000)]
    cluster.call(
        "apply_all", manifests=[service_slice(name, "pool-relay", ["10.1.0.1"], ports=[RELAY]) for name in names]
    )
    # They are there when the replica starts: written while it watches, they would come as slowly as they are written.
    replica = make_watching(hub=cluster, lease=1.0, heartbeat=0.3).start()
    line = await_sign(lambda: warnings(replica, "c1/n1/p"), 8, "a line")[0]
    assert line.startswith("1000 pools")
    assert names[0] in line
    hold_for(1.5, lambda: len(warnings(replica, "c1/n1/p")) == 1, "no more lines", every=0.25)
    assert sorted(_name(one) for one in replica.get("/status").json["one_sided_pools"]) == names


def test_a_pool_of_this_cluster_that_registers_under_another_name_is_named_at_once(
    make_watching: MakeReplica, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(resources=[SLICES, CLUSTER_PROPERTIES])
    cluster.call("apply", manifest=_cluster_property("home"))
    cluster.relays("home/n1/p1", "10.1.0.1")
    replica = make_watching(hub=cluster, lease=30, heartbeat=5).start()
    replica.register("hoem/n1/p1")
    line = await_sign(lambda: warnings(replica, "hoem"), 3, "named long before two leases")[0]
    assert line.startswith("check cluster_id: this cluster's MCS name is 'home'")
    assert replica.get("/status").json["watchers"][0]["cluster_id"] == "home"


def _cluster_property(value: str) -> Manifest:
    return {"kind": "ClusterProperty", "metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": value}}


# ---- routers, the local cluster, Karmada


def test_ready_endpoints_of_the_router_service_are_the_routers_and_their_ids_outlast_a_relist(
    watched: Watched, traffic: Traffic
) -> None:
    replica, cluster = watched
    subscriber = Subscriber(traffic, [replica], path="/routers/events")
    await_sign(lambda: subscriber.connected, 5, "a stream")
    assert replica.get("/routers").json == {"complete": True, "routers": []}
    pods = [ready(f"10.7.0.{n}", targetRef={"kind": "Pod", "name": f"router-{n}"}) for n in (0, 1)]
    router = imported("routers", "router", "hub", namespace="global", endpoints=[*pods, "10.7.0.9"], ports=[HTTP])
    cluster.call("apply", manifest=router)
    expected = [
        {"id": "hub/10.7.0.9", "url": "http://10.7.0.9:8000"},
        {"id": "hub/router-0", "url": "http://10.7.0.0:8000"},
        {"id": "hub/router-1", "url": "http://10.7.0.1:8000"},
    ]
    await_sign(lambda: replica.get("/routers").json["routers"] == expected, 2, "one router for each")
    await_sign(lambda: list(subscriber.state.values()) == expected, 2, "the stream says the same")
    told, etag = len(subscriber.events), replica.get("/routers").headers["etag"]
    cluster.force_relist()
    assert replica.get("/routers").headers["etag"] == etag
    moved = {"addresses": ["10.7.0.1"], "conditions": {"ready": False}}
    cluster.call("apply", manifest={**router, "endpoints": [pods[0], moved]})
    await_sign(lambda: list(subscriber.state) == ["hub/router-0"], 2, "unready ones leave")
    assert [event.name for event in subscriber.events[told:]] == ["delete", "delete"]
    assert subscriber.faults == []


def test_the_local_clusters_own_services_are_its_pools(watched: Watched) -> None:
    name = "home/n1/own"
    watched.replica.register(name)
    for service, address, port in (("own-pool-relay", "10.8.0.1", RELAY), ("own-frontend", "10.8.0.2", HTTP)):
        labels = {SERVICE_NAME: service, MANAGED_BY: KUBE}
        native = manifest(f"{service}-x2k4p", labels, namespace="n1", endpoints=[address], ports=[port])
        watched.cluster.call("apply", manifest=native)
    await_sign(lambda: watched.relays(name) and watched.frontends(name), 2, "listed")
    assert watched.relays(name) == ["http://10.8.0.1:5561"]
    assert watched.frontends(name) == ["http://10.8.0.2:8000"]


def test_karmada_members_and_control_plane(make_watching: MakeReplica, make_cluster: MakeCluster) -> None:
    member = make_cluster()
    plane = make_cluster(resources=[SLICES, CLUSTERS, MULTI_CLUSTER_SERVICES])
    for found in (KARMADA_MEMBER, KARMADA_DISPATCHED):
        member.call("apply", manifest=found)
    plane.call("apply", manifest=KARMADA_CONTROL_PLANE)
    service = {"metadata": {"name": "s", "namespace": "llm"}, "spec": {"types": ["CrossCluster"]}}
    plane.call("apply", manifest={"kind": "MultiClusterService", **service})
    of_member = make_watching("member", "karmada", member=member).start()
    of_plane = make_watching("plane", "karmada", plane=plane).start()
    name = "east-1/llm/llama-70b"
    for replica in (of_member, of_plane):
        replica.register(name)
        await_sign(lambda replica=replica: replica.lists(name), 2, f"listed by {replica.name}")
        assert replica.pools().pools[name]["relays"] == ["http://10.30.0.5:5561"]
    assert of_member.pools().pools[name]["frontends"] == ["http://10.30.0.8:8000"]
    assert of_member.get("/status").json["watchers"][0]["warning"] is None
    assert "MultiClusterService" in of_plane.get("/status").json["watchers"][0]["warning"]
    assert len(warnings(of_plane, "MultiClusterService")) == 1
