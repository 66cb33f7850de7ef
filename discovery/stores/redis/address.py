"""From what the settings say of Redis to an address that connections can be opened to, for each topology."""

import msgspec

from discovery.addresses import RedisUrl, parse_redis_url
from discovery.errors import Unavailable
from discovery.stores.redis.cluster import ClusterAddress
from discovery.stores.redis.node import Connected, Dialer, Login, Place, Tls
from discovery.stores.redis.sentinel import SentinelAddress

CLIENT_NAME = "discovery"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say of how Redis is reached. The URL may hold a password."""

    url: str
    password_path: str | None = None
    sentinel_user: str | None = None
    sentinel_password_path: str | None = None
    tls_ca_path: str | None = None
    tls_cert_path: str | None = None
    tls_key_path: str | None = None

    def __repr__(self) -> str:
        return f"Access({parse_redis_url(self.url)})"


class ServerAddress:
    """One server, by name or by socket."""

    survey: tuple[str, ...] = ()

    def __init__(self, url: RedisUrl, server: Dialer, timeout_secs: float) -> None:
        self.database = url.database
        self._url = url
        self._server = server
        self._timeout_secs = timeout_secs
        self._place = Place(url.path) if url.kind == "socket" else Place(url.hosts[0].host, url.hosts[0].port)

    def __str__(self) -> str:
        return str(self._url)

    async def open(self) -> Connected:
        """A connection to the server. Raises ``Unavailable`` with the reason."""
        try:
            return await self._server.connect(self._place, self._timeout_secs)
        except Unavailable as error:
            raise Unavailable(f"Redis at {self}: {error.detail}") from None

    def moved(self, text: str) -> None:
        """There is no other place."""

    def learn(self, answer: object, place: Place) -> None:
        """There is nothing to learn."""


def open_address(
    access: Access, *, prefix: str, timeout_secs: float
) -> ServerAddress | SentinelAddress | ClusterAddress:
    """The address that the settings mean; opens nothing yet. ``timeout_secs`` is for one connection."""
    url = parse_redis_url(access.url)
    tls = Tls(access.tls_ca_path, access.tls_cert_path, access.tls_key_path) if url.tls else None
    servers = Dialer(Login(url.user, url.password, access.password_path), tls, url.database, CLIENT_NAME)
    match url.kind:
        case "sentinel":
            sentinels = Dialer(Login(access.sentinel_user, None, access.sentinel_password_path), tls)
            return SentinelAddress(url, servers, sentinels, timeout_secs)
        case "cluster":
            return ClusterAddress(url, servers, prefix, timeout_secs)
    return ServerAddress(url, servers, timeout_secs)
