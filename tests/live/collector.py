"""A collector of spans that speaks OTLP over HTTP, as far as an exporter can tell."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    """One span as it arrived; ids in hex, attributes as plain values."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    failed: bool


class Collector:
    """Takes what is sent to /v1/traces; answers 400, after which none is tried again, while ``refuses``."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.refuses = False
        self.refused = 0
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def named(self, name: str) -> list[Span]:
        """The spans of that name so far."""
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.refuses or self.path != "/v1/traces":
                    collector.refused += 1
                    self.send_error(400)
                    return
                collector.spans += decoded(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        return Handler


def decoded(body: bytes) -> Iterator[Span]:
    """The spans of one export."""
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = plain(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    plain(span.attributes),
                    resource,
                    span.status.code == span.status.STATUS_CODE_ERROR,
                )


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()
