"""One cluster's API server, to ask with GET: the door to the HTTP client, and the place where credentials are renewed.

Answers leave as they came; whatever goes wrong leaves as ``Failure`` with words for people and no secrets. Knows
paths and deadlines, nothing of slices.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from discovery import __version__
from discovery.mcs.kube_access import Access, InCluster, KubeContext, find_clusters
from discovery.mcs.kube_answers import Failure, read_status, refusal

REFUSAL_LIMIT_BYTES = 65536


class Deadlines(NamedTuple):
    """Seconds that parts of a request may take."""

    connect_secs: float = 5.0
    answer_secs: float = 15.0
    """Until the head of an answer is there."""
    read_secs: float = 60.0
    """Until an answer that is read whole is there."""
    credentials_secs: float = 30.0
    """Age from which tokens and certificates are read again before a request."""


class ClusterConnection:
    """The way to one API server; safe to use by many tasks at once."""

    def __init__(self, cluster: InCluster | KubeContext, deadlines: Deadlines | None = None) -> None:
        self.name = cluster.name
        self._cluster = cluster
        self._deadlines = deadlines or Deadlines()
        self._lock = asyncio.Lock()
        self._access: Access | None = None
        self._read_at = 0.0
        self._suspect = False
        self._transport: _Transport | None = None
        self._retired: list[_Transport] = []

    async def read(self, path: str, query: Mapping[str, str], request: str) -> bytes:
        """The whole body of a 200. ``request`` says what for, such as ``list endpointslices``.

        Raises ``Failure``.
        """
        try:
            async with asyncio.timeout(self._deadlines.read_secs), self.open(path, query, request) as response:
                return await response.read()
        except (aiohttp.ClientError, OSError, ValueError) as error:  # OSError: the deadline too
            raise self._unreachable(error) from None

    @asynccontextmanager
    async def open(
        self, path: str, query: Mapping[str, str], request: str
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """A 200 whose body is still to be read; its connection is closed at the end unless all was read.

        Raises ``Failure``; errors of reading are for the caller to translate with ``broken``.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        transport, response = await self._answer(target)
        try:
            if response.status != 200:
                body = await self._read_refusal(response)
                raise refusal(self.name, request, read_status(response.status, body), response.headers)
            if "json" not in response.content_type:
                raise Failure("foreign", f"{self._where}: answered with {response.content_type} instead of JSON")
            yield response
        finally:
            response.close()
            await transport.leave()

    def broken(self, error: Exception) -> Failure:
        """What ended an answer while it was read, in words."""
        return self._unreachable(error)

    async def close(self) -> None:
        """Close every connection."""
        transports = [*self._retired, *([self._transport] if self._transport else [])]
        self._retired, self._transport = [], None
        for transport in transports:
            await transport.close()

    async def _answer(self, target: str) -> "tuple[_Transport, aiohttp.ClientResponse]":
        access, transport = await self._current()
        response = await self._send(target, access, transport)
        if response.status != 401:
            return transport, response
        response.close()
        await transport.leave()
        access, transport = await self._renew(access, anew=True)
        return transport, await self._send(target, access, transport)

    async def _send(self, target: str, access: Access, transport: "_Transport") -> aiohttp.ClientResponse:
        """The head of an answer; from then on the transport is in use."""
        headers = {"Accept": "application/json", "User-Agent": f"pool-discovery/{__version__}"}
        if access.authorization is not None:
            headers["Authorization"] = access.authorization
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._deadlines.connect_secs)
        transport.users += 1
        try:
            async with asyncio.timeout(self._deadlines.answer_secs):
                answer = await transport.rest.request(  # type: ignore[no-untyped-call]
                    "GET", transport.host + target, headers=headers, _request_timeout=limits
                )
        except BaseException as error:
            await transport.leave()
            if isinstance(error, aiohttp.ClientError | OSError | ValueError):
                self._suspect = True
                raise self._unreachable(error) from None
            raise
        self._suspect = False
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _current(self) -> "tuple[Access, _Transport]":
        now = asyncio.get_running_loop().time()
        access, transport = self._access, self._transport
        if access is None or transport is None:
            return await self._renew(access, anew=True)
        if now - self._read_at < self._deadlines.credentials_secs:
            return access, transport
        try:
            return await self._renew(access, anew=self._suspect)
        except Failure:
            self._read_at = now  # a file may be missing while it is replaced; the server judges what we have
            return access, transport

    async def _renew(self, stale: Access | None, *, anew: bool) -> "tuple[Access, _Transport]":
        """Read the credentials again, unless another task has just replaced the ``stale`` ones."""
        async with self._lock:
            if self._access is None or self._transport is None or self._access is stale:
                access = await self._cluster.read(anew=anew)
                self._transport = await self._transport_for(access)
                self._access, self._read_at = access, asyncio.get_running_loop().time()
            return self._access, self._transport

    async def _transport_for(self, access: Access) -> "_Transport":
        old = self._transport
        try:
            marks = _marks(access)
            if old is not None and old.marks == marks:
                return old
            fresh = _Transport(access, marks)
        except (OSError, ValueError) as error:
            raise Failure("credentials", f"{self.name}: its certificates cannot be loaded: {_told(error)}") from None
        if old is not None:
            self._retired = [*(one for one in self._retired if one.users), old]
            await old.retire()
        return fresh

    async def _read_refusal(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            async with asyncio.timeout(self._deadlines.answer_secs):
                return await response.content.read(REFUSAL_LIMIT_BYTES)
        except (aiohttp.ClientError, OSError, ValueError):
            return b""

    @property
    def _where(self) -> str:
        return f"{self.name}: the API server{f' at {self._transport.place}' if self._transport else ''}"

    def _unreachable(self, error: Exception) -> Failure:
        where = self._where
        match error:
            case aiohttp.ConnectionTimeoutError():
                return Failure("unreachable", f"{where} cannot be reached: no answer in time")
            case aiohttp.ClientConnectorDNSError():
                return Failure("unreachable", f"{where} cannot be reached: the name cannot be resolved")
            case aiohttp.ClientConnectorCertificateError(certificate_error=reason):
                return Failure("tls", f"{where} cannot be trusted: {reason}")
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                return Failure("tls", f"{where} refuses to speak TLS with us: {getattr(error, 'strerror', '')}")
            case aiohttp.ClientConnectorError(os_error=reason):
                return Failure("unreachable", f"{where} cannot be reached: {_strerror(reason)}")
            case TimeoutError():
                return Failure("silent", f"{where} did not answer in time")
            case _:
                return Failure("broken", f"{where} broke the connection off")


class _Transport:
    """A session, and how many still read from it: one that was replaced lives until its last watch has ended."""

    def __init__(self, access: Access, marks: tuple[object, ...]) -> None:
        self.marks = marks
        self.users = 0
        self.host = access.configuration.host.rstrip("/")
        self.place = urlsplit(self.host).netloc.rpartition("@")[2]
        self.rest = RESTClientObject(access.configuration)
        self._retired = False

    async def leave(self) -> None:
        self.users -= 1
        if self._retired and not self.users:
            await self.close()

    async def retire(self) -> None:
        self._retired = True
        if not self.users:
            await self.close()

    async def close(self) -> None:
        await self.rest.close()


def open_contexts(kubeconfig: str | None, contexts: tuple[str, ...]) -> list[ClusterConnection]:
    """The clusters to watch, in the order given; nothing is asked yet. Raises ``Misconfigured``."""
    return [ClusterConnection(cluster) for cluster in find_clusters(kubeconfig, contexts)]


def _strerror(error: OSError) -> str:
    # asyncio puts a sentence of its own in the place of the system's.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__


def _told(error: Exception) -> str:
    match error:
        case OSError(filename=str(filename), strerror=str(strerror)):
            return f"{filename}: {strerror}"
        case _:  # the text of others may quote the file
            return "they are no certificates in PEM form, or not of one pair"


def _marks(access: Access) -> tuple[object, ...]:
    """All that a connection is made from; it is made anew where they differ."""
    said = access.configuration
    files = (said.ssl_ca_cert, said.cert_file, said.key_file)
    contents = tuple(Path(file).read_bytes() if file else None for file in files)
    return said.host, said.verify_ssl, said.tls_server_name, said.proxy, said.ca_cert_data, contents
