"""What each route does: the request as ``requests`` reads it, a call, and the answer with its headers.

Between the table of routes and the replica, the published lists and the streams. Errors are raised, and ``api`` makes
answers of them. Knows neither the table of paths nor the router.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from discovery import registrations
from discovery.errors import Rejected, Unavailable
from discovery.http.access import Guard, RateLimit
from discovery.http.answers import (
    JSON,
    NO_CACHE,
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    answer_as_is,
    answer_by_and_by,
    answer_in_pieces,
    encode_json,
)
from discovery.http.heads import ReadyHeaders
from discovery.http.own_answers import OwnAnswers
from discovery.http.request_counts import WAITS
from discovery.http.requests import (
    asked_wait,
    check_content_type,
    header,
    key_in_path,
    no_parameters,
    parameters_of,
    tag_matches,
    takes_gzip,
    whole_body,
)
from discovery.http.streams import Streams
from discovery.listing.explain import Explanation
from discovery.listing.publisher import Publisher
from discovery.listing.selection import Selection
from discovery.listing.snapshot import Filter, in_batches
from discovery.metrics import Counters
from discovery.model import Accepted, Listing, Number, PoolKey, Router
from discovery.stores.replica import Replica

REMEMBERED_HEARTBEATS = 20_000
REMEMBERED_HEADS = 64
_VARY = (b"vary", b"accept-encoding")
MIN_GZIP_BYTES = 512


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
    explain: Callable[
        [Sequence[PoolKey] | None, str | None, Callable[[PoolKey], float | None]], Iterable[Explanation | None]
    ]
    lease_duration_secs: Number
    heartbeat_interval_secs: Number
    max_body_bytes: int
    cors_origin: str | None
    guard: Guard | None = None
    """Who may do what; without it everyone may do everything."""
    one_sided: Callable[[], Iterable[dict[str, object] | None]] = tuple
    """Pools of which one side is missing. Both are made while they are taken; None is where the loop may turn."""


class PublishedList:
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
        self._heads = ListHeads()
        self._own_answers = OwnAnswers()

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The list as it is asked for, or 304; with ``Prefer: wait`` not before it is another one."""
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
            if prefer is None or not (wait_secs := asked_wait(scope)):
                await answer_as_is(send, 304, self._heads.of(selection.token))
                return
            applied.append((b"preference-applied", b"wait=%d" % wait_secs))
            scope[WAITS] = True
            if not await self._service.streams.park(receive, selection, selection.token, wait_secs):
                await answer_as_is(send, 304, [*self._heads.of(selection.token), *applied])
                return
        token = selection.token
        by_and_by = selection.is_long
        pieces = selection.parts() if by_and_by else selection.pieces()
        length = sum(map(len, pieces)) if by_and_by else selection.length
        gzip = encoding is not None and length >= MIN_GZIP_BYTES and takes_gzip(encoding)
        if gzip:
            body = await selection.gzipped()
            pieces, length = [body], len(body)
        headers: Headers = self._heads.of(token, length, gzip=gzip)
        if applied:
            headers = [*headers, *applied]
        if by_and_by and gzip:
            await self._own_answers.give_as_is(send, headers, pieces[0])
        elif by_and_by:
            await answer_by_and_by(send, 200, headers, in_batches(pieces))
        elif len(pieces) == 1:
            await answer_as_is(send, 200, headers, pieces[0])
        else:
            await answer_in_pieces(send, 200, headers, pieces)

    async def events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The list as a stream of events."""
        await self._service.streams.serve(scope, receive, send, self._selection(scope))

    def _selection(self, scope: Scope) -> Selection[Any]:
        publisher = self._publisher
        if not publisher.ready:
            raise Unavailable(f"There is no list yet: {self._service.stage()[1]}.")
        query = scope["query_string"]
        return publisher.select(*self._parse(query)) if query else publisher.everything


class ListHeads:
    """The headers of a list's answers, made once for each state of it that is asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int | None, bool], ReadyHeaders] = {}

    def of(self, token: str, length: int | None = None, *, gzip: bool = False) -> ReadyHeaders:
        """For that state; without a length for an answer without a body."""
        known = self._known.get((token, length, gzip))
        if known is None:
            headers: Headers = [_etag(token), NO_CACHE, _VARY]
            if length is not None:
                headers += [JSON, (b"content-length", b"%d" % length)]
            if gzip:
                headers.append((b"content-encoding", b"gzip"))
            if len(self._known) >= REMEMBERED_HEADS:
                self._known.clear()
            known = self._known[token, length, gzip] = ReadyHeaders(headers)
        return known


class Register:
    """``POST /pools``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        lease, heartbeat = service.lease_duration_secs, service.heartbeat_interval_secs
        self._heartbeats = registrations.Heartbeats(REMEMBERED_HEARTBEATS, time.monotonic)
        self._created, self._renewed = (
            (ReadyHeaders([JSON, (b"content-length", b"%d" % len(body))]), body)
            for body in (encode_json(Accepted(lease, heartbeat, created)) for created in (True, False))
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Register the pool for a lease; nothing is answered to a client that left before the end of its body."""
        check_content_type(scope)
        self._service.rate_limit.check(scope)
        no_parameters(scope["query_string"])
        body = await whole_body(receive, self._service.max_body_bytes)
        if body is None:
            return
        heartbeat = self._heartbeats.read(body)
        if self._service.guard is not None:
            self._service.guard.check_register(scope, heartbeat.key)
        created = await self._service.replica.put(heartbeat)
        await answer_as_is(send, 200, *(self._created if created else self._renewed))


class OnePool:
    """``GET`` and ``DELETE /pools/{cluster_id}/{namespace}/{dgd_name}``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The pool's entry of the list; 404 only where the list is complete."""
        no_parameters(scope["query_string"])
        key = key_in_path(scope)
        publisher = self._service.pools
        selection = publisher.everything
        fragment = selection.members.get(key) if publisher.ready else None
        if fragment is None:
            if publisher.ready and selection.complete:
                raise Rejected(404, "Not listed", f"The pool {key} is not listed.")
            raise Unavailable(f"The pool {key} is not listed, which may change: {self._service.stage()[1]}.")
        wanted = header(scope, b"if-none-match")
        if wanted is not None and tag_matches(wanted, fragment.token):
            await answer_as_is(send, 304, [_etag(fragment.token), NO_CACHE])
        else:
            await answer(send, 200, [JSON, _etag(fragment.token), NO_CACHE], fragment.body)

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deregister the pool; with ``instance_id`` only where that instance registered it last."""
        # An empty instance_id can be registered, so it can be named here.
        parameters = parameters_of(scope["query_string"], ("instance_id",), may_be_empty=True)
        instances = parameters.get("instance_id", [])
        if len(instances) > 1:
            raise Rejected(400, "Bad query", "instance_id may be given once.")
        key = key_in_path(scope)
        if self._service.guard is not None:
            self._service.guard.check_register(scope, key)
        await self._service.replica.delete(key, instances[0] if instances else None)
        await answer_as_is(send, 204, [])


class Registrations:
    """``GET /registrations``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._answers = OwnAnswers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is registered, as it is stored, with what is left of each lease."""
        no_parameters(scope["query_string"])
        replica = self._service.replica
        if not replica.listed:
            raise Unavailable(f"There are no registrations yet: {replica.incomplete()}.")
        entries = [
            {"registration": msgspec.Raw(known.value), "lease_left_secs": round(known.lease_left_secs, 3)}
            for known in replica.known()
        ]
        reason = replica.incomplete()
        body = encode_json({"complete": reason is None, "reason": reason, "registrations": entries})
        await self._answers.give(send, [JSON, NO_CACHE], body)


def _etag(token: str) -> tuple[bytes, bytes]:
    return (b"etag", b'W/"%b"' % token.encode())
