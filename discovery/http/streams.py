"""Server-sent events: one small object per subscriber, written to from the publisher's own turn.

A subscriber that is up to date costs no task of its own beyond the request's, which sleeps until the client leaves.
What is published is framed once for all of them and handed to each connection as it is. One that cannot take a write at
once is stepped out of the publisher's way and catches up from the journal, or with a new snapshot, at its own speed: it
holds a token, never a queue.
"""

import asyncio
import random
from collections.abc import Iterable
from typing import Any, Protocol

from discovery.errors import Unavailable
from discovery.http.answers import NO_CACHE, Headers, Receive, Scope, Send, too_many
from discovery.http.requests import header
from discovery.listing.selection import Selection

COMMENT_SECS = 15
RETRY_MS = (1000, 3000)

WIRE = "discovery.wire"
"""Where the scope of a request has its connection's ``Wire``."""

_COMMENT = b":\n\n"
_COMMENT_CHUNK = b"3\r\n:\n\n\r\n"


class Wire(Protocol):
    """A connection, as far as a running answer may write to it past ``send``: from outside of its task, at once."""

    @property
    def chunked_encoding(self) -> bool | None:
        """Whether the answer's body goes out in chunks; known once its head was sent."""

    def write_now(self, framed: bytes) -> bool:
        """Write bytes that are framed already; false, and nothing is written, where the peer does not keep up."""


class Streams:
    """All open streams and parked polls of one replica, under one cap."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: list[set[Stream]] = [set() for _ in range(COMMENT_SECS)]
        self._parked = 0
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self.frames = self.chunk = b""
        self.fell_behind = self.resynced = self.refused = 0
        self.closed = False

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(map(len, self._open))

    @property
    def parked(self) -> int:
        """How many long polls wait."""
        return self._parked

    async def serve(self, scope: Scope, receive: Receive, send: Send, selection: Selection[Any]) -> None:
        """Answer one subscription, from its first byte to its last. Raises ``Rejected`` above the cap."""
        self._check_room()
        headers: Headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            NO_CACHE,
            (b"x-accel-buffering", b"no"),
        ]
        stream = Stream(self, selection, send, scope[WIRE], _last_event_id(scope))
        slot = self._open[random.randrange(COMMENT_SECS)]  # noqa: S311
        slot.add(stream)
        selection.readers += 1
        self._start_comments()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            await send({"type": "http.response.body", "body": _retry(), "more_body": True})
            await stream.catch_up()
            await _disconnected(receive)
        finally:
            slot.discard(stream)
            selection.readers -= 1
            stream.leave()

    def frame(self, frames: bytes) -> None:
        """Make what is published a chunk of HTTP/1.1, once for all its subscribers."""
        self.frames, self.chunk = frames, b"%x\r\n%b\r\n" % (len(frames), frames)

    async def park(self, receive: Receive, selection: Selection[Any], token: str, wait_secs: float) -> bool:
        """Wait until the selection's token is another; false where it still is the same at the end.

        The end is also the client's leaving: a poll that nobody waits for any longer must not fill the cap.
        """
        self._check_room()
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_secs
        left = asyncio.create_task(_disconnected(receive))
        self._parked += 1
        selection.readers += 1
        try:
            while selection.token == token:
                if left.done() or self.closed or loop.time() >= until:
                    return False
                change = selection.next_flush()
                await asyncio.wait((change, left), timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
            return True
        finally:
            left.cancel()
            self._parked -= 1
            selection.readers -= 1

    def close(self) -> None:
        """End every stream: a jittered ``retry``, then the regular end of the body."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for slot in self._open:
            for stream in list(slot):
                stream.end()

    def _check_room(self) -> None:
        if self.closed:
            raise Unavailable("This replica is shutting down.")
        if self.streams + self._parked >= self._limit:
            self.refused += 1
            raise too_many("streams and long polls", self._limit)

    def _start_comments(self) -> None:
        if self._timer is None and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._comment)

    def _comment(self) -> None:
        """A comment to one slot of the streams each second, so that each stream hears one every 15 s."""
        self._timer = None
        for stream in list(self._open[self._turn]):
            stream.comment()
        self._turn = (self._turn + 1) % COMMENT_SECS
        if any(self._open):
            self._start_comments()


class Stream:
    """One subscriber; ``token`` names the state that it has assembled so far."""

    __slots__ = ("_certain", "_selection", "_send", "_streams", "_task", "_wire", "gone", "token")

    def __init__(self, streams: Streams, selection: Selection[Any], send: Send, wire: Wire, token: str | None) -> None:
        self._streams = streams
        self._selection = selection
        self._send = send
        self._wire = wire
        self._task: asyncio.Task[None] | None = None
        self.token = token
        self.gone = False
        self._certain = False  # what a reader says of itself may be less than the truth: see ``Selection.since``

    def offer(self, frames: bytes, token: str) -> bool:
        """See ``publisher.Subscriber``."""
        streams, wire = self._streams, self._wire
        if streams.frames is not frames:
            streams.frame(frames)
        if not wire.write_now(streams.chunk if wire.chunked_encoding else frames):
            return False
        self.token = token
        return True

    def fall_behind(self) -> None:
        """See ``publisher.Subscriber``."""
        if not self.gone and self._task is None:
            self._streams.fell_behind += 1
            self._task = asyncio.create_task(self._catch_up_alone())

    async def catch_up(self) -> None:
        """Bring the reader to the present at its own speed, then leave it to the publisher."""
        selection = self._selection
        while not self.gone:
            if self._streams.closed:
                await self._send({"type": "http.response.body", "body": _retry(), "more_body": False})
                self.gone = True
            elif selection.pending:
                await selection.next_flush()
            elif self._certain and self.token == selection.published:
                selection.subscribers.add(self)
                return
            else:
                await self._take_steps(selection)
                self._certain = True

    async def _take_steps(self, selection: Selection[Any]) -> None:
        steps = selection.since(self.token) if self.token is not None else None
        if steps is None:
            self._streams.resynced += self._certain
            token, pieces = selection.snapshot_event()
            await self._write(pieces)
            self.token = token
        for step in steps or ():
            await self._write(step.pieces())
            if self.gone:
                return
            self.token = step.token

    def comment(self) -> None:
        """Keep proxies from closing the stream; a reader that is busy needs none."""
        if self in self._selection.subscribers:
            self._wire.write_now(_COMMENT_CHUNK if self._wire.chunked_encoding else _COMMENT)

    def end(self) -> None:
        """Send the last ``retry`` and end the body, now or when the reader has caught up."""
        if self in self._selection.subscribers:
            self._selection.subscribers.discard(self)
            if _step(self._send({"type": "http.response.body", "body": _retry(), "more_body": False})):
                self.gone = True
            else:
                self.fall_behind()

    def leave(self) -> None:
        """The client is gone: forget it."""
        self.gone = True
        self._selection.subscribers.discard(self)
        if self._task is not None:
            self._task.cancel()

    async def _catch_up_alone(self) -> None:
        try:
            await self.catch_up()
        finally:
            self._task = None

    async def _write(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if self.gone:
                return
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


def _step(sending: Any) -> bool:
    """Step a send by hand: it ends in one step, or the reader's buffer is full and nothing was written."""
    try:
        sending.send(None)
    except StopIteration:
        return True
    except (OSError, RuntimeError):  # the connection is closing; its request's task will hear of it
        return True
    sending.close()
    return False


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _retry() -> bytes:
    return b"retry: %d\n\n" % random.randint(*RETRY_MS)  # noqa: S311


def _last_event_id(scope: Scope) -> str | None:
    value = header(scope, b"last-event-id")
    return value.decode("ascii", "replace") if value else None
