"""What reads tell whoever watches the store: at most one list waits, the newest; what deregistered waits with it."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from discovery.errors import Gone, Unavailable
from discovery.stores import Deleted, Event, Listed


class Feed:
    """One watch's events. Reads that nobody has taken yet do not pile up."""

    def __init__(self) -> None:
        self._deleted: list[Deleted] = []
        self._listed: Listed | None = None
        self._error: Gone | Unavailable | None = None
        self._came = asyncio.Event()
        self._nudged = asyncio.Event()

    def tell(self, deleted: Sequence[Deleted], listed: Listed) -> None:
        """A whole read was applied."""
        self._deleted += deleted
        self._listed = listed
        self._came.set()

    def end(self, error: Gone | Unavailable) -> None:
        """The watch cannot go on; what was told before is told first."""
        self._error = self._error or error
        self._came.set()

    def take_list(self) -> Listed | None:
        """The list that waits, which then waits no longer."""
        listed, self._listed = self._listed, None
        return listed

    def take(self) -> Iterator[Event]:
        """What waits: pools that deregistered, then everything, then the health that it was read with."""
        self._came.clear()
        deleted, self._deleted = self._deleted, []
        listed = self.take_list()
        yield from deleted
        if listed is not None:
            yield listed
            yield listed.health
        if self._error is not None:
            raise self._error

    async def wait(self) -> None:
        """Until something waits."""
        await self._came.wait()

    def nudge(self) -> None:
        """Read now."""
        self._nudged.set()

    async def nudged(self, within_secs: float) -> None:
        """Until it is time to read: after that time, or as soon as somebody wants it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, within_secs)):
                await self._nudged.wait()
        self._nudged.clear()
