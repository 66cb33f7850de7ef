"""Faults of the store that are no outage: evicted keys, lost scripts, neighbours on the same server."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live import verdict
from tests.live.conftest import MakeReplica, StartPair
from tests.live.redis_server import RedisServer
from tests.live.relay import many
from tests.live.replica import pool
from tests.live.router import Poller
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE = 3.0


def test_f20_keys_that_vanish_before_their_time_cost_no_renewing_pool_its_place(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    relays = many(traffic, [a, b], [f"c1/n1/p{number}" for number in range(5)], interval=0.7)
    names = [relay.name for relay in relays]
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists(*names), 5, f"all on {replica.name}")
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    begun = time.monotonic()
    while time.monotonic() < begun + 2.5 * LEASE:
        keys = redis_server.cli("KEYS", "{discovery}:*")
        if keys:
            redis_server.cli("DEL", *keys)
        hold_for(0.9, lambda: set(names) <= set(a.pools().names), "a keeps all")
    assert {beat.status for relay in relays for beat in relay.beats} == {200}
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.pools().complete, LEASE + 2, f"{replica.name} is complete again")
    await_sign(lambda: verdict.same_bytes(a.pools(), b.pools()), 2, "equal bytes")
    for poller in pollers:
        assert verdict.missing(poller.stop(), relays) == []


def test_f21_heartbeats_succeed_though_the_scripts_are_gone_each_time(
    redis_server: RedisServer, start_pair: StartPair
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    statuses = []
    for number in range(100):
        redis_server.cli("SCRIPT", "FLUSH")
        statuses.append((a, b)[number % 2].post(pool(f"c1/n1/p{number % 50}")).status)
    assert statuses == [200] * 100
    redis_server.cli("SCRIPT", "FLUSH")
    assert a.delete("c1/n1/p0").status == 204


def test_f21_fifty_heartbeats_in_flight_do_not_notice_a_flush_of_the_scripts(
    redis_server: RedisServer, start_pair: StartPair
) -> None:
    a, _ = start_pair(redis_server, lease=20, heartbeat=5)
    flushing = threading.Event()

    def flush() -> int:
        flushes = 0
        while not flushing.is_set():
            redis_server.cli("SCRIPT", "FLUSH")
            flushes += 1
        return flushes

    with ThreadPoolExecutor(51) as crowd:
        flushed = crowd.submit(flush)
        answers = list(crowd.map(lambda number: a.post(pool(f"c1/n1/p{number % 50}")).status, range(300)))
        flushing.set()
        assert flushed.result() > 10
    assert answers == [200] * 300
    assert len(a.pools().names) == 50


def test_f24_deployments_with_another_prefix_or_database_never_hear_each_other(
    redis_server: RedisServer, make_replica: MakeReplica, traffic: Traffic
) -> None:
    for database in (redis_server.database(0), redis_server.database(1)):
        for prefix in ("x", "y"):
            database.set(f"{{{prefix}}}:epoch", "in-use-before")
        database.close()
    settings = {"lease": 20.0, "heartbeat": 5.0}
    a = make_replica("a", redis_url=f"{redis_server.url}/0", flags=("--redis-prefix", "x"), **settings).launch()
    b = make_replica("b", redis_url=f"{redis_server.url}/1", flags=("--redis-prefix", "x"), **settings).launch()
    c = make_replica("c", redis_url=f"{redis_server.url}/0", flags=("--redis-prefix", "y"), **settings).launch()
    for replica in (a, b, c):
        await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
    pollers = [Poller(traffic, [replica], every=0.01) for replica in (a, b, c)]
    before = [(replica.counter("relists"), replica.counter("announcements_ignored")) for replica in (a, b, c)]
    for number in range(10):
        a.register(f"c1/n1/of-a{number}")
    b.register("c1/n1/of-b")
    c.register("c1/n1/of-c")
    assert a.delete("c1/n1/of-a9").status == 204
    hold_for(2.5, lambda: b.pools().names == ["c1/n1/of-b"], "b knows its own alone")
    assert c.pools().names == ["c1/n1/of-c"]
    assert a.pools().names == [f"c1/n1/of-a{number}" for number in range(9)]
    for poller, own in zip(pollers, ("of-a", "of-b", "of-c"), strict=True):
        assert all(name.startswith(f"c1/n1/{own}") for poll in poller.stop() for name in poll.names)
    # Nobody is even woken: a foreign announcement would be ignored and counted, or make a replica read again.
    after = [(replica.counter("relists"), replica.counter("announcements_ignored")) for replica in (a, b, c)]
    assert after == before
