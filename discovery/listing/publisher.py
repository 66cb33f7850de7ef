"""The published value: what every reader sees, and the one place that wakes them.

Changes come in from the join, one call per event, and go to the selection of every filter that is read. Streams are
written to from the publisher's own turn: the first change after a quiet moment at once, what follows together, after a
pause in proportion to what the last round cost. Knows nothing of HTTP.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Generic

from discovery.listing.journal import Round
from discovery.listing.selection import Everything, Filtered, Selection
from discovery.listing.snapshot import EVERYTHING, Entry, Filter, Fragment, Key, seen_alike

MAX_PAUSE_SECS = 0.1
PAUSE_PER_COST = 4
IDLE_SELECTIONS = 64
IDLE_BYTES = 64 << 20

Change = tuple[Key, Fragment[Entry] | None]


class Publisher(Generic[Entry]):
    """One published list with all its selections. Nothing is served before the first ``publish``."""

    def __init__(
        self,
        collection: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_published: Callable[[float], None] = lambda lag_secs: None,
        on_delivered: Callable[[float], None] = lambda lag_secs: None,
    ) -> None:
        self.collection = collection
        self.ready = False
        # When the content, and when the set of keys was another one, in seconds since 1970.
        self.changed_at = self.members_changed_at = 0.0
        self.before_reading: Callable[[], None] = lambda: None
        self._clock = clock
        self._on_published = on_published
        self._on_delivered = on_delivered
        self._pending_since: float | None = None
        self._shown = ("", 0)
        self._complete = False
        self._complete_until = 0.0
        self._everything: Everything[Entry] = Everything(collection)
        self._selections: OrderedDict[Filter, Filtered[Entry]] = OrderedDict()
        self._flush_handle: asyncio.Handle | None = None
        self._complete_handle: asyncio.Handle | None = None
        self._next_flush = 0.0

    @property
    def everything(self) -> Everything[Entry]:
        """The list without a filter, with ``complete`` as it is at this moment."""
        self.before_reading()
        self._check_complete()
        return self._everything

    def select(self, wanted: Filter, matches: Callable[[Entry], bool]) -> Selection[Entry]:
        """The list as one filter sees it; kept up to date from the first time that it is asked for."""
        self.before_reading()
        self._check_complete()
        if wanted == EVERYTHING:
            return self._everything
        selection = self._selections.get(wanted)
        if selection is None:
            selection = self._selections[wanted] = Filtered(self._everything, self.collection, matches)
            self._forget_idle()
        self._selections.move_to_end(wanted)
        return selection

    def prepare(self, changes: Iterable[Change[Entry]]) -> None:
        """Take changes before the first list is published, so that it needs no long turn of its own."""
        for key, fragment in changes:
            self._everything.take(key, fragment)

    def publish(self, changes: Iterable[Change[Entry]], complete: bool, complete_until: float) -> None:
        """Take changes and completeness; ``complete_until`` is the clock's time after which it may not be claimed."""
        for key, fragment in changes:
            old = self._everything.take(key, fragment)
            if self._selections and old is not fragment:
                self._follow(key, old, fragment)
        now = self._clock()
        self._set_complete(complete and now < complete_until)
        if not self.ready:
            self.ready = True
            self._everything.forget_past()  # nobody was told of anything before
            self._note_change()
        elif self._pending_since is None and self._everything.pending:
            self._pending_since = now
        if complete_until != self._complete_until or self._complete_handle is None:
            self._complete_until = complete_until
            self._watch_completeness()
        if self._flush_handle is None and self._everything.pending:
            self._schedule()

    def close(self) -> None:
        """Wake everyone who waits: there will be no more changes."""
        self.before_reading()
        for handle in (self._flush_handle, self._complete_handle):
            if handle is not None:
                handle.cancel()
        frames_of: Round[Entry] = Round()
        for selection in self._all():
            selection.flush(frames_of)

    def _note_change(self) -> None:
        everything = self._everything
        before, self._shown = self._shown, (everything.published, everything.members_sum)
        if before != self._shown:
            self.changed_at = now = time.time()
            if before[1] != everything.members_sum or not self.members_changed_at:
                self.members_changed_at = now

    def _all(self) -> Iterator[Selection[Entry]]:
        yield self._everything
        yield from self._selections.values()

    def _follow(self, key: Key, old: Fragment[Entry] | None, new: Fragment[Entry] | None) -> None:
        alike = old is not None and new is not None and seen_alike(old.entry, new.entry)
        for selection in self._selections.values():
            selection.follow(key, old, new, seen_alike=alike)

    def _forget_idle(self) -> None:
        """Keep those that were read last, up to a number and up to a size; the one just made stays in any case."""
        idle = [wanted for wanted, selection in reversed(self._selections.items()) if selection.readers == 0]
        size = 0
        for number, wanted in enumerate(idle):
            size += self._selections[wanted].size
            if number >= IDLE_SELECTIONS or (number > 0 and size > IDLE_BYTES):
                del self._selections[wanted]

    def _check_complete(self) -> None:
        if self._complete and self._clock() >= self._complete_until:
            self._set_complete(False)
            self._schedule()

    def _watch_completeness(self) -> None:
        if self._complete_handle is not None:
            self._complete_handle.cancel()
            self._complete_handle = None
        if self._complete and self._complete_until != float("inf"):
            delay = self._complete_until - self._clock() + 0.001
            self._complete_handle = asyncio.get_running_loop().call_later(delay, self._check_complete)

    def _set_complete(self, complete: bool) -> None:
        if complete == self._complete:
            return
        self._complete = complete
        for selection in self._all():
            selection.set_complete(complete)

    def _schedule(self) -> None:
        if self._flush_handle is None:
            loop = asyncio.get_running_loop()
            delay = self._next_flush - self._clock()
            self._flush_handle = loop.call_later(delay, self._flush) if delay > 0 else loop.call_soon(self._flush)

    def _flush(self) -> None:
        started = self._clock()
        frames_of: Round[Entry] = Round()
        for selection in list(self._all()):
            if selection.pending:
                selection.flush(frames_of)
        if self._pending_since is not None:
            self._on_published(started - self._pending_since)
            self._pending_since = None
        self._note_change()
        # Transports write at the end of this turn of the loop: only the next one knows what all that cost.
        self._flush_handle = asyncio.get_running_loop().call_soon(self._rest, started)

    def _rest(self, started: float) -> None:
        self._flush_handle = None
        ended = self._clock()
        self._on_delivered(ended - started)
        self._next_flush = ended + min(MAX_PAUSE_SECS, PAUSE_PER_COST * (ended - started))
        if self._everything.pending:
            self._schedule()
