"""How the page reads its stream, against a service that says what the test wants: pieces, cuts, and what they leave."""

import json
import queue
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.live.replica import Answer, Replica, pool
from tests.page.conftest import MakeVisit

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

STATUS = {
    "version": "0",
    "replica_id": "r",
    "uptime_secs": 1,
    "incomplete_because": None,
    "problems": [],
    "store": {"kind": "scripted"},
    "watchers": [],
    "one_sided_pools": [],
    "registrations": 0,
    "streams": 1,
    "explained": [],
}
CUT = None
"""Said in place of bytes: the connection ends in the middle of the body."""


class Scripted:
    """Gives the page, a status, and as a stream of events what it is told to say."""

    def __init__(self, page: Answer) -> None:
        self.said: queue.Queue[bytes | None] = queue.Queue()
        self.resumed_at: list[str | None] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler) -> None:
                if handler.path == "/":
                    self._whole(handler, page.body, dict(page.headers))
                elif handler.path.startswith("/status"):
                    self._whole(handler, json.dumps(STATUS).encode(), {"content-type": "application/json"})
                else:
                    self._stream(handler)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _whole(self, handler: BaseHTTPRequestHandler, body: bytes, headers: dict[str, str]) -> None:
        handler.send_response(200)
        for name, value in headers.items():
            if name.lower() != "content-length":
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        self.resumed_at.append(handler.headers["Last-Event-ID"])
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while (said := self.said.get()) is not CUT:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(said), said))
            handler.wfile.flush()

    def close(self) -> None:
        self.said.put(CUT)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service(replica: Replica) -> Iterator[Scripted]:
    scripted = Scripted(replica.get("/"))
    yield scripted
    scripted.close()


def listing(name: str, **more: Any) -> dict[str, Any]:
    return pool(name, frontends=[], capabilities=[], capacity=[], location={}, metadata={}, **more)


def event(name: str, data: object, event_id: str = "") -> bytes:
    id_line = f"id: {event_id}\n" if event_id else ""
    return f"event: {name}\n{id_line}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def key(name: str) -> dict[str, str]:
    cluster_id, namespace, dgd_name = name.split("/")
    return {"cluster_id": cluster_id, "namespace": namespace, "dgd_name": dgd_name}


def test_what_a_cut_leaves_half_told_is_forgotten_and_told_again(service: Scripted, visit: MakeVisit) -> None:
    first = {"complete": True, "pools": [listing("c1/n1/p1"), listing("c1/n1/p2")]}
    service.said.put(b"retry: 10\n\n" + event("snapshot", first, "A"))
    seen = visit(service.url)
    expect(seen.row("p2")).to_be_visible()
    service.said.put(event("delete", key("c1/n1/p1")) + event("put", listing("c1/n1/p3")) + b":\n\nevent: comp")
    service.said.put(CUT)
    service.said.put(event("put", listing("c1/n1/p4"), "B"))
    expect(seen.row("p4")).to_be_visible()
    assert service.resumed_at == [None, "A"]
    assert seen.names == ["p1", "p2", "p4"], "of what came without an id nothing stays"

    told = event("delete", key("c1/n1/p1")) + event("put", listing("c1/n1/p3"))
    told += event("complete", {"complete": False}, "C")
    for number in range(0, len(told), 7):
        service.said.put(told[number : number + 7])
    expect(seen.row("p3")).to_be_visible()
    assert seen.names == ["p2", "p3", "p4"]
    expect(seen.page.locator("#whole")).to_have_text("The list is not complete: pools may be missing.")
    service.said.put(event("complete", {"complete": True}, "C2"))
    expect(seen.page.locator("#whole")).to_have_text(re.compile("^The list is complete: "))

    snapshot = event("snapshot", {"complete": True, "pools": [listing("c1/n1/名", model="\U0001f999")]}, "D")
    for said in (CUT, snapshot[:-9], CUT):
        service.said.put(said)
    for number in range(0, len(snapshot), 2):
        service.said.put(snapshot[number : number + 2])
    expect(seen.row("名").get_by_role("cell").nth(3)).to_have_text("\U0001f999")
    assert seen.names == ["名"]
    assert service.resumed_at == [None, "A", "C2", "C2"]
