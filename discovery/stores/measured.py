"""A store whose calls are counted and timed: stands between the replica and any store, and changes nothing.

A check is what a store does by itself while it is watched, as long as each confirmation shows; what a watch ends with
is an error of its own. Knows no kind of store.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from discovery.errors import Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import Deleted, Event, Health, Listed, Outcome, Remaining, Store

Answer = TypeVar("Answer")


class MeasuredStore:
    """The same store. See ``Store`` for what each call does."""

    def __init__(self, store: Store, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._counters = counters
        self._clock = clock
        self._put = store.put
        self._put_secs = counters.store_call_seconds.of("put")
        self.ends_leases = store.ends_leases
        self.share = store.share
        self.close = store.close
        self.describe = store.describe

    @property
    def confirmed_for_secs(self) -> float:
        """See ``Store.confirmed_for_secs``."""
        return self._store.confirmed_for_secs

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """See ``Store.put``; written out, since nearly all calls are these."""
        clock = self._clock
        asked_at = clock()
        try:
            outcome = await self._put(key, value, lease_secs)
        except Unavailable as error:
            self._failed("put", error)
            raise
        self._put_secs.observe(clock() - asked_at)
        return outcome

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``."""
        return await self._measured("delete", self._store.delete(key, instance_id))

    async def list_all(self) -> Listed:
        """See ``Store.list_all``."""
        return await self._measured("list", self._store.list_all())

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """See ``Store.watch``."""
        async with aclosing(self._store.watch(listed)) as events:  # type: ignore[type-var]
            try:
                async for event in events:
                    if type(event) is Health:
                        self._answered("check", event.asked_at)
                    yield event
            except Unavailable as error:
                self._failed("watch", error)
                raise

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """See ``Store.remaining``."""
        return await self._measured("remaining", self._store.remaining(keys))

    async def settle(self, reason: str, secs: float, known_until: float | None = None) -> None:
        """See ``Store.settle``."""
        await self._measured("settle", self._store.settle(reason, secs, known_until))

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``."""
        await self._measured("settle", self._store.end_settling(reason))

    async def _measured(self, call: str, asked: Awaitable[Answer]) -> Answer:
        asked_at = self._clock()
        try:
            answer = await asked
        except Unavailable as error:
            self._failed(call, error)
            raise
        self._answered(call, asked_at)
        return answer

    def _answered(self, call: str, asked_at: float) -> None:
        self._counters.store_call_seconds.of(call).observe(self._clock() - asked_at)

    def _failed(self, call: str, error: Unavailable) -> None:
        self._counters.store_errors.of(call, error.extent).inc()
