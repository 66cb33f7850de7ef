"""The fragments of a list in the order of their keys, in blocks whose bytes are joined once.

Pure. A long list is sent as its blocks: a change makes anew only the block that it is in, and readers that are still at
an older list share all others with it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Generic

from discovery.listing.snapshot import PIECE_BYTES, Entry, Fragment, Key, joined

_key_of = attrgetter("key")


class _Block(Generic[Entry]):
    __slots__ = ("bytes", "fragments", "joined")

    def __init__(self, fragments: list[Fragment[Entry]]) -> None:
        self.fragments: list[Fragment[Entry]] = fragments
        self.bytes = sum(len(fragment.body) for fragment in fragments)
        self.joined: bytes | None = None


class Blocks(Generic[Entry]):
    """Fragments by key, in order; given in order at first."""

    def __init__(self, fragments: Iterable[Fragment[Entry]] = ()) -> None:
        self._blocks: list[_Block[Entry]] = [_Block(some) for some in _cut(fragments)]
        self._firsts: list[Key] = [block.fragments[0].key for block in self._blocks]

    def __iter__(self) -> Iterator[Fragment[Entry]]:
        for block in self._blocks:
            yield from block.fragments

    def put(self, fragment: Fragment[Entry]) -> None:
        """Add a fragment, or replace the one of its key."""
        if not self._blocks:
            self._replace(0, 0, [fragment])
            return
        number = max(0, bisect_right(self._firsts, fragment.key) - 1)
        block = self._blocks[number]
        index = bisect_left(block.fragments, fragment.key, key=_key_of)
        known = index < len(block.fragments) and block.fragments[index].key == fragment.key
        block.bytes += len(fragment.body) - (len(block.fragments[index].body) if known else 0)
        block.fragments[index : index + known] = [fragment]
        block.joined = None
        self._firsts[number] = block.fragments[0].key
        if block.bytes > 2 * PIECE_BYTES and len(block.fragments) > 1:
            self._replace(number, number + 1, block.fragments)

    def remove(self, key: Key) -> None:
        """Take a fragment out, where it is there."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return
        block: _Block[Entry] = self._blocks[number]
        index = bisect_left(block.fragments, key, key=_key_of)
        if index == len(block.fragments) or block.fragments[index].key != key:
            return
        block.bytes -= len(block.fragments.pop(index).body)
        block.joined = None
        for start in (number, number - 1):  # with the block behind it, or the one before
            both = self._blocks[max(start, 0) : start + 2]
            if len(both) == 2 and sum(one.bytes for one in both) <= PIECE_BYTES:
                self._replace(start, start + 2, [fragment for one in both for fragment in one.fragments])
                return
        if block.fragments:
            self._firsts[number] = block.fragments[0].key
        else:
            self._replace(number, number + 1, [])

    def parts(self, *, keep: bool) -> Iterator[bytes]:
        """Each block's bytes as the list is now, whatever happens to it until they are taken.

        ``keep`` says whether the blocks are worth joining for good: else those that are not joined yet are joined when
        they are taken, and forgotten.
        """
        if keep:
            for block in self._blocks:
                if block.joined is None:
                    block.joined = _joined(block.fragments)
        return _parts([block.joined or block.fragments.copy() for block in self._blocks])

    def _replace(self, start: int, end: int, fragments: list[Fragment[Entry]]) -> None:
        blocks = [_Block(some) for some in _cut(fragments)]
        self._blocks[start:end] = blocks
        self._firsts[start:end] = [block.fragments[0].key for block in blocks]


def _parts(blocks: list[bytes | list[Fragment[Entry]]]) -> Iterator[bytes]:
    for number, block in enumerate(blocks):
        yield block if isinstance(block, bytes) else _joined(block)
        blocks[number] = b""  # what a slow reader has taken it holds no longer


def _joined(fragments: list[Fragment[Entry]]) -> bytes:
    return joined(fragment.body for fragment in fragments)


def _cut(fragments: Iterable[Fragment[Entry]]) -> Iterator[list[Fragment[Entry]]]:
    some: list[Fragment[Entry]] = []
    size = 0
    for fragment in fragments:
        if some and size + len(fragment.body) > PIECE_BYTES:
            yield some
            some, size = [], 0
        some.append(fragment)
        size += len(fragment.body)
    if some:
        yield some
