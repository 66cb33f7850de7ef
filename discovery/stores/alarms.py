"""When to ask the store about which lease: one alarm per pool, in a heap, so that a renewal costs nothing here.

An alarm is for a question, never a verdict. A renewal only moves the entry's ``ends_at``; the alarm that was set before
finds that out when it goes off, and is set anew.
"""

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Mapping
from typing import Protocol

from discovery.model import PoolKey

ASK_AFTER_SECS = 0.002
GATHER_SECS = 0.006
"""What ends this soon after a first one is asked about together with it: one question, one publish."""
ONE_BY_ONE = 200


_Alarm = tuple[float, int, PoolKey]


class Leased(Protocol):
    """Something under a lease. ``alarm`` names its one valid alarm."""

    ends_at: float
    alarm: int


class Alarms:
    """The alarms of all leases; times are of the clock that the caller uses throughout."""

    def __init__(self) -> None:
        self._heap: list[_Alarm] = []
        self._numbers = itertools.count(1)
        self._wake = asyncio.Event()

    def set(self, lease: Leased, key: PoolKey, ends_at: float) -> None:
        """This lease seems to end at ``ends_at``: ask about it just after."""
        lease.ends_at = ends_at
        self.again(lease, key, ends_at)

    def again(self, lease: Leased, key: PoolKey, at: float) -> None:
        """Ask about this lease just after ``at``; an alarm that was set before for the same pool is void."""
        lease.alarm = next(self._numbers)
        heapq.heappush(self._heap, (at + ASK_AFTER_SECS, lease.alarm, key))
        if self._heap[0][1] == lease.alarm:
            self._wake.set()

    def due(self, leases: Mapping[PoolKey, Leased], now: float) -> list[PoolKey]:
        """The pools whose lease seems to be over; alarms of pools that were renewed meanwhile are set anew."""
        found: list[PoolKey] = []
        for _, alarm, key in self._gone_off(now):
            lease = leases.get(key)
            if lease is None or lease.alarm != alarm:
                continue
            if lease.ends_at > now:
                self.set(lease, key, lease.ends_at)
            else:
                found.append(key)
        return found

    def _gone_off(self, now: float) -> list[_Alarm]:
        """Takes the alarms until now out of the heap: a few one by one, of many the rest in one pass over all."""
        heap = self._heap
        gone_off: list[_Alarm] = []
        while heap and heap[0][0] <= now:
            if len(gone_off) == ONE_BY_ONE:
                gone_off += [entry for entry in heap if entry[0] <= now]
                self._heap = [entry for entry in heap if entry[0] > now]
                heapq.heapify(self._heap)
                break
            gone_off.append(heapq.heappop(heap))
        return gone_off

    async def next(self, now: float) -> None:
        """Wait until those that go off next have done so, or for an alarm that is set before them."""
        self._wake.clear()
        pause = max(0.0, self._heap[0][0] + GATHER_SECS - now) if self._heap else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
