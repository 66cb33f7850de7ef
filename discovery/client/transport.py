"""HTTP towards the service: base URLs tried in turn, deadlines on everything, and every failure as one of our errors.

The only place that knows aiohttp. Cookies, redirects and proxies from the environment are never followed: answers come
from the URLs that were given, or not at all. Knows nothing of pools; whether and when to try again is for the caller.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from discovery import __version__
from discovery.client.answers import Answer, NoAnswer, all_of, judged, one_line
from discovery.client.service import STREAM_OPENS_SECS, Request, Service
from discovery.errors import Unavailable

CONNECT_SECS = 3.0

UNKNOWN_ISSUER = (18, 19, 20, 21)
"""Of OpenSSL's codes those that say: self-signed, or of a CA that is not known."""
NO_TLS = ("WRONG VERSION NUMBER", "HTTP REQUEST", "RECORD LAYER FAILURE")
ITS_WISH = ("CERTIFICATE REQUIRED", "HANDSHAKE FAILURE", "UNKNOWN CA", "BAD CERTIFICATE", "CERTIFICATE EXPIRED")
"""What a service says that wants a certificate, or another one; to TLS 1.2 it says no more than that it failed."""

_BROKEN = (aiohttp.ClientError, OSError)


class Stream:
    """An answer that does not end by itself, read as it comes."""

    def __init__(self, base: str, response: aiohttp.ClientResponse) -> None:
        self.base = base
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


class Connections:
    """Connections for one use of the service, remembering which base URL answered last.

    ``keep_alive`` false opens one per request. ``alone`` says that there is never more than one request at a time:
    after a failure the next attempt is then made on a new connection, which a balancer may hand to another replica.
    ``address`` is the one to connect to of those that the URL's name has; Host and the name that TLS checks stay.
    """

    def __init__(
        self, service: Service, *, keep_alive: bool = True, alone: bool = False, address: str | None = None
    ) -> None:
        self._service = service
        self._keep_alive = keep_alive
        self._resolver = None if address is None else _OneAddress(address)
        self._alone = alone
        self._first = 0
        self._session: aiohttp.ClientSession | None = None

    async def request(self, request: Request, *, deadline_secs: float) -> Answer:
        """The first answer that settles it, of one attempt per base URL, each within the deadline.

        Raises ``Rejected`` for a 4xx, ``NoAnswer`` when nobody answered, ``Unavailable`` when only "not now" was heard.
        """
        failures: list[Unavailable] = []
        bases, may_repeat = deque(self._in_turn()), self._alone
        while bases:
            base = bases.popleft()
            try:
                answer = await self._attempt(base, request, deadline_secs)
            except Unavailable as failure:
                await self._start_anew()
                if may_repeat and isinstance(failure, NoAnswer) and failure.dropped:
                    may_repeat = False
                    bases.appendleft(base)
                else:
                    failures.append(failure)
            else:
                self._prefer(base)
                return answer
        raise all_of(failures)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """An open stream of events from the first base URL that gives one; opening it raises as ``request`` does."""
        base, response = await self._open_first(request)
        self._prefer(base)
        try:
            yield Stream(base, response)
        finally:
            response.close()

    def move_on(self) -> None:
        """Begin with the next base URL: this one has just sent us away."""
        self._first = (self._first + 1) % len(self._service.urls)

    async def close(self) -> None:
        """End every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _in_turn(self) -> list[str]:
        urls = self._service.urls
        return [*urls[self._first :], *urls[: self._first]]

    def _prefer(self, base: str) -> None:
        self._first = self._service.urls.index(base)

    async def _start_anew(self) -> None:
        if self._alone:
            await self.close()

    async def _attempt(self, base: str, request: Request, deadline_secs: float) -> Answer:
        limits = aiohttp.ClientTimeout(total=deadline_secs, sock_connect=min(CONNECT_SECS, deadline_secs))
        return await _read(base, await self._send(base, request, limits))

    async def _open_first(self, request: Request) -> tuple[str, aiohttp.ClientResponse]:
        failures: list[Unavailable] = []
        for base in self._in_turn():
            try:
                async with asyncio.timeout(STREAM_OPENS_SECS):
                    return base, await self._open(base, request)
            except Unavailable as failure:
                failures.append(failure)
            except TimeoutError:
                failures.append(NoAnswer(f"{base} did not answer in time", reached=True))
        raise all_of(failures)

    async def _open(self, base: str, request: Request) -> aiohttp.ClientResponse:
        wanted = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        forever = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECS)
        response = await self._send(base, request._replace(headers={**request.headers, **wanted}), forever)
        if response.status == 200:
            if response.content_type == "text/event-stream":
                return response
            response.close()
        else:
            await _read(base, response)
        raise Unavailable(f"{base} answered {response.status} but no stream of events: is it a discovery service?")

    async def _send(self, base: str, request: Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {**request.headers, **self._service.authorization()}
        url = URL(base + request.target, encoded=True)
        try:
            return await self._open_session().request(
                request.method,
                url,
                headers=headers,
                data=request.body,
                timeout=limits,
                allow_redirects=False,
                ssl=self._service.trust.context(),
            )
        except _BROKEN as error:
            raise _no_answer(base, error) from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=not self._keep_alive, resolver=self._resolver),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"pool-discovery/{__version__}"},
                trust_env=False,
            )
        return self._session


async def _read(base: str, response: aiohttp.ClientResponse) -> Answer:
    try:
        async with response:
            body = await response.read()
    except _BROKEN as error:
        raise _no_answer(base, error) from error
    return judged(base, response.status, response.headers, body)


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
