"""Addresses as people write them: where to listen, http URLs, origins, Redis URLs. Text in, checked text or struct out.

Used by ``settings`` while flags and variables are read. Pure; opens nothing and resolves nothing. A URL may hold a
password, and a broken one may hold it anywhere: no error of this module repeats any part of what it was given.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

import msgspec

RedisKind = Literal["server", "socket", "sentinel", "cluster"]

_KINDS: dict[str, RedisKind] = {
    "redis": "server",
    "rediss": "server",
    "unix": "socket",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
REDIS_SCHEMES = tuple(_KINDS)
REDIS_PORT = 6379
SENTINEL_PORT = 26379

_ENCODE = (
    "write special characters of a password as %23 for #, %2F for /, %40 for @, %25 for %, %3F for ?, "
    "or give the password in a file with --redis-password-path"
)
_listen = re.compile(r"(?:\[(?P<ipv6>[^]\s]+)]|(?P<name>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})").fullmatch
_host = re.compile(r"(?:\[(?P<ipv6>[^]\s]+)]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?").fullmatch
_origin = re.compile(r"https?://[^\s/?#@]+").fullmatch
_http = re.compile(
    r"https?://(?P<host>\[[0-9A-Fa-f:.]+]|[^\s\x00-\x20\x7f-\x9f/?#@:\[\]\\<>\"^`{|}%]+)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?#][^\s\x00-\x20\x7f-\x9f]*)?",
    re.IGNORECASE,
).fullmatch
_unprintable = re.compile(r"[\s\x00-\x20\x7f-\x9f]").search
_bad_escape = re.compile(r"%(?![0-9A-Fa-f]{2})").search


class Address(msgspec.Struct, frozen=True):
    """Where to listen. ``host`` is a name or an IP address, an IPv6 one without brackets; port 0 is any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """``0.0.0.0:8080``, ``[::]:8080``, ``localhost:0``; ``ValueError`` says what such an address looks like."""
    match = _listen(text)
    if match is None or int(match["port"]) > 65535 or not _sound_host(match):
        raise ValueError(
            "must be host:port such as 0.0.0.0:8080, [::]:8080 or localhost:8080, the port from 0 to 65535"
        )
    return Address(match["ipv6"] or match["name"], int(match["port"]))


def http_url(text: str) -> str:
    """An http or https URL that others will call: host needed, no user or password, no white space."""
    match = _http(text)
    if match is None:
        if "@" in text:
            raise ValueError("must be an http or https URL without a user name or a password")
        raise ValueError("must be an http or https URL such as http://10.0.3.8:8000")
    if match["port"] and not 1 <= int(match["port"]) <= 65535:
        raise ValueError("has a port outside 1 to 65535")
    if match["host"].startswith("[") and not _is_ipv6(match["host"][1:-1]):
        raise ValueError("has a host in brackets that is no IPv6 address")
    return text


def service_url(text: str) -> str:
    """The base URL of a running service, perhaps with a path prefix; a slash at the end is dropped."""
    match = _http(http_url(text))
    if match is not None and match["rest"] and ("?" in match["rest"] or "#" in match["rest"]):
        raise ValueError("must be the base URL of a service, without ? and #")
    return text.rstrip("/")


def unencrypted_host(url: str) -> str | None:
    """The host that an http URL leads to over a network; None for https, and for this very machine."""
    match = _http(url)
    if match is None or not url.lower().startswith("http:"):
        return None
    host: str = match["host"].strip("[]")
    return None if host.lower() == "localhost" or _is_loopback(host) else host


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def origin(text: str) -> str:
    """What a browser sends as ``Origin``: scheme, host and port alone; ``*`` stands for every origin."""
    if text != "*" and (_origin(text) is None or _http(text) is None):
        raise ValueError("must be * or one origin such as https://ui.example.com, without a path")
    return text if text == "*" else http_url(text)


class RedisUrl(msgspec.Struct, frozen=True, kw_only=True):
    """What a Redis URL says. As text it is for people: never a user or a password."""

    kind: RedisKind
    tls: bool = False
    hosts: tuple[Address, ...] = ()
    path: str = ""
    service: str = ""
    database: int = 0
    user: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        scheme = "rediss" if self.tls else "redis"
        hosts = ",".join(map(str, self.hosts))
        match self.kind:
            case "socket":
                return f"unix://{self.path}?db={self.database}"
            case "sentinel":
                return f"{scheme}+sentinel://{hosts}/{self.service}/{self.database}"
            case "cluster":
                return f"{scheme}+cluster://{hosts}"
        return f"{scheme}://{hosts}/{self.database}"

    __repr__ = __str__


class _RedisParts(NamedTuple):
    scheme: str
    user_info: str
    hosts: str
    path: str
    query: str


def redis_url(text: str) -> str:
    """Check a Redis URL as far as that goes without a connection; it is given back as it is.

    Errors never repeat a part of it: where a password with ``/``, ``#``, ``?`` or ``@`` was not percent-encoded,
    any part may be the password.
    """
    parts = _redis_parts(text)
    if _KINDS[parts.scheme] == "socket":
        if parts.hosts or not parts.path:
            raise ValueError("must name the socket by its absolute path: unix:///run/redis/redis.sock")
    else:
        _check_hosts(parts)
        _check_path(parts)
    _check_query(parts)
    return text


def parse_redis_url(text: str) -> RedisUrl:
    """What a checked Redis URL says, percent-encoding undone."""
    parts = _redis_parts(text)
    kind = _KINDS[parts.scheme]
    query = dict(part.split("=", 1) for part in parts.query.split("&") if part)
    user, _, password = parts.user_info.partition(":")
    service, _, path = parts.path.partition("/") if kind == "sentinel" else ("", "", parts.path)
    return RedisUrl(
        kind=kind,
        tls=parts.scheme.startswith("rediss"),
        hosts=() if kind == "socket" else _hosts(parts.hosts, SENTINEL_PORT if kind == "sentinel" else REDIS_PORT),
        path=f"/{unquote(path)}" if kind == "socket" else "",
        service=unquote(service),
        database=int(query.get("db") or (kind != "socket" and path) or 0),
        user=unquote(user) or query.get("username"),
        password=unquote(password) or query.get("password"),
    )


def _hosts(text: str, port: int) -> tuple[Address, ...]:
    found = [match for host in text.split(",") if (match := _host(host))]
    return tuple(Address(match["ipv6"] or match["name"], int(match["port"] or port)) for match in found)


def _redis_parts(text: str) -> _RedisParts:
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in REDIS_SCHEMES:
        raise ValueError(
            f"must begin with {', '.join(f'{s}://' for s in REDIS_SCHEMES[:-1])} or {REDIS_SCHEMES[-1]}://"
        )
    if _unprintable(rest):
        raise ValueError("must not contain white space or control characters")
    location, _, query = rest.partition("?")
    authority, _, path = location.partition("/")
    user_info, _, hosts = authority.rpartition("@")
    if "#" in rest or "@" in path + query + user_info or _bad_escape(rest) or not _is_utf8(user_info):
        raise ValueError(f"is not a usable Redis URL: {_ENCODE}")
    return _RedisParts(scheme, user_info, hosts, path, query)


def _check_hosts(parts: _RedisParts) -> None:
    several = _KINDS[parts.scheme] != "server"
    for host in parts.hosts.split(",") if several else [parts.hosts]:
        match = _host(host)
        if match is None or not _sound_host(match) or (match["port"] and not 1 <= int(match["port"]) <= 65535):
            raise ValueError(
                f"has no usable host and port: expected {parts.scheme}://"
                f"{'host:port,host:port' if several else 'host:port'}, an IPv6 address in brackets; {_ENCODE}"
            )


def _check_path(parts: _RedisParts) -> None:
    database = parts.path
    if _KINDS[parts.scheme] == "sentinel":
        service, _, database = parts.path.partition("/")
        if not service:
            raise ValueError(f"must name the Sentinel service: {parts.scheme}://host:port,host:port/service/0")
    if _KINDS[parts.scheme] == "cluster" and (database not in ("", "0") or "db=" in parts.query):
        raise ValueError("must not name a database: a Redis Cluster has number 0 alone")
    if database and not _is_database(database):
        raise ValueError(f"must name the database by its number, as in redis://host:6379/0; {_ENCODE}")


def _check_query(parts: _RedisParts) -> None:
    for part in parts.query.split("&") if parts.query else ():
        name, _, value = part.partition("=")
        if name not in ("db", "username", "password") or not value:
            raise ValueError(f"may have db=, username= and password= after ? and nothing else; {_ENCODE}")
        if "%" in value or "+" in value:
            raise ValueError(
                "must have a user or password with % or + before the host, as in redis://user:password@host"
            )
        if name == "db" and (not _is_database(value) or (parts.path and parts.scheme != "unix")):
            raise ValueError("must name the database once, by its number")


def _is_database(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _sound_host(match: re.Match[str]) -> bool:
    if match["ipv6"]:
        return _is_ipv6(match["ipv6"])
    name = match["name"]
    if not name.strip("0123456789."):  # only digits and dots: it can only be meant as IPv4
        return _is_ipv4(name)
    return len(name) <= 253 and not name.startswith((".", "-")) and ".." not in name


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_utf8(text: str) -> bool:
    try:
        unquote_to_bytes(text).decode()
    except UnicodeError:
        return False
    return True
