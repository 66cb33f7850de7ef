"""The connections of one server: what each of them can be asked for, and what all of them share.

Between ``server``, which sweeps, drains and stops them by it, and ``connection``, each of which enters itself. Knows
nothing of requests.
"""

import asyncio
import logging
from typing import Protocol

from uvicorn.server import ServerState

from discovery.http.limits import Limits

logger = logging.getLogger(__name__)


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

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.capacity = limits.max_connections
        self.draining = False
        self.full = False
        self.turned_away = 0
        self.unflushed: set[Peer] = set()
        self.empty = asyncio.Event()

    def turn_away(self) -> None:
        """Note that a connection above the capacity was closed; says so once until there is room again."""
        self.turned_away += 1
        if not self.full:
            self.full = True
            logger.warning("all %d connections are in use: new ones are closed at once until some end", self.capacity)
