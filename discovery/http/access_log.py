"""The access log: one line for each request when it has ended, streams at their end; off unless it is asked for.

Told by ``exchange`` and ``connection`` of what has ended. Adds up the bytes of an answer in an exchange of its own
kind, so that nobody pays for it who wants no such log. Never shows a token, nor what a query holds beyond filters.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from discovery.http.exchange import Exchange
from discovery.http.request_ids import REQUEST_ID
from discovery.logs import Fields, event, one_line

logger = logging.getLogger(__name__)

IDENTITY = "identity"
_SHOWN_PARAMETERS = frozenset(
    {
        b"model",
        b"cluster_id",
        b"namespace",
        b"capability",
        b"region",
        b"role",
        b"incomplete",
        b"instance_id",
        b"pool",
    }
)
_MOST_CHARACTERS = 1024


class CountedExchange(Exchange):
    """An exchange that knows how many bytes it has written."""

    __slots__ = ("written",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.written = 0

    def write_now(self, framed: bytes) -> bool:
        """See ``Exchange``."""
        taken = super().write_now(framed)
        if taken and not self.disconnected:
            self.written += len(framed)
        return taken

    def _write_out(self, data: bytes) -> None:
        self.written += len(self._head) + len(data)
        super()._write_out(data)

    def _write_parts(self, parts: Sequence[bytes]) -> None:
        self.written += sum(map(len, parts))
        super()._write_parts(parts)


def finished(exchange: Exchange) -> None:
    """Say what was asked, by whom, and what came of it."""
    scope = exchange.scope
    asked = _asked(scope)
    milliseconds = round((time.perf_counter() - exchange.begun_at) * 1000, 3)
    written = exchange.written if isinstance(exchange, CountedExchange) else 0
    identity = scope.get(IDENTITY)
    client = scope.get("client")
    fields: Fields = {
        "method": scope["method"],
        "path": asked,
        "status": exchange.status,
        "bytes": written,
        "duration_ms": milliseconds,
        "peer": client[0] if client else "",
        "identity": identity.name if identity is not None else "",
    }
    if REQUEST_ID in scope:
        fields["request_id"] = scope[REQUEST_ID]
    who = f" as {fields['identity']}" if identity is not None else ""
    text = "%s %s %d, %d bytes in %.1f ms, to %s%s"
    if exchange.status == 0 or not exchange.response_complete:
        text += ", which left before the end" if exchange.disconnected else ", cut off"
    parts = (fields["method"], asked, exchange.status, written, milliseconds, fields["peer"], who)
    event(logger, logging.INFO, "request.finished", text, *parts, **fields)


def refused(status: int, client: tuple[str, int] | None, request_id: str | None, written: int) -> None:
    """Say that a request never came as far as the app."""
    peer = client[0] if client else ""
    fields: Fields = {"status": status, "bytes": written, "peer": peer}
    if request_id is not None:
        fields["request_id"] = request_id
    text = "a request that was not read to its end %d, %d bytes, to %s"
    event(logger, logging.INFO, "request.refused", text, status, written, peer, **fields)


def _asked(scope: Mapping[str, Any]) -> str:
    """The target as it came, still escaped; values of parameters that no path knows may be secrets."""
    query = b"&".join(map(_shown, scope["query_string"].split(b"&"))) if scope["query_string"] else b""
    target = scope["raw_path"] + (b"?" + query if query else b"")
    text = one_line(target.decode("latin-1"))
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def _shown(parameter: bytes) -> bytes:
    name, _, _ = parameter.partition(b"=")
    return parameter if name in _SHOWN_PARAMETERS else b"***"
