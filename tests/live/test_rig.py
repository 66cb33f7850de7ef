"""The rig itself: it has to see the faults it is there for, so each is shown to it on real servers and tiny fakes."""

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import redis

from tests.live import verdict
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay
from tests.live.replica import pool
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign
from tests.live.tcp_proxy import TcpProxy
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(30)]


def test_a_server_of_each_kind_runs_and_says_which_it_is(redis_server: RedisServer) -> None:
    fields = redis_server.cli("INFO", "server")
    assert fields.get("server_name", "redis") == redis_server.kind
    assert redis_server.cli("CONFIG", "GET", "save") == {"save": ""}


def test_a_killed_server_refuses_and_comes_back_empty_or_with_its_data(redis_server: RedisServer) -> None:
    redis_server.cli("SET", "kept", "1")
    redis_server.restart(with_data=True)
    assert redis_server.cli("GET", "kept") == "1"
    redis_server.kill()
    with pytest.raises(redis.ConnectionError):
        redis_server.cli("PING")
    redis_server.restart()
    assert redis_server.cli("GET", "kept") is None


def test_a_frozen_server_is_silent_until_it_is_thawed(redis_server: RedisServer) -> None:
    impatient = redis.Redis(port=redis_server.port, socket_timeout=0.2, retry=None)
    impatient.ping()
    redis_server.freeze()
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    redis_server.thaw()
    assert redis.Redis(port=redis_server.port, socket_timeout=2).ping()
    begun = time.monotonic()
    redis_server.freeze_for(0.5)
    assert 0.5 <= time.monotonic() - begun < 1.5


def test_only_the_subscribed_connections_are_killed(redis_server: RedisServer) -> None:
    listener = redis.Redis(port=redis_server.port).pubsub()
    listener.subscribe("changes")
    await_sign(lambda: redis_server.subscribers("changes") == 1, 2, "the subscription")
    plain = redis.Redis(port=redis_server.port, single_connection_client=True)
    own_id = plain.client_id()
    assert redis_server.client_kill("pubsub") == 1
    assert plain.client_id() == own_id


@pytest.fixture
def proxied(debian_redis: RedisServer) -> Iterator[tuple[TcpProxy, RedisServer]]:
    proxy = TcpProxy(debian_redis.port)
    yield proxy, debian_redis
    proxy.close()


def test_the_proxy_freezes_the_subscribed_connection_alone(proxied: tuple[TcpProxy, RedisServer]) -> None:
    proxy, server = proxied
    through = redis.Redis(port=proxy.port, socket_timeout=1)
    listener = through.pubsub()
    listener.subscribe("changes")
    assert listener.get_message(timeout=1) is not None
    assert proxy.freeze(subscribed=True) == 1
    server.cli("PUBLISH", "changes", "hidden")
    assert listener.get_message(timeout=0.3) is None
    assert through.ping()
    proxy.thaw()
    message = listener.get_message(timeout=1)
    assert message is not None
    assert message["data"] == b"hidden"


def test_the_proxy_delays_answers_to_one_command_and_cuts(proxied: tuple[TcpProxy, RedisServer]) -> None:
    proxy, _ = proxied
    through = redis.Redis(port=proxy.port, single_connection_client=True, retry=None)
    proxy.delay_answers(0.3, to="scan|mget")
    begun = time.monotonic()
    through.ping()
    assert time.monotonic() - begun < 0.2
    begun = time.monotonic()
    through.scan()
    assert time.monotonic() - begun >= 0.3
    assert proxy.cut() == 1
    with pytest.raises(redis.ConnectionError):
        through.ping()


class FakeService:
    """Answers like a replica, as wrongly as the test wants it to; stands in for ``Replica`` towards the actors."""

    def __init__(self) -> None:
        self.name = "fake"
        self.listed: set[str] = set()
        self.complete = True
        self.post_status = 200
        self.script: list[bytes] = []
        self.seen_ids: list[str | None] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(service.post_status)
                if service.post_status == 503:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                if self.path == "/pools/events":
                    service.seen_ids.append(self.headers["Last-Event-ID"])
                    self.send_response(200)
                    self.send_header("Content-Type", "text/event-stream")
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(service.script.pop(0) if service.script else b"")
                    self.close_connection = True
                    return
                pools = [pool(name) for name in sorted(service.listed)]
                content = json.dumps({"complete": service.complete, "pools": pools}).encode()
                self.send_response(200)
                self.send_header("ETag", 'W/"1"')
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def fake() -> Iterator[Any]:
    service = FakeService()
    yield service
    service.close()


def test_the_verdict_finds_a_missing_pool_and_a_dead_one(
    fake: Any, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "TRAVEL", 0.1)
    fake.listed = {"c1/n1/p1"}
    relay = Relay(traffic, [fake], "c1/n1/p1", interval=0.1)
    poller = Poller(traffic, [fake], every=0.01)
    await_sign(lambda: len(poller.polls) > 20 and len(relay.accepted) > 2, 5, "traffic")
    assert verdict.missing(poller.polls, [relay]) == []

    fake.listed, fake.complete = set(), False
    seen = len(poller.polls)
    await_sign(lambda: len(poller.polls) > seen + 20, 5, "polls of an empty list")
    assert verdict.missing(poller.polls, [relay])
    assert verdict.missing(poller.polls, [relay], only_complete=True) == []

    fake.complete = True
    seen = len(poller.polls)
    await_sign(lambda: len(poller.polls) > seen + 20, 5, "polls of an empty list that is complete")
    assert verdict.missing(poller.polls, [relay], only_complete=True)

    relay.stop()
    fake.listed = {"c1/n1/p1"}
    before = len(poller.polls)
    assert verdict.dead(poller.polls, [relay], lease=0.1) == []
    await_sign(lambda: time.monotonic() > relay.last_accepted.answered + 1.3, 5, "the lease and a second are over")
    await_sign(lambda: len(poller.polls) > before + 20, 5, "polls after the lease")
    assert verdict.dead(poller.stop(), [relay], lease=0.1)


def test_a_relay_writes_down_refusals_and_waits_as_it_was_told(fake: Any, traffic: Traffic) -> None:
    fake.post_status = 503
    relay = Relay(traffic, [fake], "c1/n1/p1", interval=0.1)
    await_sign(lambda: len(relay.beats) == 2, 5, "two heartbeats")
    relay.stop()
    assert relay.statuses() == [503, 503]
    assert relay.accepted == []
    assert relay.beats[1].sent - relay.beats[0].answered >= 0.95


def event(name: str, data: Any, identity: str = "") -> bytes:
    """One frame as a correct service would write it."""
    return (f"id: {identity}\n" if identity else "").encode() + f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def test_a_subscriber_assembles_resumes_and_finds_faults(fake: Any, traffic: Traffic) -> None:
    first, second = pool("c1/n1/p1"), pool("c1/n1/p2")
    key = {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p1"}
    fake.script = [
        b"retry: 2000\n\n: hello\n\n"
        + event("snapshot", {"complete": False, "pools": [first]}, "one")
        + event("put", second)
        + event("delete", key)
        + event("complete", {"complete": True}, "two"),
        event("delete", key) + b"event: put\ndata: {",
    ]
    subscriber = Subscriber(traffic, [fake])
    await_sign(lambda: len(fake.seen_ids) >= 3, 5, "three connections")
    subscriber.stop()
    assert fake.seen_ids[:3] == [None, "two", None], "in the middle of a change it has no id to resume from"
    assert subscriber.agrees_with({"complete": True, "pools": [second]})
    assert subscriber.retries == [2000]
    assert subscriber.comments == 1
    assert [event.name for event in subscriber.told_of("c1/n1/p1")] == ["delete", "delete"]
    assert len(subscriber.faults) == 2
    assert "never given" in subscriber.faults[0]
    assert "inside a frame" in subscriber.faults[1]


def test_nothing_of_the_rig_stays_behind(redis_server: RedisServer) -> None:
    pid = redis_server.pid
    redis_server.freeze()
    redis_server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
