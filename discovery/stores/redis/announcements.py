"""Announcements as events: in the order of their revisions, ours left out, foreign ones counted and skipped.

Whatever does not follow on what was taken before ends the watch: everything is read again.
"""

from collections.abc import Callable

import msgspec

from discovery.errors import Gone
from discovery.metrics import Counters
from discovery.registrations import key_from_path
from discovery.stores import Deleted, Put
from discovery.stores.redis.subscription import Inbox


class _Announcement(msgspec.Struct):
    epoch: str
    revision: int
    event: str
    pool: str
    lease_ms: int = 0
    registration: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Announcement).decode


class Announcements:
    """Reads what came to one feed, and moves its position."""

    def __init__(self, channel: str, counters: Counters, report: Callable[[str, str], None]) -> None:
        self._channel = channel
        self._counters = counters
        self._report = report

    def read(self, feed: Inbox, message: bytes) -> Put | Deleted | None:
        """The event that a message tells of, if it is news. Raises ``Gone`` where one before it is missing."""
        if feed.own and _is_own(feed, message):
            return None
        try:
            told = _decode(message)
            key = key_from_path(told.pool)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            self._counters.announcements_ignored.inc()
            self._report(
                "announcement",
                f"an announcement on {self._channel} is ignored: it is no announcement of ours ({error})",
            )
            return None
        if told.epoch != feed.epoch:
            self._counters.announcements_ignored.inc()
            feed.nudge()  # a check will tell whether it is the epoch that is new, or the announcement that is foreign
            return None
        if told.revision <= feed.position:
            return None
        if told.revision != feed.position + 1:
            raise Gone("gap", f"announcement {told.revision} came after {feed.position}")
        feed.position = told.revision
        if told.event == "delete":
            return Deleted(key, feed.epoch, told.revision)
        return Put(key, bytes(told.registration), told.lease_ms / 1000, feed.epoch, told.revision)


def _is_own(feed: Inbox, message: bytes) -> bool:
    """Whether the next announcement is of a write whose outcome was taken already: it need not be read."""
    revision = feed.position + 1
    if revision not in feed.own or not message.startswith(
        b'{"epoch":"%b","revision":%d,' % (feed.epoch.encode(), revision)
    ):
        return False
    feed.position = revision
    feed.own.remove(revision)
    return True
