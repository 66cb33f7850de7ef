"""Server-sent events from bytes, as the WHATWG standard reads them.

Pure: bytes go in as they arrive from the network, events come out. Knows nothing of pools or connections. Lines may end
in CR, LF or CRLF, a chunk may end anywhere, also inside a character or between CR and LF; the work is linear in the
bytes, however long a line is and in however many pieces it comes.
"""

import re
from typing import NamedTuple

LIMIT_BYTES = 512 << 20

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """One event. ``id`` is None where the event itself carried none."""

    name: str
    data: str
    id: str | None


class TooLong(ValueError):
    """An event grew past the limit before it ended."""


class Parser:
    """Reads one stream from its first byte. An event that is not ended by an empty line does not exist.

    ``last_event_id`` is what a reader resumes with (empty: from nothing), ``retry_secs`` how long the server asked
    to wait before the next connection, if it did.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.last_event_id = ""
        self.retry_secs: float | None = None
        self._limit_bytes = limit_bytes
        self._head: bytes | None = b""
        self._after_cr = False
        self._line: list[bytes] = []
        self._size = 0
        self._name = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that these bytes complete, in order."""
        if self._head is not None:
            chunk = self._without_bom(chunk)
        if not chunk:
            return []
        start = 1 if self._after_cr and chunk.startswith(b"\n") else 0
        self._after_cr = chunk.endswith(b"\r")
        events = []
        for end in _LINE_END.finditer(chunk, start):
            self._keep(chunk[start : end.start()])
            if event := self._end_line():
                events.append(event)
            start = end.end()
        self._keep(chunk[start:])
        return events

    def _without_bom(self, chunk: bytes) -> bytes:
        head = (self._head or b"") + chunk
        undecided = len(head) < len(_BOM) and _BOM.startswith(head)
        self._head = head if undecided else None
        return b"" if undecided else head.removeprefix(_BOM)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit_bytes:
            raise TooLong(f"an event is longer than {self._limit_bytes} bytes")
        if piece:
            self._line.append(piece)

    def _end_line(self) -> Event | None:
        line = b"".join(self._line)
        self._line.clear()
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            self._size -= len(line)
            return None
        field, _, value = line.partition(b":")
        self._take(field, value.removeprefix(b" "))
        return None

    def _take(self, field: bytes, value: bytes) -> None:
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = _text(value)
        elif field == b"id" and b"\0" not in value:
            self._id = _text(value)
        elif field == b"retry" and value.isdigit() and len(value) < 16:
            self.retry_secs = int(value) / 1000

    def _dispatch(self) -> Event | None:
        name, data, given_id = self._name or "message", self._data, self._id
        self._name, self._data, self._id, self._size = "", [], None, 0
        if given_id is not None:
            self.last_event_id = given_id
        return Event(name, _text(b"\n".join(data)), given_id) if data else None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
