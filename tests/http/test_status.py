"""What takes long of ``/status``: made in steps, by one for all, and told again for a while."""

import asyncio
import time
from collections.abc import Iterator

from discovery.http.status import STEP_SECS, MadeInSteps


class Slow:
    """Items of which each takes longer than a step may, and how often they were begun."""

    def __init__(self) -> None:
        self.begun = 0

    def __call__(self) -> Iterator[int | None]:
        self.begun += 1
        yield None
        for number in range(4):
            time.sleep(STEP_SECS * 1.1)
            yield number


async def turns(while_done: "asyncio.Task[object]") -> int:
    """How often the loop turned."""
    counted = 0
    while not while_done.done():
        await asyncio.sleep(0)
        counted += 1
    return counted


async def test_the_loop_turns_between_the_steps() -> None:
    made = MadeInSteps(Slow(), 0)
    task = asyncio.create_task(made.get())
    assert await turns(task) >= 4
    assert bytes(await task) == b"[0,1,2,3]"


async def test_whoever_asks_meanwhile_gets_what_one_made() -> None:
    slow = Slow()
    made = MadeInSteps(slow, 1000)
    assert {bytes(one) for one in await asyncio.gather(*(made.get() for _ in range(5)))} == {b"[0,1,2,3]"}
    await made.get()
    assert slow.begun == 1


async def test_what_took_no_time_to_tell_again_is_made_anew() -> None:
    slow = Slow()
    made = MadeInSteps(slow, 0)
    await made.get()
    await made.get()
    assert slow.begun == 2


async def test_one_that_leaves_takes_it_from_nobody() -> None:
    slow = Slow()
    made = MadeInSteps(slow, 1000)
    first, second = (asyncio.create_task(made.get()) for _ in range(2))
    while not slow.begun:
        await asyncio.sleep(0)
    first.cancel()
    assert bytes(await second) == b"[0,1,2,3]"
    assert first.cancelled()
