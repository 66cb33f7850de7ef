"""Two tables kept alike as the regions of a global table are: late, out of order, and by the last writer.

What a region's replicas write goes through that region's proxy; from there it travels to the other table after a random
time, and is applied only where nothing newer was written meanwhile. While ``losing``, nothing arrives.
"""

import asyncio
import heapq
import itertools
import random
import threading
import time
from typing import Any

from tests.live.dynamodb_proxy import Answer, Asked, DynamoDBProxy, Proceed
from tests.live.dynamodb_server import Table

_Write = tuple[float, int, "Region", str, float, dict[str, Any]]


class Region:
    """One table, and what is known of the newest write of each of its items."""

    def __init__(self, table: Table, proxy: DynamoDBProxy) -> None:
        self.table = table
        self.proxy = proxy
        self.newest: dict[str, float] = {}
        self.writing = threading.Lock()
        """Held while a write is made and its time noted: otherwise an older one could overtake it in between."""


class Copier:
    """Carries writes between two regions until it is closed."""

    def __init__(self, *regions: Region, lag: tuple[float, float] = (0.05, 0.6)) -> None:
        self.losing = False
        self.copied = 0
        self.overtaken = 0
        self.lost = 0
        self._regions = regions
        self._lag = lag
        self._travelling: list[_Write] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._ending = False
        self._failure: Exception | None = None
        for region in regions:
            region.proxy.let(lambda asked, proceed, r=region: self._take(r, asked, proceed), "PutItem", "DeleteItem")
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._thread.start()

    async def _take(self, region: Region, asked: Asked, proceed: Proceed) -> Answer:
        await asyncio.to_thread(region.writing.acquire)
        try:
            answer = await proceed(asked.body)
            if answer.status == 200:
                self._send(region, asked, time.monotonic())
        finally:
            region.writing.release()
        return answer

    def _send(self, source: Region, asked: Asked, at: float) -> None:
        written = asked.body.get("Item") or asked.body["Key"]
        source.newest[written["sk"]["S"]] = at
        with self._changed:
            for target in self._regions:
                if target is not source:
                    due = at + random.uniform(*self._lag)
                    heapq.heappush(self._travelling, (due, next(self._numbers), target, asked.operation, at, written))
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (write := self._next()) is not None:
                self._apply(*write[2:])
        except Exception as error:
            self._failure = error

    def _next(self) -> _Write | None:
        """The next one that is due; None at the end."""
        with self._changed:
            while not self._ending:
                wait = self._travelling[0][0] - time.monotonic() if self._travelling else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._travelling)
                self._changed.wait(wait)
        return None

    def _apply(self, target: Region, operation: str, at: float, written: dict[str, Any]) -> None:
        key = written["sk"]["S"]
        if self.losing:
            self.lost += 1
            return
        with target.writing:
            if target.newest.get(key, 0.0) > at:
                self.overtaken += 1
                return
            if operation == "PutItem":
                target.table.put_item(written)
            else:
                target.table.delete_item(key)
            target.newest[key] = at
        self.copied += 1

    def close(self) -> None:
        """Carry nothing more."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(10)
        if self._failure is not None:
            raise self._failure
