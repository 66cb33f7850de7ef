"""By which way a follower hears of changes at once, and when to take another.

Three steps: a stream; where something on the way breaks streams, a long poll; where that is broken too, nothing but
looks (see ``looks``), which there are on every step. Pure: it is told what became of each attempt, ``now`` is an
argument, and the dice can be given.

What counts against streams is only what happens while plain requests are answered: an outage is no fault of theirs. An
answer that is no stream says so for certain; a stream that stays mute, that is cut after a moment, or whose events come
later than a plain answer might be an accident, so it takes several in a row. One that lasts makes up for all.
"""

import random
from collections.abc import Callable
from enum import StrEnum

LASTING_SECS = 10.0
"""A stream that lives so long is no broken one, whatever ends it then."""
ENOUGH = 3
MUTE_POINTS = 2
STREAM_AGAIN_SECS = 30.0
LONGEST_STREAM_AGAIN_SECS = 300.0
"""While streams are broken they are tried again after so long, and each time after twice as long as before."""
LONGEST_WAIT_SECS = 20.0
SHORTEST_WAIT_SECS = 4.0
AT_ONCE_SECS = 0.5
"""An answer that nothing has changed and that comes within so short a time was not waited for."""


class Step(StrEnum):
    """The way in use."""

    STREAM = "stream"
    LONG_POLL = "long poll"
    POLL = "poll"


class Ways:
    """Which way to take. ``wait_secs`` is how long a long poll may wait: less where long ones do not come back."""

    def __init__(self, *, dice: Callable[[], float] = random.random) -> None:
        self.step = Step.STREAM
        self.wait_secs = LONGEST_WAIT_SECS
        self._dice = dice
        self._points = self._suspected = 0
        self._unanswered = 0
        self._again_secs = STREAM_AGAIN_SECS
        self._stream_at = float("-inf")

    def stream_in(self, now: float) -> float:
        """Seconds until a stream is to be tried; on the first step always zero."""
        return 0.0 if self.step is Step.STREAM else max(0.0, self._stream_at - now)

    def stream_lasted(self) -> bool:
        """A stream has lived for long enough. Whether this is another step."""
        changed = self.step is not Step.STREAM
        self.step, self._points, self._suspected, self._unanswered = Step.STREAM, 0, 0, 0
        self._again_secs, self.wait_secs = STREAM_AGAIN_SECS, LONGEST_WAIT_SECS
        return changed

    def stream_was_none(self) -> None:
        """In place of a stream there came something else, or a refusal."""
        self._suspected += ENOUGH

    def stream_was_mute(self) -> None:
        """It was opened, and then nothing came."""
        self._suspected += MUTE_POINTS

    def stream_was_short(self) -> None:
        """It was cut after a moment, or was behind what plain requests told."""
        self._suspected += 1

    def plain_requests_fail(self) -> None:
        """Nothing works, so nothing follows from how the last streams ended."""
        self._suspected = 0

    def plain_requests_work(self, now: float) -> bool:
        """Plain requests are answered, other than the last streams. Whether this is another step."""
        self._points, self._suspected = self._points + self._suspected, 0
        if self._points < ENOUGH:
            return False
        self._points = 0
        self._stream_at = now + self._again_secs * (0.75 + 0.5 * self._dice())
        self._again_secs = min(2 * self._again_secs, LONGEST_STREAM_AGAIN_SECS)
        if self.step is not Step.STREAM:
            return False
        self.step = Step.LONG_POLL
        return True

    def waited(self, asked_secs: float, lasted_secs: float) -> bool:
        """A long poll said that nothing has changed. Whether this is another step."""
        if lasted_secs >= min(AT_ONCE_SECS, asked_secs / 2):
            self._unanswered = 0
            return self._to(Step.LONG_POLL)
        return self._unanswered_poll()  # who was told to wait for it would have: Prefer was taken out on the way

    def rang(self) -> None:
        """A long poll told of a change."""
        self._unanswered = 0

    def poll_failed(self, lasted_secs: float) -> bool:
        """A long poll had no answer: where it waited, a shorter one may have. Whether this is another step."""
        if lasted_secs > SHORTEST_WAIT_SECS and self.wait_secs > SHORTEST_WAIT_SECS:
            self.wait_secs = max(SHORTEST_WAIT_SECS, min(self.wait_secs, lasted_secs) / 2)
            return False
        return self._unanswered_poll()

    def _unanswered_poll(self) -> bool:
        self._unanswered += 1
        return self._unanswered >= ENOUGH and self._to(Step.POLL)

    def _to(self, step: Step) -> bool:
        changed, self.step = self.step is not step, step
        return changed
