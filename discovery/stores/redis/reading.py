"""What is read from Redis: its state, every registration, and what leases have left.

Each question is one write of ready commands and the answers in their order. What Redis says of itself is asked last in
a batch, so that it also holds for what was read before. Judges nothing.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from discovery.model import PoolKey
from discovery.registrations import key_from_path, key_paths
from discovery.stores import Health, Stored
from discovery.stores.redis.link import first_refusal, pack
from discovery.stores.redis.names import Names, bulk, revision_of, text
from discovery.stores.redis.server import Server
from discovery.stores.redis.signs import Signs
from discovery.stores.redis.signs import read as read_signs

SCAN_COUNT = 250
_SIGNS = pack("INFO", "server") + pack("INFO", "replication") + pack("INFO", "stats")  # one section each, for 6.2
_SIGNS_COUNT = 3
_PTTL = b"*2\r\n$4\r\nPTTL\r\n"


class State(NamedTuple):
    """The store's health, and what its server said of itself in the same batch."""

    health: Health
    signs: Signs


class Leases(NamedTuple):
    """Seconds left for each pool that was asked for, the epoch after them, and then the server's signs."""

    secs: list[float | None]
    epoch: str | None
    signs: Signs


class Reader:
    """Questions to one server. Every one raises ``Unavailable`` where it has no answer."""

    def __init__(
        self,
        server: Server,
        names: Names,
        lease_secs: float,
        report: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._names = names
        self._lease_secs = lease_secs
        self._report = report
        self._clock = clock
        self.value_of: Callable[[PoolKey], bytes | None] = lambda _: None

    async def state(self) -> State:
        """Revision, epoch and settling, with the server's signs and its policy.

        Fails while a Cluster moves the slot: a SCAN then shows half of the keys, and no other answer tells.
        """
        names, asked_at = self._names, self._clock()
        commands = pack("MGET", names.revision, names.epoch, names.settling) + pack("GET", names.nothing)
        commands += pack("INFO", "memory") + _SIGNS
        values, nothing, *sections = await self._server.reads.call(commands, 3 + _SIGNS_COUNT)
        if refusal := first_refusal([values, nothing]):
            raise self._server.refusal(refusal)
        signs = read_signs(sections, asked_at, self._clock())
        self._server.observe(signs)
        revision, epoch, settling = values
        return State(Health(asked_at, text(epoch) or "", revision_of(revision), text(settling)), signs)

    async def leases(self, keys: Sequence[PoolKey]) -> Leases:
        """What the leases of these pools have left; None where the key is gone."""
        asked_at, pools = self._clock(), self._names.pools
        before = len(pools)
        # As one text: thousands of leases may end at once, and both a path and what stands before it are ASCII.
        questions = [f"*2\r\n$4\r\nPTTL\r\n${before + len(path)}\r\n{pools}{path}\r\n" for path in key_paths(keys)]
        commands = "".join(questions).encode() + pack("GET", self._names.epoch) + _SIGNS
        answers = await self._server.reads.call(commands, len(keys) + 1 + _SIGNS_COUNT)
        *times, epoch = answers[:-_SIGNS_COUNT]
        if refusal := first_refusal([*times, epoch]):
            raise self._server.refusal(refusal)
        signs = read_signs(answers[-_SIGNS_COUNT:], asked_at, self._clock())
        self._server.observe(signs)
        return Leases([None if ms == -2 else self._left(ms) for ms in times], text(epoch), signs)

    async def items(self, as_of: float) -> dict[PoolKey, Stored]:
        """Every registration, its lease as of that time; foreign keys under the prefix are reported and skipped."""
        items: dict[PoolKey, Stored] = {}
        cursor = b"0"
        while True:
            (answer,) = await self._read(pack("SCAN", cursor, "MATCH", self._names.pools + "*", "COUNT", SCAN_COUNT))
            cursor, names = answer
            if names:
                await self._read_some(names, as_of, items)
            if cursor == b"0":
                return items

    async def _read_some(self, names: list[bytes], as_of: float, items: dict[PoolKey, Stored]) -> None:
        # A long list takes its time, and by its end leases have less left: without this their ends would seem earlier.
        since = self._clock() - as_of
        commands = pack("MGET", *names) + b"".join([_PTTL + bulk(name) for name in names])
        values, *times = await self._read(commands, 1 + len(names))
        for name, value, ms in zip(names, values, times, strict=True):
            if ms == -2:
                continue
            try:
                if value is None:
                    raise ValueError("it is not a string")
                key = key_from_path(name[len(self._names.pools) :].decode())
            except ValueError as error:
                shown = name.decode(errors="backslashreplace")
                self._report(shown, f"the key {shown} is skipped: {error}")
            else:
                known = self.value_of(key)
                shared = known if known is not None and known == value else value
                items[key] = Stored(shared, since + self._left(ms))

    async def _read(self, commands: bytes, expected: int = 1) -> list[Any]:
        replies = await self._server.reads.call(commands, expected)
        if refusal := first_refusal(replies):
            raise self._server.refusal(refusal)
        return replies

    def _left(self, ms: int) -> float:
        """Seconds left; a key that somebody set by hand without a TTL is asked about again after a lease."""
        return self._lease_secs if ms == -1 else max(0, ms) / 1000
