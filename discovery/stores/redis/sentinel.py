"""The master of a Sentinel service: asked for at each connection, and believed only when it says so itself.

The Sentinels are asked in turn, the one that last helped first; one that does not answer costs half a second and goes
to the end. What a Sentinel names may be the master of before, so the server is asked for its role. Knows no other
topology.
"""

import asyncio

from discovery.addresses import RedisUrl
from discovery.errors import Unavailable
from discovery.stores.redis.node import Connected, Dialer, Place

ASK_SECS = 0.5


class SentinelAddress:
    """The service's master, whichever server that is now."""

    survey: tuple[str, ...] = ()

    def __init__(self, url: RedisUrl, servers: Dialer, sentinels: Dialer, timeout_secs: float) -> None:
        self.database = url.database
        self._url = url
        self._servers = servers
        self._dialer = sentinels
        self._timeout_secs = timeout_secs
        self._sentinels = [Place(host.host, host.port) for host in url.hosts]

    def __str__(self) -> str:
        return str(self._url)

    async def open(self) -> Connected:
        """A connection to the master. Raises ``Unavailable`` with what each Sentinel said."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_secs
        faults: dict[str, None] = {}
        tried: set[Place] = set()
        for sentinel in tuple(self._sentinels):
            if loop.time() >= until:
                break
            # At the end until it has helped: also where what it named takes all of the time.
            self._sentinels.remove(sentinel)
            self._sentinels.append(sentinel)
            try:
                master = await self._named_by(sentinel)
                if master in tried:
                    continue
                tried.add(master)
                connected = await self._connect(master, sentinel, until)
            except Unavailable as error:
                faults[error.detail] = None
                continue
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return connected
        raise Unavailable(f"Redis at {self}: {'; '.join(faults)}")

    async def _named_by(self, sentinel: Place) -> Place:
        try:
            async with asyncio.timeout(ASK_SECS):
                connected = await self._dialer.connect(sentinel, ASK_SECS)
                try:
                    named = await connected.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service)
                finally:
                    connected.drop()
        except TimeoutError:
            raise Unavailable(f"Sentinel {sentinel}: no answer in time") from None
        except Unavailable as error:
            raise Unavailable(f"Sentinel {sentinel}: {error.detail}") from None
        if named is None:
            raise Unavailable(f"Sentinel {sentinel} knows no service {self._url.service}")
        return Place(named[0].decode(), int(named[1]))

    async def _connect(self, master: Place, sentinel: Place, until: float) -> Connected:
        connected: Connected | None = None
        try:
            async with asyncio.timeout_at(until):
                connected = await self._servers.connect(master, self._timeout_secs)
                role, *_ = await connected.ask("ROLE")
                if role != b"master":
                    raise Unavailable(f"Sentinel {sentinel} takes it for the master, but it is a {role.decode()}")
        except BaseException as error:
            if connected is not None:
                connected.drop()
            if isinstance(error, TimeoutError | Unavailable):
                raise Unavailable(f"{master}: {str(error) or 'no answer in time'}") from None
            raise
        return connected

    def moved(self, text: str) -> None:
        """Nothing moves from server to server here."""

    def learn(self, answer: object, place: Place) -> None:
        """Nothing is learned from the master."""
