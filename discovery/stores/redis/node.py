"""One Redis server, Sentinel or node of a Cluster: from its name to a connection after the handshake.

The name is resolved for each connection and every address behind it gets its share of the time; certificates and
passwords are read anew for each too, so that moved, renewed and rotated ones are taken without a restart. redis-py
does the handshake. Knows one server at a time; which one to talk to is decided elsewhere. No error repeats a secret.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from discovery.errors import Unavailable

SocketAddress = tuple[int, tuple[Any, ...]]


class Place(NamedTuple):
    """Where a server listens: host and port, or the path of its socket."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Login(msgspec.Struct, frozen=True):
    """As whom: the password itself, or the file that has it."""

    user: str | None = None
    password: str | None = None
    password_path: str | None = None

    def read(self) -> str | None:
        """The password as it is now. Raises ``Unavailable`` where its file cannot be read."""
        if self.password_path is None:
            return self.password
        try:
            return Path(self.password_path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"the Redis password file {self.password_path} cannot be read: {reason_of(error)}"
            ) from None

    def __repr__(self) -> str:
        return "Login(…)"


class Tls(msgspec.Struct, frozen=True):
    """Whose certificates are trusted, and which one is shown; paths of PEM files."""

    ca_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None

    def context(self) -> ssl.SSLContext:
        """What the files say now. Reads files; raises ``Unavailable`` that names the one at fault."""
        at_fault = f"the CA file {self.ca_path}"
        try:
            context = ssl.create_default_context(cafile=self.ca_path)
            if self.cert_path is not None:
                at_fault = f"the certificate {self.cert_path} with the key {self.key_path}"
                # An encrypted key would otherwise be asked for on the terminal.
                context.load_cert_chain(self.cert_path, self.key_path, password=lambda: b"")
        except ssl.SSLError:
            raise Unavailable(
                f"{at_fault} cannot be used: it is no PEM, is encrypted, or does not belong together"
            ) from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"{at_fault} cannot be used: {reason_of(error)}") from None
        return context


class Connected:
    """A connection after its handshake, with nothing on its way."""

    def __init__(self, connection: "_Handshake", place: Place, tls: bool) -> None:
        self.place = place
        self._connection = connection
        self._tls = tls

    async def ask(self, *words: str) -> Any:
        """One command and its answer. Raises ``Unavailable``, also where it is refused."""
        try:
            await self._connection.send_command(*words)
            return await self._connection.read_response()
        except (RedisError, OSError) as error:
            raise Unavailable(f"to {' '.join(words[:2])}: {_reason_on(self._tls, error)}") from None

    def hand_over(self) -> asyncio.StreamWriter:
        """The stream, which from now on is the caller's alone to close.

        The writer must live as long as the transport is used: it closes it when it is collected.
        """
        writer = self._connection._writer
        if writer is None:
            raise Unavailable("the connection was lost right after its handshake")
        self._connection.let_go()
        return writer

    def drop(self) -> None:
        """Close it at once; nothing happens after ``hand_over``."""
        if self._connection._writer is not None:
            self._connection.give_up()


class Dialer:
    """How any server of one kind is connected to: as whom, with TLS or without, on which database."""

    def __init__(
        self,
        login: Login,
        tls: Tls | None = None,
        database: int = 0,
        client_name: str | None = None,
    ) -> None:
        self._login = login
        self._tls = tls
        self._database = database
        self._client_name = client_name
        self._names = Names()

    async def connect(self, place: Place, within_secs: float) -> Connected:
        """A connection after its handshake. Raises ``Unavailable`` with the reason, in time."""
        stage = "no connection in time"
        connection: _Handshake | None = None
        try:
            async with asyncio.timeout(within_secs):
                password = self._login.read()
                context = None if self._tls is None else await asyncio.to_thread(self._tls.context)
                reader, writer = await self._stream(place, context, within_secs)
                stage = "no answer to the handshake in time"
                connection = _Handshake(
                    reader,
                    writer,
                    host=place.host,
                    port=place.port,
                    username=self._login.user,
                    password=password,
                    db=self._database,
                    client_name=self._client_name,
                    protocol=2,
                    socket_timeout=None,
                    socket_connect_timeout=None,
                    driver_info=None,  # CLIENT SETINFO costs a round trip and, where it is refused, a line in ACL LOG
                    retry=Retry(NoBackoff(), 0),
                )
                await connection.connect()  # type: ignore[no-untyped-call]
                return Connected(connection, place, self._tls is not None)
        except BaseException as error:
            if connection is not None:
                connection.give_up()
            if isinstance(error, TimeoutError) and not str(error):
                raise Unavailable(stage) from None
            if isinstance(error, RedisError | OSError):
                on_tls = self._tls is not None and connection is not None
                raise Unavailable(_reason_on(on_tls, error)) from None
            raise

    async def _stream(
        self, place: Place, context: ssl.SSLContext | None, within_secs: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not place.port:
            return await asyncio.open_unix_connection(place.host)
        loop = asyncio.get_running_loop()
        until = loop.time() + within_secs
        addresses = await self._names.resolve(place)
        for left in range(len(addresses), 0, -1):
            family, address = addresses[-left]
            try:
                async with asyncio.timeout((until - loop.time()) / left):
                    return await _open_stream(place.host, family, address, context)
            except OSError:
                if left == 1:
                    raise
        raise OSError(f"no address for {place.host}")


class Names:
    """Host names to addresses. Of one name at most one lookup runs, since a slow one cannot be stopped."""

    def __init__(self) -> None:
        self._lookups: dict[Place, asyncio.Task[list[SocketAddress]]] = {}

    async def resolve(self, place: Place) -> list[SocketAddress]:
        """All addresses as they are now, each with its family."""
        lookup = self._lookups.get(place)
        if lookup is None:
            lookup = self._lookups[place] = asyncio.create_task(_look_up(place))
            lookup.add_done_callback(lambda done: self._end(place, done))
        return await asyncio.shield(lookup)

    def _end(self, place: Place, lookup: "asyncio.Task[list[SocketAddress]]") -> None:
        del self._lookups[place]
        if not lookup.cancelled():
            lookup.exception()  # looked at, also where nobody waits any more


class _Handshake(Connection):
    """redis-py's connection on a stream that is open already."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, **options: Any) -> None:
        super().__init__(**options)
        self._stream = reader, writer

    async def _connect(self) -> None:
        self._reader, self._writer = self._stream

    def let_go(self) -> None:
        """Forget the stream. The parser holds itself by its own methods, and would stay until a garbage collection."""
        self._reader = self._writer = None
        vars(self._parser).clear()
        self._parser._reader = None  # type: ignore[attr-defined]

    def give_up(self) -> None:
        """Close the stream at once."""
        self.let_go()
        self._stream[1].transport.abort()


async def _look_up(place: Place) -> list[SocketAddress]:
    found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _open_stream(
    host: str, family: int, address: Sequence[Any], context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    options: dict[str, Any] = {} if context is None else {"ssl": context, "server_hostname": host}
    reader, writer = await asyncio.open_connection(address[0], address[1], family=family, **options)
    peer = writer.get_extra_info("socket")
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return reader, writer


def slot_of(key: str) -> int:
    """The slot of a Cluster that a key lies in."""
    slot: int = key_slot(key.encode())
    return slot


def _reason_on(tls: bool, error: BaseException) -> str:
    """The reason; a server that wants a certificate hangs up after the handshake, and its alert may be lost."""
    lost = type(error) is LostConnection and not isinstance(error.__context__, ssl.SSLError)
    return reason_of(error) + (", as where it wants a client certificate that it trusts" if tls and lost else "")


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, RedisError) and isinstance(error.__context__, OSError):  # redis-py words it with its numbers
        return reason_of(error.__context__)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved: {error.strerror}"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error).splitlines()[0] if str(error) else type(error).__name__
