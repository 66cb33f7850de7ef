"""How long to wait before the next attempt: exponential, with full jitter.

For every loop that tries again, in the service and in its clients. Pure but for the dice, which can be given; knows no
clock and never sleeps by itself.
"""

import random
from collections.abc import Callable


class Backoff:
    """Waits that grow: each is drawn from between zero and a ceiling.

    The ceiling doubles with each wait, from ``first_secs`` to ``limit_secs``. The full range is drawn, so that many
    who failed at the same moment do not come back at the same moment. ``dice`` gives numbers from 0 to 1.
    """

    __slots__ = ("_ceiling", "_dice", "_first", "_limit")

    def __init__(self, first_secs: float, limit_secs: float, *, dice: Callable[[], float] = random.random) -> None:
        if not 0 < first_secs <= limit_secs:
            raise ValueError(f"a backoff needs 0 < first ({first_secs}) <= limit ({limit_secs})")
        self._first = self._ceiling = first_secs
        self._limit = limit_secs
        self._dice = dice

    def next(self) -> float:
        """Seconds to wait now; the next wait may be twice as long."""
        wait = self._ceiling * self._dice()
        self._ceiling = min(self._ceiling * 2, self._limit)
        return wait

    def reset(self) -> None:
        """Start over: an attempt succeeded."""
        self._ceiling = self._first
