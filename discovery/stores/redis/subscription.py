"""What a watch takes its events from: a subscription to announcements, or nothing but the revision where Redis refuses.

A subscription is a connection of its own that never reconnects unseen. Messages wait here in the order in which they
came, interleaved with what the side tasks of the watch push behind them. A subscription that broke or fell silent is at
its end: whoever watches it reads everything again.
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from discovery.errors import Gone, Unavailable
from discovery.stores.redis.link import Address, Link, Refused, pack

SILENCE_SECS = 2.0


class NoChannel(Unavailable):
    """Redis takes commands but refuses SUBSCRIBE: the right to the channel is missing."""


class Inbox:
    """What came and was not taken yet, and up to which revision of which epoch everything was taken.

    Alone it is the feed of a store that may not subscribe: nothing comes, and whatever others change is a gap.
    """

    subscribed = False

    def __init__(self) -> None:
        self.epoch = ""
        self.position = 0
        self.watched = False
        self.own: set[int] = set()
        self._items: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._nudge = asyncio.Event()
        self._last_sign = time.monotonic()

    async def barrier(self) -> None:
        """Return when everything that was announced before now has been taken, or raise where the feed is dead.

        Here it is the writes of this very store, whose outcomes were taken when they were answered.
        """
        self._last_sign = time.monotonic()
        while self.position + 1 in self.own:
            self.position += 1
            self.own.discard(self.position)

    def take(self) -> Iterable[Any]:
        """Everything that is there, in order."""
        while self._items:
            yield self._items.popleft()

    async def wait(self) -> None:
        """Wait until there is something to take."""
        if not self._items:
            self._wake.clear()
            await self._wake.wait()

    def push(self, item: Any) -> None:
        """Add an event or an error behind the messages that came before it."""
        self._items.append(item)
        self._wake.set()

    def nudge(self) -> None:
        """Ask for a check now."""
        self._nudge.set()

    async def nudged(self, timeout_secs: float) -> None:
        """Wait for ``nudge``, or for the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_secs):
                await self._nudge.wait()
        self._nudge.clear()

    def silent_secs(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._last_sign

    @property
    def node(self) -> str:
        """The server that it comes from as host and port; empty where it comes from none."""
        return ""

    def close(self) -> None:
        """End it; whoever watches it is told."""
        self.push(Gone("feed", "the feed was given up"))


class Subscription(Inbox):
    """The subscription on one channel."""

    subscribed = True

    def __init__(self) -> None:
        super().__init__()
        self._subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs: dict[bytes, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._link: Link

    @classmethod
    async def open(cls, address: Address, channel: str, timeout_secs: float) -> "Subscription":
        """Subscribe. Raises ``NoChannel`` that names the right that is missing where Redis refuses."""
        feed = cls()
        feed._link = Link(await address.open(), timeout_secs, feed._on_message)
        feed._link.closed.add_done_callback(feed._on_closed)
        feed._link.send(pack("SUBSCRIBE", channel))
        try:
            async with asyncio.timeout(timeout_secs):
                await feed._subscribed
        except TimeoutError:
            feed.close()
            raise Unavailable(f"Redis at {address} does not answer SUBSCRIBE") from None
        except Refused as error:
            feed.close()
            raise _refused(address, channel, str(error)) from None
        return feed

    async def barrier(self) -> None:
        """See ``Inbox.barrier``: a PING behind the announcements was answered, and its answer was taken."""
        if self._link.closed.done():
            raise Gone("feed", f"the subscription broke: {self._link.closed.result()}")
        token = b"%d" % next(self._numbers)
        future = self._pongs[token] = asyncio.get_running_loop().create_future()
        self._link.send(pack("PING", token))
        try:
            async with asyncio.timeout(SILENCE_SECS):
                await future
        except TimeoutError:
            raise Gone("silence", f"the subscription did not answer a PING within {SILENCE_SECS:g} s") from None
        finally:
            self._pongs.pop(token, None)

    @property
    def node(self) -> str:
        """See ``Inbox.node``."""
        return self._link.node

    def close(self) -> None:
        """Drop the connection."""
        self._link.abort("closing")

    def _on_message(self, reply: Any) -> None:
        now = time.monotonic()
        silent_secs, self._last_sign = now - self._last_sign, now
        if silent_secs > SILENCE_SECS and self.watched:  # what waited here while the process was stopped is the past
            self._link.abort(f"nothing was heard for {silent_secs:.1f} s")
            return
        if type(reply) is list and reply[0] == b"message":
            self.push(reply[2])
            return
        match reply:
            case [b"pong", token]:
                self._on_pong(token)
            case [b"subscribe", *_] if not self._subscribed.done():
                self._subscribed.set_result(None)
            case Refused() if not self._subscribed.done():
                self._subscribed.set_exception(reply)
            case _:
                self.push(Gone("feed", f"an unexpected message on the subscription: {str(reply)[:80]}"))

    def _on_pong(self, token: bytes) -> None:
        """While the feed is watched the pong waits in line, so that what was announced before it is taken before it."""
        future = self._pongs.get(token)
        if future is None:
            return
        if self.watched:
            self.push(future)
        elif not future.done():
            future.set_result(None)

    def _on_closed(self, closed: "asyncio.Future[str]") -> None:
        error = Gone("feed", f"the subscription broke: {closed.result()}")
        if not self._subscribed.done():
            self._subscribed.set_exception(Unavailable(error.detail))
        for future in self._pongs.values():
            if not future.done():
                future.set_exception(error)
        self.push(error)


def _refused(address: Address, channel: str, said: str) -> Unavailable:
    if said.startswith("NOPERM"):
        pattern = channel.partition(":")[0] + ":*"
        return NoChannel(
            f"Redis at {address} refuses SUBSCRIBE: {said}; grant the right to the channel: "
            f"ACL SETUSER … +subscribe &{pattern}"
        )
    return Unavailable(f"Redis at {address} refuses SUBSCRIBE: {said}")
