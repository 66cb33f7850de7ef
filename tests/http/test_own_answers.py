"""Long answers that are made for one reader alone, and readers that do not take them."""

import asyncio
from typing import Any

import pytest

from discovery.errors import Rejected
from discovery.http.answers import JSON
from discovery.http.own_answers import OwnAnswers

LONG = b"x" * 400_000


class Reader:
    """Takes what it is sent once it is let."""

    def __init__(self, *, reads: bool) -> None:
        self.reading = asyncio.Event()
        self.received = b""
        self.headers: dict[bytes, bytes] = {}
        if reads:
            self.reading.set()

    async def send(self, message: dict[str, Any]) -> None:
        """As the server's: waits while the reader has no room."""
        await self.reading.wait()
        self.headers |= dict(message.get("headers", ()))
        self.received += message.get("body", b"")
        await asyncio.sleep(0)


async def started(work: Any) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


def test_a_long_answer_arrives_whole_with_its_length() -> None:
    async def main() -> None:
        reader = Reader(reads=True)
        await OwnAnswers(1_000).give(reader.send, [JSON], LONG)  # type: ignore[arg-type]
        assert (reader.received, reader.headers[b"content-length"]) == (LONG, b"400000")

    asyncio.run(main())


def test_what_waits_for_slow_readers_is_bounded_and_short_answers_are_given_all_the_same() -> None:
    async def main() -> None:
        answers = OwnAnswers(1_000_000)
        slow = [Reader(reads=False) for _ in range(2)]
        giving = [await started(answers.give(reader.send, [JSON], LONG)) for reader in slow]  # type: ignore[arg-type]
        waits = set()
        for _ in range(40):
            with pytest.raises(Rejected) as caught:
                await answers.give(Reader(reads=True).send, [JSON], LONG)  # type: ignore[arg-type]
            assert caught.value.status == 503
            waits.add(int(dict(caught.value.headers)["retry-after"]))
        assert max(waits) - min(waits) >= 2
        short = Reader(reads=True)
        await answers.give(short.send, [JSON], b"{}")  # type: ignore[arg-type]
        assert short.received == b"{}"
        giving[0].cancel()  # its connection was cut
        slow[1].reading.set()
        await asyncio.gather(*giving, return_exceptions=True)
        assert slow[1].received == LONG
        after = Reader(reads=True)
        await answers.give(after.send, [JSON], LONG)  # type: ignore[arg-type]
        assert after.received == LONG

    asyncio.run(main())
