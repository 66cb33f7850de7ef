"""What changed in a list, step by step: bounded, and joined only for those who take it.

Pure. The frames of what was published in one round are made once, and the journals of all selections share them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic

from discovery.listing.snapshot import PIECE_BYTES, Entry, Fragment, Key, delete_frame, join_frames, put_frame

JOURNAL_ENTRIES = 1024
JOURNAL_BYTES = 4 << 20
JOINED_STEPS = 4


class Round(Generic[Entry]):
    """The frames of one round, each made once for all selections."""

    def __init__(self) -> None:
        self._puts: dict[Fragment[Entry], bytes] = {}
        self._deletes: dict[Key, bytes] = {}

    def put(self, fragment: Fragment[Entry]) -> bytes:
        """A listing appeared or changed."""
        frame = self._puts.get(fragment)
        if frame is None:
            frame = self._puts[fragment] = put_frame(fragment)
        return frame

    def delete(self, key: Key) -> bytes:
        """A listing left."""
        frame = self._deletes.get(key)
        if frame is None:
            frame = self._deletes[key] = delete_frame(key)
        return frame


class Step:
    """One published change: the token that it leads to, and the frames of its events."""

    __slots__ = ("_frames", "_pieces", "size", "token")

    def __init__(self, token: str, frames: Iterable[bytes]) -> None:
        self.token = token
        self._frames = tuple(frames)
        self._pieces: list[bytes] | None = None
        self.size = sum(map(len, self._frames))

    def joined(self) -> bytes:
        """All events in one."""
        pieces = self.pieces()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self) -> list[bytes]:
        """All events in pieces that a slow reader can hold; the same ones for all who ask at about the same time."""
        if self._pieces is None:
            self._pieces = list(self._cut())
        return self._pieces

    def forget(self) -> None:
        """For whoever asks from now on they are joined anew."""
        self._pieces = None

    def _cut(self) -> Iterator[bytes]:
        some: list[bytes] = []
        size = 0
        for frame in self._frames:
            if some and size + len(frame) > PIECE_BYTES:
                yield b"\n".join([*some, b""])
                some, size = [], 0
            some.append(frame)
            size += len(frame)
        yield join_frames(some, self.token)


class Journal:
    """The last steps, and the state before them."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._steps: deque[Step] = deque()
        self._bytes = 0

    @property
    def size(self) -> int:
        """How many bytes the events of all steps have."""
        return self._bytes

    def add(self, step: Step) -> None:
        """Note a step; the oldest ones make room for it."""
        steps = self._steps
        steps.append(step)
        self._bytes += step.size
        while len(steps) > JOURNAL_ENTRIES or (self._bytes > JOURNAL_BYTES and len(steps) > 1):
            dropped = steps.popleft()
            self._start = dropped.token
            self._bytes -= dropped.size
        if len(steps) > JOINED_STEPS:
            steps[-1 - JOINED_STEPS].forget()

    def since(self, token: str | None) -> list[Step] | None:
        """The steps after ``token``; none where it is the last.

        None where the journal does not reach back so far, or where the list was in this state more than once: a reader
        that was cut off in the middle of a change names the state before it, and what it has of the change would stay.
        """
        at = [number for number, step in enumerate(self._steps, 1) if step.token == token]
        if token == self._start:
            at.insert(0, 0)
        return list(islice(self._steps, at[0], None)) if len(at) == 1 else None
