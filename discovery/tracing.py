"""Spans of registrations: a POST or DELETE, its call to the store, and what it published; exported over OTLP/HTTP.

Wraps the app, the store and the listener for changes from outside, so that who does without pays nothing: this module,
the only door to OpenTelemetry, is imported when it is asked for. Its own variables (``OTEL_...``) are read by that
library: headers and certificates of the collector, sampling, names of the service. Spans wait in a bounded queue and
are sent by a thread; where that fails they are dropped, and one line says so.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from discovery.logs import event
from discovery.model import PoolKey

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

TRACED_METHODS = frozenset({"POST", "DELETE"})
_CARRIED = frozenset({b"traceparent", b"tracestate"})


class Tracing:
    """Makes spans and sends them to the collector at this base URL."""

    def __init__(self, endpoint: str, *, version: str, replica: str) -> None:
        # It tells each failed attempt with a traceback; that it fails is told below.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        resource = Resource.create({SERVICE_VERSION: version, SERVICE_INSTANCE_ID: replica})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "discovery"}))
        exporter = ToldExporter(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"), endpoint)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("discovery", version)
        self._propagator = TraceContextTextMapPropagator()

    def app(self, app: App) -> App:
        """The app, with a span for each registration and deregistration."""

        def traced(scope: Scope, receive: Any, send: Any) -> Awaitable[None]:
            if scope["method"] in TRACED_METHODS:
                return self._answer(app, scope, receive, send)
            return app(scope, receive, send)

        return traced

    def store(self, store: Any) -> Any:
        """The store, with a span for each write."""
        return TracedStore(store, self._tracer)

    def published(self, publish: Callable[..., None]) -> Callable[..., None]:
        """The listener for changes, with a span where a request brought them."""

        def traced(changes: Sequence[Any], *rest: Any) -> None:
            if not _is_within_request():
                publish(changes, *rest)
                return
            with self._tracer.start_as_current_span("publish", attributes={"discovery.changes": len(changes)}):
                publish(changes, *rest)

        return traced

    async def close(self, within_secs: float) -> None:
        """Send what waits; what the collector has not taken in time is lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut, name="last spans", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), within_secs)
        except TimeoutError:
            event(log, logging.WARNING, "tracing.failing", "the last spans could not be exported in time: dropped")

    async def _answer(self, app: App, scope: Scope, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)  # from here on in a task of its own, to which alone it matters what span is current
        carried = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CARRIED}
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        with self._tracer.start_as_current_span(
            f"{method} /pools" if path == "/pools" else f"{method} pool",
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
        ) as span:

            async def send_noted(message: Any) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            await app(scope, receive, send_noted)


class TracedStore:
    """A store whose writes are spans of the request that asked for them."""

    def __init__(self, store: Any, tracer: trace.Tracer) -> None:
        self._store = store
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Any:
        """See ``Store``."""
        with self._span("store.put", key) as span:
            outcome = await self._store.put(key, value, lease_secs)
            span.set_attributes({"discovery.created": outcome.created, "discovery.changed": outcome.changed})
            return outcome

    async def delete(self, key: PoolKey, instance_id: str | None) -> Any:
        """See ``Store``."""
        with self._span("store.delete", key):
            return await self._store.delete(key, instance_id)

    def _span(self, name: str, key: PoolKey) -> Any:
        return self._tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes={"discovery.pool": str(key)})


class ToldExporter(SpanExporter):
    """An exporter whose failures are told once until it succeeds again."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; never raises."""
        try:
            result, cause = self._exporter.export(spans), "it did not take them"
        except Exception as error:  # whatever the library meets, serving goes on
            result, cause = SpanExportResult.FAILURE, type(error).__name__
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            text = "spans cannot be exported to %s and are dropped: %s"
            event(log, logging.WARNING, "tracing.failing", text, self._endpoint, cause, cause=cause)
        elif self._fails and not fails:
            event(log, logging.INFO, "tracing.recovered", "spans are exported to %s again", self._endpoint)
        self._fails = fails
        return result

    def shutdown(self) -> None:
        """See ``SpanExporter``."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See ``SpanExporter``."""
        return self._exporter.force_flush(timeout_millis)


def _is_within_request() -> bool:
    return trace.get_current_span().get_span_context().is_valid
