"""One request with the app: from the moment it is complete to the end of its answer.

Between ``connection``, which hands the request over and hears of the end, and the ASGI app. Knows neither how a request
arrives nor what waits behind it on the connection.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from discovery.http.limits import INTERNAL_ERROR
from discovery.http.peers import Peer

JOINED_BYTES = 65_536

logger = logging.getLogger(__name__)


class HeldHead:
    """Stands in for the transport until an answer's first body bytes: head and body leave in one system call."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Keep the head; with what follows it, be done."""
        if self._head is None:
            self._head = data
            return
        self._cycle.transport = self._transport
        if len(data) <= JOINED_BYTES:
            self._transport.write(self._head + data)
        else:
            self._transport.writelines((self._head, data))

    def flush(self) -> None:
        """An answer without a body ends here."""
        self._cycle.transport = self._transport
        if self._head is not None:
            self._transport.write(self._head)

    def close(self) -> None:
        """Close behind the head."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """See ``asyncio.Transport``."""
        return self._transport.is_closing()


async def run_app(cycle: RequestResponseCycle, app: Callable[..., Any], peer: Peer) -> None:
    """Let the app answer a complete request; where it fails to, say so in the log and to the peer."""
    try:
        await app(cycle.scope, cycle.receive, cycle.send)
        if not cycle.response_complete and not cycle.disconnected:
            logger.error("%s ended without an answer", _describe(cycle))
    except Exception:
        # After the peer has left, an error is most likely the app noticing just that.
        level = logging.DEBUG if cycle.disconnected else logging.ERROR
        logger.log(level, "%s failed", _describe(cycle), exc_info=True)
    except BaseException:
        peer.abort()
        raise
    finally:
        if not cycle.response_complete and not cycle.disconnected:
            await _answer_for_app(cycle, peer)
        cycle.on_response = _nothing  # breaks the reference cycle between the connection and its last answer


async def _answer_for_app(cycle: RequestResponseCycle, peer: Peer) -> None:
    if cycle.response_started or peer.transport.is_closing():
        peer.close()  # in the middle of an answer: the missing rest tells the peer
        return
    headers, body = INTERNAL_ERROR.headers_and_body()
    await cycle.send({"type": "http.response.start", "status": INTERNAL_ERROR.status, "headers": headers})
    await cycle.send({"type": "http.response.body", "body": body, "more_body": False})


def _describe(cycle: RequestResponseCycle) -> str:
    # The path as it came, still escaped: an unescaped one could write lines of its own into the log.
    return f"{cycle.scope['method']} {cycle.scope['raw_path'].decode('ascii')}"


def _nothing() -> None:
    pass
