"""The HTTP server: binds an address, accepts, sweeps deadlines, drains and stops.

Takes any ASGI app and hands it complete requests (see ``connection``). Signals and the order in which the parts of the
process end belong to the caller. Built from uvicorn's parts; nothing but this module, ``connection``, ``exchange`` and
``peers`` may know that.
"""

import asyncio
import logging
import math
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from email.utils import formatdate
from typing import Any, TypeVar

import uvicorn
import uvloop

from discovery.errors import DiscoveryError
from discovery.http.certificates import Certificates
from discovery.http.connection import Connection
from discovery.http.exchange import Exchange
from discovery.http.limits import Limits
from discovery.http.peers import Refused, SharedState
from discovery.http.tls import TlsConnection
from discovery.http.web_safety import ON_EVERY_ANSWER
from discovery.logs import event

__all__ = ["CannotListen", "HttpServer", "Limits", "run_async"]

logger = logging.getLogger(__name__)

BACKLOG = 4096
SWEEP_SECS = 0.25
"""How late a deadline may be acted on, at most; less where a deadline itself is short."""
PAUSE_SECS = 1.0
"""A sweep later than this means that the process stood still, not its peers."""
SPARE_DESCRIPTORS = 256
"""Descriptors that connections leave to the store, the watchers and files."""
SPARE_CONNECTIONS = 64
"""So many connections above the capacity hear why they are not served; small capacities have fewer."""
KEEP_ALIVE_PROBE_SECS = 15
"""How often the network is asked whether a silent peer is still there: one that waits for a change says nothing."""

App = Callable[[Any, Any, Any], Awaitable[None]]
Result = TypeVar("Result")


class CannotListen(DiscoveryError):
    """The address cannot be bound; the text is one line that names it and says why."""


def run_async(main: Coroutine[Any, Any, Result]) -> Result:
    """Run the program's main coroutine to its end on the event loop that the server is made for."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class HttpServer:
    """One listening address and all its connections.

    Of the connections above ``max_connections`` (or above what the descriptor limit leaves) the first few are told so
    when they ask, and may ask for what probes ask for; all others are closed at once: at that moment every byte counts.
    With ``certificates`` it speaks TLS, each connection with the certificate of the moment in which it begins.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str,
        port: int,
        limits: Limits,
        certificates: Certificates | None = None,
        exchange: type[Exchange] = Exchange,
    ) -> None:
        self._address = (host.removeprefix("[").removesuffix("]"), port)
        self._limits = limits
        self._certificates = certificates
        self._shared = SharedState(limits, exchange)
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            workers=1,
            forwarded_allow_ips="",
        )
        shortest = min(
            limits.handshake_timeout_secs,
            limits.request_timeout_secs,
            limits.write_stall_timeout_secs,
            limits.keep_alive_secs,
        )
        self._sweep_secs = min(SWEEP_SECS, max(shortest / 8, 0.01))
        self._swept = 0.0
        self._dated = 0

    def tell(self, *, finished: Callable[[Exchange], None], refused: Refused) -> None:
        """From now on tell of each request that has ended: with the app, and refused before it reached it."""
        self._shared.on_finished = (*self._shared.on_finished, finished)
        self._shared.on_refused = (*self._shared.on_refused, refused)

    @property
    def port(self) -> int:
        """The port that is listened on, also when 0 was asked for."""
        return self._port

    @property
    def in_flight(self) -> int:
        """How many requests are with the app, parked long polls and open streams included."""
        return len(self._shared.tasks)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._shared.connections)

    @property
    def turned_away(self) -> int:
        """How many connections were closed since the start because too many were open."""
        return self._shared.turned_away

    @property
    def dropped(self) -> int:
        """How many connections were reset since the start because their peers did not take what was written."""
        return self._shared.dropped

    @property
    def capacity(self) -> int:
        """How many connections are served at once, at most."""
        return self._shared.capacity

    @property
    def failed_handshakes(self) -> int:
        """How many TLS handshakes failed since the start."""
        return self._shared.failed_handshakes

    async def start(self) -> None:
        """Accept connections from the moment this returns; raises ``CannotListen``."""
        self._loop = asyncio.get_running_loop()
        self._shared.capacity = _room_for(self._limits.max_connections)
        self._shared.spare = min(SPARE_CONNECTIONS, self._shared.capacity // 32)
        listener = _listen(*self._address, self._limits)
        self._port: int = listener.getsockname()[1]
        self._config.load()
        self._swept = self._loop.time()
        self._sweep()
        self._server = await self._loop.create_server(self._begin, sock=listener, backlog=BACKLOG)

    def _begin(self) -> asyncio.Protocol:
        if self._certificates is None:
            return self._speak_http()
        return TlsConnection(self._certificates, self._shared, self._speak_http)

    def _speak_http(self) -> Connection:
        return Connection(self._config, self._shared, self._loop)

    def drain(self) -> None:
        """From now on every answer is the last one of its connection; new connections are still accepted."""
        self._shared.draining = True
        for connection in self._shared.connections:
            connection.drain()

    async def stop(self, grace_secs: float) -> None:
        """Accept no more, close what is idle, let requests finish for at most ``grace_secs``, then cut them off.

        A request of which some bytes have arrived counts as running: its sender may well be in the middle of it.
        """
        self.drain()
        self._server.close()
        await asyncio.sleep(0)  # a request that lies in the socket already is read first
        for connection in list(self._shared.connections):
            connection.finish()
        try:
            async with asyncio.timeout(grace_secs):
                await self._quiet()
        except TimeoutError:
            await self._cut_off(grace_secs)
        self._timer.cancel()

    async def _quiet(self) -> None:
        while self._shared.connections:
            self._shared.empty.clear()
            await self._shared.empty.wait()
        while self._shared.tasks:  # of peers that have left: what they asked for is still done whole
            await asyncio.wait(self._shared.tasks)

    async def _cut_off(self, grace_secs: float) -> None:
        tasks = list(self._shared.tasks)
        if tasks:
            text = "cut off %d requests that were not done %g s after the stop"
            event(logger, logging.WARNING, "service.cut_off", text, len(tasks), grace_secs)
        for connection in list(self._shared.connections):
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await asyncio.sleep(0)

    def _sweep(self) -> None:
        """Look at every connection's deadline: one comparison each, a few times a second."""
        now = self._loop.time()
        self._timer = self._loop.call_later(self._sweep_secs, self._sweep)
        stood_still = now - self._swept > self._sweep_secs + PAUSE_SECS
        self._swept = math.inf if stood_still else now  # never twice in a row: too much to do is no excuse
        self._write_date()
        if stood_still:
            return  # what peers sent meanwhile is read before anybody is judged, in the next sweep
        shared = self._shared
        for connection in [connection for connection in shared.connections if connection.deadline <= now]:
            connection.overdue()
        for connection in list(shared.unflushed):
            connection.check_writing(now)
        shared.full = shared.full and len(shared.connections) > 0.9 * shared.capacity

    def _write_date(self) -> None:
        now = int(time.time())
        if now != self._dated:
            self._dated = now
            self._shared.default_headers = [
                (b"date", formatdate(now, usegmt=True).encode()),
                *ON_EVERY_ANSWER,
            ]


def _listen(host: str, port: int, limits: Limits) -> socket.socket:
    try:
        choices = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(choices, key=lambda choice: choice[0] != socket.AF_INET)
        dual_stack = address[0] == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=dual_stack)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise CannotListen(f"cannot listen on {shown}: {reason}") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it: a peer whose network died is noticed after this, not when the kernel gives up (15
        # minutes).
        milliseconds = max(1, int(limits.write_stall_timeout_secs * 1000))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            listener.setsockopt(socket.IPPROTO_TCP, option, KEEP_ALIVE_PROBE_SECS)
    return listener


def _room_for(wanted: int) -> int:
    """How many of the wanted connections the descriptor limit allows, after raising it as far as this process may.

    A process without a free descriptor accepts nobody, reaches no store and logs nothing: connections stop before that.
    """
    needed = wanted + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = needed if hard == resource.RLIM_INFINITY else hard
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft >= needed:
        return wanted
    room = soft - min(SPARE_DESCRIPTORS, soft // 4)
    event(
        logger,
        logging.WARNING,
        "connections.fewer",
        "the limit of %d open files allows %d connections, not %d: raise the limit or lower --max-connections",
        soft,
        room,
        wanted,
    )
    return room
