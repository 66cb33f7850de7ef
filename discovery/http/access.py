"""Who may ask, and how much: bearer tokens ahead of the routes, and registrations per second and identity.

Plain ASGI around the whole app, so that a new route is closed before anybody thinks of it. What a token may do is known
by ``tokens``; which pool a registration names is known only once it is read, so ``handlers`` asks for that. Without
tokens nothing stands in front of the app, and the identity is the peer's address.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from discovery.errors import Rejected
from discovery.http import tokens
from discovery.http.answers import App, Message, Receive, Scope, Send, refuse
from discovery.http.renewed_file import RenewedFile
from discovery.http.tokens import METRICS, READ, REGISTER_SOMEWHERE, Identities, Identity
from discovery.logs import event
from discovery.model import PoolKey

log = logging.getLogger(__name__)

BURST_SECS = 10
REMEMBERED = 20_000

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
"""What needs no token: probes have none, and the page holds no data."""

STREAMS = frozenset({"/pools/events", "/routers/events"})
IDENTITY = "identity"
"""Where the scope of a request holds who asks, once that is known."""


class Guard:
    """Lets a request through to the app when its token is valid and may do that."""

    def __init__(
        self,
        file: RenewedFile[Identities],
        on_refused: Callable[[Rejected, bool], None] = lambda error, is_unread_registration: None,
    ) -> None:
        self._file = file
        self._on_refused = on_refused
        self._waiting: dict[asyncio.Future[None], Identity] = {}
        file.on_renewal(self._renewed)
        event(log, _level(file.value), "tokens.valid", "requests need a token: %d valid", len(file.value))

    def around(self, app: App) -> App:
        """The app, for those who may ask it."""

        def guarded(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            if scope["path"] in OPEN_PATHS:
                return app(scope, receive, send)
            try:
                waits = self._admit(scope)
            except Rejected as error:
                self._on_refused(error, scope["method"] == "POST" and scope["path"] == "/pools")
                return refuse(send, error)
            return self._until_revoked(app, scope, receive, send) if waits else app(scope, receive, send)

        return guarded

    def check_register(self, scope: Scope, key: PoolKey) -> None:
        """403 for a request whose token may not register or deregister this pool."""
        identity: Identity = scope[IDENTITY]
        if not identity.may_register(key):
            error = _forbidden(identity, tokens.scope_for(key))
            self._on_refused(error, False)
            raise error

    def _admit(self, scope: Scope) -> bool:
        """Note who asks; whether the answer may be long in coming. Raises ``Rejected``, 401 or 403."""
        method, path = scope["method"], scope["path"]
        credentials, prefers = _credentials(scope["headers"])
        if credentials is None:
            raise _unauthorized("Send a token that the service knows, in the header Authorization: Bearer TOKEN.")
        identity = tokens.identify(self._file.value, credentials)
        if identity is None:
            raise _unauthorized("The service does not know this token.", error="invalid_token")
        if missing := _missing(identity, method, path):
            raise _forbidden(identity, missing)
        scope[IDENTITY] = identity
        return method == "GET" and (prefers or path in STREAMS)

    # ---- those who wait

    async def _until_revoked(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """A stream or a poll: it ends when its token does."""
        answering = False

        async def tracked(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        is_stream = scope["path"] in STREAMS
        revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[revoked] = scope[IDENTITY]
        request = asyncio.ensure_future(app(scope, receive, send if is_stream else tracked))
        try:
            await asyncio.wait((request, revoked), return_when=asyncio.FIRST_COMPLETED)
            if not request.done() and answering:
                await asyncio.wait((request,))  # the list was due before the token was revoked
        finally:
            del self._waiting[revoked]
            is_cut_off = request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await request
        if is_cut_off and is_stream:
            with contextlib.suppress(RuntimeError):  # the stream has just ended by itself
                await send({"type": "http.response.body", "body": b""})
        elif is_cut_off:
            await refuse(send, _unauthorized("The token was revoked.", error="invalid_token"))

    def _renewed(self, before: Identities, after: Identities) -> None:
        text = "the tokens were renewed: %s"
        event(log, _level(after), "tokens.renewed", text, tokens.changes(before, after))
        for revoked, identity in self._waiting.items():
            still = after.get(identity.digest)
            if (still is None or not still.may_read) and not revoked.done():
                revoked.set_result(None)


def _level(identities: Identities) -> int:
    """Where no token is valid everybody is refused: that may be meant, and had better be seen."""
    return logging.INFO if identities else logging.WARNING


def _credentials(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes | None, bool]:
    """The token that a request carries, and whether it states a preference; in one pass, since all requests pay it."""
    found: bytes | None = None
    prefers = False
    for name, value in headers:
        if name == b"authorization":
            if found is not None:
                raise _unauthorized("There is more than one header Authorization.", error="invalid_token")
            found = value
        elif name == b"prefer":
            prefers = True
    if found is None or found[:7].lower() != b"bearer ":
        return None, prefers
    return found[7:].strip(b" \t"), prefers


def _missing(identity: Identity, method: str, path: str) -> str | None:
    """The scope that is missing before anything else of the request is looked at; what is not known here reads."""
    if path == "/metrics":
        return None if identity.may_see_metrics else METRICS
    if method not in ("GET", "HEAD"):
        return None if identity.rights else REGISTER_SOMEWHERE
    return None if identity.may_read or path == "/openapi.json" else READ


def _unauthorized(detail: str, *, error: str = "") -> Rejected:
    challenge = 'Bearer realm="discovery"' + (f', error="{error}"' if error else "")
    return Rejected(401, "Unauthorized", detail, headers=(("www-authenticate", challenge),))


def _forbidden(identity: Identity, missing: str) -> Rejected:
    challenge = f'Bearer realm="discovery", error="insufficient_scope", scope="{missing}"'
    detail = f"The token {identity.name} lacks the scope {missing}."
    return Rejected(403, "Forbidden", detail, headers=(("www-authenticate", challenge),))


class RateLimit:
    """A bucket of registrations per identity, refilled at ``per_second``; 0 is no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._full = max(1.0, per_second * BURST_SECS)
        self._clock = clock
        self._buckets: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, scope: Scope) -> None:
        """Count one registration; raises ``Rejected`` (429) where the bucket is empty."""
        if not self._per_second:
            return
        who, now = _who(scope), self._clock()
        bucket = self._buckets.get(who)
        if bucket is None:
            bucket = self._add(who, now)
        else:
            self._buckets.move_to_end(who)
        level = min(self._full, bucket[0] + (now - bucket[1]) * self._per_second)
        allowed = level >= 1
        bucket[0], bucket[1] = level - 1 if allowed else level, now
        if not allowed:
            wait = math.ceil((1 - level) / self._per_second)
            detail = f"More than {self._per_second:g} registrations a second came from {who} (--rate-limit)."
            raise Rejected(429, "Too Many Requests", detail, headers=(("retry-after", str(wait)),))

    def _add(self, who: str, now: float) -> list[float]:
        bucket = self._buckets[who] = [self._full, now]
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket


def _who(scope: Scope) -> str:
    identity: Identity | None = scope.get(IDENTITY)
    if identity is not None:
        return identity.name
    client = scope.get("client")
    return client[0] if client else ""
