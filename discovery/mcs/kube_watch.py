"""One watch of EndpointSlices, carried through as many requests as it takes.

A request that ends is followed by another from the last version: at once after a clean end and after silence, with a
backoff after a failure. Only a version that cannot be continued ends the watch. Knows nothing of what slices mean.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

import aiohttp
import msgspec

from discovery.backoff import Backoff
from discovery.errors import Gone
from discovery.mcs.endpoint_slice import SliceName, decode_slice
from discovery.mcs.kube_answers import Failure, Refusal, Status, refusal
from discovery.mcs.kube_connection import ClusterConnection
from discovery.mcs.kube_objects import (
    Applied,
    Event,
    Failing,
    Heard,
    RawEvent,
    Removed,
    decode_event,
    decode_mark,
    decode_status,
)

FRUITLESS_LIMIT = 2
LINES_IN_A_ROW = 100
LINE_LIMIT_BYTES = 32 * 1024 * 1024
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Pace(NamedTuple):
    """How a source asks. The defaults suit real API servers, which send a bookmark about every 60 s."""

    page_limit: int = 500
    watch_secs: tuple[int, int] = (240, 300)
    """Shortest and longest duration asked for; drawn anew each time, so that watches do not end together."""
    silence_secs: float = 75.0
    """A request on which nothing came for so long is taken for dead."""
    settle_secs: float = 1.0
    """A request that has been open for so long without a word is well; one that ended sooner is not."""
    backoff_secs: tuple[float, float] = (0.25, 4.0)


class Target(NamedTuple):
    """What is watched: a path, what it is called in errors, and the part of the query that selects."""

    path: str
    what: str
    selection: dict[str, str]


class Watch:
    """The position of a watch, and the events from there on."""

    def __init__(
        self,
        connection: ClusterConnection,
        target: Target,
        position: str,
        *,
        pace: Pace,
        dice: Callable[[], float],
        on_skipped: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._target = target
        self._position = position
        self._pace = pace
        self._dice = dice
        self._on_skipped = on_skipped
        self._settled = False
        self._well = False
        self._fruitless = 0

    async def events(self) -> AsyncGenerator[Event, None]:
        """Without end. Raises ``Gone`` where only a fresh list helps, and nothing else."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(*self._pace.backoff_secs, dice=self._dice)
        brief_ends = 0
        while True:
            began_at, wait = loop.time(), 0.0
            failing: Failing | None = None
            try:
                async with aclosing(self._request()) as events:
                    async for event in events:
                        yield event
                brief_ends = 0 if self._well else brief_ends + 1
                if brief_ends > 1:  # one clean end is none of our business, however soon it comes
                    failing = Failing("brief", f"{self._connection.name}: the watch ended as soon as it began")
            except _Silent:
                pass  # replaced at once; should that fail too, it is told then
            except Failure as error:
                failing = Failing(error.kind, error.detail)
                wait = getattr(error, "wait_secs", None) or 0.0
            if self._well:
                backoff.reset()
            if failing is not None:
                yield failing
            if failing is not None or loop.time() - began_at < self._pace.settle_secs:
                await asyncio.sleep(max(wait, backoff.next()))

    async def _request(self) -> AsyncGenerator[Event, None]:
        """One request, from its opening to its end. Raises ``Failure``, ``_Silent`` or ``Gone``."""
        self._settled = self._well = False
        try:
            async with (
                self._connection.open(self._target.path, self._query(), f"watch {self._target.what}") as response,
                aclosing(self._read(response)) as events,
            ):
                async for event in events:
                    yield event
        except Refusal as error:
            if error.expired:
                raise Gone("expired", error.detail) from None
            raise

    async def _read(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Event, None]:
        rest = b""
        while (chunk := await self._chunk(response)) != b"":
            if chunk is None:
                yield Heard(asyncio.get_running_loop().time())
                continue
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_LIMIT_BYTES:
                raise self._fruitless_end(self._foreign())
            for number, line in enumerate(lines, 1):
                if line:
                    yield self._event(line)
                if number % LINES_IN_A_ROW == 0:
                    await asyncio.sleep(0)
        # What is left of a line was never told: its version comes again with the next request.

    async def _chunk(self, response: aiohttp.ClientResponse) -> bytes | None:
        """What came; empty at the end, ``None`` once where nothing came, good or bad, until the request settled."""
        patience = self._pace.silence_secs if self._settled else self._pace.settle_secs
        try:
            async with asyncio.timeout(patience):
                chunk = await response.content.readany()
        except TimeoutError:
            if self._settled:
                raise self._fruitless_end(_Silent()) from None
            self._well, chunk = True, None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._connection.broken(error) from None
        self._settled = True
        return chunk

    def _event(self, line: bytes) -> Event:
        try:
            event = decode_event(line)
            if event.type == "ERROR":
                raise self._refused(decode_status(event.object))
            told = self._told(event)
        except _UNREADABLE:
            raise self._fruitless_end(self._foreign()) from None
        self._well, self._fruitless = True, 0
        return told

    def _told(self, event: RawEvent) -> Event:
        match event.type:
            case "ADDED" | "MODIFIED":
                return self._applied(event.object)
            case "DELETED":
                return self._removed(event.object)
            case _:  # a bookmark, or what later servers may send: its version counts
                self._advance(decode_mark(event.object).metadata.resource_version)
                return Heard(asyncio.get_running_loop().time())

    def _applied(self, raw: msgspec.Raw) -> Event:
        try:
            found = decode_slice(raw)
        except _UNREADABLE:
            # A list would leave it out; so that both agree, what was known under its name is over.
            self._on_skipped()
            return self._removed(raw)
        self._advance(found.metadata.resource_version)
        return Applied(found)

    def _removed(self, raw: msgspec.Raw) -> Event:
        mark = decode_mark(raw).metadata
        self._advance(mark.resource_version)
        return Removed(SliceName(mark.namespace, mark.name), mark.uid)

    def _advance(self, version: str) -> None:
        # Opaque text: it cannot be compared, but within one watch it comes in order.
        self._position = version or self._position

    def _refused(self, status: Status) -> Exception:
        error = refusal(self._connection.name, f"watch {self._target.what}", status, {})
        return error if error.expired else self._fruitless_end(error)

    def _foreign(self) -> Failure:
        return Failure("foreign", f"{self._connection.name}: what the watch sent is no event of Kubernetes")

    def _fruitless_end(self, error: Exception) -> Exception:
        """The error, or ``Gone`` where the same has just happened without a useful line in between.

        A position from the future, as after a restored backup, gets nothing but silence; one that a server cannot
        go on from may get the same error for ever.
        """
        self._fruitless += 1
        if self._fruitless < FRUITLESS_LIMIT:
            return error
        return Gone("fruitless", f"{self._connection.name}: watches from version {self._position} tell nothing")

    def _query(self) -> dict[str, str]:
        shortest, longest = self._pace.watch_secs
        return self._target.selection | {
            "watch": "true",
            "resourceVersion": self._position,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(shortest + (longest - shortest) * self._dice())),
        }


class _Silent(Exception):
    """Nothing came for too long."""
