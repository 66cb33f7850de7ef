"""Which leases run, by what was seen of them. Pure; times are seconds of one monotonic clock.

On first sight an item is judged by the end that it says, against the table's clock; one that appears between two reads
that follow each other, and lived at the first of them, was written in between. From then on that end is a mark and
no time: whenever it has changed the lease was renewed, by whatever clock, and runs anew from the moment it was seen. An
item that is over is remembered as long as it lies in the table, so that it is not taken for a new one.
"""

from collections.abc import Mapping
from typing import NamedTuple

from discovery.model import PoolKey
from discovery.stores import Stored
from discovery.stores.dynamodb.items import Item

JUST_NOW_SECS = 3.0
"""By then whoever saw an outage has read the table again and told of it. Less with short leases."""
DOUBTFUL_SECS = 86_400.0
GAP_SECS = 1.5
"""Two reads no further apart follow each other: what appears in between was written just now, whatever it says."""
REMOVED_REMEMBERED = 10_000


class Found(NamedTuple):
    """An item as one read found it, when that was, and what the table's clock said then."""

    item: Item
    at: float
    table_secs: float


class WholeRead(NamedTuple):
    """Everything that one read found, and when it began, by our clock and by the table's.

    ``number`` tells which writes of this process it began before.
    """

    number: int
    asked_at: float
    table_secs: float
    items: Mapping[PoolKey, Found]

    def lapsed_in_outage(self, lease_secs: float) -> int:
        """How many leases may have ended because nobody could write, so that their pools may live; by a first read.

        In an outage pools cease to be renewed together: at least two, within one lease of each other, the last ones
        that ended within a day; or any number within the last two leases. It may just have ended where they are more
        than those whose leases run, or where none of these was renewed before a moment ago.
        """
        just_now_secs = min(JUST_NOW_SECS, lease_secs / 4)
        ended: list[float] = []
        live, renewed_before = 0, False
        for item, _, now in self.items.values():
            left_secs = item.lease_ends_ms / 1000 - now
            if left_secs > 0:
                live += 1
                renewed_before |= left_secs < (item.lease_secs or lease_secs) - just_now_secs
            elif left_secs > -DOUBTFUL_SECS:
                ended.append(left_secs)
        together = sum(secs > max(ended) - lease_secs for secs in ended)
        if together < 2 and not (ended and max(ended) > -2 * lease_secs):
            return 0
        return together if together > live or not renewed_before else 0


class _Sighting:
    __slots__ = ("ends_at", "lease_ends_ms", "number", "value")

    def __init__(self, value: bytes, lease_ends_ms: int, ends_at: float, number: int) -> None:
        self.value = value
        self.lease_ends_ms = lease_ends_ms
        self.ends_at = ends_at
        self.number = number


class Sightings:
    """What was seen of every item. ``lease_secs`` is that of items that do not say theirs."""

    def __init__(self, lease_secs: float) -> None:
        self._lease_secs = lease_secs
        self._by_key: dict[PoolKey, _Sighting] = {}
        self._removed: dict[PoolKey, int] = {}
        self._number = 0
        self._read_to = float("inf")
        self.missed = 0
        """How many pools the last read found that came and whose leases ended since the read before it."""

    def begin(self) -> int:
        """The number of a read that begins now: it may miss what is written from here on."""
        self._number += 1
        return self._number

    # ---- what this process wrote

    def wrote(self, key: PoolKey, value: bytes, lease_ends_ms: int, ends_at: float) -> None:
        """This process's own write was confirmed."""
        self._number += 1
        self._removed.pop(key, None)
        self._by_key[key] = _Sighting(value, lease_ends_ms, ends_at, self._number)

    def removed(self, key: PoolKey) -> None:
        """This process's own removal was confirmed."""
        self._number += 1
        self._by_key.pop(key, None)
        self._removed[key] = self._number
        if len(self._removed) > REMOVED_REMEMBERED:  # where nothing is read, only removed
            del self._removed[next(iter(self._removed))]

    def lives(self, item: Item, at: float, table_secs: float) -> bool:
        """Whether the lease of this item, which was just replaced, still ran."""
        known = self._by_key.get(item.key)
        if known is not None and known.lease_ends_ms == item.lease_ends_ms:
            return known.ends_at > at
        return item.lease_ends_ms / 1000 > table_secs

    def value(self, key: PoolKey) -> bytes | None:
        """The pool's bytes as last seen or written."""
        known = self._by_key.get(key)
        return None if known is None else known.value

    def item(self, key: PoolKey) -> Item | None:
        """The pool's item as last seen or written."""
        known = self._by_key.get(key)
        return None if known is None else Item(key, known.value, known.lease_ends_ms, None)

    def mark(self, key: PoolKey, lease_ends_ms: int) -> int:
        """The end to write for a lease: never the very one that is there, or nobody would see the renewal."""
        known = self._by_key.get(key)
        return lease_ends_ms + (known is not None and known.lease_ends_ms == lease_ends_ms)

    # ---- what was read

    def apply(self, read: WholeRead) -> list[PoolKey]:
        """Take over a whole read. Gives the pools that are no longer in the table and whose leases still ran."""
        self.missed = 0
        for key, found in read.items.items():
            self._see(key, found, read.number)
        absent = [key for key, known in self._by_key.items() if key not in read.items and known.number <= read.number]
        gone = [key for key in absent if self._by_key[key].ends_at > read.asked_at]
        for key in absent:
            del self._by_key[key]
        self._read_to = read.table_secs
        if self._removed:
            self._removed = {key: number for key, number in self._removed.items() if number > read.number}
        return gone

    def _see(self, key: PoolKey, found: Found, number: int) -> None:
        item = found.item
        known = self._by_key.get(key)
        if known is None:
            if self._removed.get(key, 0) <= number:
                lease_secs, ended_secs = self._lease_of(item), found.table_secs - item.lease_ends_ms / 1000
                appeared = item.lease_ends_ms / 1000 > self._read_to
                just_now = appeared and found.table_secs - self._read_to < GAP_SECS
                if appeared and not just_now and ended_secs >= 0:
                    self.missed += 1
                left_secs = lease_secs if just_now else min(-ended_secs, lease_secs)
                self._by_key[key] = _Sighting(item.value, item.lease_ends_ms, found.at + left_secs, number)
        elif known.number <= number and (known.lease_ends_ms != item.lease_ends_ms or known.value != item.value):
            if known.value != item.value:  # equal bytes are kept: whoever was given them has them once
                known.value = item.value
            known.lease_ends_ms = item.lease_ends_ms
            known.ends_at = found.at + self._lease_of(item)

    def _lease_of(self, item: Item) -> float:
        return self._lease_secs if item.lease_secs is None else item.lease_secs

    # ---- what follows

    def left_secs(self, key: PoolKey, asked_at: float, since: float) -> float | None:
        """What the lease has left as from ``since``, by a read that was asked for at ``asked_at``; None: it is over."""
        known = self._by_key.get(key)
        return known.ends_at - since if known is not None and known.ends_at > asked_at else None

    def running(self, asked_at: float) -> dict[PoolKey, Stored]:
        """Every registration whose lease ran at that time, with what it had left."""
        return {
            key: Stored(known.value, known.ends_at - asked_at)
            for key, known in self._by_key.items()
            if known.ends_at > asked_at
        }

    def __len__(self) -> int:
        return len(self._by_key)
