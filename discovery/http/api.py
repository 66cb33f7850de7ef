"""The routes: one table of paths, each with its methods and the handler that answers them.

The lists and the heartbeat are plain ASGI and are found ahead of the router, since they are nearly all of the traffic;
everything else is Starlette's. Errors of handlers become answers here, by the table in ``answers``.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from discovery.errors import DiscoveryError
from discovery.http import openapi
from discovery.http.answers import (
    FAULT,
    JSON,
    NO_CACHE,
    App,
    Receive,
    Scope,
    Send,
    answer,
    encode_json,
    problem,
    refuse,
)
from discovery.http.handlers import OnePool, PublishedList, Register, Registrations, Service
from discovery.http.page import make_page
from discovery.http.request_counts import counted_registrations
from discovery.http.requests import no_filter, pool_filter
from discovery.http.scrape import ScrapeTargets
from discovery.http.status import Status
from discovery.http.web_safety import admit_write, shared_with


def make_app(service: Service) -> App:
    """The whole HTTP side as one ASGI application."""
    pools = PublishedList(service, service.pools, pool_filter)
    routers = PublishedList(service, service.routers, no_filter)
    admit = admit_write(service.cors_origin)
    register = _guarded(Register(service), admit, counted_registrations(service.counters))
    by_method: Mapping[str, App] = {"GET": _guarded(pools.get), "HEAD": _guarded(pools.get), "POST": register}
    one = OnePool(service)
    events = {"/pools/events": _guarded(pools.events), "/routers/events": _guarded(routers.events)}
    hot: dict[str, Mapping[str, App]] = {"/pools": by_method}
    hot.update({path: {"GET": handler} for path, handler in events.items()})
    cold = _routed(
        [
            Route("/", _Asgi({"GET": make_page()})),
            Route("/pools", _Asgi(by_method)),
            Route("/pools/events", _Asgi(hot["/pools/events"])),
            Route(
                "/pools/{key:path}",
                _Asgi({"GET": _guarded(one.get), "DELETE": _guarded(one.delete, admit)}),
            ),
            Route("/routers", _Asgi({"GET": _guarded(routers.get)})),
            Route("/routers/events", _Asgi(hot["/routers/events"])),
            Route("/registrations", _Asgi({"GET": _guarded(Registrations(service))})),
            Route("/sd/prometheus", _Asgi({"GET": _guarded(ScrapeTargets(service))})),
            Route("/openapi.json", _Asgi({"GET": _json(openapi.document)})),
            Route("/status", _Asgi({"GET": _guarded(Status(service))})),
            *probes(service),
        ]
    )

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        methods = hot.get(scope["path"])
        handler = methods.get(scope["method"]) if methods else None
        return (handler or cold)(scope, receive, send)

    guarded = _behind_tokens(service, app)
    if service.cors_origin is None:
        return guarded
    # Outermost: browsers ask beforehand without a token, and their pages have to see refusals.
    return shared_with(service.cors_origin, guarded)


def make_probe_app(service: Service) -> App:
    """The probes alone, for an address of their own."""
    return _behind_tokens(service, _routed(probes(service)))


def _behind_tokens(service: Service, app: App) -> App:
    return app if service.guard is None else service.guard.around(app)


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


def _guarded(
    handler: App,
    admit: Callable[[Scope], None] | None = None,
    on_refused: Callable[[DiscoveryError], None] = lambda error: None,
) -> App:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if admit is not None:
                admit(scope)
            await handler(scope, receive, send)
        except DiscoveryError as error:
            on_refused(error)
            await refuse(send, error, scope)

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
        await problem(send, error.status_code, detail, headers=headers, scope=scope)

    return response


async def _fault(request: Request, error: Exception) -> App:
    """The answer to a fault of ours; the router raises it again after this, so that the server logs it."""

    async def response(scope: Scope, receive: Receive, send: Send) -> None:
        await problem(send, 500, FAULT, scope=scope)

    return response
