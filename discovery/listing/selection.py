"""The list as one filter sees it: its token, its bytes, what changed, and who is told.

Between the publisher, which brings changes and says when to tell of them, and readers, which hold a token and never a
queue. What a selection costs grows with what it has told, not with what it matches: the fragments are those of the
whole list. Knows nothing of HTTP: a subscriber is whatever takes bytes.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol

from discovery.listing import snapshot
from discovery.listing.blocks import Blocks
from discovery.listing.journal import Journal, Round, Step
from discovery.listing.snapshot import Entry, Fragment, Key

SHARED_WRITE_BYTES = 256 << 10
GZIP_INLINE_BYTES = 32 << 10
LONG_BYTES = 1 << 20
"""A filtered list above this is put together for each reader as it reads: there are more filters than memory."""
MOVES_KEPT = 64
"""At least so many changes are put into an order that is there; of a longer list a sixteenth."""


class Subscriber(Protocol):
    """A reader that is up to date and takes frames as they come."""

    def offer(self, frames: bytes, token: str) -> bool:
        """Take the frames that lead to ``token`` without waiting; false where the reader must catch up by itself."""

    def fall_behind(self) -> None:
        """Start to catch up: the frames that were just published are too many to hand over in one go."""


class Selection(Generic[Entry]):
    """The list as one filter sees it.

    ``token``, ``pieces()`` and ``body()`` are live; ``published`` is what streams have been told.
    """

    def __init__(self, collection: str, complete: bool) -> None:
        self._collection = collection
        self.complete = complete
        self.subscribers: set[Subscriber] = set()
        self.readers = 0
        self._count = 0
        self._total = 0
        self._bytes = 0
        self._changes: dict[Key, tuple[Fragment[Entry] | None, Fragment[Entry] | None]] = {}
        self._blocks: Blocks[Entry] | None = None
        self._moved: dict[Key, Fragment[Entry] | None] = {}
        self._token: str | None = None
        self._pieces: list[bytes] | None = None
        self._length = 0
        self._body: bytes | None = None
        self._gzip: tuple[str, asyncio.Future[bytes]] | None = None
        self.published = self.token
        self._journal = Journal(self.published)
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

    def pieces(self) -> list[bytes]:
        """The list as JSON, in pieces: what did not change since the last time is the same bytes as then."""
        if self._pieces is None:
            parts = self._ordered().parts(keep=self._bytes > snapshot.PIECE_BYTES)
            self._pieces = list(snapshot.body_pieces(self._collection, self.complete, parts))
            self._length = sum(map(len, self._pieces))
        return self._pieces

    @property
    def is_long(self) -> bool:
        """Whether ``parts()`` have to be taken instead of ``pieces()``, whose bytes nothing else would share."""
        return False

    def parts(self) -> list[bytes]:
        """The list as JSON, as the very bytes of its listings and what stands between them."""
        return snapshot.body_parts(self._collection, self.complete, self._ordered())

    @property
    def length(self) -> int:
        """How many bytes the list as JSON has."""
        self.pieces()
        return self._length

    def body(self) -> bytes:
        """The same in one, made once per change."""
        if self._body is None:
            pieces = self.pieces()
            self._body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._body

    async def gzipped(self) -> bytes:
        """The body as gzip, made once per change and off the event loop where it is long."""
        if self._gzip is None or self._gzip[0] != self.token:
            pieces = self.parts() if self.is_long else self.pieces()
            future = asyncio.get_running_loop().create_future()
            self._gzip = (self.token, future)
            if len(pieces) == 1 and len(pieces[0]) <= GZIP_INLINE_BYTES:
                future.set_result(squeezed(pieces))
            else:
                worker = asyncio.get_running_loop().run_in_executor(None, squeezed, pieces)
                worker.add_done_callback(lambda done: None if future.done() else future.set_result(done.result()))
        return await asyncio.shield(self._gzip[1])

    def in_order(self) -> Iterable[Fragment[Entry]]:
        """All fragments in the order of their keys."""
        return self._ordered()

    def apply(self, key: Key, old: Fragment[Entry] | None, new: Fragment[Entry] | None) -> None:
        """Take one change of what this selection sees."""
        if old is new or (old is not None and new is not None and old.digest == new.digest):
            return
        self._changed = True
        known = self._changes.get(key)
        self._changes[key] = (old if known is None else known[0], new)
        self._weigh(old, new)
        self._token = self._pieces = self._body = None
        if self._blocks is not None:
            self._moved[key] = new
            if len(self._moved) > max(MOVES_KEPT, self._count // 16):
                self._blocks = None  # to order everything anew costs less then
                self._moved.clear()

    def set_complete(self, complete: bool) -> None:
        """Take a change in completeness."""
        if complete != self.complete:
            self._changed = True
            self.complete = complete
            self._token = self._pieces = self._body = None

    def flush(self, frames_of: Round[Entry]) -> None:
        """Tell streams and waiting readers of everything since the last time, as one published snapshot."""
        frames = list(self._frames(frames_of))
        told, self._changes = self._changes, {}
        self._changed = False
        self._published_complete = self.complete
        if frames:
            self.published = self.token
            step = Step(self.published, frames)
            self._journal.add(step)
            self._write(step)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
        told.clear()  # last: what thousands of changes hold takes a while to be given back

    def since(self, token: str | None) -> list[Step] | None:
        """See ``Journal``."""
        return self._journal.since(token)

    def snapshot_event(self) -> tuple[str, Iterator[bytes]]:
        """The list as a ``snapshot`` event: its token, and its bytes in pieces. Only while nothing is pending."""
        lead = b"event: snapshot\nid: %b\ndata: " % self.published.encode()
        return self.published, _event_pieces(lead, self._passing_pieces())

    def next_flush(self) -> asyncio.Future[None]:
        """Done with the next flush; a reader that waits no longer cancels it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def forget_past(self) -> None:
        """Start the journal of a new selection here: nobody has been told of anything before."""
        self._changes.clear()
        self._changed = False
        self._published_complete = self.complete
        self.published = self.token
        self._journal = Journal(self.published)

    def _sorted(self) -> Iterable[Fragment[Entry]]:
        """All fragments of the selection in the order of their keys."""
        raise NotImplementedError

    def _ordered(self) -> Blocks[Entry]:
        if self._blocks is None:
            self._blocks = Blocks(self._sorted())
        for key, fragment in self._moved.items():
            if fragment is None:
                self._blocks.remove(key)
            else:
                self._blocks.put(fragment)
        self._moved.clear()
        return self._blocks

    def _passing_pieces(self) -> Iterator[bytes]:
        if self._pieces is not None:
            return iter(self._pieces)
        parts = self._ordered().parts(keep=False)
        return snapshot.body_pieces(self._collection, self.complete, parts)

    def _weigh(self, old: Fragment[Entry] | None, new: Fragment[Entry] | None) -> None:
        self._count += (new is not None) - (old is not None)
        self._bytes += (len(new.body) if new else 0) - (len(old.body) if old else 0)
        self._total = snapshot.digest_sum(self._total, old.digest if old else 0, new.digest if new else 0)

    def _frames(self, frames_of: Round[Entry]) -> Iterator[bytes]:
        if self._published_complete and not self.complete:
            yield snapshot.complete_frame(False)
        for key, (before, now) in self._changes.items():
            if now is None:
                if before is not None:
                    yield frames_of.delete(key)
            elif before is None or before.digest != now.digest:
                yield frames_of.put(now)
        if self.complete and not self._published_complete:
            yield snapshot.complete_frame(True)

    def _write(self, step: Step) -> None:
        if step.size > SHARED_WRITE_BYTES:
            behind, self.subscribers = self.subscribers, set()
        elif self.subscribers:
            frames, token = step.joined(), step.token
            behind = {reader for reader in self.subscribers if not reader.offer(frames, token)}
            self.subscribers -= behind
        else:
            return
        for reader in behind:
            reader.fall_behind()


class Everything(Selection[Entry]):
    """The list without a filter, and the only one that knows its members by their keys."""

    def __init__(self, collection: str) -> None:
        super().__init__(collection, complete=False)
        self.members: dict[Key, Fragment[Entry]] = {}
        self.members_sum = 0

    def take(self, key: Key, fragment: Fragment[Entry] | None) -> Fragment[Entry] | None:
        """Take one change; what was there before."""
        if fragment is None:
            old = self.members.pop(key, None)
            if old is not None:
                self.members_sum -= snapshot.key_number(key)
        else:
            old = self.members.get(key)
            if old is not None and old.digest == fragment.digest:
                return old
            if old is None:
                self.members_sum += snapshot.key_number(key)
            self.members[key] = fragment
        self.apply(key, old, fragment)
        return old

    def _sorted(self) -> Iterable[Fragment[Entry]]:
        return [self.members[key] for key in sorted(self.members)]

    def _passing_pieces(self) -> Iterator[bytes]:
        return iter(self.pieces())


class Filtered(Selection[Entry]):
    """The list as a filter sees it; the members are those of the whole list that match."""

    def __init__(self, whole: Everything[Entry], collection: str, matches: Callable[[Entry], bool]) -> None:
        super().__init__(collection, whole.complete)
        self._whole: Everything[Entry] = whole
        self._matches: Callable[[Entry], bool] = matches
        for fragment in whole.members.values():
            if matches(fragment.entry):
                self._weigh(None, fragment)
        self._token = None
        self.forget_past()

    def follow(self, key: Key, old: Fragment[Entry] | None, new: Fragment[Entry] | None, *, seen_alike: bool) -> None:
        """Take one change of the whole list; ``seen_alike`` says that every filter sees both of it or neither."""
        sees_new = new is not None and self._matches(new.entry)
        sees_old = sees_new if seen_alike else old is not None and self._matches(old.entry)
        if sees_old or sees_new:
            self.apply(key, old if sees_old else None, new if sees_new else None)

    @property
    def is_long(self) -> bool:
        """Others may have a filter of their own each, and all of them read slowly."""
        return self._bytes > LONG_BYTES

    def _sorted(self) -> Iterable[Fragment[Entry]]:
        return (fragment for fragment in self._whole.in_order() if self._matches(fragment.entry))


def _event_pieces(lead: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield lead
    yield from pieces
    yield b"\n\n"


def squeezed(pieces: Iterable[bytes]) -> bytes:
    """As gzip; quick rather than small."""
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([*map(squeeze.compress, pieces), squeeze.flush()])
