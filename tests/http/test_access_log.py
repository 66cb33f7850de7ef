"""One line for each request at its end, with what came of it; nothing forged, and no token."""

import json
import logging
from typing import Any

import pytest

from discovery import logs
from discovery.http import access_log
from discovery.http.exchange import SHARED_BYTES, TURN_BYTES
from discovery.http.tokens import Identity
from tests.http.sockets import App, Served, eventually, served


class Logged(App):
    """The app of the connection's tests, with somebody who asks."""

    async def whoami(self, scope: Any, receive: Any, send: Any) -> None:
        scope["identity"] = Identity("relay-a", b"")
        await self.whole(send, b"you")

    async def pieces(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
        await send({"type": "http.response.body", "pieces": [b"abc", b"def"]})

    async def long_pieces(self, scope: Any, receive: Any, send: Any) -> None:
        pieces = [b"x" * (TURN_BYTES // 2)] * 5
        headers = [(b"content-length", b"%d" % sum(map(len, pieces)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "pieces": pieces})

    async def long_chunks(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * SHARED_BYTES, "more_body": True})
        await send({"type": "http.response.body", "body": b"y" * SHARED_BYTES})

    async def events(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        scope["discovery.wire"].write_now(b"1\r\ny\r\n")
        self.started.append("open")
        await receive()
        await receive()


@pytest.fixture
def served_with_log() -> Any:
    with served(Logged(), counted=True, max_header_bytes=4096) as server:
        server.call(lambda: server.server.tell(finished=access_log.finished, refused=access_log.refused))
        yield server


def lines(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    eventually(lambda: len(own(caplog)) >= count, f"{count} lines")
    return [json.loads(logs.JsonFormatter().format(record)) for record in own(caplog)]


def own(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == access_log.__name__]


@pytest.fixture(autouse=True)
def informed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_line_says_what_was_asked_by_whom_and_what_came_of_it(
    served_with_log: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with served_with_log.peer() as peer:
        peer.get("/whoami?region=eu", "X-Request-Id: a1")
        raw = peer.read_until(b"you")
        (line,) = lines(caplog, 1)
    took = line.pop("duration_ms")
    assert 0 < took < 8000
    assert line.pop("message") == (
        f"GET /whoami?region=eu 200, {len(raw)} bytes in {took:.1f} ms, to 127.0.0.1 as relay-a"
    )
    del line["time"]
    assert line == {
        "level": "info", "logger": "discovery.http.access_log", "event": "request.finished", "method": "GET",
        "path": "/whoami?region=eu", "status": 200, "bytes": len(raw), "peer": "127.0.0.1", "identity": "relay-a",
        "request_id": "a1",
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/ok", "/pieces", "/long_pieces", "/long_chunks", "/big"])
def test_the_bytes_are_those_on_the_wire(served_with_log: Served, caplog: pytest.LogCaptureFixture, path: str) -> None:
    with served_with_log.peer() as peer:
        peer.get(path, "Connection: close")
        size = len(peer.ended())
        assert lines(caplog, 1)[0]["bytes"] == size


def test_a_stream_is_told_at_its_end_with_all_that_was_written(
    served_with_log: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with served_with_log.peer() as peer:
        peer.get("/events")
        read = peer.read_until(b"1\r\ny\r\n")
        eventually(lambda: "open" in served_with_log.app.started, "the stream")
        assert own(caplog) == []
    (line,) = lines(caplog, 1)
    assert (line["bytes"], line["status"]) == (len(read), 200)
    assert line["message"].endswith("which left before the end")


def test_what_was_refused_before_it_was_whole_is_told_too(
    served_with_log: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with served_with_log.peer() as peer:
        peer.get("/ok", "X-Request-Id: a1", "Content-Encoding: gzip")
        size = len(peer.ended())
    (line,) = lines(caplog, 1)
    assert (line["event"], line["status"], line["bytes"]) == ("request.refused", 415, size)
    assert (line["request_id"], line["peer"]) == ("a1", "127.0.0.1")


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/ok?token=s3cr3t&model=m", "/ok?***&model=m"),
        ("/ok?s3cr3t", "/ok?***"),
        ("/sd/prometheus?role=relay&incomplete=true", "/sd/prometheus?role=relay&incomplete=true"),
        ("/ok%0Ax?pool=a%2Fb", "/ok%0Ax?pool=a%2Fb"),
        ("/" + "x" * 2000, "/" + "x" * 1023 + "…"),
    ],
)
def test_the_target_is_shown_as_it_came_and_without_what_may_be_secret(target: str, shown: str) -> None:
    path, _, query = target.partition("?")
    assert access_log._asked({"raw_path": path.encode(), "query_string": query.encode()}) == shown


def test_a_fault_is_told_with_the_status_that_the_peer_got(
    served_with_log: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with served_with_log.peer() as peer:
        peer.get("/raises")
        answer = peer.answer()
    (line,) = lines(caplog, 1)
    assert (line["status"], line["request_id"]) == (500, answer.headers["x-request-id"])


def test_without_listeners_nothing_is_measured_or_told(caplog: pytest.LogCaptureFixture) -> None:
    with served() as server, server.peer() as peer:
        peer.get("/ok")
        assert peer.answer().status == 200
        assert server.call(lambda: server.server._shared.on_finished) == ()
    assert own(caplog) == []
