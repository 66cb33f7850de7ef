"""Reads the whole partition, page by page, to the end or not at all.

An empty page is not the end: only a page without a key to go on from is. What fails on any page fails the read, and
nothing of it is used.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from discovery.errors import Unavailable
from discovery.model import PoolKey
from discovery.stores.dynamodb.items import Word
from discovery.stores.dynamodb.sightings import Found, WholeRead
from discovery.stores.dynamodb.table import Table


class Reading(NamedTuple):
    """One whole read: what it found, and what it cost."""

    read: WholeRead
    word: Word | None
    broken: list[tuple[str, str]]
    done_at: float
    pages: int
    read_units: float


async def read_all(table: Table, number: int, clock: Callable[[], float] = time.monotonic) -> Reading:
    """The whole partition. Raises ``Unavailable``."""
    asked_at = clock()
    found: dict[PoolKey, Found] = {}
    broken: list[tuple[str, str]] = []
    word, pages, units = None, 0, 0.0
    page, at = await table.query(None)
    while True:
        table_secs = table.clock.at(at)
        for item in page.items:
            found[item.key] = Found(item, at, table_secs)
        broken += page.broken
        word = page.word or word
        pages, units = pages + 1, units + page.read_units
        if not page.next_from:  # some stand-ins end with an empty key
            read = WholeRead(number, asked_at, table.clock.at(asked_at), found)
            return Reading(read, word, broken, at, pages, units)
        start = page.next_from
        page, at = await table.query(start)
        if page.next_from == start:
            raise Unavailable(f"a read of {table} does not go on from {str(start)[:200]}")
