"""The node of a Redis Cluster that owns the deployment's one slot.

Any node that is known can be asked who the owner is: those of the URL, and all that any answer named, so that the
service outlives the nodes that it was started with. An answer may be older than the truth: the next attempt begins with
another node, and with the one that a MOVED named. Knows no other topology.
"""

import asyncio
from typing import Any

from discovery.addresses import RedisUrl
from discovery.errors import Unavailable
from discovery.stores.redis.node import Connected, Dialer, Place, slot_of

ASK_SECS = 0.5


class ClusterAddress:
    """The owner of one slot, whichever node that is now."""

    database = 0
    survey: tuple[str, ...] = ("CLUSTER", "SLOTS")

    def __init__(self, url: RedisUrl, nodes: Dialer, prefix: str, timeout_secs: float) -> None:
        self._url = url
        self._dialer = nodes
        self._timeout_secs = timeout_secs
        self._slot = slot_of(f"{{{prefix}}}:")
        self._seeds = [Place(host.host, host.port) for host in url.hosts]
        self._nodes = list(self._seeds)

    def __str__(self) -> str:
        return str(self._url)

    async def open(self) -> Connected:
        """A connection to the owner. Raises ``Unavailable`` with what each node said."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_secs
        faults: dict[str, None] = {}
        tried: set[Place] = set()
        for node in tuple(self._nodes):
            if loop.time() >= until:
                break
            if node in tried:
                continue
            self._nodes = [*(each for each in self._nodes if each != node), node]
            try:
                connected = await self._owner_by(node, tried, until)
            except Unavailable as error:
                faults[error.detail] = None
                continue
            if connected is not None:
                self._first(node)
                return connected
        raise Unavailable(f"Redis at {self}: {'; '.join(list(faults)[:3]) or 'no connection in time'}")

    async def _owner_by(self, node: Place, tried: set[Place], until: float) -> Connected | None:
        """A connection to the owner that a node names, unless that one was tried already."""
        asked: Connected | None = None
        try:
            async with asyncio.timeout(ASK_SECS):
                asked = await self._dialer.connect(node, ASK_SECS)
                owner = self._read(await asked.ask(*self.survey), node)
                if owner is None:
                    raise Unavailable(f"by what it knows no node has slot {self._slot}")
        except BaseException as error:
            if asked is not None:
                asked.drop()
            if isinstance(error, TimeoutError | Unavailable):
                raise Unavailable(f"{node}: {str(error) or 'no answer in time'}") from None
            raise
        if owner == node:
            return asked
        asked.drop()
        if owner in tried:
            return None
        tried.add(owner)
        try:
            return await self._dialer.connect(owner, max(0.0, until - asyncio.get_running_loop().time()))
        except Unavailable as error:
            raise Unavailable(f"{owner}: {error.detail}") from None

    def learn(self, answer: Any, place: Place) -> None:
        """Remember the nodes that an answer to ``survey`` names."""
        self._read(answer, place)

    def moved(self, text: str) -> None:
        """Begin with the node that a ``MOVED slot host:port`` names: others may not know yet."""
        _, _, target = text.rpartition(" ")
        host, _, port = target.rpartition(":")
        if host and port.isdigit():
            self._first(Place(host.strip("[]"), int(port)))

    def _first(self, node: Place) -> None:
        self._nodes = [node, *(each for each in self._nodes if each != node)]

    def _read(self, answer: Any, asked: Place) -> Place | None:
        """The owner of the slot; every node that is named is kept, and the URL's own behind them."""
        owner, named = None, []
        for first, last, master, *replicas in answer:
            places = [_place(node, asked) for node in (master, *replicas)]
            named += places
            if first <= self._slot <= last:
                owner = places[0]
        if named:
            known = [node for node in self._nodes if node in named or node == asked]
            self._nodes = list(dict.fromkeys([*known, *named, *self._seeds]))
        return owner


def _place(node: Any, asked: Place) -> Place:
    """A node of an answer; one that does not know its own host is where it was asked."""
    host = (node[0] or b"").decode()
    return Place(asked.host if host in ("", "?") else host, int(node[1]))
