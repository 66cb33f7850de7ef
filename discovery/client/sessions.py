"""Sessions of the HTTP library, each for one place: its address is the only one there is, for the URL's own name.

With ``transport`` and ``broken`` the only place that knows aiohttp.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from discovery import __version__
from discovery.client.places import Place
from discovery.client.race import Stage

KEEP_ALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""The kernel asks an idle peer after two seconds whether it is there, and takes three times no answer for its end."""


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


class Kept:
    """Kept connections to one place, ended when nobody uses them any more."""

    def __init__(self, place: Place) -> None:
        self.session = session_at(place, keep_alive=True)
        self.retired = False
        self._users = 0

    @asynccontextmanager
    async def use(self) -> AsyncIterator[aiohttp.ClientSession]:
        """The session, which does not end while it is used."""
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


def session_at(place: Place, *, keep_alive: bool) -> aiohttp.ClientSession:
    """A session whose requests say how far they have come to the ``Progress`` that they are given."""
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
