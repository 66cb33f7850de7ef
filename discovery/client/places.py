"""Where the service can be reached: each address of each base URL is a place, and places are tried in turn.

Names are resolved again when a round of attempts begins, so that new replicas behind a headless Service are found and
gone ones forgotten; a resolver that fails or hangs never takes away the places that are known. Opens no connection.
"""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

RESOLVED_SECS = 5.0
"""How long a name may take to be resolved while no address of it is known."""
KNOWN_SECS = 0.5
"""The same while some are: those serve meanwhile."""
RESOLVE_AGAIN_SECS = 10.0
"""How old addresses may be while they answer, and ..."""
AFTER_FAILURE_SECS = 1.0
"""... while they do not: a resolver is never asked more often."""


class Place(NamedTuple):
    """One address to connect to for one URL; None where the URL itself holds it. ``name`` is for people."""

    url: str
    address: str | None
    name: str


async def places_of(url: str) -> list[Place]:
    """Every address of a URL, in the resolver's order. Raises ``OSError`` or ``UnicodeError`` for a name without."""
    host = urlsplit(url).hostname or ""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        return [Place(url, None, url)]
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    if len(addresses) == 1:
        return [Place(url, addresses[0], url)]
    return [Place(url, address, f"{url} ({address})") for address in addresses]


class Places:
    """The places of some URLs, in the order in which to try them: the one that answered last before all others.

    Otherwise URLs come in their given order, and the addresses of each in an order of this client's own, so that many
    clients spread over them. Places at which an answer is still being waited for come last.
    """

    def __init__(self, urls: Iterable[str], address: str | None = None) -> None:
        self._known: dict[str, list[Place]] = {url: [] for url in urls}
        if address is not None:
            self._known = {url: [Place(url, address, url)] for url in self._known}
        self._fixed = address is not None
        self._seed = random.random()  # noqa: S311 - spreads clients, hides nothing
        self._preferred: Place | None = None
        self._busy: Counter[Place] = Counter()
        self._resolving: dict[str, asyncio.Task[list[Place]]] = {}
        self._resolved_at = float("-inf")
        self._failed = False

    async def in_turn(self) -> tuple[list[Place], list[str]]:
        """The places to try now, and the URLs whose names have no address."""
        await self._resolve()
        places = [place for found in self._known.values() for place in found]
        if self._preferred in places:
            first = places.index(self._preferred)
            places = [*places[first:], *places[:first]]
        return sorted(places, key=lambda place: self._busy[place]), [url for url, at in self._known.items() if not at]

    def prefer(self, place: Place) -> None:
        """It has answered: begin with it from now on."""
        self._preferred = place

    def move_on(self) -> None:
        """Begin with the next place: this one has sent us away, or fell silent."""
        places = [place for found in self._known.values() for place in found]
        if places:
            last = places.index(self._preferred) if self._preferred in places else 0
            self._preferred = places[(last + 1) % len(places)]
        self.failed()

    def failed(self) -> None:
        """A place did not answer: its address may be an old one."""
        self._failed = True

    def __contains__(self, place: Place) -> bool:
        return place in self._known.get(place.url, ())

    @contextmanager
    def waiting_for(self, place: Place) -> Iterator[None]:
        """While the block runs an answer is waited for there."""
        self._busy[place] += 1
        try:
            yield
        finally:
            self._busy[place] -= 1
            if not self._busy[place]:
                del self._busy[place]

    async def close(self) -> None:
        """Stop resolving."""
        tasks = list(self._resolving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _resolve(self) -> None:
        now = asyncio.get_running_loop().time()
        old_after = AFTER_FAILURE_SECS if self._failed else RESOLVE_AGAIN_SECS
        if self._fixed or (now < self._resolved_at + old_after and all(self._known.values())):
            return
        self._resolved_at, self._failed = now, False
        await asyncio.gather(*(self._resolve_one(url) for url in self._known))

    async def _resolve_one(self, url: str) -> None:
        """A resolver that hangs holds a thread: it is asked once, and whoever comes next waits for the same answer."""
        task = self._resolving.get(url)
        if task is None:
            task = self._resolving[url] = asyncio.create_task(places_of(url), name=f"resolving {url}")
            task.add_done_callback(lambda done: self._resolved(url, done))
        await asyncio.wait([task], timeout=KNOWN_SECS if self._known[url] else RESOLVED_SECS)

    def _resolved(self, url: str, task: asyncio.Task[list[Place]]) -> None:
        self._resolving.pop(url, None)
        if not task.cancelled() and task.exception() is None and task.result():
            self._known[url] = sorted(task.result(), key=lambda place: hash((self._seed, place.address)))
