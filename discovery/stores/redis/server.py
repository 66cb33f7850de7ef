"""The server that answers at the store's address: the connections to it, which are given up together.

One line carries writes, one reads, and the feed has a connection of its own. When one of them meets a server that only
repeats another one, or not the one from before, the others cannot be trusted either: after a failover a demoted server
takes announcements and passes them to nobody. Says what it thinks of the server's settings, and judges no data.
"""

import logging
import time
from collections.abc import Callable
from typing import Literal, Protocol

from discovery.errors import Unavailable
from discovery.logs import event
from discovery.stores.redis.link import Address, Line, Refused
from discovery.stores.redis.signs import Signs

log = logging.getLogger(__name__)

RESET_PAUSE_SECS = 0.5
"""A server that stays a replica must not cost every write a connection."""


class Feed(Protocol):
    """What the server needs of a feed."""

    def silent_secs(self) -> float:
        """Seconds since its last sign of life."""

    def close(self) -> None:
        """End it; whoever watches it is told."""


class Server:
    """The lines to one server."""

    def __init__(
        self,
        address: Address,
        write_timeout_secs: float,
        read_timeout_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.writes = Line(address, write_timeout_secs)
        self.reads = Line(address, read_timeout_secs)
        self._clock = clock
        self._feed: Feed | None = None
        self._heard_at = clock()
        self._reset_at = float("-inf")
        self._run_id: str | None = None
        self._policy: tuple[str | None, bool] = ("noeviction", False)
        self._untold: list[str] = []

    def follow(self, feed: Feed) -> None:
        """From now on this is the feed to give up together with the lines."""
        self.drop_feed()
        self._feed = feed

    def drop_feed(self) -> None:
        """End the feed."""
        if self._feed is not None:
            self._heard_at = self._clock() - self._feed.silent_secs()
            self._feed.close()
            self._feed = None

    def silent_secs(self) -> float:
        """Seconds since the last sign of life of any feed."""
        return self._clock() - self._heard_at if self._feed is None else self._feed.silent_secs()

    def observe(self, signs: Signs) -> None:
        """Look at the server behind an answer. Raises ``Unavailable`` where it is a replica."""
        if signs.is_replica:
            raise self._replica("role:slave")
        if signs.run_id is not None and self._run_id not in (None, signs.run_id):
            self._reset("another Redis process answers", self.writes)
        self._run_id = signs.run_id or self._run_id
        self._judge_policy(signs)
        self._judge_untold(signs.untold)

    def refusal(self, error: Refused, extent: Literal["source", "writes", "item"] = "source") -> Unavailable:
        """What an error that Redis gave means to whoever asked."""
        text = str(error).partition(" script: ")[0][:200]
        if text.startswith("READONLY"):
            return self._replica(text)
        return Unavailable(f"Redis at {self.address} refused: {text}", extent=extent)

    async def close(self) -> None:
        """End the feed and both lines."""
        self.drop_feed()
        await self.writes.close()
        await self.reads.close()

    def _replica(self, said: str) -> Unavailable:
        if self._clock() - self._reset_at >= RESET_PAUSE_SECS:
            self._reset_at = self._clock()
            self._reset("it is a read-only replica", self.writes, self.reads)
        return Unavailable(f"Redis at {self.address} is a read-only replica, the service needs its master: {said}")

    def _reset(self, reason: str, *lines: Line) -> None:
        for line in lines:
            line.reset(reason)
        if self._feed is not None:
            self._feed.close()

    def _judge_policy(self, signs: Signs) -> None:
        policy = (signs.policy, signs.limited)
        if signs.policy is None or policy == self._policy:
            return
        self._policy = policy
        if signs.policy != "noeviction":
            event(
                log,
                logging.WARNING,
                "store.setup",
                "Redis at %s has maxmemory_policy %s, which %s: set maxmemory-policy noeviction",
                self.address,
                signs.policy,
                "throws leases away before their time when memory is full"
                if signs.limited
                else "would throw leases away once maxmemory is set",
                store=str(self.address),
                cause="maxmemory-policy",
            )

    def _judge_untold(self, untold: list[str]) -> None:
        if untold == self._untold:
            return
        self._untold = untold
        if untold:
            event(
                log,
                logging.INFO,
                "store.setup",
                "Redis at %s does not tell %s: losses that only those show go unnoticed; grant +info if it is a right",
                self.address,
                ", ".join(untold),
                store=str(self.address),
                cause="info",
            )
