"""Answers that are made for one reader alone: how many bytes of them may wait for their readers.

Between the handlers that make such answers and ``answers``. The published lists are shared by all who read them, and
are none of this. Knows no route.
"""

import contextlib
import random
from collections.abc import Iterator

from discovery.errors import Rejected
from discovery.http.answers import Headers, Send, answer, answer_by_and_by

SHORT_BYTES = 65_536
PIECE_BYTES = 65_536
MOST_BYTES = 64 << 20
"""Some readers of a list of ten thousand pools; one answer is given in any case, however long it is."""


class OwnAnswers:
    """The answers of one route that wait for their readers."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._waiting = 0

    async def give(self, send: Send, headers: Headers, body: bytes) -> None:
        """Answer 200 with this body; raises ``Rejected`` where too much of others waits for slow readers."""
        if len(body) <= SHORT_BYTES:
            await answer(send, 200, headers, body)
        else:
            await self.give_as_is(send, [*headers, (b"content-length", b"%d" % len(body))], body)

    async def give_as_is(self, send: Send, headers: Headers, body: bytes) -> None:
        """The same for a long body, with headers that have its length."""
        with self._waiting_for(len(body)):
            await answer_by_and_by(send, 200, headers, _pieces(body))

    @contextlib.contextmanager
    def _waiting_for(self, size: int) -> Iterator[None]:
        if self._waiting and self._waiting + size > self._most_bytes:
            raise _busy()
        self._waiting += size
        try:
            yield
        finally:
            self._waiting -= size


def _pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


def _busy() -> Rejected:
    retry = str(random.randint(2, 10))  # noqa: S311
    detail = "Slow readers have not taken the long answers yet that were made for them."
    return Rejected(503, "Too many slow readers", detail, headers=(("retry-after", retry),))
