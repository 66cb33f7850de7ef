"""Requests as metrics: how many were answered how, and how long that took; also what was refused before any route.

Told by ``exchange`` and ``connection`` of each request that has ended, a stream at its end. Whatever a request holds,
there are no more label values than routes, methods and classes of statuses: what is no route is ``other``.
"""

from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter

from discovery.errors import DiscoveryError, Rejected
from discovery.http.exchange import Exchange
from discovery.metrics import FAST, Counters
from discovery.metrics.kinds import OTHER, Count, Times

WAITS = "waits"
"""Where the scope says that a request waited for a change: that took as long as it was asked to."""

ONE_POOL = "/pools/{cluster_id}/{namespace}/{dgd_name}"
STREAMS = frozenset({"/pools/events", "/routers/events"})
ROUTES = STREAMS | {
    "/",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/pools",
    "/readyz",
    "/registrations",
    "/routers",
    "/sd/prometheus",
    "/status",
}

_REASONS = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    413: "too_large",
    415: "wrong_type",
    422: "invalid",
    429: "cluster_full",
    503: "not_confirmed",
    507: "full",
}
_REASONS_BY_TITLE = {"Not JSON": "not_json", "Too Many Requests": "rate_limited"}


_Known = tuple[Count, Times | None]


class RequestCounts:
    """What is told goes to the metrics."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._known: dict[tuple[str, str, int], _Known] = {}

    def finished(self, exchange: Exchange) -> None:
        """A request has ended with the app. All requests pay this: what could be called is written out."""
        scope = exchange.scope
        known = self._known.get((scope["path"], scope["method"], exchange.status))
        if known is None:
            known = self._look_up(scope["path"], scope["method"], exchange.status)
        known[0].value += 1
        if (times := known[1]) is not None and WAITS not in scope:
            secs = perf_counter() - exchange.begun_at
            times.counts[bisect_left(FAST, secs)] += 1
            times.total += secs

    def refused(self, status: int, client: object, request_id: object, written: int, /) -> None:
        """A request never came as far as the app."""
        self._counters.http_refusals.of(str(status)).inc()
        if status == 413:  # only registrations have bodies
            self._counters.registrations_refused.of("too_large").inc()

    def _look_up(self, path: str, method: str, status: int) -> _Known:
        route = _route(path)
        requests = self._counters.http_requests.of(route, method, f"{status // 100}xx" if status else "none")
        times = self._counters.http_request_seconds.of(route, method) if status and route not in STREAMS else None
        known = (requests, times)
        if path in ROUTES:  # of others there is no end; a method that is none never comes this far
            self._known[path, method, status] = known
        return known


def _route(path: str) -> str:
    if path in ROUTES:
        return path
    return ONE_POOL if path.startswith("/pools/") else OTHER


def counted_registrations(counters: Counters) -> Callable[[DiscoveryError], None]:
    """Count registrations that were not taken, by reason."""
    return lambda error: counters.registrations_refused.of(_reason(error)).inc()


def counted_access(counters: Counters) -> Callable[[Rejected, bool], None]:
    """Count requests that were refused for their token, registrations among them whose bodies nobody read."""

    def count(error: Rejected, is_unread_registration: bool) -> None:
        counters.access_refused.of(_reason(error)).inc()
        if is_unread_registration:
            counters.registrations_refused.of(_reason(error)).inc()

    return count


def _reason(error: DiscoveryError) -> str:
    if isinstance(error, Rejected):
        return _REASONS_BY_TITLE.get(error.title) or _REASONS.get(error.status, "bad_request")
    return "not_confirmed"
