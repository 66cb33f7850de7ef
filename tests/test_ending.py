"""The first signal, the same wish told twice, and the second signal."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from discovery.ending import SAME_WISH_SECS, Ending
from tests.virtual_time import VirtualTimeLoop


def run(main: Coroutine[Any, Any, None]) -> None:
    with contextlib.closing(VirtualTimeLoop()) as loop:
        loop.run(main)


def test_nothing_is_told_before_a_signal() -> None:
    async def main() -> None:
        ending = Ending()
        waiting = asyncio.create_task(ending.told())
        await asyncio.sleep(3600)
        assert not waiting.done()
        ending.tell()
        await waiting
        assert not ending.hurried

    run(main())


def test_a_pause_lasts_until_its_end_and_no_longer() -> None:
    async def main() -> None:
        ending = Ending()
        begun = asyncio.get_running_loop().time()
        await ending.pause(5)
        assert asyncio.get_running_loop().time() - begun == 5

    run(main())


def test_a_signal_that_comes_twice_within_a_moment_is_one() -> None:
    async def main() -> None:
        ending = Ending()
        ending.tell()
        await asyncio.sleep(SAME_WISH_SECS / 2)
        ending.tell()
        assert not ending.hurried

    run(main())


def test_a_later_one_ends_pauses_that_run_and_pauses_that_follow() -> None:
    async def main() -> None:
        ending = Ending()
        loop = asyncio.get_running_loop()
        ending.tell()
        told = loop.time()
        pausing = asyncio.create_task(ending.pause(60))
        await asyncio.sleep(SAME_WISH_SECS * 2)
        ending.tell()
        await pausing
        await ending.pause(60)
        await ending.until_hurried()
        assert ending.hurried
        assert loop.time() - told == SAME_WISH_SECS * 2

    run(main())
