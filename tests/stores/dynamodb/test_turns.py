"""Turns: whoever asks gets work that begins after the question, and never two at once."""

import asyncio
from collections.abc import Iterator

import pytest

from discovery.errors import Unavailable
from discovery.stores.dynamodb.turns import Turns
from tests.virtual_time import VirtualTimeLoop


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    running = VirtualTimeLoop()
    asyncio.set_event_loop(running)
    yield running
    running.shut()
    asyncio.set_event_loop(None)


class Work:
    """Takes ``secs``; gives when it began."""

    def __init__(self, loop: VirtualTimeLoop, secs: float) -> None:
        self.loop = loop
        self.secs = secs
        self.began: list[float] = []
        self.at_once = 0
        self.fails = False

    async def __call__(self) -> float:
        self.began.append(self.loop.time())
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(self.secs)
        self.at_once -= 1
        if self.fails:
            raise Unavailable("it failed")
        return self.began[-1]


def test_all_who_ask_while_one_runs_share_the_next_one(loop: VirtualTimeLoop) -> None:
    work = Work(loop, 1.0)
    turns = Turns(work, 0.3, loop.time)

    async def ask(after: float) -> tuple[float, float]:
        await asyncio.sleep(after)
        asked = loop.time()
        return asked, await turns.next()

    async def run() -> list[tuple[float, float]]:
        return await asyncio.gather(*(ask(after) for after in (0.0, 0.1, 0.5, 0.9, 1.5, 5.0)))

    answers = loop.run(run())
    assert all(began >= asked for asked, began in answers)
    assert work.began == [1000.0, 1001.0, 1002.0, 1005.0]


def test_turns_begin_apart_and_may_be_put_off(loop: VirtualTimeLoop) -> None:
    work = Work(loop, 0.01)
    turns = Turns(work, 0.3, loop.time)

    async def run() -> None:
        for _ in range(4):
            await turns.next()
        turns.put_off(2.0)
        await turns.next()

    loop.run(run())
    gaps = [later - earlier for earlier, later in zip(work.began, work.began[1:], strict=False)]
    assert gaps == pytest.approx([0.3, 0.3, 0.3, 2.01])


def test_an_error_reaches_all_who_asked_and_the_next_turn_begins_anew(loop: VirtualTimeLoop) -> None:
    work = Work(loop, 0.1)
    turns = Turns(work, 0.3, loop.time)

    async def run() -> list[object]:
        work.fails = True
        first = await asyncio.gather(turns.next(), turns.next(), return_exceptions=True)
        work.fails = False
        return [*first, await turns.next()]

    *errors, last = loop.run(run())
    assert [str(error) for error in errors] == ["it failed", "it failed"]
    assert last == work.began[1]


def test_a_caller_that_leaves_takes_nobody_elses_turn(loop: VirtualTimeLoop) -> None:
    work = Work(loop, 0.5)
    turns = Turns(work, 0.3, loop.time)

    async def run() -> float:
        leaving, staying = asyncio.create_task(turns.next()), asyncio.create_task(turns.next())
        await asyncio.sleep(0.1)
        leaving.cancel()
        return await staying

    assert loop.run(run()) == 1000.0


def test_closing_ends_what_runs_and_whoever_waits_is_told(loop: VirtualTimeLoop) -> None:
    turns = Turns(Work(loop, 60.0), 0.3, loop.time)

    async def run() -> list[object]:
        waiting = [asyncio.create_task(turns.next()) for _ in range(2)]
        await asyncio.sleep(0.1)
        waiting.append(asyncio.create_task(turns.next()))
        await asyncio.sleep(0.1)
        await turns.close()
        return [
            *await asyncio.gather(*waiting, return_exceptions=True),
            *await asyncio.gather(turns.next(), return_exceptions=True),
        ]

    assert [str(error) for error in loop.run(run())] == ["the store is closed"] * 4
