"""The connections of one server: what each of them can be asked for, and what all of them share.

Between ``server``, which sweeps, drains and stops them by it, and ``connection``, each of which enters itself. Knows
nothing of requests.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from uvicorn.server import ServerState

from discovery.http.heads import Field, header_lines
from discovery.http.limits import Limits
from discovery.logs import event

if TYPE_CHECKING:
    from discovery.http.exchange import Exchange

FAILED_HANDSHAKES_SECS = 60
"""At most one line of the log in this time tells of failed handshakes, which anybody can cause."""

logger = logging.getLogger(__name__)


class Refused(Protocol):
    """Hears of a request that never reached the app."""

    def __call__(self, status: int, client: tuple[str, int] | None, request_id: str | None, written: int, /) -> None:
        """Its answer, whom it went to, the request's id as far as that had come, and the bytes of the answer."""


class Peer(Protocol):
    """One connection, as far as others need it. ``deadline`` is when it must be looked at, by the loop's clock."""

    transport: asyncio.Transport
    deadline: float

    def overdue(self) -> None:
        """Its deadline has passed."""

    def check_writing(self, now: float) -> None:
        """Whether its peer still takes what is written, or else its end."""

    def drain(self) -> None:
        """Let the running answer be the last one."""

    def finish(self) -> None:
        """Close now, unless a request is running or on its way in."""

    def close(self) -> None:
        """Close after what is written has been taken."""

    def abort(self) -> None:
        """Reset at once."""


class SharedState(ServerState):
    """What all connections of one server share: its limits, who is connected, and whether it is draining."""

    connections: set[Peer]  # type: ignore[assignment]
    exchange: "Callable[..., Exchange]"
    """What a complete request becomes: ``exchange.Exchange``, or one that counts what it writes."""

    def __init__(self, limits: Limits, exchange: Any = None) -> None:
        super().__init__()
        self.exchange = exchange
        # Who hears of each request that the app has ended, and of those that never reached it.
        self.on_finished: Sequence[Callable[[Exchange], None]] = ()
        self.on_refused: Sequence[Refused] = ()
        self.limits = limits
        self.capacity = limits.max_connections
        self.spare = 0
        self.draining = False
        self.full = False
        self.turned_away = 0
        self.dropped = 0
        self.failed_handshakes = 0
        self._next_line_at = -math.inf
        self.unflushed: set[Peer] = set()
        self.empty = asyncio.Event()

    @property
    def default_headers(self) -> list[Field]:
        """The headers of every answer. Setting them puts them together, once a second and not for each answer."""
        return self._default_headers

    @default_headers.setter
    def default_headers(self, headers: list[Field]) -> None:
        self._default_headers = headers
        self._default_names = frozenset(name for name, _ in headers)
        self._default_lines = header_lines(headers)

    def default_lines(self, own: frozenset[bytes]) -> bytes:
        """The headers of every answer as they are written; an answer that has one of its ``own`` goes without."""
        if self._default_names.isdisjoint(own):
            return self._default_lines
        return header_lines(header for header in self._default_headers if header[0] not in own)

    def turn_away(self) -> None:
        """Note a connection above the capacity; says so once until there is room again."""
        self.turned_away += 1
        if not self.full:
            self.full = True
            text = "all %d connections are in use: new ones are refused or closed at once until some end"
            event(logger, logging.WARNING, "connections.full", text, self.capacity)

    def handshake_failed(self, reason: str) -> None:
        """Count a TLS handshake that failed, and tell of it now and then; ``reason`` is ours or the library's."""
        self.failed_handshakes += 1
        if time.monotonic() >= self._next_line_at:
            self._next_line_at = time.monotonic() + FAILED_HANDSHAKES_SECS
            text = "a TLS handshake failed: %s (%d since the start)"
            event(logger, logging.INFO, "handshake.failed", text, reason, self.failed_handshakes, cause=reason)
