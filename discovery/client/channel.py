"""The way by which a follower hears of changes at once: a stream, or a long poll where streams are broken.

One attempt after the other, each judged by ``ways``, which says what comes next. Nothing here has to be safe against a
stream that says nothing, or too late: ``looks`` keep the list current, and a stream that they overtook is left, since
what it still brings would be old. How a server is reached is for ``reach``.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from discovery.backoff import Backoff
from discovery.client import sse
from discovery.client.answers import NoAnswer, NoStream, one_line
from discovery.client.kept import KeptList
from discovery.client.looks import Looks
from discovery.client.reach import EventStream, Reach
from discovery.client.service import Request
from discovery.client.ways import LASTING_SECS, Step, Ways
from discovery.errors import DiscoveryError, Rejected, Unavailable
from discovery.logs import event

SILENCE_SECS = 17.0
"""A stream has a comment at least every 15 s: one that is silent for longer is a dead one."""
MUTE_SECS = 3.0
"""A stream says something as soon as it is open: one that does not is held up on the way."""
RETRY_SECS = 1.0
LONGEST_RETRY_SECS = 60.0
BACKOFF_SECS = 0.5
LONGEST_BACKOFF_SECS = 8.0
"""Streams need not be tried more often, since looks find out sooner when the service answers again, and say so."""

logger = logging.getLogger(__name__)


class Channel:
    """Hears of changes of one list from when it runs until it is cancelled.

    ``changed`` is called where readers see a change, ``heard`` when a stream confirmed the list, and ``failed`` with
    why an attempt ended badly.
    """

    def __init__(
        self,
        reach: Reach,
        target: str,
        kept: KeptList,
        *,
        silence_secs: float,
        changed: Callable[[], None],
        heard: Callable[[], None],
        failed: Callable[[DiscoveryError], None],
    ) -> None:
        self.ways = Ways()
        self.looks: Looks
        self._reach = reach
        self._target = target
        self._kept = kept
        self._silence_secs = silence_secs
        self._changed = changed
        self._heard = heard
        self._failed = failed
        self._retry_secs = RETRY_SECS
        self._backoff = Backoff(BACKOFF_SECS, LONGEST_BACKOFF_SECS)
        self._attempt: asyncio.Task[None] | None = None
        self._living_since: float | None = None
        self._overtaken = False
        self._plain_works = asyncio.Event()

    @property
    def tells(self) -> bool:
        """Whether a stream is open that has told of a list, and seems to be alive."""
        return self._living_since is not None

    async def run(self) -> None:
        """Try the way that is due, for ever."""
        while True:
            if (wait := self.ways.stream_in(_now())) <= 0:
                await self._pause(*await self._one_stream())
            elif self.ways.step is Step.LONG_POLL:
                await self._pause(*await self._one_long_poll())
            else:
                await asyncio.sleep(wait)

    def overtaken(self) -> None:
        """A look has taken another list: whatever a stream, or one that is being opened, still brings is older."""
        if self._attempt is not None:
            self._overtaken = True
            self._attempt.cancel()

    def plain_requests(self, *, work: bool) -> None:
        """A look was answered, or was not."""
        if not work:
            self.ways.plain_requests_fail()
        elif not self.tells:
            self._plain_works.set()
            self._step(changed=self.ways.plain_requests_work(_now()))

    # ---- streams

    async def _one_stream(self) -> tuple[float, bool]:
        """One stream; how long to wait afterwards, and whether plain requests that work end the wait."""
        self._plain_works.clear()
        self._overtaken, started = False, _now()
        self._attempt = asyncio.create_task(self._read_one(), name="stream of pools")
        try:
            await asyncio.wait([self._attempt])
        except asyncio.CancelledError:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
            raise
        failure, told, lived = _why(self._attempt), self.tells, self._lived()
        self._attempt = self._living_since = None
        self._judge(failure, told, lived)
        self._reach.move_on()
        if failure is not None:
            self._failed(failure)
            if not told:
                self.looks.hurry()
        if self.looks.good_at > started:
            self._step(changed=self.ways.plain_requests_work(_now()))
        if failure is None or told:
            # Whatever the service asks for, streams that are cut after a moment are not opened ever again at once.
            return max(self._retry_secs * _spread(), 0.0 if lived >= LASTING_SECS else self._backoff.next()), False
        asked = failure.retry_after_secs if isinstance(failure, Unavailable) else 0
        return max(asked * _spread(), self._backoff.next()), not asked

    async def _read_one(self) -> None:
        token = self._kept.token
        resume = {"Last-Event-ID": token} if token is not None else {}
        async with self._reach.stream(Request("GET", self._target, resume)) as stream:
            await self._read(stream, resumed=token is not None)
            if not self.tells:  # what is no stream of ours may end so each time
                raise NoStream(f"{stream.base} ended the stream of pools before it sent a list")

    async def _read(self, stream: EventStream, *, resumed: bool) -> None:
        parser = sse.Parser()
        while chunk := await stream.read(self._silence_secs if self.tells else MUTE_SECS):
            has_list = self._take(parser, chunk, stream.base)
            if self.tells or resumed or has_list:
                self._is_alive()
            else:
                self.looks.trickling()

    def _take(self, parser: sse.Parser, chunk: bytes, base: str) -> bool:
        """Whether these bytes complete any event."""
        mark, changed = self._kept.mark, False
        try:
            for each in parser.feed(chunk):
                changed |= self._kept.take_event(each, _now())
        except ValueError as error:
            raise Unavailable(f"{base} sent an event that cannot be read: {one_line(str(error))}") from error
        finally:
            if parser.retry_secs is not None:
                self._retry_secs = min(parser.retry_secs, LONGEST_RETRY_SECS)
            if changed:
                self._changed()
        return self._kept.mark != mark

    def _is_alive(self) -> None:
        if not self._kept.started:
            return
        if self._living_since is None:
            self._living_since = _now()
        self._kept.confirm(_now())
        self._heard()
        if self._lived() >= LASTING_SECS:
            self._backoff.reset()
            self._step(changed=self.ways.stream_lasted())

    def _lived(self) -> float:
        return 0.0 if self._living_since is None else _now() - self._living_since

    def _judge(self, failure: DiscoveryError | None, told: bool, lived: float) -> None:
        """What this stream's end says about streams."""
        if lived >= LASTING_SECS:
            self._step(changed=self.ways.stream_lasted())
        elif self._overtaken and self.looks.replicas_differ:
            pass  # which is no fault of streams
        elif isinstance(failure, Rejected | NoStream):
            self.ways.stream_was_none()
        elif isinstance(failure, NoAnswer) and not told:
            if failure.reached:
                self.ways.stream_was_mute()
        else:
            self.ways.stream_was_short()

    # ---- long polls

    async def _one_long_poll(self) -> tuple[float, bool]:
        """One long poll, until a stream is due at the latest; then as ``_one_stream``."""
        self._plain_works.clear()
        started, asked = _now(), self.ways.wait_secs
        if self._kept.token is None:  # without a name there is nothing to wait for, and looks are enough
            return RETRY_SECS * _spread(), False
        try:
            rang = await self._ask(asked)
        except DiscoveryError as failure:
            self._step(changed=self.ways.poll_failed(_now() - started))
            self.looks.hurry()
            wait = failure.retry_after_secs if isinstance(failure, Unavailable) else 0
            return max(wait * _spread(), self._backoff.next()), not wait
        self._backoff.reset()
        self._heard()
        lasted = _now() - started
        if rang:
            self.ways.rang()
        else:
            self._step(changed=self.ways.waited(asked, lasted))
        return max(0.0, BACKOFF_SECS - lasted) * _spread(), False

    async def _ask(self, wait_secs: float) -> bool:
        try:
            return await self.looks.ask(wait_secs)
        except DiscoveryError:
            raise
        except Exception as error:  # as with streams
            logger.exception("waiting for the pools failed in a way that was not foreseen")
            raise Unavailable(f"waiting for the pools failed: {one_line(str(error))}") from error

    # ---- in between

    async def _pause(self, secs: float, until_plain_works: bool) -> None:
        if not until_plain_works:
            await asyncio.sleep(secs)
            return
        try:
            async with asyncio.timeout(secs):
                await self._plain_works.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(secs, BACKOFF_SECS) * random.random())  # noqa: S311 - as above

    def _step(self, *, changed: bool) -> None:
        if changed:
            text = "pools are followed by %s now"
            names = {Step.STREAM: "a stream", Step.LONG_POLL: "long polls", Step.POLL: "polls"}
            reason = "" if self.ways.step is Step.STREAM else ": streams, or long polls, do not come through"
            event(logger, logging.WARNING, "stream.step", text + reason, names[self.ways.step])


def _why(attempt: asyncio.Task[None]) -> DiscoveryError | None:
    """What a stream ended with. Whatever goes wrong with one, the next one is tried."""
    if attempt.cancelled() or (error := attempt.exception()) is None:
        return None
    if isinstance(error, DiscoveryError):
        return error
    logger.error("reading the pools failed in a way that was not foreseen", exc_info=error)
    return Unavailable(f"reading the pools failed: {one_line(str(error))}")


def _spread() -> float:
    return random.uniform(1.0, 1.5)  # noqa: S311 - spreads clients, hides nothing


def _now() -> float:
    return asyncio.get_running_loop().time()
