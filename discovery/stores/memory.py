"""The store for a laptop or a single replica: registrations in this process's memory.

Leases end by the process's monotonic clock. It begins empty, so it is settling for one lease after its start; a pause
of the whole process (a suspended laptop) counts as an outage, since no relay could have renewed in it.
"""

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from discovery.errors import Unavailable
from discovery.model import PoolKey
from discovery.stores import CONFIRMED_FOR_SECS, Deleted, Event, Health, Listed, Outcome, Put, Remaining, Stored

TICK_SECS = 0.25
PAUSE_SECS = 2.0


class _Instance(msgspec.Struct):
    instance_id: str | None = None


_decode_instance = msgspec.json.Decoder(_Instance).decode


class MemoryStore:
    """Registrations and leases of one process."""

    confirmed_for_secs = CONFIRMED_FOR_SECS
    ends_leases = True

    def __init__(self, lease_secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_secs = lease_secs
        self._clock = clock
        self._values: dict[PoolKey, tuple[bytes, float]] = {}
        self._revision = 0
        self._epoch = uuid.uuid4().hex
        self._settling_until = clock() + lease_secs
        self._settling_reason = "started less than one lease ago"
        self._last_tick = clock()
        self._paused = False
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """See ``Store.put``."""
        self._check_pause()
        now = self._clock()
        old, ends_at = self._values.get(key, (None, 0.0))
        if ends_at <= now:
            old = None
        self._values[key] = (value, now + lease_secs)
        if old == value:
            return Outcome(False, False, self._revision, self._epoch)
        self._revision += 1
        self._announce(Put(key, value, lease_secs, self._epoch, self._revision))
        return Outcome(old is None, True, self._revision, self._epoch)

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``."""
        self._check_pause()
        stored = self._values.get(key)
        if instance_id is not None and (
            stored is None or stored[1] <= self._clock() or _decode_instance(stored[0]).instance_id != instance_id
        ):
            return None
        self._values.pop(key, None)
        self._revision += 1
        deleted = Deleted(key, self._epoch, self._revision)
        self._announce(deleted)
        return deleted

    async def list_all(self) -> Listed:
        """See ``Store.list_all``."""
        self._events.clear()
        now = self._clock()
        items = {key: Stored(value, end - now) for key, (value, end) in self._values.items() if end > now}
        loss = "the process was paused" if self._paused else None
        self._paused = False
        return Listed(self._health(), items, loss)

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """See ``Store.watch``."""
        while True:
            while self._events:
                yield self._events.popleft()
            self._wake.clear()
            if self._clock() - self._last_tick >= TICK_SECS:
                self._check_pause()
                self._last_tick = self._clock()
                yield self._health()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECS):
                    await self._wake.wait()

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """See ``Store.remaining``."""
        self._check_pause()
        now = self._clock()
        secs = [self._values[key][1] - now if key in self._values else 0.0 for key in keys]
        for key, left in zip(keys, secs, strict=True):
            if left <= 0:
                self._values.pop(key, None)
        return Remaining([left if left > 0 else None for left in secs], self._epoch)

    async def settle(self, reason: str, secs: float, known_until: float | None = None) -> None:
        """See ``Store.settle``."""
        until = self._clock() + secs
        if until > self._settling_until:
            self._settling_until, self._settling_reason = until, reason

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``."""
        if self._settling_reason == reason:
            self._settling_until = self._clock()

    def share(self, value_of: Callable[[PoolKey], bytes | None]) -> None:
        """See ``Store.share``: the very bytes that were put are listed."""

    async def close(self) -> None:
        """See ``Store.close``."""

    def describe(self) -> dict[str, object]:
        """See ``Store.describe``."""
        return {"kind": "memory", "revision": self._revision, "epoch": self._epoch}

    def _check_pause(self) -> None:
        """Raise ``Unavailable`` until a new list has told the replica of a pause of the process."""
        if self._clock() - self._last_tick > PAUSE_SECS:
            self._paused = True
            self._last_tick = self._clock()
        if self._paused:
            raise Unavailable("the process was paused: leases are not judged by that time")

    def _health(self) -> Health:
        now = self._clock()
        return Health(now, self._epoch, self._revision, self._settling_reason if now < self._settling_until else None)

    def _announce(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()
