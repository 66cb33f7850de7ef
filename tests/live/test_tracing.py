"""Traces of registrations on a replica with Redis, and the log around them: ids, the start line, the access log."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from discovery import logs
from tests.live.collector import Collector, Span, collecting
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica, pool
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FLAGS = ("--log-format", "json", "--access-log", "--drain-delay-secs", "0")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "400")
    with collecting() as running:
        yield running


def post(replica: Replica, name: str, **headers: str) -> Any:
    body = json.dumps(pool(name)).encode()
    answer = replica.request("POST", "/pools", body, {"content-type": "application/json", **headers})
    assert answer.status == 200
    return answer


def log_of(replica: Replica, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in replica.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


def children(collector: Collector, parent: Span) -> dict[str, Span]:
    return {span.name: span for span in collector.spans if span.parent_id == parent.span_id}


def stored(collector: Collector) -> list[str]:
    return [span.attributes["discovery.pool"] for span in collector.named("store.put")]


def test_a_registration_is_a_trace_from_the_request_over_the_store_to_the_list(
    make_replica: MakeReplica, redis_server: RedisServer, collector: Collector
) -> None:
    replica = make_replica(redis_url=redis_server.url, flags=(*FLAGS, "--otlp-endpoint", collector.url)).start()
    answer = post(replica, "c1/n1/p1", traceparent=f"00-{TRACE}-{PARENT}-01")
    post(replica, "c1/n1/p1")
    assert replica.delete("c1/n1/p1").status == 204
    await_sign(lambda: collector.named("DELETE pool"), 10, "the last span arrived")
    first, renewal = collector.named("POST /pools")
    assert (first.trace_id, first.parent_id) == (TRACE, PARENT)
    assert (first.attributes["http.response.status_code"], first.failed) == (200, False)
    assert (first.resource["service.name"], renewal.parent_id) == ("discovery", "")
    made, renewed = children(collector, first), children(collector, renewal)
    assert set(made) == {"store.put", "publish"}
    assert set(renewed) == {"store.put"}, "a heartbeat that says the same publishes nothing"
    assert made["store.put"].attributes == {
        "discovery.pool": "c1/n1/p1", "discovery.created": True, "discovery.changed": True
    }  # fmt: skip
    assert set(children(collector, collector.named("DELETE pool")[0])) == {"store.delete", "publish"}
    assert {span.resource["service.instance.id"] for span in collector.spans} == {
        log_of(replica, "service.started")[0]["replica"]
    }

    # Requests that come in one piece are not mixed up.
    with replica.connect() as connection:
        body = json.dumps(pool("c1/n1/piped"))
        for trace in (f"traceparent: 00-{'a' * 32}-{PARENT}-01\r\n", "", f"traceparent: 00-{'b' * 32}-{PARENT}-00\r\n"):
            head = f"POST /pools HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{trace}"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await_sign(lambda: len(collector.named("POST /pools")) == 4, 10, "two more spans, the third is not sampled")
    piped, rootless = collector.named("POST /pools")[2:]
    assert (piped.trace_id, rootless.parent_id) == ("a" * 32, "")
    assert rootless.trace_id not in (piped.trace_id, renewal.trace_id)
    assert set(children(collector, rootless)) == {"store.put"}

    # The same request in its answer and in the log.
    assert answer.headers["x-request-id"] == TRACE
    (line,) = [line for line in log_of(replica, "request.finished") if line.get("request_id") == TRACE]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/pools", 200)

    # A collector that fails costs one line, and no registration.
    collector.refuses = True
    for _ in range(3):  # when the third has come, the failures of two have been told
        before = collector.refused
        post(replica, "c1/n1/p2")
        await_sign(lambda before=before: collector.refused > before, 10, "an export was refused")
    await_sign(lambda: log_of(replica, "tracing.failing"), 10, "the failure was told")
    collector.refuses = False
    post(replica, "c1/n1/p3")
    await_sign(lambda: log_of(replica, "tracing.recovered"), 10, "the recovery was told")
    assert len(log_of(replica, "tracing.failing")) == 1
    assert "Traceback" not in replica.log

    # At the end what waits is sent, and the last line is the last.
    post(replica, "c1/n1/awaited")
    await_sign(lambda: "c1/n1/awaited" in stored(collector), 10, "an export, after which the next takes a while")
    post(replica, "c1/n1/last")
    replica.terminate()
    assert replica.exit_code(15) == 0
    assert stored(collector)[-1] == "c1/n1/last"
    lines = [json.loads(line) for line in replica.log.splitlines()]
    assert lines[-1]["event"] == "service.stopped"
    (started,) = [line for line in lines if line.get("event") == "service.started"]
    assert (started["tracing"], started["access_log"], started["mode"]) == (True, True, "registrations")
    assert started["store"].startswith("redis at redis://")
    assert {line["event"] for line in lines if "event" in line} <= set(logs.EVENTS)
    assert {line["replica"] for line in lines} == {started["replica"]}


SEEN = """
import sys
from discovery.commands.serve import _Process
from discovery.settings import read_serve
_Process(read_serve([], {}))
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "google.protobuf"))))
"""


def test_without_the_flag_nothing_of_the_library_is_loaded() -> None:
    ran = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr


MISSING = """
import sys
sys.modules["opentelemetry"] = None
from discovery.cli import main
sys.exit(main(["serve", "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://127.0.0.1:1"]))
"""


def test_without_the_extra_the_flag_is_one_line() -> None:
    ran = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, timeout=30)
    assert ran.returncode == 2
    said = "--otlp-endpoint needs the tracing extra: pip install 'pool-discovery[server,tracing]'"
    assert ran.stderr.strip() == f"discovery: {said}"
