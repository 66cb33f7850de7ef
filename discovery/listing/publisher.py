"""The published value: what every reader sees, and the one place that wakes them.

Changes come in from the join, one call per event; readers hold an ETag, never a queue. A ``Selection`` is the list as
one filter sees it: its members, its token, its body made when first read, and a bounded journal of ready frames.
Streams are written to from the publisher's own turn: the first change after a quiet moment at once, what follows
together, after a pause in proportion to what the last round cost. Knows nothing of HTTP: a subscriber is whatever
takes bytes.
"""

import asyncio
import time
import zlib
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, Protocol

from discovery.listing import snapshot
from discovery.listing.snapshot import EVERYTHING, Entry, Filter, Fragment, Key

MAX_PAUSE_SECS = 0.1
PAUSE_PER_COST = 4
JOURNAL_ENTRIES = 1024
JOURNAL_BYTES = 4 << 20
SHARED_WRITE_BYTES = 256 << 10
IDLE_SELECTIONS = 64
IDLE_BYTES = 64 << 20
GZIP_INLINE_BYTES = 32 << 10


class Subscriber(Protocol):
    """A reader that is up to date and takes frames as they come."""

    def offer(self, frames: bytes, token: str) -> bool:
        """Take the frames that lead to ``token`` without waiting; false where the reader must catch up by itself."""

    def fall_behind(self) -> None:
        """Start to catch up: the frames that were just published are too many to hand over in one go."""


class Selection(Generic[Entry]):
    """The list as one filter sees it.

    ``token`` and ``body()`` are live; ``published`` is what streams have been told.
    """

    def __init__(self, collection: str, matches: Callable[[Entry], bool] | None, complete: bool) -> None:
        self._collection = collection
        self._matches: Callable[[Entry], bool] | None = matches
        self.members: dict[Key, Fragment[Entry]] = {}
        self.complete = complete
        self.subscribers: set[Subscriber] = set()
        self.readers = 0
        self._total = 0
        self._bytes = 0
        self._before: dict[Key, Fragment[Entry] | None] = {}
        self._keys: list[Key] = []
        self._bodies: list[bytes] = []
        self._moved: set[Key] = set()
        self._token: str | None = None
        self._body: bytes | None = None
        self._gzip: tuple[str, asyncio.Future[bytes]] | None = None
        self._journal: deque[tuple[str, bytes]] = deque()
        self._journal_bytes = 0
        self._start = self.published = self.token
        self._published_complete = complete
        self._changed = False
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def token(self) -> str:
        """The bare ETag of the list as it is now."""
        if self._token is None:
            self._token = snapshot.token(self._total, self.complete)
        return self._token

    @property
    def pending(self) -> bool:
        """Whether there are changes of which streams have not been told yet, also ones that were undone meanwhile."""
        return self._changed

    @property
    def size(self) -> int:
        """How many bytes the body has, or would have."""
        return self._bytes

    def fragments(self) -> list[bytes]:
        """The bytes of every listing in the order of their keys; shared, not to be changed."""
        if len(self._moved) > max(64, len(self.members) // 16):
            self._keys = sorted(self.members)
            self._bodies = [self.members[key].body for key in self._keys]
        elif self._moved:
            self._bodies = self._bodies.copy()  # a slow reader may still be at the old ones
            for key in self._moved:
                self._move(key)
        self._moved.clear()
        return self._bodies

    def body(self) -> bytes:
        """The list as JSON, made once per change."""
        if self._body is None:
            self._body = snapshot.body(self._collection, self.complete, self.fragments())
        return self._body

    async def gzipped(self) -> bytes:
        """The body as gzip, made once per change and off the event loop where it is long."""
        if self._gzip is None or self._gzip[0] != self.token:
            body, future = self.body(), asyncio.get_running_loop().create_future()
            self._gzip = (self.token, future)
            if len(body) <= GZIP_INLINE_BYTES:
                future.set_result(_gzip(body))
            else:
                worker = asyncio.get_running_loop().run_in_executor(None, _gzip, body)
                worker.add_done_callback(lambda done: None if future.done() else future.set_result(done.result()))
        return await asyncio.shield(self._gzip[1])

    def apply(self, key: Key, fragment: Fragment[Entry] | None) -> None:
        """Take one change of the whole list."""
        old = self.members.get(key)
        if fragment is not None and self._matches is not None and not self._matches(fragment.entry):
            fragment = None
        if (old is None and fragment is None) or (old and fragment and old.digest == fragment.digest):
            return
        self._changed = True
        self._before.setdefault(key, old)
        if fragment is None:
            del self.members[key]
        else:
            self.members[key] = fragment
        self._bytes += (len(fragment.body) if fragment else 0) - (len(old.body) if old else 0)
        self._total = snapshot.digest_sum(self._total, old.digest if old else 0, fragment.digest if fragment else 0)
        self._token = self._body = None
        self._moved.add(key)

    def set_complete(self, complete: bool) -> None:
        """Take a change in completeness."""
        if complete != self.complete:
            self._changed = True
            self.complete = complete
            self._token = self._body = None

    def flush(self) -> None:
        """Tell streams and waiting readers of everything since the last time, as one published snapshot."""
        frames = list(self._frames())
        self._before.clear()
        self._changed = False
        self._published_complete = self.complete
        if frames:
            self.published = self.token
            self._record(snapshot.join_frames(frames, self.published))
            self._write(self._journal[-1][1])
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def since(self, token: str | None) -> list[tuple[str, bytes]] | None:
        """The published changes after ``token`` as (token, frames); none where it is the last.

        None where the journal does not reach back so far, or where the list was in this state more than once: a reader
        that was cut off in the middle of a change names the state before it, and what it has of the change would stay.
        """
        at = [number for number, (after, _) in enumerate(self._journal, 1) if after == token]
        if token == self._start:
            at.insert(0, 0)
        return list(islice(self._journal, at[0], None)) if len(at) == 1 else None

    def snapshot_event(self) -> tuple[str, Iterator[bytes]]:
        """The list as a ``snapshot`` event: its token, and its bytes in pieces. Only while nothing is pending."""
        lead = b"event: snapshot\nid: %b\ndata: " % self.published.encode()
        pieces = snapshot.body_pieces(self._collection, self.complete, self.fragments())
        return self.published, _event_pieces(lead, pieces)

    def next_flush(self) -> asyncio.Future[None]:
        """Done with the next flush; a reader that waits no longer cancels it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _move(self, key: Key) -> None:
        fragment = self.members.get(key)
        index = bisect_left(self._keys, key)
        known = index < len(self._keys) and self._keys[index] == key
        if known and fragment is not None:
            self._bodies[index] = fragment.body
        elif known:
            del self._keys[index], self._bodies[index]
        elif fragment is not None:
            self._keys.insert(index, key)
            self._bodies.insert(index, fragment.body)

    def _frames(self) -> Iterator[bytes]:
        if self._published_complete and not self.complete:
            yield snapshot.complete_frame(False)
        for key, before in self._before.items():
            now = self.members.get(key)
            if now is None:
                if before is not None:
                    yield snapshot.delete_frame(key)
            elif before is None or before.digest != now.digest:
                yield snapshot.put_frame(now)
        if self.complete and not self._published_complete:
            yield snapshot.complete_frame(True)

    def _record(self, frames: bytes) -> None:
        self._journal.append((self.published, frames))
        self._journal_bytes += len(frames)
        while len(self._journal) > JOURNAL_ENTRIES or (self._journal_bytes > JOURNAL_BYTES and len(self._journal) > 1):
            self._start, dropped = self._journal.popleft()
            self._journal_bytes -= len(dropped)

    def _write(self, frames: bytes) -> None:
        if len(frames) > SHARED_WRITE_BYTES:
            behind, self.subscribers = self.subscribers, set()
        else:
            token = self.published
            behind = {reader for reader in self.subscribers if not reader.offer(frames, token)}
            self.subscribers -= behind
        for reader in behind:
            reader.fall_behind()

    def forget_past(self) -> None:
        """Start the journal of a new selection here: nobody has been told of anything before."""
        self._before.clear()
        self._changed = False
        self._published_complete = self.complete
        self._start = self.published = self.token


class Publisher(Generic[Entry]):
    """One published list with all its selections. Nothing is served before the first ``publish``."""

    def __init__(self, collection: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.collection = collection
        self.ready = False
        self._clock = clock
        self._complete = False
        self._complete_until = 0.0
        self._everything: Selection[Entry] = Selection(collection, None, False)
        self._selections: OrderedDict[Filter, Selection[Entry]] = OrderedDict()
        self._flush_handle: asyncio.Handle | None = None
        self._complete_handle: asyncio.Handle | None = None
        self._next_flush = 0.0

    @property
    def everything(self) -> Selection[Entry]:
        """The list without a filter, with ``complete`` as it is at this moment."""
        self._check_complete()
        return self._everything

    def select(self, wanted: Filter, matches: Callable[[Entry], bool]) -> Selection[Entry]:
        """The list as one filter sees it; kept up to date from the first time that it is asked for."""
        self._check_complete()
        if wanted == EVERYTHING:
            return self._everything
        selection = self._selections.get(wanted)
        if selection is None:
            selection = self._selections[wanted] = self._new_selection(matches)
            self._forget_idle()
        self._selections.move_to_end(wanted)
        return selection

    def prepare(self, changes: Iterable[tuple[Key, Fragment[Entry] | None]]) -> None:
        """Take a part of the first list: nobody reads it, and nobody is told of it, before the first ``publish``."""
        for key, fragment in changes:
            self._everything.apply(key, fragment)

    def publish(
        self, changes: Iterable[tuple[Key, Fragment[Entry] | None]], complete: bool, complete_until: float
    ) -> None:
        """Take changes and completeness; ``complete_until`` is the clock's time after which it may not be claimed."""
        for key, fragment in changes:
            self._everything.apply(key, fragment)
            for selection in self._selections.values():
                selection.apply(key, fragment)
        self._set_complete(complete and self._clock() < complete_until)
        if complete_until != self._complete_until or self._complete_handle is None:
            self._complete_until = complete_until
            self._watch_completeness()
        if not self.ready:
            self.ready = True
            self._everything.forget_past()  # the first list is no change: frames of all of it would be for nobody
        if self._flush_handle is None and any(selection.pending for selection in self._all()):
            self._schedule()

    def close(self) -> None:
        """Wake everyone who waits: there will be no more changes."""
        for handle in (self._flush_handle, self._complete_handle):
            if handle is not None:
                handle.cancel()
        for selection in self._all():
            selection.flush()

    def _all(self) -> Iterator[Selection[Entry]]:
        yield self._everything
        yield from self._selections.values()

    def _new_selection(self, matches: Callable[[Entry], bool]) -> Selection[Entry]:
        selection: Selection[Entry] = Selection(self.collection, matches, self._complete)
        for key, fragment in self._everything.members.items():
            selection.apply(key, fragment)
        selection.forget_past()
        return selection

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
        self._complete = complete
        for selection in self._all():
            selection.set_complete(complete)

    def _schedule(self) -> None:
        if self._flush_handle is None:
            loop = asyncio.get_running_loop()
            delay = self._next_flush - self._clock()
            self._flush_handle = loop.call_later(delay, self._flush) if delay > 0 else loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        started = self._clock()
        for selection in list(self._all()):
            if selection.pending:
                selection.flush()
        ended = self._clock()
        self._next_flush = ended + min(MAX_PAUSE_SECS, PAUSE_PER_COST * (ended - started))


def _event_pieces(lead: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield lead + piece
        lead = b""
    yield b"\n\n"


def _gzip(body: bytes) -> bytes:
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    return squeeze.compress(body) + squeeze.flush()
