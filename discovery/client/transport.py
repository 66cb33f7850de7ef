"""HTTP towards the service: places tried in turn, deadlines on everything, and every failure as one of our errors.

The only place that knows aiohttp. Cookies, redirects and proxies from the environment are never followed: answers come
from the URLs that were given, or not at all. Knows nothing of pools; whether and when to try again is for the caller.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from discovery import __version__
from discovery.client.answers import Answer, NoAnswer, NoStream, RejectedHere, judged, one_line
from discovery.client.places import Place, Places
from discovery.client.race import Progress, Race, Stage
from discovery.client.service import STREAM_OPENS_SECS, Request, Service
from discovery.errors import Unavailable

Result = TypeVar("Result")

CONNECT_SECS = 3.0
"""How long a connection may take, with its TLS handshake."""
STALL_SECS = 5.0
"""How long the body of an answer may stand still."""
KEEP_ALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""The kernel asks an idle peer after two seconds whether it is there, and takes three times no answer for its end."""

UNKNOWN_ISSUER = (18, 19, 20, 21)
"""Of OpenSSL's codes those that say: self-signed, or of a CA that is not known."""
NO_TLS = ("WRONG VERSION NUMBER", "HTTP REQUEST", "RECORD LAYER FAILURE")
ITS_WISH = ("CERTIFICATE REQUIRED", "HANDSHAKE FAILURE", "UNKNOWN CA", "BAD CERTIFICATE", "CERTIFICATE EXPIRED")
"""What a service says that wants a certificate, or another one; to TLS 1.2 it says no more than that it failed."""

_BROKEN = (aiohttp.ClientError, OSError)


class Stream:
    """An answer that does not end by itself, read as it comes."""

    def __init__(self, base: str, session: aiohttp.ClientSession, response: aiohttp.ClientResponse) -> None:
        self.base = base
        self._session = session
        self._response = response

    async def read(self, silence_secs: float) -> bytes:
        """The bytes that have come; empty at a clean end. Raises ``NoAnswer`` if broken off or silent for too long."""
        try:
            async with asyncio.timeout(silence_secs):
                return await self._response.content.readany()
        except TimeoutError as error:
            raise NoAnswer(f"{self.base} was silent for {silence_secs:g} s", reached=True) from error
        except _BROKEN as error:
            raise _no_answer(self.base, error) from error

    async def close(self) -> None:
        """End it, and its connection."""
        self._response.close()
        await self._session.close()


class _OneAddress(AbstractResolver):
    """Every name is this address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        own = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return [ResolveResult(hostname=host, host=self._address, port=port, family=own, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is held."""


class _Kept:
    """Kept connections to one place, ended when nobody uses them any more."""

    def __init__(self, place: Place) -> None:
        self.session = _session(place, keep_alive=True)
        self.retired = False
        self._users = 0

    @asynccontextmanager
    async def use(self) -> AsyncIterator[aiohttp.ClientSession]:
        self._users += 1
        try:
            yield self.session
        finally:
            self._users -= 1
            if self.retired:
                await self.end_if_unused()

    async def end_if_unused(self) -> bool:
        """Whether it has ended."""
        if self._users:
            return False
        await self.session.close()
        return True


class Connections:
    """Connections for one use of the service, remembering at which place it answered last.

    Requests may use a kept connection; after a failure the next one uses a new one, which a balancer may hand to
    another replica. A stream always has a connection of its own: a kept one would lead back to the very replica that
    ended the stream before because it shuts down. ``address`` is the one to connect to of those that the URL's name
    has; whichever it is, Host and the name that TLS checks are the URL's.
    """

    def __init__(self, service: Service, *, address: str | None = None) -> None:
        self._service = service
        self._places = Places(service.urls, address)
        self._kept: dict[Place, _Kept] = {}
        self._retired: list[_Kept] = []
        self._closed = False

    async def request(
        self, request: Request, *, deadline_secs: float, coming: Callable[[], None] = lambda: None
    ) -> Answer:
        """The first answer that settles it, of one attempt per place, each within the deadline.

        ``coming`` is called whenever bytes of an answer have come. Raises ``Rejected`` for a 4xx, ``NoAnswer`` when
        nobody answered, ``Unavailable`` when only "not now" was heard.
        """

        async def attempt(progress: Progress) -> Answer:
            if waits:
                return await self._attempt(progress, request, deadline_secs, coming)
            with self._places.waiting_for(progress.place):
                return await self._attempt(progress, request, deadline_secs, coming)

        waits = "Prefer" in request.headers  # an answer that is late on purpose is no reason to ask another
        return await self._first(attempt, again=request.method == "GET" and not waits)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """An open stream of events from the first place that gives one; opening it raises as ``request`` does."""
        late: list[Stream] = []
        try:
            stream = await self._first(lambda progress: self._open(progress, request), again=True, discard=late.append)
        finally:
            for each in late:
                await each.close()
        try:
            yield stream
        finally:
            await stream.close()

    def renew(self) -> None:
        """Use no connection again that is open now: it may be a dead one."""
        for place in list(self._kept):
            self._retire(place)

    def _retire(self, place: Place) -> None:
        if kept := self._kept.pop(place, None):
            kept.retired = True
            self._retired.append(kept)

    def move_on(self) -> None:
        """Begin with the next place: this one has just sent us away."""
        self._places.move_on()

    async def close(self) -> None:
        """End every connection."""
        self._closed = True
        self.renew()
        retired, self._retired = self._retired, []
        await self._places.close()
        for each in retired:
            await each.session.close()

    async def _first(
        self,
        attempt: Callable[[Progress], Coroutine[Any, Any, Result]],
        *,
        again: bool,
        discard: Callable[[Result], None] = lambda _: None,
    ) -> Result:
        places, nameless = await self._places.in_turn()
        await self._end_what_is_not_used()
        race = Race(places, attempt, again=again, discard=discard)
        race.failures += [
            NoAnswer(f"cannot connect to {url}: the name cannot be resolved", reached=False) for url in nameless
        ]
        place, result = await race.run()
        self._places.prefer(place)
        return result

    async def _end_what_is_not_used(self) -> None:
        """The connections to places that are gone, and those that failed."""
        for place in [place for place in self._kept if place not in self._places]:
            self._retire(place)
        retired, self._retired = self._retired, []
        self._retired += [each for each in retired if not await each.end_if_unused()]

    async def _attempt(
        self, progress: Progress, request: Request, deadline_secs: float, coming: Callable[[], None]
    ) -> Answer:
        """One answer; a kept connection that turns out to have ended costs no failure, but is tried anew."""
        try:
            return await self._ask(progress, request, deadline_secs, coming)
        except NoAnswer as failure:
            self._retire(progress.place)
            self._places.failed()
            if not (failure.dropped and progress.kept):
                raise
        except (Unavailable, RejectedHere):
            self._retire(progress.place)
            raise
        return await self._ask(progress, request, deadline_secs, coming)

    async def _ask(
        self, progress: Progress, request: Request, deadline_secs: float, coming: Callable[[], None]
    ) -> Answer:
        place = progress.place
        if self._closed:
            raise RuntimeError("the client was closed while it was in use")
        limits = aiohttp.ClientTimeout(total=deadline_secs, sock_connect=min(CONNECT_SECS, deadline_secs))
        kept = self._kept.get(place) or self._kept.setdefault(place, _Kept(place))
        async with kept.use() as session:
            response = await self._send(session, progress, request, limits)
            return await _read(place.name, response, coming)

    async def _open(self, progress: Progress, request: Request) -> Stream:
        if self._closed:
            raise RuntimeError("the client was closed while it was in use")
        session = _session(progress.place, keep_alive=False)
        try:
            with self._places.waiting_for(progress.place):
                async with asyncio.timeout(STREAM_OPENS_SECS):
                    response = await self._opened(session, progress, request)
        except BaseException as error:
            await session.close()
            self._places.failed()
            if isinstance(error, TimeoutError):
                raise NoAnswer(f"{progress.place.name} did not answer in time", reached=True) from error
            raise
        return Stream(progress.place.name, session, response)

    async def _opened(
        self, session: aiohttp.ClientSession, progress: Progress, request: Request
    ) -> aiohttp.ClientResponse:
        wanted = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        forever = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECS)
        asked = request._replace(headers={**request.headers, **wanted})
        response, base = await self._send(session, progress, asked, forever), progress.place.name
        if response.status == 200:
            if response.content_type == "text/event-stream":
                return response
            response.close()
        else:
            await _read(base, response)
        raise NoStream(f"{base} answered {response.status} but no stream of events: is it a discovery service?")

    async def _send(
        self, session: aiohttp.ClientSession, progress: Progress, request: Request, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        url = progress.place.url
        try:
            response = await session.request(
                request.method,
                URL(url + request.target, encoded=True),
                headers={**request.headers, **self._service.authorization()},
                data=request.body,
                timeout=limits,
                allow_redirects=False,
                ssl=self._service.trust.context(),
                trace_request_ctx=progress,
            )
        except _BROKEN as error:
            raise _no_answer(progress.place.name, error) from error
        progress.reach(Stage.ANSWERED)
        return response


def _session(place: Place, *, keep_alive: bool) -> aiohttp.ClientSession:
    resolver = None if place.address is None else _OneAddress(place.address)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=not keep_alive, resolver=resolver, socket_factory=_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"pool-discovery/{__version__}"},
        trust_env=False,
        trace_configs=[_TRACE],
    )


def _socket(address: Any) -> socket.socket:
    """A socket that notices within seconds when the other side's machine or the way to it is gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx.reach(Stage.ASKED)


async def _connected_before(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx.kept = True
    context.trace_request_ctx.reach(Stage.ASKED)


def _tracing() -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_connected)
    trace.on_connection_reuseconn.append(_connected_before)
    return trace


_TRACE = _tracing()


async def _read(base: str, response: aiohttp.ClientResponse, coming: Callable[[], None] = lambda: None) -> Answer:
    pieces = []
    try:
        async with response:
            coming()
            while piece := await asyncio.wait_for(response.content.readany(), STALL_SECS):
                pieces.append(piece)
                coming()
    except _BROKEN as error:
        raise _no_answer(base, error) from error
    return judged(base, response.status, response.headers, b"".join(pieces))


def _no_answer(base: str, error: Exception) -> NoAnswer:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return NoAnswer(f"cannot connect to {base}: no answer in time", reached=False)
        case aiohttp.ClientConnectorDNSError():
            return NoAnswer(f"cannot connect to {base}: the name cannot be resolved", reached=False)
        case aiohttp.ClientConnectorCertificateError():
            return NoAnswer(f"cannot connect to {base}: {_distrust(error.certificate_error)}", reached=False)
        case aiohttp.ClientConnectorSSLError():
            return NoAnswer(f"cannot connect to {base}: {_tls_fault(error.os_error)}", reached=False)
        case aiohttp.ClientConnectorError():
            return NoAnswer(f"cannot connect to {base}: {_reason(error)}", reached=False)
        case TimeoutError():
            return NoAnswer(f"{base} did not answer in time", reached=True)
        case _ if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
            # A service that wants a certificate says so only after what the client takes for the handshake.
            return NoAnswer(f"{base} broke off: {_tls_fault(error.__cause__ or error.__context__)}", reached=True)
        case _:
            dropped = isinstance(error, aiohttp.ServerDisconnectedError | OSError)
            return NoAnswer(f"{base} broke the connection off", reached=True, dropped=dropped)


def _distrust(error: Exception) -> str:
    """Why the service's certificate is not taken; where its CA is not known, what to do."""
    reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)
    unknown = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in UNKNOWN_ISSUER
    advice = " (ca_path, or --ca-path, names the CA to trust)" if unknown else ""
    return one_line(f"its certificate is not trusted: {reason.rstrip('.')}{advice}")


def _tls_fault(error: BaseException | None) -> str:
    reason = (getattr(error, "reason", None) or "unknown").replace("_", " ")
    if reason in NO_TLS:
        return "it speaks no TLS: use http://"
    said = reason.partition("ALERT ")[2]
    if not said:
        return one_line(f"TLS failed: {reason.lower()}")
    advice = "the client certificate that it wants is given by cert_path and key_path, or --cert-path and --key-path"
    return one_line(f"it refused the TLS handshake: {said.lower()}" + (f" ({advice})" if said in ITS_WISH else ""))


def _reason(error: OSError) -> str:
    known = error.errno is not None and error.errno > 0
    return os.strerror(error.errno or 0) if known else one_line(error.strerror or str(error))
