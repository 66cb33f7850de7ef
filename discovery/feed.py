"""List-watch, once, for every source: list, then watch from there, and list again whenever the watch cannot go on.

A source is anything with ``list_all()`` and ``watch(position)``: a store of registrations, a cluster's slices. This
loop owns all resuming and backing off; the source owns what a position is. Knows nothing of what the items mean.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol, TypeVar

from discovery.backoff import Backoff
from discovery.errors import Gone, Unavailable

Listing = TypeVar("Listing")
Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)


class Source(Protocol[Listing, Event_co]):
    """Something that can be listed, and watched from where the list was taken."""

    async def list_all(self) -> Listing:
        """Everything there is, and the position for ``watch``.

        Raises ``Unavailable``, or ``Gone`` to be asked again.
        """

    def watch(self, listed: Listing) -> AsyncIterator[Event_co]:
        """What happens after ``listed``, without end.

        Raises ``Gone`` to be listed again, ``Unavailable`` when it fails.
        """


class Interrupted:
    """The watch could not go on; what was known stays known. ``error`` says why, and whether the source failed."""

    __slots__ = ("error",)

    def __init__(self, error: Gone | Unavailable) -> None:
        self.error = error


async def follow(
    source: Source[Listing, Event], backoff: Backoff, quiet_secs: float = 5.0
) -> AsyncGenerator[Listing | Event | Interrupted, None]:
    """Everything that a source tells, for ever: lists, events, and interruptions.

    The first new attempt after a watch that lasted comes at once where the position was gone; every other waits for the
    backoff, which starts over after a watch that lasted ``quiet_secs``.
    """
    loop = asyncio.get_running_loop()
    while True:
        watching_since = loop.time()
        try:
            listed = await source.list_all()
            watching_since = loop.time()
            yield listed
            async for event in source.watch(listed):
                yield event
            interruption = Interrupted(Gone("ended", "the watch ended"))
        except (Gone, Unavailable) as error:
            # Its traceback leads to frames that hold the error, and a whole list: together they would stay.
            interruption = Interrupted(error.with_traceback(None))
        lasted = loop.time() - watching_since >= quiet_secs
        if lasted:
            backoff.reset()
        yield interruption
        if not (lasted and isinstance(interruption.error, Gone)):
            await asyncio.sleep(backoff.next())
