"""What following needs of the network: whole answers and streams, from whichever server of the service answers.

``transport`` is the real thing; tests put a service in its place that lives in memory and on the loop's own time.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from discovery.client.answers import Answer
from discovery.client.service import Request


class EventStream(Protocol):
    """An answer that does not end by itself, of the server called ``base``."""

    base: str

    async def read(self, silence_secs: float) -> bytes:
        """The bytes that have come; empty at a clean end. Raises ``NoAnswer`` if broken off or silent for too long."""


class Reach(Protocol):
    """The service, to be asked. Whether and when to ask again is for the caller."""

    async def request(
        self, request: Request, *, deadline_secs: float, coming: Callable[[], None] = lambda: None
    ) -> Answer:
        """The first answer that settles it (200, 204 or 304), its body whole.

        ``coming`` is called whenever bytes of an answer have come. Raises ``Rejected`` for a 4xx, ``NoAnswer`` when
        nobody answered, ``Unavailable`` when only "not now" was heard.
        """

    def stream(self, request: Request) -> AbstractAsyncContextManager[EventStream]:
        """An open stream of events, ended with the block; entering it raises as ``request`` does."""

    def renew(self) -> None:
        """Use no connection again that is open now: it may be a dead one."""

    def move_on(self) -> None:
        """Begin elsewhere from now on: the server that answered last is not to be asked first again."""

    async def close(self) -> None:
        """End every connection."""
