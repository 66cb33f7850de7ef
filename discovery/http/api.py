"""The routes: decode, call, encode. One table of paths, each with its methods; errors become answers in ``answers``.

The lists and the heartbeat are plain ASGI and are found ahead of the router, since they are nearly all of the traffic;
everything else is Starlette's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Route

from discovery import registrations
from discovery.errors import DiscoveryError, Rejected, Unavailable
from discovery.http import openapi
from discovery.http.access import RateLimit
from discovery.http.answers import (
    JSON,
    NO_CACHE,
    App,
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    asked_wait,
    encode_json,
    header,
    not_modified,
    problem,
    refuse,
    tag_matches,
    takes_gzip,
)
from discovery.http.streams import Streams
from discovery.listing.explain import Explanation
from discovery.listing.publisher import Publisher, Selection
from discovery.listing.snapshot import EVERYTHING, Filter
from discovery.metrics import Counters
from discovery.model import Accepted, Listing, Number, PoolKey, Router
from discovery.stores.replica import Replica

FILTERS = ("model", "cluster_id", "namespace", "capability", "region")
_VARY = (b"vary", b"accept-encoding")
_MIN_GZIP_BYTES = 512
REMEMBERED_HEARTBEATS = 20_000


class Service(msgspec.Struct, frozen=True):
    """What the routes stand on: the replica, the two published lists, the open streams, and facts for people."""

    replica: Replica
    pools: Publisher[Listing]
    routers: Publisher[Router]
    streams: Streams
    counters: Counters
    rate_limit: RateLimit
    stage: Callable[[], tuple[str, str]]
    status: Callable[[], dict[str, Any]]
    explain: Callable[[Sequence[PoolKey] | None, str | None], list[Explanation]]
    lease_duration_secs: Number
    heartbeat_interval_secs: Number
    max_body_bytes: int
    cors_origin: str | None


def make_app(service: Service) -> App:
    """The whole HTTP side as one ASGI application."""
    pools = _List(service, service.pools, _pool_filter)
    routers = _List(service, service.routers, _no_filter)
    register = _guarded(_Register(service))
    by_method: Mapping[str, App] = {"GET": _guarded(pools.get), "HEAD": _guarded(pools.get), "POST": register}
    one = _OnePool(service)
    events = {"/pools/events": _guarded(pools.events), "/routers/events": _guarded(routers.events)}
    hot: dict[str, Mapping[str, App]] = {"/pools": by_method}
    hot.update({path: {"GET": handler} for path, handler in events.items()})
    cold = _routed(
        [
            Route("/pools", _Asgi(by_method)),
            Route("/pools/events", _Asgi(hot["/pools/events"])),
            Route(
                "/pools/{key:path}",
                _Asgi({"GET": _guarded(one.get), "DELETE": _guarded(one.delete)}),
            ),
            Route("/routers", _Asgi({"GET": _guarded(routers.get)})),
            Route("/routers/events", _Asgi(hot["/routers/events"])),
            Route("/registrations", _Asgi({"GET": _guarded(_Registrations(service))})),
            Route("/openapi.json", _Asgi({"GET": _json(openapi.document)})),
            Route("/status", _Asgi({"GET": _guarded(_Status(service))})),
            *probes(service),
        ]
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        methods = hot.get(scope["path"])
        handler = methods.get(scope["method"]) if methods else None
        await (handler or cold)(scope, receive, send)

    if service.cors_origin is None:
        return app
    return CORSMiddleware(
        app,
        allow_origins=[service.cors_origin],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["ETag", "Retry-After"],
    )


def make_probe_app(service: Service) -> App:
    """The probes alone, for an address of their own."""
    return _routed(probes(service))


def probes(service: Service) -> list[Route]:
    """Liveness, readiness and metrics."""

    async def live(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [JSON], b'{"status":"alive"}')

    async def ready(scope: Scope, receive: Receive, send: Send) -> None:
        stage, detail = service.stage()
        body = encode_json({"stage": stage, "detail": detail})
        await answer(send, 200 if stage == "ready" else 503, [JSON, NO_CACHE], body)

    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], service.counters.exposition())

    return [
        Route("/healthz", _Asgi({"GET": live})),
        Route("/readyz", _Asgi({"GET": ready})),
        Route("/metrics", _Asgi({"GET": metrics})),
    ]


def _routed(routes: list[Route]) -> App:
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _fault})  # type: ignore[dict-item]
    app.router.redirect_slashes = False  # it would send clients to whatever host their own request named
    return app


class _Asgi:
    """An ASGI endpoint by method; a class, because Starlette takes plain functions for something else."""

    def __init__(self, by_method: Mapping[str, App]) -> None:
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._by_method.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if handler is None:
            allowed = sorted({*self._by_method, "HEAD"} if "GET" in self._by_method else self._by_method)
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
        await handler(scope, receive, send)


def _guarded(handler: App) -> App:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await handler(scope, receive, send)
        except DiscoveryError as error:
            await refuse(send, error)

    return guarded


def _json(make: Callable[[], Any]) -> App:
    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [JSON, NO_CACHE], encode_json(make()))

    return handler


async def _http_error(request: Request, error: HTTPException) -> App:
    async def response(scope: Scope, receive: Receive, send: Send) -> None:
        detail = error.detail
        if error.status_code == 404:
            detail = "There is nothing here; /openapi.json lists every path."
        elif error.status_code == 405:
            detail = f"This path takes {(error.headers or {}).get('Allow', 'other methods')}."
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        await problem(send, error.status_code, detail, headers=headers)

    return response


async def _fault(request: Request, error: Exception) -> App:
    """The answer to a fault of ours; the router raises it again after this, so that the server logs it."""

    async def response(scope: Scope, receive: Receive, send: Send) -> None:
        await problem(send, 500, "An error in the service; its log has more.")

    return response


class _List:
    """A published list: whole, filtered, conditional, waiting, compressed, and as a stream."""

    def __init__(
        self,
        service: Service,
        publisher: Publisher[Any],
        parse: Callable[[bytes], tuple[Filter, Callable[[Any], bool]]],
    ) -> None:
        self._service = service
        self._publisher = publisher
        self._parse = parse

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        selection = self._selection(scope)
        wanted = encoding = prefer = None
        for name, value in scope["headers"]:
            if name == b"if-none-match":
                wanted = value if wanted is None else wanted + b", " + value
            elif name == b"accept-encoding":
                encoding = value if encoding is None else encoding + b", " + value
            elif name == b"prefer":
                prefer = value
        applied: Headers = []
        if wanted is not None and tag_matches(wanted, selection.token):
            wait_secs = asked_wait(scope) if prefer is not None else 0
            if wait_secs:
                applied.append((b"preference-applied", b"wait=%d" % wait_secs))
            if not wait_secs or not await self._service.streams.park(receive, selection, selection.token, wait_secs):
                await not_modified(send, [_etag(selection.token), NO_CACHE, _VARY, *applied])
                return
        token = selection.token
        body = selection.body()
        if encoding is not None and len(body) >= _MIN_GZIP_BYTES and takes_gzip(encoding):
            body = await selection.gzipped()
            applied.append((b"content-encoding", b"gzip"))
        await answer(send, 200, [JSON, _etag(token), NO_CACHE, _VARY, *applied], body)

    async def events(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._service.streams.serve(scope, receive, send, self._selection(scope))

    def _selection(self, scope: Scope) -> Selection[Any]:
        publisher = self._publisher
        if not publisher.ready:
            raise Unavailable(f"There is no list yet: {self._service.stage()[1]}.")
        query = scope["query_string"]
        return publisher.select(*self._parse(query)) if query else publisher.everything


class _Register:
    """``POST /pools``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        lease, heartbeat = service.lease_duration_secs, service.heartbeat_interval_secs
        self._heartbeats = registrations.Heartbeats(REMEMBERED_HEARTBEATS)
        self._created = encode_json(Accepted(lease, heartbeat, True))
        self._renewed = encode_json(Accepted(lease, heartbeat, False))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_content_type(scope)
        self._service.rate_limit.check(scope)
        _no_parameters(scope["query_string"])
        body = await _body(receive, self._service.max_body_bytes)
        if body is None:
            return
        created = await self._service.replica.put(self._heartbeats.read(body))
        await answer(send, 200, [JSON], self._created if created else self._renewed)


class _OnePool:
    """``GET`` and ``DELETE /pools/{cluster_id}/{namespace}/{dgd_name}``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        _no_parameters(scope["query_string"])
        key = _key(scope)
        publisher = self._service.pools
        selection = publisher.everything
        fragment = selection.members.get(key) if publisher.ready else None
        if fragment is None:
            if publisher.ready and selection.complete:
                raise Rejected(404, "Not listed", f"The pool {key} is not listed.")
            raise Unavailable(
                f"The pool {key} is not listed, but the list is not complete: {self._service.stage()[1]}."
            )
        wanted = header(scope, b"if-none-match")
        if wanted is not None and tag_matches(wanted, fragment.token):
            await not_modified(send, [_etag(fragment.token), NO_CACHE])
        else:
            await answer(send, 200, [JSON, _etag(fragment.token), NO_CACHE], fragment.body)

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        parameters = _parameters(scope["query_string"], ("instance_id",))
        instances = parameters.get("instance_id", [])
        if len(instances) > 1:
            raise Rejected(400, "Bad query", "instance_id may be given once.")
        await self._service.replica.delete(_key(scope), instances[0] if instances else None)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class _Registrations:
    """``GET /registrations``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _no_parameters(scope["query_string"])
        replica = self._service.replica
        if not replica.listed:
            raise Unavailable(f"There are no registrations yet: {replica.incomplete()}.")
        entries = [
            {"registration": msgspec.Raw(known.value), "lease_left_secs": round(known.lease_left_secs, 3)}
            for known in replica.known()
        ]
        reason = replica.incomplete()
        body = encode_json({"complete": reason is None, "reason": reason, "registrations": entries})
        await answer(send, 200, [JSON, NO_CACHE], body)


class _Status:
    """``GET /status``; with ``?pool=`` it also says why those pools are or are not listed, ``*`` for all."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = _parameters(scope["query_string"], ("pool",)).get("pool")
        status = self._service.status()
        if asked is not None:
            keys = None if "*" in asked else [_named(path) for path in asked]
            status["explained"] = self._service.explain(keys, self._service.replica.incomplete())
        await answer(send, 200, [JSON, NO_CACHE], encode_json(status))


def _named(path: str) -> PoolKey:
    try:
        return registrations.key_from_path(path)
    except ValueError as error:
        raise Rejected(400, "Bad query", f"pool names no pool: {error}.") from None


def _etag(token: str) -> tuple[bytes, bytes]:
    return (b"etag", b'W/"%b"' % token.encode())


def _check_content_type(scope: Scope) -> None:
    value = header(scope, b"content-type")
    if value is None or value.partition(b";")[0].strip().lower() != b"application/json":
        raise Rejected(415, "Unsupported Media Type", "Send the body with the header Content-Type: application/json.")


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None where the client left before its end."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        chunks = [body]
    else:
        chunks = []
        size = 0
        while message["type"] == "http.request":
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit or not message.get("more_body"):
                break
            message = await receive()
        else:
            return None
        body = b"".join(chunks)
    if len(body) > limit:
        raise Rejected(
            413, "Content Too Large", f"The body is over {limit:,} bytes.", headers=(("connection", "close"),)
        )
    return body


def _key(scope: Scope) -> PoolKey:
    """The pool that the path names; from the raw path, since a part may hold an escaped slash."""
    raw = scope.get("raw_path") or scope["path"].encode()
    try:
        return registrations.key_from_path(raw.partition(b"?")[0].removeprefix(b"/pools/").decode("ascii"))
    except ValueError as error:
        raise Rejected(404, "No such pool", f"The path names no pool: {error}.") from None


def _parameters(query: bytes, known: tuple[str, ...]) -> dict[str, list[str]]:
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError:
        raise Rejected(400, "Bad query", "The query is not percent-encoded UTF-8.") from None
    parameters: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise Rejected(400, "Bad query", f"Unknown query parameter {name!r}; this path {takes}.")
        if not value:
            raise Rejected(400, "Bad query", f"The query parameter {name} is empty.")
        parameters.setdefault(name, []).append(value)
    return parameters


def _no_parameters(query: bytes) -> None:
    if query:
        _parameters(query, ())


@lru_cache(maxsize=1024)
def _pool_filter(query: bytes) -> tuple[Filter, Callable[[Listing], bool]]:
    wanted = Filter(**{name: frozenset(values) for name, values in _parameters(query, FILTERS).items()})
    return wanted, wanted.matches


def _no_filter(query: bytes) -> tuple[Filter, Callable[[Any], bool]]:
    _no_parameters(query)
    return EVERYTHING, lambda entry: True
