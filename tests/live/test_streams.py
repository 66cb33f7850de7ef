"""Streams over real sockets: their end, their number, their ids, and clients that vanish or do not read."""

import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tests.live import verdict
from tests.live.conftest import MakeReplica, StartPair
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay, many
from tests.live.replica import Replica, pool
from tests.live.router import Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

MIB = 1024 * 1024


@pytest.fixture
def lone(make_replica: MakeReplica) -> Replica:
    """One replica on the memory store."""
    return make_replica("lone", lease=60, heartbeat=5).start()


def open_stream(replica: Replica, headers: str = "") -> socket.socket:
    """A bare stream whose head and first bytes have been read."""
    connection = replica.connect()
    connection.sendall(f"GET /pools/events HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode())
    received = b""
    while b"event: snapshot" not in received:
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    return connection


def subscribers(replica: Replica) -> int:
    """How many streams the replica says it has."""
    return int(replica.get("/status").json["streams"])


def test_f28_a_stop_lets_every_stream_and_every_slow_request_end_well(
    debian_redis: RedisServer, make_replica: MakeReplica, traffic: Traffic
) -> None:
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    settings = {"redis_url": debian_redis.url, "lease": 20.0, "heartbeat": 5.0}
    a = make_replica("a", flags=("--drain-delay-secs", "1.5"), **settings).launch()
    b = make_replica("b", **settings).launch()
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
    streams = [Subscriber(traffic, [a], comes_back=False) for _ in range(100)]
    await_sign(lambda: all(stream.connected for stream in streams), 10, "100 streams")
    slow = []
    for number in range(10):
        body = b'{"cluster_id":"c1","namespace":"n1","dgd_name":"slow%d","model":"m"}' % number
        connection = a.connect()
        head = b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body[:-1])
        slow.append(connection)
    a.terminate()
    a.terminate()  # the same wish told twice, as by a wrapper and its process group
    told = time.monotonic()
    await_sign(lambda: a.get("/readyz").status == 503, 0.5, "not ready")
    assert a.get("/readyz").json is not None
    during = a.post(pool("c1/n1/during"))
    assert (during.status, during.headers["connection"]) == (200, "close")
    assert all(stream.connected for stream in streams), "streams go on during the drain delay"
    for connection in slow:
        connection.sendall(b"}")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.close()
    assert a.exit_code(told + 1.5 + 2 - time.monotonic()) == 0, a.log
    assert time.monotonic() - told > 1.4, "new connections are served for the drain delay"
    await_sign(lambda: all(stream.actor.done() for stream in streams), 2, "all streams ended")
    assert all(stream.visits[0].clean for stream in streams)
    names = [f"c1/n1/slow{number}" for number in range(10)]
    assert b.lists("c1/n1/during", *names), "no registration is deleted by a shutdown"
    assert "Traceback" not in a.log


@pytest.mark.parametrize("delay", ["60", "0"], ids=["in-the-drain-delay", "in-the-grace"])
def test_a_second_signal_ends_at_once_and_well(make_replica: MakeReplica, traffic: Traffic, delay: str) -> None:
    flags = ("--drain-delay-secs", delay, "--shutdown-grace-secs", "60", "--request-timeout-secs", "60")
    replica = make_replica("impatient", flags=flags).start()
    streams = [Subscriber(traffic, [replica], comes_back=False) for _ in range(5)]
    await_sign(lambda: all(stream.connected for stream in streams), 5, "the streams")
    with replica.connect() as dripping:
        dripping.sendall(b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
        await_sign(lambda: replica.get("/status").json["connections"] >= 7, 5, "a request that never ends")
        replica.terminate()
        if delay == "0":
            await_sign(lambda: all(stream.actor.done() for stream in streams), 5, "the end of the streams")
        else:
            await_sign(lambda: replica.get("/readyz").status == 503, 5, "not ready")
        # What follows this soon counts as the same wish told twice: asking again is the sign that another is heard.
        begun = time.monotonic()
        while replica.running and time.monotonic() < begun + 20:
            replica.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert replica.exit_code(1) == 0, replica.log
        assert time.monotonic() - begun < 15, "it waited for the drain delay or the grace"
        assert dripping.recv(4096) == b""
    await_sign(lambda: all(stream.actor.done() for stream in streams), 2, "all streams ended")
    assert all(stream.visits[0].clean for stream in streams)
    assert replica.log.rstrip().endswith("stopped")
    assert "Traceback" not in replica.log


def test_f29_clients_that_vanish_leave_nothing_behind(lone: Replica) -> None:
    _vanish(lone, 200)  # The first round fills pools and caches that stay.
    await_sign(lambda: subscribers(lone) == 0, 32, "no stream left")
    descriptors, rss = lone.descriptors, lone.rss
    for _ in range(4):
        _vanish(lone, 200)
        await_sign(lambda: subscribers(lone) == 0, 32, "no stream left")
    await_sign(lambda: lone.descriptors <= descriptors + 2, 5, "no descriptor left")
    assert lone.rss - rss < 20 * MIB
    assert "Traceback" not in lone.log


def _vanish(replica: Replica, number: int) -> None:
    """Open streams; half of them are reset, half are closed one-way and never read again."""
    streams = [open_stream(replica) for _ in range(number)]
    assert subscribers(replica) == number
    for stream in streams[::2]:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
    for stream in streams[1::2]:
        stream.shutdown(socket.SHUT_WR)
    await_sign(lambda: subscribers(replica) == 0, 32, "the service noticed all of them")
    for stream in streams[1::2]:
        stream.close()


def test_f30_at_the_cap_new_streams_are_refused_and_nothing_else_is(
    make_replica: MakeReplica, traffic: Traffic
) -> None:
    replica = make_replica("capped", lease=60, heartbeat=5, flags=("--max-streams", "20")).start()
    streams = [Subscriber(traffic, [replica]) for _ in range(20)]
    await_sign(lambda: all(stream.connected for stream in streams), 5, "20 streams")
    refusals = [replica.get("/pools/events") for _ in range(100)]
    assert {answer.status for answer in refusals} == {503}
    assert all(answer.headers["content-type"].startswith("application/problem+json") for answer in refusals)
    waits = [float(answer.headers["retry-after"]) for answer in refusals]
    assert max(waits) - min(waits) >= sum(waits) / len(waits) / 2, "everybody comes back at once"
    etag = replica.pools().headers["etag"]
    polled = replica.get("/pools", {"If-None-Match": etag, "Prefer": "wait=5"})
    assert polled.status == 503
    assert "retry-after" in polled.headers
    replica.register("c1/n1/p1")
    assert replica.lists("c1/n1/p1")
    await_sign(lambda: all(stream.told_of("c1/n1/p1") for stream in streams), 2, "running streams go on")
    assert all(len(stream.visits) == 1 for stream in streams)
    streams[0].stop()
    await_sign(lambda: subscribers(replica) == 19, 2, "a place is free")
    newcomer = Subscriber(traffic, [replica])
    await_sign(lambda: newcomer.connected, 2, "and can be taken")


def test_f30_hundreds_of_streams_that_come_back_at_once_delay_no_heartbeat(
    debian_redis: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    lease = 4.0
    a, b = start_pair(debian_redis, lease=lease)
    relays = many(traffic, [a, b], [f"c1/n1/p{number}" for number in range(20)])
    names = [relay.name for relay in relays]
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists(*names), 5, f"all on {replica.name}")
    streams = [Subscriber(traffic, [a]) for _ in range(300)]
    await_sign(lambda: all(stream.connected for stream in streams), 15, "300 streams")
    for stream in streams:
        stream.drop()
    slowest = 0.0
    begun = time.monotonic()
    while time.monotonic() < begun + 2 or not all(len(s.visits) > 1 and s.connected for s in streams):
        slowest = max(slowest, a.post(pool("c1/n1/timed")).secs)
        assert time.monotonic() < begun + 20, "the streams never came back"
    assert slowest < 0.5
    for replica in (a, b):
        hold_for(0.3, lambda replica=replica: replica.lists(*names), "no pool expires")
    assert all(stream.named("delete") == [] and stream.faults == [] for stream in streams)


@pytest.mark.parametrize(
    "last_id",
    ["0", "999999999999", "abc", "-1", "x" * 10_000, 'W/"abc"', "\xff\xfe", "*", "{}"],
    ids=["zero", "far", "word", "negative", "10-kB", "tag", "no-text", "star", "json"],
)
def test_f31_an_id_that_cannot_be_continued_gets_a_snapshot(lone: Replica, last_id: str) -> None:
    lone.register("c1/n1/p1")
    with open_stream(lone, f"Last-Event-ID: {last_id}\r\n") as stream:
        assert stream.fileno() > 0


def test_f31_an_id_of_another_replica_or_an_earlier_life_is_continued_or_replaced(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    a.register("c1/n1/p1")
    await_sign(lambda: b.lists("c1/n1/p1"), 2, "on b")
    first = Subscriber(traffic, [b], comes_back=False)
    await_sign(lambda: first.connected and first.state, 2, "the first stream")
    first.stop()

    current = Subscriber(traffic, [a], after=first, comes_back=False)
    hold_for(0.5, lambda: current.events == [], "an id that is current needs no snapshot")
    a.register("c1/n1/p2")
    await_sign(lambda: current.agrees_with(a.pools().json) and current.events, 2, "and goes on with what comes")
    assert [event.name for event in current.events] == ["put"]
    current.stop()

    a.kill()
    b.register("c1/n1/p3")
    assert b.delete("c1/n1/p1").status == 204
    a.start()
    for before in (first, current):
        late = Subscriber(traffic, [a], after=before, comes_back=False)
        await_sign(lambda late=late: late.agrees_with(a.pools().json), 2, "it ends with what GET says")
        assert late.faults == []
        late.stop()


def test_f32_a_change_between_snapshot_and_stream_is_lost_by_nobody(
    debian_redis: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(debian_redis, lease=20, heartbeat=5)
    racing = _Race(a)
    streams = []
    for number in range(200):
        streams.append(Subscriber(traffic, [(a, b)[number % 2]], comes_back=False))
        if number % 10 == 9:
            await_sign(lambda: all(stream.connected for stream in streams), 10, "the streams so far")
            await_sign(lambda seen=racing.changes: racing.changes > seen + 5, 5, "changes between them")
    racing.stop()
    await_sign(lambda: verdict.same_bytes(a.pools(), b.pools()), 2, "quiet")
    final = a.pools().json
    await_sign(lambda: all(stream.agrees_with(final) for stream in streams), 3, "each stream holds what GET says")
    for stream in streams:
        assert stream.faults == []
        ports = [int(url.rsplit(":", 1)[1]) for url in _addresses(stream)]
        assert ports == sorted(ports), "an older address after a newer one"


def _addresses(stream: Subscriber) -> Iterator[str]:
    for event in stream.events:
        if event.name == "put":
            yield event.data["relays"][0]
        elif event.name == "snapshot":
            yield from (entry["relays"][0] for entry in event.data["pools"])


@pytest.mark.parametrize("query", ["", "?model=m0", "?cluster_id=c1&cluster_id=c2"])
def test_subscribers_that_lag_drop_and_move_between_replicas_hold_what_get_says(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic, query: str
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    chance = random.Random(query)
    streams = [Subscriber(traffic, [(a, b), (b, a)][number % 2], query=query, patience=0.01) for number in range(8)]
    await_sign(lambda: all(stream.connected for stream in streams), 5, "all streams")
    filling = {f"key{number}": "x" * 900 for number in range(60)}
    for step in range(400):
        replica, name = chance.choice((a, b)), f"c{chance.randrange(4)}/n1/p{chance.randrange(10)}"
        if chance.random() < 0.25:
            assert replica.delete(name).status == 204
        else:
            metadata = filling if chance.random() < 0.3 else {}
            replica.register(name, model=f"m{chance.randrange(2)}", metadata={**metadata, "step": str(step)})
        stream = chance.choice(streams)
        chance.choice([stream.drop, stream.lag, stream.catch_up, stream.catch_up])()
    for stream in streams:
        stream.catch_up()
    await_sign(lambda: verdict.same_bytes(a.pools(), b.pools()), 3, "both replicas agree")
    final = a.get(f"/pools{query}").json
    assert final["pools"]
    await_sign(lambda: all(stream.agrees_with(final) for stream in streams), 5, "each holds what GET says")
    assert [stream.faults for stream in streams] == [[]] * len(streams)
    assert sum(len(stream.visits) for stream in streams) > 50
    assert any(visit.resumed_from for stream in streams for visit in stream.visits)


class _Race:
    """One pool that is registered, changed and removed in a loop, each time at a higher port."""

    def __init__(self, replica: Replica) -> None:
        self.changes = 0
        self._replica = replica
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(0.01):
            self._replica.register("c1/n1/race", relays=[f"http://10.0.0.1:{1024 + self.changes}"])
            self.changes += 1
            if self.changes % 7 == 0:
                self._replica.delete("c1/n1/race")

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_a_subscriber_that_does_not_read_costs_little_and_skips_to_the_newest_state(
    lone: Replica, traffic: Traffic
) -> None:
    quick, slow = Subscriber(traffic, [lone]), Subscriber(traffic, [lone])
    await_sign(lambda: quick.connected and slow.connected, 5, "two streams")
    slow.lag()
    before = lone.rss
    filling = {f"key{number}": "x" * 800 for number in range(60)}
    for number in range(600):
        lone.register(f"c1/n1/p{number % 4}", metadata={**filling, "key0": str(number)})
    await_sign(lambda: quick.agrees_with(lone.pools().json), 5, "the quick one is up to date")
    assert lone.rss - before < 48 * MIB
    slow.catch_up()
    await_sign(lambda: slow.agrees_with(lone.pools().json), 5, "the slow one is up to date")
    assert slow.faults == []
    assert len(slow.visits) == 1
    assert len(slow.events) < 600, "it was sent every step although it did not read"
    assert lone.get("/status").json["streams_fell_behind"] >= 1


def test_each_stream_begins_with_when_to_come_back(lone: Replica, traffic: Traffic) -> None:
    relay = Relay(traffic, [lone], "c1/n1/p1")
    stream = Subscriber(traffic, [lone])
    await_sign(lambda: stream.told_of(relay.name) or relay.name in stream.state, 3, "the pool on the stream")
    assert stream.retries
    assert stream.retries[0] > 0
    with lone.connect() as bare:
        bare.sendall(b"GET /pools/events HTTP/1.1\r\nHost: a\r\n\r\n")
        received = b""
        while b"event:" not in received:
            received += bare.recv(65536)
    assert received.index(b"retry:") < received.index(b"event:")
