"""Answers that every route shares: problems, the table from errors to statuses, entity tags, and what headers ask for.

Plain ASGI messages; knows no route and no list.
"""

import http
import random
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from discovery.errors import DiscoveryError, Fault, Rejected, Unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

encode_json = msgspec.json.Encoder().encode
_entity_tag = re.compile(rb'[\s,]*(?:W/)?"([^"]*)"\s*(?:,|$)')
_wait = re.compile(rb"(?:^|,)\s*wait\s*=\s*\"?0*+([0-9]++)\"?\s*(?:[;,]|$)", re.IGNORECASE)

MAX_WAIT_SECS = 300
JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
NO_CACHE = (b"cache-control", b"no-cache")


async def answer(send: Send, status: int, headers: Headers, body: bytes = b"") -> None:
    """One whole answer."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def not_modified(send: Send, headers: Headers) -> None:
    """304: no body, no length."""
    await send({"type": "http.response.start", "status": 304, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def problem(
    send: Send,
    status: int,
    detail: str,
    *,
    title: str | None = None,
    faults: Iterable[Fault] = (),
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """An error as ``application/problem+json`` (RFC 9457)."""
    body: dict[str, Any] = {"title": title or http.HTTPStatus(status).phrase, "status": status, "detail": detail}
    if errors := [fault._asdict() for fault in faults]:
        body["errors"] = errors
    await answer(send, status, [PROBLEM, *headers], encode_json(body))


async def refuse(send: Send, error: DiscoveryError) -> None:
    """The one table from errors to answers."""
    match error:
        case Rejected():
            extra = [(name.encode(), value.encode()) for name, value in error.headers]
            await problem(send, error.status, error.detail, title=error.title, faults=error.faults, headers=extra)
        case Unavailable():
            retry = (b"retry-after", b"%d" % random.randint(1, 1 + error.retry_after_secs))  # noqa: S311
            await problem(send, 503, error.detail, headers=[retry, (b"connection", b"close")])
        case _:
            await problem(send, 500, "An error in the service; its log has more.")


def too_many(what: str, limit: int) -> Rejected:
    """503 for a reader above a cap, spread so that readers do not come back in step."""
    retry = str(random.randint(2, 10))  # noqa: S311
    detail = f"There are {limit:,} {what} open, the most that this replica serves (--max-streams)."
    return Rejected(503, "Too many streams", detail, headers=(("retry-after", retry),))


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
