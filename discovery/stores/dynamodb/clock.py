"""The table's clock, as far as it can be known from the ``Date`` of its answers. Pure.

A ``Date`` has whole seconds: an answer says only that the table's clock stood within one second at some moment between
question and answer. Answers at other parts of a second narrow that down. Times here are seconds of this process's
monotonic clock, but for the table's, which are seconds since 1970. This process's wall clock plays no part.
"""

from email.utils import parsedate_to_datetime

DRIFT = 2e-4
"""How much faster or slower the table's clock may run than ours."""
APART_SECS = 0.25
"""How far the many servers behind one address may be apart; beyond it a clock was set, and what was known is void."""


def seconds_of(date: str | None) -> float | None:
    """The seconds since 1970 that a ``Date`` header says; None where it says none."""
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


class TableClock:
    """By how much the table's clock is ahead of ours: somewhere between two bounds."""

    def __init__(self) -> None:
        self._least = 0.0
        self._most = 0.0
        self._known_at: float | None = None

    @property
    def known(self) -> bool:
        """Whether any answer was seen."""
        return self._known_at is not None

    def observe(self, date: float, sent_at: float, received_at: float) -> None:
        """An answer with that ``Date`` came to a question that was sent then."""
        least, most = date - received_at, date + 1.0 - sent_at
        if self._known_at is not None:
            drifted = DRIFT * max(0.0, received_at - self._known_at)
            least_of_both, most_of_both = max(least, self._least - drifted), min(most, self._most + drifted)
            if least_of_both - most_of_both <= APART_SECS:
                least, most = sorted((least_of_both, most_of_both))
        self._least, self._most = least, most
        self._known_at = max(received_at, self._known_at or received_at)

    def at(self, moment: float) -> float:
        """What the table's clock says at a moment of ours."""
        return moment + (self._least + self._most) / 2
