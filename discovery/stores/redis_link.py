"""Connections to Redis that carry many callers at once, with a deadline on every answer.

redis-py opens them (address, user, password, database, handshake); from then on commands leave as ready bytes, those of
one turn of the loop in one write, and answers come back in order. Knows nothing of pools or keys.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from discovery.errors import Unavailable

PAUSE_SECS = 1.0
BACKOFF_FIRST_SECS = 0.05
BACKOFF_LIMIT_SECS = 0.5


class Refused(Exception):
    """An error that Redis gave as the answer to one command; the others of the same write are untouched."""


class Broken(Unavailable):
    """The connection went away with commands unanswered: they may or may not have been done."""


def pack(*parts: bytes | str | int) -> bytes:
    """One command as bytes on the wire."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded)


class Address:
    """Where Redis answers, and as whom: made from the URL once, the password file read again for each connection."""

    def __init__(self, url: str, password_path: str | None, timeout_secs: float) -> None:
        options: dict[str, Any] = dict(parse_url(url))
        self._kind: type[AbstractConnection] = options.pop("connection_class", Connection)
        self.database = int(options.get("db") or 0)
        self._options = options
        self._password_path = password_path
        self._timeout_secs = timeout_secs

    def __str__(self) -> str:
        """For people: no user, no password."""
        if issubclass(self._kind, UnixDomainSocketConnection):
            return f"unix://{self._options['path']}?db={self.database}"
        host = self._options.get("host", "localhost")
        return f"redis://{f'[{host}]' if ':' in host else host}:{self._options.get('port', 6379)}/{self.database}"

    async def open(self) -> AbstractConnection:
        """A connection after its handshake. Raises ``Unavailable`` with the reason."""
        options = dict(self._options)
        if self._password_path is not None:
            options["password"] = _read_password(self._password_path)
        connection = self._kind(
            **options,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=self._timeout_secs,
            retry=Retry(NoBackoff(), 0),
            client_name="discovery",
        )
        try:
            async with asyncio.timeout(self._timeout_secs):
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, RedisError | OSError | TimeoutError):
                raise Unavailable(f"Redis at {self}: {_reason(error)}") from None
            raise
        return connection


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
        self, connection: AbstractConnection, timeout_secs: float, on_message: Callable[[Any], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_secs = timeout_secs
        self._on_message = on_message
        self._reader = hiredis.Reader(replyError=Refused, protocolError=Refused)
        self._calls: deque[_Call] = deque()
        self._outgoing: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self._writer = _take_over(connection)
        self._transport: asyncio.Transport = self._writer.transport  # type: ignore[assignment]
        self._transport.set_protocol(self)
        if self._transport.is_closing():
            self._fail("the connection was closed")

    def send(self, command: bytes) -> None:
        """Write a command whose answer goes to ``on_message``."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(command)

    def call(self, commands: bytes, expected: int = 1) -> asyncio.Future[list[Any]]:
        """Write commands and get their answers, of which an entry may be ``Refused``."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if self.closed.done():
            future.set_exception(Broken(self.closed.result()))
            return future
        self.send(commands)
        deadline = self._loop.time() + self._timeout_secs
        self._calls.append(_Call(future, expected, deadline))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadline)
        return future

    def abort(self, reason: str) -> None:
        """Drop the connection; whoever waits hears ``reason``."""
        self._fail(reason)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._reader.feed(data)
        try:
            while not self.closed.done() and (reply := self._reader.gets()) is not False:
                self._take(reply)
        except Refused as error:
            self._fail(f"what it sent is not the Redis protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._fail(f"the connection was lost{f' ({error})' if error else ''}")

    def _take(self, reply: Any) -> None:
        if self._on_message is not None:
            self._on_message(reply)
            return
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
        late = self._loop.time() - self._calls[0].deadline
        if late > PAUSE_SECS:  # the process was stopped, not Redis: ask for the answers' time once more
            for call in self._calls:
                call.deadline = self._loop.time() + self._timeout_secs
        if self._calls[0].deadline <= self._loop.time():
            self._fail(f"no answer within {self._timeout_secs:g} s", Unavailable)
        else:
            self._timer = self._loop.call_at(self._calls[0].deadline, self._check_deadline)

    def _fail(self, reason: str, kind: type[Unavailable] = Broken) -> None:
        if self.closed.done():
            return
        self.closed.set_result(reason)
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

    async def call(self, commands: bytes, expected: int = 1) -> list[Any]:
        """Answers to commands that may be sent twice: a connection that broke under them is replaced once.

        Raises ``Unavailable`` when there is no answer in time; an entry of the answers may be ``Refused``.
        """
        link = self._link
        try:
            if link is not None and not link.closed.done():
                with contextlib.suppress(Broken):
                    return await link.call(commands, expected)
            return await (await self._open()).call(commands, expected)
        except Unavailable as error:
            detail = (
                error.detail if error.detail.startswith("Redis at") else f"Redis at {self._address}: {error.detail}"
            )
            raise Unavailable(detail) from None

    def reset(self, reason: str) -> None:
        """Drop the connection now, so that the next call finds out anew where Redis is.

        For whoever saw that this is not, or no longer, the server to talk to. Calls on their way are made again there.
        """
        if self._link is not None:
            self._link.abort(reason)

    async def close(self) -> None:
        """Drop the connection and any attempt to open one."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._link is not None:
            self._link.abort("closing")

    async def _open(self) -> Link:
        if self._link is not None and not self._link.closed.done():
            return self._link
        if self._opening is None:
            if asyncio.get_running_loop().time() < self._not_before:
                raise Unavailable(self._last_error)
            self._opening = asyncio.create_task(self._open_once())
        return await asyncio.shield(self._opening)

    async def _open_once(self) -> Link:
        try:
            self._link = Link(await self._address.open(), self._timeout_secs)
        except Unavailable as error:
            ceiling = min(BACKOFF_LIMIT_SECS, BACKOFF_FIRST_SECS * 2**self._failures)
            self._not_before = asyncio.get_running_loop().time() + ceiling * random.uniform(0.5, 1.0)  # noqa: S311
            self._failures = min(self._failures + 1, 10)
            self._last_error = error.detail
            raise
        finally:
            self._opening = None
        self._failures = 0
        return self._link


def first_refusal(replies: Sequence[Any]) -> Refused | None:
    """The first error among the answers of a batch."""
    return next((reply for reply in replies if isinstance(reply, Refused)), None)


def _take_over(connection: AbstractConnection) -> asyncio.StreamWriter:
    """The stream of an open connection, which from now on is ours alone to close.

    The writer must live as long as the link: it closes its transport when it is collected.
    """
    writer = connection._writer
    if writer is None:
        raise Broken("the connection was lost right after its handshake")
    connection._reader = connection._writer = None
    return writer


def _read_password(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"the Redis password file {path} cannot be read: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer to the handshake in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
