"""Which life of the store is the present one. Pure.

Nobody can tell of two epochs which one is newer, so an answer brings a new one only if its question was sent after the
present one was known; writes and announcements never bring one.
"""

from collections import OrderedDict
from typing import Literal

from discovery.stores import Health

REMEMBERED = 100


class Epochs:
    """The present epoch and those before it."""

    def __init__(self) -> None:
        self.present: str | None = None
        self._known_at = float("-inf")
        self._past: OrderedDict[str, None] = OrderedDict()

    def is_past(self, epoch: str) -> bool:
        """Whether what belongs to this epoch is void."""
        return epoch in self._past

    def adopt(self, health: Health, now: float) -> Literal["present", "first", "new", "past"]:
        """Take the store's epoch from what was asked of it: a new one after another is a loss of data."""
        if health.epoch == self.present:
            return "present"
        if health.asked_at < self._known_at or health.epoch in self._past:
            return "past"
        before, self.present, self._known_at = self.present, health.epoch, now
        if before is None:
            return "first"
        self._past[before] = None
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)
        return "new"
