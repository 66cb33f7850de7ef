"""Answers that every route shares: whole ones, problems, and the one table from errors to statuses.

Plain ASGI messages; knows no route, no list, and not what was asked.
"""

import http
import random
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from discovery.errors import DiscoveryError, Fault, Rejected, Unavailable
from discovery.http.request_ids import id_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

encode_json = msgspec.json.Encoder().encode

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
NO_CACHE = (b"cache-control", b"no-cache")
FAULT = "An error in the service; its log has more."


async def answer(send: Send, status: int, headers: Headers, body: bytes = b"") -> None:
    """One whole answer."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_in_pieces(send: Send, status: int, headers: Headers, pieces: list[bytes]) -> None:
    """One whole answer with the length in its headers and a body in pieces, which is nowhere put together.

    ``pieces`` is an addition to ASGI that this server's exchanges know.
    """
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "pieces": pieces})


async def answer_by_and_by(send: Send, status: int, headers: Headers, pieces: Iterable[bytes]) -> None:
    """The same with pieces that are made when there is room for them: a slow reader holds one of them."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def answer_as_is(send: Send, status: int, headers: Headers, body: bytes = b"") -> None:
    """One whole answer whose headers are what they have to be: ready ones, or those of an answer without a body.

    This server's exchanges take it in one call, where nothing stands between them and the route.
    """
    answer_now = getattr(getattr(send, "__self__", None), "answer_now", None)
    if answer_now is not None and answer_now(status, headers, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def problem_document(
    status: int, detail: str, title: str | None = None, faults: Iterable[Fault] = ()
) -> dict[str, Any]:
    """What a problem says; its title is the status's phrase where it has none of its own."""
    document: dict[str, Any] = {"title": title or http.HTTPStatus(status).phrase, "status": status, "detail": detail}
    if errors := [fault._asdict() for fault in faults]:
        document["errors"] = errors
    return document


async def problem(
    send: Send,
    status: int,
    detail: str,
    *,
    title: str | None = None,
    faults: Iterable[Fault] = (),
    headers: Iterable[tuple[bytes, bytes]] = (),
    scope: Scope | None = None,
) -> None:
    """An error as ``application/problem+json`` (RFC 9457); with the request's id where the error is on this side."""
    document = problem_document(status, detail, title, faults)
    if status >= 500 and scope is not None:
        document["request_id"] = id_of(scope)
    await answer(send, status, [PROBLEM, *headers], encode_json(document))


async def refuse(send: Send, error: DiscoveryError, scope: Scope | None = None) -> None:
    """The one table from errors to answers."""
    match error:
        case Rejected():
            extra = [(name.encode(), value.encode()) for name, value in error.headers]
            await problem(
                send, error.status, error.detail, title=error.title, faults=error.faults, headers=extra, scope=scope
            )
        case Unavailable():
            retry = (b"retry-after", b"%d" % random.randint(1, 1 + error.retry_after_secs))  # noqa: S311
            await problem(send, 503, error.detail, headers=[retry, (b"connection", b"close")], scope=scope)
        case _:
            await problem(send, 500, FAULT, scope=scope)


def too_many(what: str, limit: int) -> Rejected:
    """503 for a reader above a cap, spread so that readers do not come back in step."""
    retry = str(random.randint(2, 10))  # noqa: S311
    detail = f"There are {limit:,} {what} open, the most that this replica serves (--max-streams)."
    return Rejected(503, "Too many streams", detail, headers=(("retry-after", retry),))
