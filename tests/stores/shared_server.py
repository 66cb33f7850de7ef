"""A server that several replicas share, in memory and on virtual time, with every fault that a real one can have.

It keeps the same words as Redis does for the service: values under leases, a revision, an epoch, a settling mark, and
announcements that reach whoever listens at that moment, in order and a little later. Each replica has a ``View`` of it:
a store whose path can refuse, fall silent, or go deaf.
"""

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from discovery.errors import Gone, Unavailable
from discovery.model import PoolKey
from discovery.stores import CONFIRMED_FOR_SECS, Deleted, Event, Health, Listed, Outcome, Put, Remaining, Stored

Result = TypeVar("Result")
Path = Literal["up", "refusing", "silent"]

CALL_SECS = 1.0
CHECK_SECS = 0.7
TRAVEL_SECS = (0.001, 0.005, 0.06)


class SharedServer:
    """What is stored. ``lose_everything`` empties it, as FLUSHALL does."""

    def __init__(self, lease_secs: float, clock: Callable[[], float]) -> None:
        self.lease_secs = lease_secs
        self.clock = clock
        self.views: list[View] = []
        self.gone_at: dict[PoolKey, float] = {}
        self._values: dict[PoolKey, tuple[bytes, float, float]] = {}
        self._revision = 0
        self._epoch = ""
        self._settling: tuple[str, float] | None = None
        self._epochs = itertools.count(1)

    def held(self) -> dict[PoolKey, tuple[bytes, float, float]]:
        """The values whose leases run: bytes, the end of the lease, and since when it has been this value."""
        now = self.clock()
        if gone := {key: end for key, (_, end, _) in self._values.items() if end <= now}:
            self.gone_at |= gone
            self._values = {key: value for key, value in self._values.items() if key not in gone}
        return self._values

    def lose_everything(self) -> None:
        """All keys are gone, the epoch too; nobody is told."""
        self.gone_at |= dict.fromkeys(self.held(), self.clock())
        self._values, self._revision, self._epoch, self._settling = {}, 0, "", None

    def lose(self, key: PoolKey) -> None:
        """One key is gone, and nobody is told."""
        if self.held().pop(key, None) is not None:
            self.gone_at[key] = self.clock()

    def epoch(self) -> str:
        """The epoch, made when absent."""
        if not self._epoch:
            self._epoch = f"epoch-{next(self._epochs)}"
            self._settling = ("a new epoch", max(self.clock() + self.lease_secs, self._settling_until()))
        return self._epoch

    def settle(self, reason: str, secs: float) -> None:
        """Mark the content as not whole for that time, unless it is marked for longer already."""
        if self.clock() + secs > self._settling_until():
            self._settling = (reason, self.clock() + secs)

    def end_settling(self, reason: str) -> None:
        """Take that mark away while it is for this reason."""
        if self._settling is not None and self._settling[0] == reason:
            self._settling = None

    def _settling_until(self) -> float:
        return float("-inf") if self._settling is None else self._settling[1]

    def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """Store or renew."""
        now = self.clock()
        old = self.held().get(key)
        if old is not None and old[0] == value:
            self._values[key] = (value, now + lease_secs, old[2])
            return Outcome(False, False, self._revision, self.epoch())
        self._values[key] = (value, now + lease_secs, now)
        self._revision += 1
        self._announce(Put(key, value, lease_secs, self.epoch(), self._revision))
        return Outcome(old is None, True, self._revision, self.epoch())

    def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """Remove and announce."""
        stored = self.held().get(key)
        if instance_id is not None and (
            stored is None or msgspec.json.decode(stored[0]).get("instance_id") != instance_id
        ):
            return None
        self.lose(key)
        self._revision += 1
        deleted = Deleted(key, self.epoch(), self._revision)
        self._announce(deleted)
        return deleted

    def health(self, asked_at: float) -> Health:
        """Epoch, revision and settling as they are now."""
        epoch = self.epoch()
        running = self._settling is not None and self._settling[1] > self.clock()
        return Health(asked_at, epoch, self._revision, self._settling[0] if running and self._settling else None)

    def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """Seconds left of these leases, and then the epoch."""
        now, held = self.clock(), self.held()
        return Remaining([held[key][1] - now if key in held else None for key in keys], self._epoch or None)

    def items(self) -> dict[PoolKey, Stored]:
        """Everything that is held."""
        now = self.clock()
        return {key: Stored(value, end - now) for key, (value, end, _) in self.held().items()}

    def _announce(self, event: Put | Deleted) -> None:
        for view in self.views:
            view.hear(event)


class View:
    """The store as one replica reaches it."""

    confirmed_for_secs = CONFIRMED_FOR_SECS
    ends_leases = True

    def __init__(self, server: SharedServer) -> None:
        self.server = server
        self.path: Path = "up"
        self.deaf = False
        self._messages: deque[Put | Deleted] = deque()
        self._arrival = 0.0
        self._subscription = 0
        self._wake = asyncio.Event()
        self._again = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()
        self._position: tuple[str, int] = ("", 0)
        server.views.append(self)

    def set_path(self, path: Path) -> None:
        """Let the path fail or work; what waits on a silent path goes through when it works again."""
        self.path = path
        if path == "up":
            self._again.set()
        else:
            self._again.clear()
        if path == "refusing":
            self._wake.set()

    def hear(self, event: Put | Deleted) -> None:
        """An announcement, unless nobody listens; it arrives after those before it."""
        if self.path == "up" and not self.deaf:
            loop = asyncio.get_running_loop()
            self._arrival = max(self._arrival, loop.time() + random.choice(TRAVEL_SECS))
            loop.call_at(self._arrival, self._arrive, event, self._subscription)

    def _arrive(self, event: Put | Deleted, subscription: int) -> None:
        if self.path == "up" and not self.deaf and subscription == self._subscription:
            self._messages.append(event)
            self._wake.set()

    async def _call(self, work: Callable[[], Result]) -> Result:
        await asyncio.sleep(random.choice(TRAVEL_SECS))
        if self.path == "refusing":
            raise Unavailable("connection refused")
        if self.path == "silent":
            self._later(work)
            await asyncio.sleep(CALL_SECS)
            raise Unavailable("no answer in time")
        result = work()
        await asyncio.sleep(random.choice(TRAVEL_SECS))
        if self.path != "up":
            raise Unavailable("the connection broke before the answer")
        return result

    def _later(self, work: Callable[[], object]) -> None:
        """A frozen server does what it was told once it is thawed, though nobody waits for the answer any more."""

        async def wait() -> None:
            await self._again.wait()
            work()

        task = asyncio.create_task(wait())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """See ``Store.put``."""
        return await self._call(lambda: self.server.put(key, value, lease_secs))

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``."""
        return await self._call(lambda: self.server.delete(key, instance_id))

    async def list_all(self) -> Listed:
        """See ``Store.list_all``."""
        self._messages.clear()
        self._subscription += 1
        self.deaf = False
        asked_at = self.server.clock()
        health = await self._call(lambda: self.server.health(asked_at))
        items = await self._call(self.server.items)
        self._position = (health.epoch, health.revision)
        return Listed(health, items)

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """See ``Store.watch``."""
        check_at = self.server.clock() + CHECK_SECS
        while True:
            while self._messages:
                if (event := self._follow(self._messages.popleft())) is not None:
                    yield event
            if self.path == "refusing":
                raise Unavailable("the connection was lost")
            if self.server.clock() >= check_at:
                yield await self._check()
                check_at = self.server.clock() + CHECK_SECS
                continue
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(check_at):
                    await self._wake.wait()

    def _follow(self, event: Put | Deleted) -> Event | None:
        epoch, revision = self._position
        if event.epoch == epoch and event.revision <= revision:
            return None
        if event.epoch != epoch or event.revision != revision + 1:
            raise Gone("gap", f"{event.revision} came after {revision}")
        self._position = (epoch, event.revision)
        return event

    async def _check(self) -> Health:
        asked_at = self.server.clock()
        health = await self._call(lambda: self.server.health(asked_at))
        await asyncio.sleep(max(0.0, self._arrival - self.server.clock()) + 0.001)
        heard = {(event.epoch, event.revision) for event in self._messages} | {self._position}
        if health.epoch != self._position[0]:
            raise Gone("loss", "another epoch")
        if max(revision for epoch, revision in heard if epoch == health.epoch) < health.revision:
            raise Gone("gap", "announcements are missing")
        return health

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """See ``Store.remaining``."""
        return await self._call(lambda: self.server.remaining(keys))

    async def settle(self, reason: str, secs: float, known_until: float | None = None) -> None:
        """See ``Store.settle``."""
        await self._call(lambda: self.server.settle(reason, secs))

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``."""
        await self._call(lambda: self.server.end_settling(reason))

    def share(self, value_of: Callable[[PoolKey], bytes | None]) -> None:
        pass

    async def close(self) -> None:
        """See ``Store.close``."""

    def describe(self) -> dict[str, object]:
        """See ``Store.describe``."""
        return {"kind": "shared"}
