"""Watched clusters that fail: what stays listed meanwhile, what it says of itself, and when all is well again."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.clusters import Cluster, warnings
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.relay import many
from tests.live.replica import Replica, pool
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic
from tests.mcs.api_server import ALL_RESOURCES

pytestmark = [pytest.mark.live, pytest.mark.timeout(40)]

READY_AFTER_SECS = 5.0
"""How long it may take from when a cluster can be watched again until all is well."""

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def redis_url(debian_redis: RedisServer) -> str:
    """A store that was in use before, so that replicas are complete from the start."""
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    return debian_redis.url


def _readiness(replica: Replica) -> tuple[int, str, str]:
    answer = replica.get("/readyz")
    return answer.status, answer.json["stage"], answer.json["detail"]


def _waits_for_watchers(replica: Replica, *words: str) -> bool:
    status, stage, detail = _readiness(replica)
    return (status, stage) == (503, "watchers") and all(word in detail for word in words)


def test_a_cluster_that_is_down_at_startup_holds_readiness_and_lists_back_but_takes_heartbeats(
    make_watching: MakeReplica, make_cluster: MakeCluster, redis_url: str
) -> None:
    cluster = make_cluster()
    cluster.pool("c1/n1/p1")
    cluster.down()
    replica = make_watching(hub=cluster, redis_url=redis_url, lease=30, heartbeat=5).start(sign="/healthz")
    await_sign(lambda: _waits_for_watchers(replica, "hub", "cannot be reached"), 5, "readyz says why")
    replica.register("c1/n1/p1")
    for path in ("/pools", "/routers", "/pools/events"):
        assert replica.get(path).status == 503, path
    assert replica.get("/status").json["watchers"][0]["listed"] is False
    cluster.up()
    await_sign(lambda: replica.says("/readyz", 200), READY_AFTER_SECS, "ready")
    first = replica.pools()
    assert (first.names, first.complete) == (["c1/n1/p1"], True)
    assert len(warnings(replica, "fails", "hub")) == 1


def test_a_cluster_that_goes_down_later_leaves_the_last_list_and_readiness_as_they_are(
    make_watching: MakeReplica, make_cluster: MakeCluster, redis_url: str, traffic: Traffic
) -> None:
    cluster = make_cluster()
    cluster.pool("c1/n1/p1")
    replica = make_watching(hub=cluster, redis_url=redis_url, lease=30, heartbeat=5).start()
    replica.register("c1/n1/p1")
    await_sign(lambda: replica.lists("c1/n1/p1") and replica.pools().complete, 5, "listed")
    subscriber = Subscriber(traffic, [replica])
    await_sign(lambda: subscriber.connected, 5, "a stream")
    for round_ in (1, 2):
        cluster.down()
        await_sign(lambda: not replica.pools().complete, 2, "not complete")
        hold_for(0.5, lambda: replica.lists("c1/n1/p1") and not replica.pools().complete, "the last list")
        status, stage, detail = _readiness(replica)
        assert (status, stage) == (200, "ready")
        assert "hub" in detail
        cluster.up()
        await_sign(lambda: replica.pools().complete, READY_AFTER_SECS, "complete again")
        assert replica.lists("c1/n1/p1")
        assert len(warnings(replica, "hub", "well again")) == round_
    await_sign(lambda: len(subscriber.named("complete")) == 4, 2, "the stream tells of all of it")
    assert [event.data["complete"] for event in subscriber.named("complete")] == [False, True] * 2
    assert subscriber.told_of("c1/n1/p1") == []


def test_f36_watches_that_end_cleanly_all_the_time_change_nothing_and_repeat_nothing(
    make_watching: MakeReplica, make_cluster: MakeCluster, redis_url: str, traffic: Traffic
) -> None:
    cluster = make_cluster()
    names = [f"c1/n1/p{number}" for number in (3, 1, 2)]  # versions are in another order than names
    for name in [*names, "c1/n1/gone"]:
        cluster.relays(name, "10.1.0.1")
    cluster.withdraw("c1/n1/gone")
    replica = make_watching(hub=cluster, redis_url=redis_url, lease=60, heartbeat=5).start()
    for name in [*names, "c1/n1/gone"]:
        replica.register(name)
    await_sign(lambda: replica.lists(*names) and replica.pools().complete, 5, "listed")
    subscriber, poller = Subscriber(traffic, [replica]), Poller(traffic, [replica], every=0.01)
    await_sign(lambda: subscriber.connected, 5, "a stream")
    lists = cluster.count("list")
    for _ in range(4):
        watches = cluster.count("watch")
        threading.Event().wait(1.2)  # how long watches last here is the fault itself
        cluster.call("end_watches")
        await_sign(lambda watches=watches: cluster.count("watch") >= watches + 3, 2, "all are watched again")
    cluster.relays("c1/n1/gone", "10.1.0.2")
    await_sign(lambda: replica.lists("c1/n1/gone"), 2, "still watched")
    polls = poller.stop()
    assert cluster.count("list") == lists, "resumed without a list"
    assert {poll.complete for poll in polls} == {True}
    assert len({poll.etag for poll in polls}) == 2
    await_sign(lambda: len(subscriber.events) > 1, 2, "the stream hears of it")
    assert [event.name for event in subscriber.events] == ["snapshot", "put"]


def test_of_two_clusters_one_that_is_down_from_the_start_takes_nothing_from_the_other(
    make_watching: MakeReplica, make_cluster: MakeCluster, traffic: Traffic
) -> None:
    well, ill = make_cluster(), make_cluster()
    well.pool("c1/n1/p1")
    ill.pool("c2/n1/p1", "10.1.0.2")
    ill.down()
    replica = make_watching(well=well, ill=ill, lease=1.5, heartbeat=0.5).start(sign="/healthz")
    relays = many(traffic, [replica], ["c1/n1/p1", "c1/n1/p2", "c2/n1/p1"], interval=0.4)
    await_sign(lambda: _waits_for_watchers(replica, "ill"), 1, "readiness is held back")
    await_sign(lambda: replica.says("/readyz", 200), 4, "ready after one lease")
    first = replica.pools()
    assert (first.names, first.complete) == (["c1/n1/p1"], False)
    well.relays("c1/n1/p2", "10.1.0.3")
    await_sign(lambda: replica.lists("c1/n1/p2"), 1, "the other cluster's pools come")
    well.withdraw("c1/n1/p1")
    await_sign(lambda: not replica.lists("c1/n1/p1"), 1, "and go")
    assert not replica.pools().complete
    ill.up()
    await_sign(lambda: replica.lists("c2/n1/p1") and replica.pools().complete, READY_AFTER_SECS, "both are well")
    assert replica.lists("c1/n1/p2")
    assert all(set(relay.statuses()) == {200} for relay in relays)


def test_f33_a_rotated_token_is_read_again_without_a_gap_in_the_list(
    make_watching: MakeReplica, make_cluster: MakeCluster, redis_url: str, traffic: Traffic, tmp_path: Path
) -> None:
    cluster, token = make_cluster(tokens=["token-a"]), tmp_path / "token"
    token.write_text("token-a\n")
    cluster.pool("c1/n1/p1")
    user = (cluster, {"tokenFile": str(token)})
    replica = make_watching(hub=user, redis_url=redis_url, lease=60, heartbeat=5).start()
    replica.register("c1/n1/p1")
    await_sign(lambda: replica.lists("c1/n1/p1") and replica.pools().complete, 5, "listed")
    subscriber = Subscriber(traffic, [replica])
    await_sign(lambda: subscriber.connected, 5, "a stream")
    hold_for(1.2, lambda: replica.pools().complete, "the watches last for a while")
    token.write_text("token-b\n")
    cluster.call("accept_tokens", tokens=["token-b"])
    seen = cluster.call("state")["requests"]
    cluster.call("end_watches")
    await_sign(lambda: cluster.count("watch", seen) >= 3, 5, "watched with the new token")
    cluster.relays("c1/n1/p1", "10.1.0.1", "10.1.0.2")
    await_sign(lambda: len(replica.pools().pools["c1/n1/p1"]["relays"]) == 2, 2, "still watched")
    assert any(request["status"] == 401 for request in cluster.call("requests_since", number=seen))
    await_sign(lambda: len(subscriber.events) > 1, 2, "the stream hears of it")
    assert [event.name for event in subscriber.events] == ["snapshot", "put"]
    assert "token-" not in replica.log


def test_what_is_missing_or_forbidden_is_said_plainly(make_watching: MakeReplica, make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.call("forbid", verb="list")
    replica = make_watching(hub=cluster, lease=1.0, heartbeat=0.3).start(sign="/healthz")
    words = ("list endpointslices.discovery.k8s.io", "(403)", "ClusterRole", "verbs: [list]")
    await_sign(lambda: _waits_for_watchers(replica, *words), 5, "the missing rule is named")
    cluster.call("fault", kind="status", verbs=["list"], code=404)
    cluster.call("allow")
    await_sign(lambda: _waits_for_watchers(replica, "(404)", "endpointslices"), 5, "404 is named")
    cluster.call("heal")
    cluster.call("forbid", verb="watch")
    await_sign(lambda: "verbs: [watch]" in _readiness(replica)[2], 6, "listed, but it cannot be watched")
    assert not replica.pools().complete
    cluster.call("allow")
    await_sign(lambda: replica.pools().complete, 2 * READY_AFTER_SECS, "all is well")
    assert warnings(replica, "(403)", "list endpointslices")
    assert warnings(replica, "(404)")


def test_of_two_namespaces_one_without_a_role_takes_nothing_from_the_other(
    make_watching: MakeReplica, make_cluster: MakeCluster, traffic: Traffic
) -> None:
    cluster = make_cluster(resources=ALL_RESOURCES)
    names = ["c1/n1/p1", "c1/n1/p2", "c1/n2/p1", "c1/n3/p1"]
    for name in names:
        cluster.pool(name)
    cluster.call("grant_roles", namespaces=["n1"])
    namespaces = ("--kube-namespace", "n1", "--kube-namespace", "n2")
    replica = make_watching(hub=cluster, lease=1.0, heartbeat=0.3, flags=namespaces).start(sign="/healthz")
    many(traffic, [replica], names, interval=0.3)
    words = ("list endpointslices.discovery.k8s.io in n2", "(403)", "bind a Role in namespace n2")
    await_sign(lambda: warnings(replica, "a watcher fails: hub: ", *words), 4, "the missing Role is named")
    await_sign(lambda: replica.says("/readyz", 200), 4, "ready after one lease")
    await_sign(lambda: replica.pools().names == ["c1/n1/p1", "c1/n1/p2"], 2, "the pools of the other are listed")
    assert not replica.pools().complete
    cluster.withdraw("c1/n1/p1")
    await_sign(lambda: not replica.lists("c1/n1/p1"), 1, "what happens in the other is seen")
    cluster.call("grant_roles", namespaces=["n1", "n2"])
    await_sign(lambda: replica.lists("c1/n2/p1") and replica.pools().complete, READY_AFTER_SECS, "both are well")
    assert replica.pools().names == ["c1/n1/p2", "c1/n2/p1"], "and no other namespace is seen"
    watchers = replica.get("/status").json["watchers"]
    assert [watcher["name"] for watcher in watchers] == ["hub/n1", "hub/n2"]
    assert not warnings(replica, "hub/n1")
    await_sign(lambda: warnings(replica, "c1/n3/p1", "check --kube-namespace"), 4, "what is not watched is said")


def test_no_pool_is_called_one_sided_before_its_cluster_was_listed(
    make_watching: MakeReplica, make_cluster: MakeCluster, traffic: Traffic
) -> None:
    cluster = make_cluster()
    cluster.down()
    replica = make_watching(hub=cluster, lease=0.7, heartbeat=0.2).start(sign="/healthz")
    names = [f"c1/n1/p{number}" for number in range(3)]
    many(traffic, [replica], names, interval=0.2)
    await_sign(lambda: len(replica.get("/registrations").json["registrations"]) == 3, 3, "all are registered")
    hold_for(2.0, lambda: warnings(replica, "c1/n1/") == [], "nothing is known of their other side", every=0.2)
    for name in names[1:]:
        cluster.relays(name, "10.1.0.1")
    cluster.up()
    await_sign(lambda: replica.lists(*names[1:]), READY_AFTER_SECS, "listed")
    assert warnings(replica, "c1/n1/") == [], "patience begins with the first list"
    await_sign(lambda: warnings(replica, "c1/n1/p0"), 5, "the one that is missing is named")


def test_a_deregistered_pool_leaves_while_its_cluster_is_down(
    make_watching: MakeReplica, make_cluster: MakeCluster, redis_url: str
) -> None:
    cluster = make_cluster()
    cluster.pool("c1/n1/p1")
    replica = make_watching(hub=cluster, redis_url=redis_url, lease=30, heartbeat=5).start()
    replica.register("c1/n1/p1")
    await_sign(lambda: replica.lists("c1/n1/p1"), 5, "listed")
    cluster.down()
    await_sign(lambda: not replica.pools().complete, 2, "not complete")
    assert replica.delete("c1/n1/p1").status == 204
    assert not replica.lists("c1/n1/p1")
    assert replica.post(pool("c1/n1/p1")).status == 200
    assert replica.lists("c1/n1/p1"), "the last view still says where it is"
