"""Connections to Redis that carry many callers at once, with a deadline on every answer.

The address opens them; from then on commands leave as ready bytes, those of one turn of the loop in one write, and
answers come back in order. A line replaces a connection that broke, fell silent, or leads to a server that says it is
the wrong one. Knows nothing of pools or keys, and of topologies only that the right server may have changed.
"""

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import hiredis

from discovery.errors import Unavailable
from discovery.stores.redis.node import Connected, Place

PAUSE_SECS = 1.0
BACKOFF_FIRST_SECS = 0.05
BACKOFF_LIMIT_SECS = 0.5
AGAIN_SECS = 0.05
TEND_SECS = 0.5
SURVEY_SECS = 10.0

WRONG_SERVER = ("READONLY", "MOVED", "CLUSTERDOWN", "MASTERDOWN")
"""Answers after which another server may be the right one: the address is asked anew."""

NOT_YET = ("MOVED", "ASK", "TRYAGAIN")
"""Answers of a Cluster whose slot moves: the same is sent again while there is time."""

# Redis below 7 puts the answer to a script's command into an error of its own.
_sign = re.compile(r"(?:ERR Error running script.* -)?([A-Z]+)\b").match


class Refused(Exception):
    """An error that Redis gave as the answer to one command; the others of the same write are untouched."""


class Broken(Unavailable):
    """The connection went away with commands unanswered: they may or may not have been done."""


class Address(Protocol):
    """Where Redis is. As text it is for people: no user, no password."""

    database: int
    survey: tuple[str, ...]
    """A command whose answers ``learn`` wants from time to time; of most topologies none."""

    async def open(self) -> Connected:
        """A connection to the server that is the right one now. Raises ``Unavailable`` that begins with "Redis at"."""

    def moved(self, text: str) -> None:
        """Take note of a ``MOVED`` answer."""

    def learn(self, answer: Any, place: Place) -> None:
        """Take note of the answer that ``place`` gave to ``survey``."""


def pack(*parts: bytes | str | int) -> bytes:
    """One command as bytes on the wire."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded)


class Answers(asyncio.Future[list[Any]]):
    """The answers to one call. Whoever waits for them does little then, and needs no task for it: see ``exchange``."""

    __slots__ = ()
    needs_no_task = True


class _Call:
    __slots__ = ("deadline", "expected", "future", "replies")

    def __init__(self, future: asyncio.Future[list[Any]], expected: int, deadline: float) -> None:
        self.future = future
        self.expected = expected
        self.deadline = deadline
        self.replies: list[Any] = []


class Link(asyncio.Protocol):
    """One open connection. Every call is answered, or fails with ``Unavailable`` at its deadline at the latest."""

    def __init__(
        self, connected: Connected, timeout_secs: float, on_message: Callable[[Any], None] | None = None
    ) -> None:
        self.place = connected.place
        self.loop = asyncio.get_running_loop()
        self.heard_at = self.loop.time()
        self._timeout_secs = timeout_secs
        self._on_message = on_message
        self._reader = hiredis.Reader(replyError=Refused, protocolError=Refused)
        self._calls: deque[_Call] = deque()
        self._outgoing: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[str] = self.loop.create_future()
        self._writer = connected.hand_over()
        self._transport: asyncio.Transport = self._writer.transport  # type: ignore[assignment]
        self._transport.set_protocol(self)
        if self._transport.is_closing():
            self._fail("the connection was closed")

    def send(self, command: bytes) -> None:
        """Write a command whose answer goes to ``on_message``."""
        if not self._outgoing:
            self.loop.call_soon(self._flush)
        self._outgoing.append(command)

    @property
    def node(self) -> str:
        """The server at the other end, as host and port."""
        return str(self.place)

    def call(self, commands: bytes, expected: int = 1, deadline: float | None = None) -> asyncio.Future[list[Any]]:
        """Write commands and get their answers, of which an entry may be ``Refused``.

        A server that does not answer in ``timeout_secs`` is given up with the connection; a ``deadline`` before that
        ends this call alone.
        """
        future = Answers(loop=self.loop)
        if self.closed.done():
            future.set_exception(Broken(self.closed.result()))
            return future
        self.send(commands)
        given_up_at = self.loop.time() + self._timeout_secs
        self._calls.append(_Call(future, expected, given_up_at))
        if self._timer is None:
            self._timer = self.loop.call_at(given_up_at, self._check_deadline)
        if deadline is not None and deadline < given_up_at:
            ending = self.loop.call_at(deadline, _end_late, future)
            future.add_done_callback(lambda _: ending.cancel())
        return future

    @property
    def idle_secs(self) -> float:
        """Seconds since the last sign of life, while nothing is waited for; else 0."""
        return 0.0 if self._calls else self.loop.time() - self.heard_at

    def abort(self, reason: str) -> None:
        """Drop the connection; whoever waits hears ``reason``."""
        self._fail(reason)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self.heard_at = self.loop.time()
        self._reader.feed(data)
        gets, closed, take = self._reader.gets, self.closed, self._on_message or self._take
        try:
            while not closed.done() and (reply := gets()) is not False:
                take(reply)
        except Refused as error:
            self._fail(f"what it sent is not the Redis protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._fail(f"the connection was lost{f' ({error})' if error else ''}")

    def _take(self, reply: Any) -> None:
        if not self._calls:
            self._fail(f"an answer nobody asked for: {str(reply)[:80]}")
            return
        call = self._calls[0]
        call.replies.append(reply)
        if len(call.replies) == call.expected:
            self._calls.popleft()
            if not call.future.done():
                call.future.set_result(call.replies)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(outgoing))

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._calls:
            return
        late = self.loop.time() - self._calls[0].deadline
        if late > PAUSE_SECS:  # the process was stopped, not Redis: ask for the answers' time once more
            for call in self._calls:
                call.deadline = self.loop.time() + self._timeout_secs
        if self._calls[0].deadline <= self.loop.time():
            self._fail(f"no answer within {self._timeout_secs:g} s", Unavailable)
        else:
            self._timer = self.loop.call_at(self._calls[0].deadline, self._check_deadline)

    def _fail(self, reason: str, kind: type[Unavailable] = Broken) -> None:
        if self.closed.done():
            return
        self.closed.set_result(reason)
        self._on_message = None  # it leads to whoever holds this link
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        while self._calls:
            future = self._calls.popleft().future
            if not future.done():
                future.set_exception(kind(reason))


class Line:
    """A link that is opened when needed and again after it broke, with a pause after an attempt that failed."""

    def __init__(self, address: Address, timeout_secs: float) -> None:
        self._address = address
        self._timeout_secs = timeout_secs
        self._link: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last_error = ""
        self._drops = 0
        self._no_drop_before = 0.0
        self._tending: asyncio.TimerHandle | None = None
        self._surveyed_at = 0.0
        self.generation = 0
        """How many connections there have been: what was read over several calls is of one server only within one."""

    @property
    def node(self) -> str:
        """The server in use as host and port; empty while there is none."""
        link = self._open_link()
        return "" if link is None else link.node

    async def call(self, commands: bytes, expected: int = 1) -> list[Any]:
        """Answers to commands that may be sent twice: a connection that broke under them is replaced once.

        Where a Cluster's slot moves they are sent again until there is an answer. All of it takes ``timeout_secs`` at
        most. Raises ``Unavailable`` when there is no answer in time; an entry of the answers may be ``Refused``.
        """
        link = self._link
        # To ask for the running loop is a call of the system each time, on Python 3.11.
        loop = asyncio.get_running_loop() if link is None else link.loop
        deadline = loop.time() + self._timeout_secs
        sign = said = ""
        try:
            while True:
                replies = None
                if (link := self._link) is not None and not link.closed.done():
                    try:
                        replies = await link.call(commands, expected, deadline)
                    except Broken:
                        replies = None  # once more, on another connection
                if link is None or replies is None:
                    link = await self._open(deadline)
                    replies = await link.call(commands, expected, deadline)
                sign, said = _sign_of(replies)
                if not sign:
                    self._drops = 0
                    return replies
                if not await self._may_ask_again(sign, said, link, deadline):
                    return replies
        except Unavailable as error:
            detail = error.detail
            if sign and loop.time() >= deadline - AGAIN_SECS:
                detail = f"its slot is being moved, for longer than {self._timeout_secs:g} s: {said[:100]}"
            raise Unavailable(
                detail if detail.startswith("Redis at") else f"Redis at {self._shown}: {detail}"
            ) from None

    @property
    def _shown(self) -> str:
        address, node = str(self._address), self.node
        return address if node in address else f"{address}, node {node}"

    async def _may_ask_again(self, sign: str, refusal: str, link: Link, deadline: float) -> bool:
        """Draw the conclusions from a refusal; whether the same commands are to be sent once more."""
        if sign == "MOVED":
            self._address.moved(refusal)
        dropped = sign in WRONG_SERVER and self._drop(link, refusal)
        if sign not in NOT_YET:
            return False
        pause = 0.0 if dropped and self._drops <= 1 else AGAIN_SECS * random.uniform(0.5, 1.0)  # noqa: S311
        if asyncio.get_running_loop().time() + pause >= deadline:
            await asyncio.sleep(max(0.0, deadline - asyncio.get_running_loop().time()))
            raise Unavailable("no answer in time")
        await asyncio.sleep(pause)
        return True

    def _drop(self, link: Link, reason: str) -> bool:
        """Give up a connection, at growing intervals: a server may stay wrong for long. Whether it is given up now."""
        now = asyncio.get_running_loop().time()
        if link is not self._link:
            return True
        if now < self._no_drop_before:
            return False
        self._no_drop_before = now + _pause(self._drops)
        self._drops = min(self._drops + 1, 10)
        self.reset(reason)
        return True

    def reset(self, reason: str) -> None:
        """Drop the connection now, so that the next call finds out anew where Redis is.

        For whoever saw that this is not, or no longer, the server to talk to. Calls on their way are made again there.
        """
        if self._link is not None:
            self._link.abort(reason)

    async def close(self) -> None:
        """Drop the connection and any attempt to open one."""
        if self._tending is not None:
            self._tending.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._link is not None:
            self._link.abort("closing")

    # ---- opening

    def _open_link(self) -> Link | None:
        return self._link if self._link is not None and not self._link.closed.done() else None

    async def _open(self, deadline: float) -> Link:
        if (link := self._open_link()) is not None:
            return link
        now = asyncio.get_running_loop().time()
        if self._opening is None:
            if now < self._not_before:
                raise Unavailable(self._last_error)
            self._opening = asyncio.create_task(self._open_once())
            self._opening.add_done_callback(_look_at)
        opening = self._opening
        try:
            await asyncio.wait((opening,), timeout=max(0.0, deadline - now))
            if not opening.done():
                raise Unavailable(f"no connection within {self._timeout_secs:g} s")
            return opening.result()
        finally:
            del opening  # an error's traceback leads to this frame, which must not lead back to the error

    async def _open_once(self) -> Link:
        try:
            self._link = Link(await self._address.open(), self._timeout_secs)
        except Unavailable as error:
            self._not_before = asyncio.get_running_loop().time() + _pause(self._failures)
            self._failures = min(self._failures + 1, 10)
            self._last_error = error.detail
            raise
        finally:
            self._opening = None
        self._failures = 0
        self.generation += 1
        self._tend(self._link)
        return self._link

    def _tend(self, link: Link) -> None:
        """Ask an idle connection for a sign of life: otherwise it is the next caller who finds it dead."""
        if link is not self._open_link():
            return
        loop = asyncio.get_running_loop()
        if self._address.survey and loop.time() - self._surveyed_at > SURVEY_SECS:
            self._surveyed_at = loop.time()
            link.call(pack(*self._address.survey)).add_done_callback(lambda done: self._learn(done, link.place))
        elif link.idle_secs > TEND_SECS / 2:
            link.call(pack("PING")).add_done_callback(_look_at)
        self._tending = loop.call_later(TEND_SECS, self._tend, link)

    def _learn(self, done: "asyncio.Future[list[Any]]", place: Place) -> None:
        if _look_at(done) is None and isinstance(done.result()[0], list):
            self._address.learn(done.result()[0], place)


def first_refusal(replies: Sequence[Any]) -> Refused | None:
    """The first error among the answers of a batch."""
    return next((reply for reply in replies if isinstance(reply, Refused)), None)


def _sign_of(replies: Sequence[Any]) -> tuple[str, str]:
    """The first answer that says that this is not the right server, or not now: its first word and all of it."""
    for reply in replies:
        if isinstance(reply, Refused):
            said = str(reply)
            match = _sign(said)
            if match and (match[1] in WRONG_SERVER or match[1] in NOT_YET):
                return match[1], said
    return "", ""


def _pause(failures: int) -> float:
    ceiling: float = min(BACKOFF_LIMIT_SECS, BACKOFF_FIRST_SECS * 2**failures)
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311


def _look_at(done: "asyncio.Future[Any]") -> BaseException | None:
    """The error of what nobody may be waiting for."""
    return asyncio.CancelledError() if done.cancelled() else done.exception()


def _end_late(future: "asyncio.Future[list[Any]]") -> None:
    if not future.done():
        future.set_exception(Unavailable("no answer in time"))
