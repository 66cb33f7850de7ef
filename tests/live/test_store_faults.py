"""Faults of the store that are no outage: evicted keys, lost scripts, neighbours on the same server."""

import contextlib
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


class Loading(socketserver.ThreadingTCPServer):
    """Answers every command as a server does that still reads its data."""

    allow_reuse_address = True
    daemon_threads = True

    class Handler(socketserver.StreamRequestHandler):
        """One connection."""

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                for line in self.rfile:
                    if line.startswith(b"*"):
                        self.wfile.write(b"-LOADING Redis is loading the dataset in memory\r\n")


def test_f19_a_replica_that_starts_while_redis_loads_is_alive_not_ready_and_recovers_by_itself(
    tmp_path: Path, make_replica: MakeReplica
) -> None:
    server = RedisServer("redis", tmp_path / "server")
    with Loading(("127.0.0.1", server.port), Loading.Handler) as loading:
        threading.Thread(target=loading.serve_forever, daemon=True).start()
        replica = make_replica(redis_url=server.url, lease=LEASE).start(sign="/healthz")
        await_sign(lambda: b"loading" in replica.get("/readyz").body, 3, "/readyz says that the store is loading")
        assert replica.get("/readyz").status == 503
        refusal = replica.post(pool())
        assert (refusal.status, "retry-after" in refusal.headers) == (503, True)
        assert b"loading" in refusal.body
        hold_for(1, lambda: replica.says("/healthz", 200), "alive all the time")
        loading.shutdown()
    try:
        server.start()
        await_sign(lambda: replica.says("/readyz", 200), 2, "ready")
        await_sign(lambda: replica.post(pool()).status == 200, 2, "registrations are taken")
        assert len(replica.log.splitlines()) < 12
    finally:
        server.close()


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


def test_f22_the_right_to_the_channel_is_asked_for_at_the_start_and_got_around_later(
    debian_redis: RedisServer, make_replica: MakeReplica
) -> None:
    server = debian_redis
    server.cli("SET", "{discovery}:epoch", "in-use-before")
    server.cli("ACL", "SETUSER", "u", "on", ">pw", "~{discovery}:*", "resetchannels", "+@all")
    settings = {"redis_url": f"redis://u:pw@127.0.0.1:{server.port}", "lease": LEASE, "heartbeat": 1.0}
    a = make_replica("a", **settings).start(sign="/healthz")
    b = make_replica("b", **settings).start(sign="/healthz")
    for replica in (a, b):
        await_sign(lambda r=replica: b"&{discovery}:*" in r.get("/readyz").body, 5, "/readyz says what to grant")
        assert replica.get("/readyz").status == 503
    hold_for(1.5, lambda: a.says("/healthz", 200), "it tries again and does not end")
    assert a.log.count("refuses SUBSCRIBE") == 1
    server.cli("ACL", "SETUSER", "u", "&{discovery}:*")
    for replica in (a, b):
        await_sign(lambda r=replica: r.says("/readyz", 200), 3, "ready by itself")
        await_sign(lambda r=replica: r.pools().complete, LEASE + 2, "complete after a lease, as after an outage")

    logged = len(b.log.splitlines())
    server.cli("ACL", "SETUSER", "u", "resetchannels")
    for number in range(3):
        a.register(f"c1/n1/p{number}")
        await_sign(lambda number=number: b.lists(f"c1/n1/p{number}"), 2.5, "seen by the revision")
    assert a.delete("c1/n1/p0").status == 204
    await_sign(lambda: not b.lists("c1/n1/p0"), 2.5, "seen by the revision")
    assert a.counter("announcements_refused") >= 4
    assert b.counter("announcements_refused") >= 1
    assert "refuses SUBSCRIBE" in b.get("/status").json["store"]["feed_refused"]
    for replica in (a, b):
        await_sign(lambda r=replica: r.pools().complete, 3, "the list is whole")
    server.cli("ACL", "SETUSER", "u", "&{discovery}:*")
    await_sign(lambda: server.subscribers("{discovery}:changes") == 2, 6, "both subscribe again")
    await_sign(lambda: b.get("/status").json["store"]["feed_refused"] is None, 2, "and say so")
    a.register("c1/n1/after")
    await_sign(lambda: b.lists("c1/n1/after"), 1, "announcements travel again")
    assert len(b.log.splitlines()) - logged < 10


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
