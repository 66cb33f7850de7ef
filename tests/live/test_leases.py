"""Heartbeats, leases and clocks: who is listed, on which replica, from when and until when."""

import asyncio
import json
import time

import pytest
import redis
import redis.asyncio

from tests.live import verdict
from tests.live.conftest import MakeReplica, StartPair
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay, many
from tests.live.replica import Replica, pool
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.tcp_proxy import TcpProxy
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE = 3.0
# For replicas behind a proxy that delays what comes: how late an answer is on top of that is the machine's to say.
PATIENT = ("--store-timeout-ms", "3000")


def test_f06_equal_content_has_equal_bytes_and_tags_whatever_the_order_and_the_age_of_the_replica(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=30, heartbeat=5)
    for number, replica in ((3, a), (1, b), (2, a)):
        replica.register(f"c1/n1/p{number}", relays=[f"http://10.0.0.{number}:9000"], capabilities=["b", "a"])
    await_sign(lambda: verdict.same_bytes(a.pools(), b.pools()) and len(a.pools().names) == 3, 2, "equal bytes")
    assert a.pools().names == ["c1/n1/p1", "c1/n1/p2", "c1/n1/p3"]
    b.kill()
    a.register("c1/n1/p2", relays=["http://10.0.0.9:9000"], capabilities=["b"])
    a.register("c1/n1/p2", relays=["http://10.0.0.2:9000"], capabilities=["a", "b", "a"])
    b.start()
    await_sign(lambda: verdict.same_bytes(a.pools(), b.pools()), 2, "equal bytes after a restart")
    poller = Poller(traffic, [a, b], every=0.005, conditional=True)
    await_sign(lambda: len(poller.polls) >= 100, 10, "100 polls")
    assert [poll.status for poll in poller.stop()[:100]] == [200] + [304] * 99


def test_f07_a_lease_is_as_long_as_configured_also_where_nobody_saw_the_heartbeat(
    redis_server: RedisServer, start_pair: StartPair, make_replica: MakeReplica, traffic: Traffic
) -> None:
    lease = 4.0
    a, b = start_pair(redis_server, lease=lease)
    sent = a.register()
    answered = time.monotonic()
    c = make_replica("c", redis_url=redis_server.url, lease=lease).start()
    assert time.monotonic() < sent + lease, "the machine is too slow for this test to mean something"
    pollers = [Poller(traffic, [replica]) for replica in (a, b, c)]
    await_sign(lambda: all(poller.polls and not poller.polls[-1].names for poller in pollers), lease + 3, "gone")
    for poller in pollers:
        polls = poller.stop()
        gone = next(poll for poll in polls if not poll.names)
        assert sent + lease <= gone.answered, f"{gone.replica} dropped it {sent + lease - gone.answered:.3f} s early"
        assert gone.sent <= answered + lease + 1, f"{gone.replica} dropped it late"
        assert all(poll.names == frozenset() for poll in polls[polls.index(gone) :])


def test_f08_when_nearly_all_of_a_cluster_die_at_once_exactly_those_leave(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    names = [f"c1/n1/p{number}" for number in range(20)]
    relays = many(traffic, [a, b], names)
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists(*names), 5, f"all on {replica.name}")
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    for relay in relays[:18]:
        relay.stop()
    due = max(relay.last_accepted.answered for relay in relays[:18]) + LEASE + 1
    for replica in (a, b):
        await_sign(
            lambda replica=replica: replica.pools().names == sorted(names[18:]),
            max(0.0, due - time.monotonic()) + 0.5,
            f"18 have left {replica.name}",
        )
    hold_for(0.5, lambda: a.pools().names == b.pools().names == sorted(names[18:]), "the two others stay")
    for poller in pollers:
        polls = poller.stop()
        assert verdict.missing(polls, relays[18:]) == []
        assert verdict.dead(polls, relays[:18], LEASE) == []


def test_f09_a_replica_that_loads_for_longer_than_a_lease_drops_nobody(
    redis_server: RedisServer, start_pair: StartPair, make_replica: MakeReplica, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    bulk = _fill(redis_server, 2500)
    renewing = traffic.spawn(_renew(redis_server, bulk))
    relays = many(traffic, [a, b], [f"c1/n1/p{number}" for number in range(20)])
    names = [relay.name for relay in relays]
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists(*names, *bulk), 5, f"all on {replica.name}")
    pollers = [Poller(traffic, [replica], every=0.2) for replica in (a, b)]
    proxy = TcpProxy(redis_server.port)
    try:
        proxy.delay_answers(0.25)
        c = make_replica("c", redis_url=proxy.url, lease=LEASE, flags=PATIENT).launch()
        begun = time.monotonic()
        await_sign(lambda: c.says("/healthz", 200), 10, "c is alive")
        while not c.says("/pools", 200):
            early = c.post(pool("c1/n1/early"))
            # Taken and stored, or refused with the word when to come again; never taken and forgotten.
            if early.status == 200:
                assert redis_server.cli("PTTL", "{discovery}:pool:c1/n1/early") > 0
            else:
                assert (early.status, early.headers["retry-after"] in ("1", "2")) == (503, True)
            assert time.monotonic() < begun + 30, "c never had a list"
        first = c.pools()
        assert time.monotonic() - begun > LEASE, "the load was too quick for this test to mean something"
        assert not first.complete or set(names) | bulk <= set(first.names)
        pollers.append(Poller(traffic, [c], every=0.2))
        await_sign(lambda: c.pools().complete, 20, "c is complete")
        assert set(names) | bulk <= set(c.pools().names)
        for poller in pollers:
            polls = poller.stop()
            assert verdict.missing(polls, relays) == []
            assert all(len(poll.names & bulk) == len(bulk) for poll in polls if poll.complete and poll.sent > begun)
    finally:
        renewing.cancel()
        proxy.close()


def _fill(server: RedisServer, number: int) -> frozenset[str]:
    """Store pools as a replica would have stored them, all at once."""
    names = [f"bulk/n1/p{place}" for place in range(number)]
    with server.client.pipeline(transaction=False) as batch:
        for name in names:
            value = json.dumps(pool(name), separators=(",", ":"))
            batch.set("{discovery}:pool:" + name, value, px=int(LEASE * 1000))
        batch.incr("{discovery}:revision")
        batch.execute()
    return frozenset(names)


async def _renew(server: RedisServer, names: frozenset[str]) -> None:
    """Keep the leases of these pools up, in the store itself: one command, since this process has other work to do."""
    raw = redis.asyncio.Redis(port=server.port)
    renew_all = raw.register_script("for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[1]) end")
    keys = ["{discovery}:pool:" + name for name in names]
    try:
        while True:
            await renew_all(keys=keys, args=[int(LEASE * 1000)])
            await asyncio.sleep(0.5)
    finally:
        await raw.aclose()


# Delays are made between replica and server; where one part alone is late, the kind of server says nothing new.
@pytest.mark.parametrize(
    ("redis_server", "delayed"),
    [("redis", "scan|mget|get|eval"), ("redis", "subscribe"), ("redis", ""), ("valkey", "")],
    ids=["redis-reads", "redis-subscribe", "redis-everything", "valkey-everything"],
    indirect=["redis_server"],
)
def test_f10_what_happens_while_a_replica_loads_is_what_it_shows_when_it_is_ready(
    redis_server: RedisServer, start_pair: StartPair, make_replica: MakeReplica, traffic: Traffic, delayed: str
) -> None:
    a, _ = start_pair(redis_server, lease=LEASE)
    _fill(redis_server, 1500)
    proxy = TcpProxy(redis_server.port)
    changing = Relay(traffic, [a], "c1/n1/changed", model="before", interval=0.5)
    removed = Relay(traffic, [a], "c1/n1/removed", interval=0.5)
    a.register("c1/n1/ending")
    ended = time.monotonic() + LEASE + 1
    await_sign(lambda: a.lists(changing.name, removed.name, "c1/n1/ending"), 5, "the pools of a")
    try:
        proxy.delay_answers(0.4, to=delayed)
        c = make_replica("c", redis_url=proxy.url, lease=LEASE, flags=PATIENT).launch()
        await_sign(lambda: proxy.connections, 10, "c connects")
        new = Relay(traffic, [a], "c1/n1/new", interval=0.5)
        changing.change(model="after")
        before = len(changing.accepted)
        await_sign(lambda: len(changing.accepted) > before + 1, 5, "the change is accepted")
        removed.deregister(a)
        await_sign(lambda: c.says("/readyz", 200), 20, "c is ready")
        ready = time.monotonic()
        proxy.delay_answers(0)
        poller = Poller(traffic, [c])
        within = max(2.0, ended - time.monotonic())
        await_sign(lambda: verdict.same_bytes(a.pools(), c.pools()) and not c.lists("c1/n1/ending"), within, "c agrees")
        shown = c.pools().pools
        assert shown[new.name]["model"] == "m"
        assert shown[changing.name]["model"] == "after"
        assert removed.name not in shown
        hold_for(1, lambda: removed.name not in c.pools().names, "what was removed stays away")
        for poll in poller.stop():
            listed = {f"{p['cluster_id']}/{p['namespace']}/{p['dgd_name']}": p for p in json.loads(poll.body)["pools"]}
            assert removed.name not in listed, f"{poll.sent - ready:.3f} s after ready"
            assert listed[changing.name]["model"] == "after"
            assert new.name in listed
    finally:
        proxy.close()


def test_f11_pools_whose_heartbeats_alternate_never_flap(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    lease = 4.0
    a, b = start_pair(redis_server, lease=lease)
    # With every third beat dropped the longest silence is two intervals, two thirds of the lease.
    steady = Relay(traffic, [a, b], "c1/n1/steady", interval=lease / 3)
    skipping = Relay(traffic, [a, b], "c1/n1/skipping", interval=lease / 3, skip_every=3)
    relays = [steady, skipping]
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists(*(relay.name for relay in relays)), 5, f"on {replica.name}")
    pollers = [Poller(traffic, [replica], every=0.05) for replica in (a, b)]
    begun = time.monotonic()
    await_sign(lambda: time.monotonic() > begun + 3 * lease, 3 * lease + 1, "three leases", every=0.1)
    for poller in pollers:
        polls = poller.stop()
        assert len(polls) > 100
        assert verdict.missing(polls, relays) == []
        assert len({poll.etag for poll in polls}) == 1
    for relay in relays:
        assert set(relay.statuses()) == {200}


def test_f12_an_old_request_that_ends_late_leaves_the_replicas_agreed(
    redis_server: RedisServer, start_pair: StartPair
) -> None:
    a, b = start_pair(redis_server, lease=10, heartbeat=2)
    old = json.dumps(pool(relays=["http://10.0.0.1:9000"])).encode()
    with a.connect() as slow:
        slow.sendall(b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: %d\r\n\r\n" % len(old) + old[:-1])
        b.register(relays=["http://10.0.0.1:9001"])
        await_sign(lambda: _relays(a) == _relays(b) == ["http://10.0.0.1:9001"], 1, "the newer one everywhere")
        slow.sendall(old[-1:])
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")

    def stored() -> list[str]:
        return list(json.loads(redis_server.cli("GET", "{discovery}:pool:c1/n1/p1"))["relays"])

    await_sign(lambda: _relays(a) == _relays(b) == stored(), 1, "one address everywhere")
    hold_for(1.2, lambda: _relays(a) == _relays(b) == stored(), "and it stays")
    b.register(relays=["http://10.0.0.1:9001"])
    await_sign(lambda: _relays(a) == _relays(b) == stored() == ["http://10.0.0.1:9001"], 1, "its real address")


def _relays(replica: Replica, name: str = "c1/n1/p1") -> list[str]:
    return list(replica.pools().pools[name]["relays"])


def test_f13_replaying_old_announcements_brings_nobody_back(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=2, heartbeat=0.5)
    listener = redis.Redis(port=redis_server.port).pubsub()
    listener.subscribe("{discovery}:changes")
    assert listener.get_message(timeout=2)["type"] == "subscribe"
    a.register("c1/n1/expired")
    a.register("c1/n1/gone")
    assert a.delete("c1/n1/gone").status == 204
    captured = []
    while (message := listener.get_message(timeout=0.3)) is not None:
        captured.append(message["data"])
    listener.close()
    assert len(captured) >= 3
    await_sign(lambda: a.pools().names == b.pools().names == [], 4, "both have left")
    pollers = [Poller(traffic, [replica], every=0.01) for replica in (a, b)]
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    await_sign(lambda: all(stream.connected for stream in streams), 2, "streams")
    relists = [replica.counter("relists") for replica in (a, b)]
    for message in captured * 3:
        redis_server.cli("PUBLISH", "{discovery}:changes", message)
    hold_for(1.5, lambda: a.pools().names == b.pools().names == [], "nobody came back")
    for poller, stream in zip(pollers, streams, strict=True):
        assert all(poll.names == frozenset() for poll in poller.stop())
        assert stream.named("put") == []
    assert [replica.counter("relists") for replica in (a, b)] == relists, (
        "what is old is not even a reason to read again"
    )
    a.register("c1/n1/expired")
    await_sign(lambda: b.lists("c1/n1/expired"), 1, "a new registration is what brings it back")


def test_f14_a_replica_that_was_frozen_does_not_speak_of_the_past(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    a.register("c1/n1/dead")
    await_sign(lambda: b.lists("c1/n1/dead"), 2, "listed by b")
    watching = Subscriber(traffic, [a])
    staying = Relay(traffic, [a], "c1/n1/staying")
    await_sign(lambda: b.lists(staying.name) and watching.connected, 2, "listed by b")
    b.freeze()
    await_sign(lambda: not a.lists("c1/n1/dead"), LEASE + 1.5, "a dropped it")
    a.register("c1/n1/born")
    await_sign(lambda: watching.told_of("c1/n1/dead") and watching.told_of("c1/n1/born"), 2, "a told of both")
    revision = redis_server.cli("GET", "{discovery}:revision")
    told = len(watching.events)
    # The first request is already waiting in the socket when the process goes on.
    with b.connect() as first:
        first.sendall(b"GET /pools HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
        b.thaw()
        thawed = time.monotonic()
        answer = b""
        while received := first.recv(65536):
            answer += received
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 503 " not in head.split(b"\r\n")[0]:
        listed = json.loads(body)
        names = {entry["dgd_name"] for entry in listed["pools"]}
        assert not listed["complete"] or names == {"born", "staying"}, names
    poller = Poller(traffic, [b], every=0.01)
    await_sign(
        lambda: b.pools().complete and set(b.pools().names) == {"c1/n1/born", staying.name},
        thawed + 2 - time.monotonic(),
        "b is right again",
    )
    for poll in poller.stop():
        if poll.complete:
            assert poll.names >= {"c1/n1/born", staying.name}
            assert "c1/n1/dead" not in poll.names
        assert staying.name in poll.names
    assert redis_server.cli("GET", "{discovery}:revision") == revision
    assert watching.events[told:] == []


def test_f15_a_pool_is_not_renewed_by_another_that_took_its_address(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    address = ["http://10.0.0.7:9000"]
    poller = Poller(traffic, [b])
    sent = a.register("c1/n1/old", relays=address)
    answered = time.monotonic()
    new = Relay(traffic, [a, b], "c2/n1/new", relays=address, interval=0.7)
    await_sign(lambda: b.lists(new.name), 1, "the new owner is right at once")
    overlapping = await_sign(lambda: b.get("/status").json["shared_relay_addresses"], 2, "the overlap can be counted")
    assert overlapping >= 1
    await_sign(lambda: not b.lists("c1/n1/old"), answered + LEASE + 1 - time.monotonic(), "the old owner has left")
    polls = poller.stop()
    gone = verdict.first_absent(polls, "c1/n1/old", "b", answered + 1)
    assert sent + LEASE - 0.05 <= gone <= answered + LEASE + 1
    assert verdict.missing(polls, [new]) == []
