"""Announcements are hints: what happens when they are lost, late, frozen on their way, or somebody else's."""

import json
import re
import time

import pytest
import redis

from tests.live import verdict
from tests.live.conftest import MakeReplica, StartPair
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay
from tests.live.replica import Replica, pool
from tests.live.router import Poller
from tests.live.signs import await_sign
from tests.live.tcp_proxy import Connection, TcpProxy
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

CHANNEL = "{discovery}:changes"


def test_f25_whatever_happens_while_a_subscription_is_cut_arrives_each_time(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    lease = 4.0
    cuts = 20
    a, b = start_pair(redis_server, lease=lease)
    staying = Relay(traffic, [a, b], "c1/n1/staying")
    await_sign(lambda: b.lists(staying.name), 5, "listed by b")
    poller = Poller(traffic, [b])
    before = b.counter("feed_connections")
    sent = {}
    for cut in range(cuts):
        await_sign(lambda: redis_server.subscribers(CHANNEL) == 2, 3, "both listen")
        assert redis_server.client_kill("pubsub") == 2
        at = time.monotonic()
        sent[f"c1/n1/k{cut}"] = a.register(f"c1/n1/k{cut}", instance_id="first")
        if cut:
            a.register(f"c1/n1/k{cut - 1}", instance_id="second")
            assert a.delete(f"c1/n1/k{cut - 1}").status == 204
            a.register("c1/n1/changed", instance_id=str(cut))
        await_sign(
            lambda cut=cut: (
                _shown(b, f"c1/n1/k{cut}") == "first"
                and _shown(b, f"c1/n1/k{cut - 1}") is None
                and (not cut or _shown(b, "c1/n1/changed") == str(cut))
            ),
            at + 2 - time.monotonic(),
            f"what happened during cut {cut} is on b",
        )
    await_sign(lambda: redis_server.subscribers(CHANNEL) == 2, 3, "both listen")
    assert b.counter("feed_connections") == before + cuts
    # The last one expires though nobody renews it and its announcement was never heard.
    await_sign(lambda: b.pools().names == [staying.name], lease + 1, "all others have left")
    polls = poller.stop()
    assert verdict.missing(polls, [staying]) == []


def _shown(replica: Replica, name: str) -> str | None:
    listing = replica.pools().pools.get(name)
    return None if listing is None else listing["instance_id"]


def _silence(replica: Replica) -> float:
    """Seconds since the feed's last sign of life, as the metrics say; the status has to say about the same."""
    (line,) = re.findall(r"^discovery_feed_silent_seconds (\S+)$", replica.get("/metrics").body.decode(), re.MULTILINE)
    assert abs(replica.get("/status").json["store"]["feed"]["last_sign_of_life_secs"] - float(line)) < 0.9
    return float(line)


def test_a_change_that_nobody_announced_is_noticed_by_its_revision(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    staying = Relay(traffic, [a, b], "c1/n1/staying")
    await_sign(lambda: a.lists(staying.name) and b.lists(staying.name), 3, "listed by both")
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    gaps, feeds = b.counter("relists_gap"), b.counter("feed_connections")
    value = json.dumps(pool("c1/n1/unannounced"), separators=(",", ":"))
    with redis_server.client.pipeline(transaction=True) as batch:
        batch.set("{discovery}:pool:c1/n1/unannounced", value, px=20_000)
        batch.incr("{discovery}:revision")
        batch.execute()
    for replica in (a, b):
        await_sign(lambda r=replica: r.lists("c1/n1/unannounced"), 1.5, f"the change is on {replica.name}")
    assert b.counter("relists_gap") == gaps + 1
    assert b.counter("feed_connections") == feeds + 1
    for poller in pollers:
        assert verdict.missing(poller.stop(), [staying]) == []
        assert all(poll.complete for poll in poller.polls)


def test_f26_a_subscription_whose_path_died_is_noticed_and_replaced(
    redis_server: RedisServer, start_pair: StartPair, make_replica: MakeReplica, traffic: Traffic
) -> None:
    lease = 5.0
    a, _ = start_pair(redis_server, lease=lease)
    proxy = TcpProxy(redis_server.port)
    try:
        c = make_replica("c", redis_url=proxy.url, lease=lease).start()
        staying = Relay(traffic, [a], "c1/n1/staying", interval=0.8)
        await_sign(lambda: c.lists(staying.name), 5, "listed by c")
        poller = Poller(traffic, [c])
        before = c.counter("feed_connections")
        old = a.register("c1/n1/ending", instance_id="1")
        a.register("c1/n1/changed", instance_id="1")
        await_sign(lambda: c.lists("c1/n1/ending", "c1/n1/changed"), 2, "listed by c")
        assert proxy.freeze(subscribed=True) == 1
        frozen = time.monotonic()
        await_sign(lambda: _silence(c) > 1, 2, "the silence shows")
        a.register("c1/n1/hidden", instance_id="1")
        a.register("c1/n1/changed", instance_id="2")
        await_sign(
            lambda: _shown(c, "c1/n1/hidden") == "1" and _shown(c, "c1/n1/changed") == "2",
            frozen + 3.2 - time.monotonic(),
            "news without announcements",
        )
        await_sign(lambda: c.counter("feed_connections") == before + 1, frozen + lease - time.monotonic(), "a new feed")
        await_sign(lambda: redis_server.subscribers(CHANNEL) >= 3, 2, "c listens again")
        for number in range(5):
            a.register(f"c1/n1/later{number}")
            await_sign(lambda number=number: c.lists(f"c1/n1/later{number}"), 0.5, "news travel at once again")
        await_sign(lambda: not c.lists("c1/n1/ending"), old + lease + 1.1 - time.monotonic(), "the expiry is on c")
        assert verdict.missing(poller.stop(), [staying]) == []
    finally:
        proxy.close()


def test_a_subscription_cut_while_the_store_is_read_again_is_replaced_without_waiting(
    redis_server: RedisServer, start_pair: StartPair, make_replica: MakeReplica
) -> None:
    a, _ = start_pair(redis_server, lease=20, heartbeat=5)
    proxy = TcpProxy(redis_server.port)
    try:
        c = make_replica("c", redis_url=proxy.url, lease=20, heartbeat=5).start()
        a.register("c1/n1/before")
        await_sign(lambda: c.lists("c1/n1/before"), 2, "listed by c")
        proxy.delay_answers(0.6, to="scan")

        def listening() -> list[Connection]:
            return [each for each in proxy.connections if each.open and each.subscribed]

        (first,) = listening()
        assert proxy.cut(subscribed=True) == 1
        (second,) = await_sign(lambda: [each for each in listening() if each is not first], 3, "c subscribes again")
        assert proxy.cut(subscribed=True) == 1
        cut = time.monotonic()
        a.register("c1/n1/after")
        await_sign(lambda: [each for each in listening() if each is not second], 1.9, "and once more")
        await_sign(lambda: c.lists("c1/n1/after"), cut + 3 - time.monotonic(), "what was said meanwhile is on c")
    finally:
        proxy.close()


def test_f27_foreign_messages_are_ignored_counted_and_end_nothing(
    redis_server: RedisServer, start_pair: StartPair
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    a.register("c1/n1/staying")
    await_sign(lambda: b.lists("c1/n1/staying"), 2, "listed by b")
    before = b.counter("announcements_ignored")
    feeds = b.counter("feed_connections")
    foreign: list[bytes] = [b"", b"{", b"null", b"[]", b"{}", b"42", b'"x"', b'{"type":"unknown"}', b"\xff\xfe"]
    foreign += [b"a" * 2_000_000, b"[" * 100_000, b'{"epoch":1,"revision":"x"}', b'{"epoch":"other","revision":3}']
    for message in foreign:
        assert redis_server.cli("PUBLISH", CHANNEL, message) == 2
    a.register("c1/n1/after")
    await_sign(lambda: b.lists("c1/n1/after", "c1/n1/staying"), 1, "the next registration is on b")
    await_sign(lambda: b.counter("announcements_ignored") >= before + len(foreign), 2, "all foreign ones are counted")
    assert b.counter("feed_connections") == feeds
    assert redis_server.subscribers(CHANNEL) == 2
    assert b.pools().complete
    # However many there were, the log is not flooded.
    assert b.log.lower().count("announcement") <= len(foreign)
    assert len(b.log) < 100_000


@pytest.mark.parametrize(
    "twist",
    [{"new_field": {"x": [1]}}, {"revision": 10**15}, {"revision": -1}, {"epoch": "another"}],
    ids=["unknown-field", "revision-of-the-future", "revision-of-the-past", "other-epoch"],
)
def test_f27_a_message_of_another_release_or_another_life_does_no_harm(
    redis_server: RedisServer, start_pair: StartPair, twist: dict[str, object]
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    listener = redis.Redis(port=redis_server.port).pubsub()
    listener.subscribe(CHANNEL)
    assert listener.get_message(timeout=2)["type"] == "subscribe"
    a.register("c1/n1/p1")
    genuine = json.loads(listener.get_message(timeout=2)["data"])
    listener.close()
    redis_server.cli("PUBLISH", CHANNEL, json.dumps({**genuine, **twist}))
    a.register("c1/n1/after")
    await_sign(lambda: b.lists("c1/n1/after", "c1/n1/p1") and verdict.same_bytes(a.pools(), b.pools()), 2.5, "b agrees")
    a.register("c1/n1/later")
    await_sign(lambda: b.lists("c1/n1/later"), 1.5, "and hears what comes later")
