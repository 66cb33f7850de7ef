"""What a request says: its headers, its path, its query and its body. Faults in them are the client's errors.

Between the routes and plain ASGI; what is asked for is read here, what comes of it is decided by ``handlers``. Knows no
list and no store.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from discovery import registrations
from discovery.errors import Rejected
from discovery.http.answers import Receive, Scope
from discovery.listing.scrape_targets import ROLES
from discovery.listing.snapshot import EVERYTHING, Filter
from discovery.model import Listing, PoolKey

_entity_tag = re.compile(rb'[\s,]*(?:W/)?"([^"]*)"\s*(?:,|$)')
_wait = re.compile(rb"(?:^|,)\s*wait\s*=\s*\"?0*+([0-9]++)\"?\s*(?:[;,]|$)", re.IGNORECASE)

MAX_WAIT_SECS = 300


# ---- headers


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value; several lines of it are one list (RFC 9110)."""
    values = [value for key, value in scope["headers"] if key == name]
    return b", ".join(values) if values else None


def tag_matches(header_value: bytes, token: str) -> bool:
    """Whether ``If-None-Match`` names the token.

    It is compared weakly, as a list, or is ``*``. Malformed parts match nothing.
    """
    if header_value == b'W/"%b"' % token.encode():
        return True
    if header_value.strip() == b"*":
        return True
    wanted, position = token.encode(), 0
    while match := _entity_tag.match(header_value, position):
        if match[1] == wanted:
            return True
        position = match.end()
    return False


def asked_wait(scope: Scope) -> int:
    """Seconds of ``Prefer: wait`` (RFC 7240), at most 300; 0 where there is none or it makes no sense."""
    value = header(scope, b"prefer")
    found = _wait.search(value) if value else None
    return min(MAX_WAIT_SECS, int(found[1][:9])) if found else 0


def takes_gzip(value: bytes) -> bool:
    """Whether ``Accept-Encoding`` allows gzip."""
    quality = {}
    for part in value.lower().split(b","):
        coding, _, parameters = part.partition(b";")
        weight = parameters.replace(b" ", b"").removeprefix(b"q=")
        quality[coding.strip()] = not parameters or weight.strip(b"0.") != b""
    return quality.get(b"gzip", quality.get(b"x-gzip", quality.get(b"*", False)))


def check_content_type(scope: Scope) -> None:
    """415 for a body that is not said to be JSON."""
    value = header(scope, b"content-type")
    if value == b"application/json":
        return
    if value is None or value.partition(b";")[0].strip().lower() != b"application/json":
        raise Rejected(415, "Unsupported Media Type", "Send the body with the header Content-Type: application/json.")


# ---- paths and queries


def key_in_path(scope: Scope) -> PoolKey:
    """The pool that the path names; from the raw path, since a part may hold an escaped slash."""
    raw = scope.get("raw_path") or scope["path"].encode()
    try:
        return registrations.key_from_path(raw.partition(b"?")[0].removeprefix(b"/pools/").decode("ascii"))
    except ValueError as error:
        raise Rejected(404, "No such pool", f"The path names no pool: {error}.") from None


def key_in_query(path: str) -> PoolKey:
    """A pool as the query names it: a path of three escaped parts."""
    try:
        return registrations.key_from_path(path)
    except ValueError as error:
        raise Rejected(400, "Bad query", f"pool names no pool: {error}.") from None


def parameters_of(query: bytes, known: tuple[str, ...], *, may_be_empty: bool = False) -> dict[str, list[str]]:
    """The values of each parameter; others than the known ones are refused, and so are empty values as a rule."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError:
        raise Rejected(400, "Bad query", "The query is not percent-encoded UTF-8.") from None
    parameters: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise Rejected(400, "Bad query", f"Unknown query parameter {name!r}; this path {takes}.")
        if not value and not may_be_empty:
            raise Rejected(400, "Bad query", f"The query parameter {name} is empty.")
        parameters.setdefault(name, []).append(value)
    return parameters


def no_parameters(query: bytes) -> None:
    """For paths that take none."""
    if query:
        parameters_of(query, ())


@lru_cache(maxsize=1024)
def pool_filter(query: bytes) -> tuple[Filter, Callable[[Listing], bool]]:
    """Which pools the query asks for, and whether a listing is one of them."""
    wanted = Filter(
        **{name: frozenset(values) for name, values in parameters_of(query, Filter.__struct_fields__).items()}
    )
    return wanted, wanted.matches


class TargetsAsked(NamedTuple):
    """Which targets a query asks for: of which pools, in which roles, and whether some may be missing."""

    wanted: Filter
    roles: tuple[str, ...]
    incomplete: bool


@lru_cache(maxsize=1024)
def targets_asked(query: bytes) -> TargetsAsked:
    """The filters of pools, with ``role`` and ``incomplete``."""
    values = parameters_of(query, (*Filter.__struct_fields__, "role", "incomplete"))
    roles, incomplete = values.pop("role", list(ROLES)), values.pop("incomplete", ["false"])
    if not set(roles) <= set(ROLES):
        raise Rejected(400, "Bad query", f"role is one of {', '.join(ROLES)}.")
    if incomplete not in (["true"], ["false"]):
        raise Rejected(400, "Bad query", "incomplete is true or false, and given once.")
    wanted = Filter(**{name: frozenset(given) for name, given in values.items()})
    return TargetsAsked(wanted, tuple(role for role in ROLES if role in roles), incomplete == ["true"])


def no_filter(query: bytes) -> tuple[Filter, Callable[[Any], bool]]:
    """Every entry of a list without filters."""
    no_parameters(query)
    return EVERYTHING, lambda entry: True


# ---- the body


async def whole_body(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None where the client left before its end."""
    take_body = getattr(getattr(receive, "__self__", None), "take_body", None)  # as ``answer_as_is``
    body: bytes | None = take_body() if take_body is not None else None
    if body is None:
        message = await receive()
        chunks = []
        size = 0
        while message["type"] == "http.request":
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit or not message.get("more_body"):
                break
            message = await receive()
        else:
            return None
        body = b"".join(chunks)
    if len(body) > limit:
        raise Rejected(
            413, "Content Too Large", f"The body is over {limit:,} bytes.", headers=(("connection", "close"),)
        )
    return body
