"""The list-watch loop: what comes out of a source that ends, fails and comes back, on virtual time."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from discovery import feed
from discovery.backoff import Backoff
from discovery.errors import Gone, Unavailable
from tests.virtual_time import VirtualTimeLoop


class Scripted:
    """A source whose lists and watches are written down; a number is a pause, an error is raised."""

    def __init__(self, lists: list[str | Exception], watches: list[list[str | float | Exception]]) -> None:
        self.lists = lists
        self.watches = watches
        self.listed_at: list[float] = []
        self.watched: list[str] = []

    async def list_all(self) -> str:
        self.listed_at.append(asyncio.get_running_loop().time())
        item = self.lists.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    async def watch(self, listed: str) -> AsyncIterator[str]:
        self.watched.append(listed)
        for item in self.watches.pop(0):
            if isinstance(item, Exception):
                raise item
            if isinstance(item, float):
                await asyncio.sleep(item)
            else:
                yield item


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    virtual = VirtualTimeLoop()
    yield virtual
    virtual.shut()


async def collect(source: Any, count: int) -> list[str | Exception]:
    seen: list[str | Exception] = []
    follow = feed.follow(source, Backoff(0.5, 4.0, dice=lambda: 1.0))
    async for event in follow:
        seen.append(event.error if isinstance(event, feed.Interrupted) else event)
        if len(seen) == count:
            break
    await follow.aclose()
    return seen


def test_a_list_comes_first_and_then_what_the_watch_tells(loop: VirtualTimeLoop) -> None:
    source = Scripted(["list"], [["one", 1.0, "two"]])
    assert loop.run(collect(source, 3)) == ["list", "one", "two"]
    assert source.watched == ["list"]


def test_a_watch_that_is_gone_after_a_while_is_listed_again_at_once(loop: VirtualTimeLoop) -> None:
    gone = Gone("gap", "a gap")
    source = Scripted(["first", "second"], [[10.0, gone], ["after"]])
    assert loop.run(collect(source, 4)) == ["first", gone, "second", "after"]
    assert source.listed_at[1] - source.listed_at[0] == pytest.approx(10.0)


def test_a_position_that_is_gone_again_and_again_backs_off(loop: VirtualTimeLoop) -> None:
    gone = Gone("gap", "a gap")
    source = Scripted(["a", "b", "c", "d"], [[gone], [gone], [gone], ["done"]])
    loop.run(collect(source, 8))
    pauses = [round(b - a, 6) for a, b in zip(source.listed_at, source.listed_at[1:], strict=False)]
    assert pauses == [0.5, 1.0, 2.0]


def test_a_source_that_fails_is_tried_for_ever_and_what_it_says_is_passed_on(loop: VirtualTimeLoop) -> None:
    away = Unavailable("away")
    source = Scripted([away, away, away, away, away, "list"], [["event"]])
    assert loop.run(collect(source, 7)) == [away] * 5 + ["list", "event"]
    pauses = [round(b - a, 6) for a, b in zip(source.listed_at, source.listed_at[1:], strict=False)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0]


def test_a_failure_after_a_watch_that_lasted_begins_the_backoff_anew(loop: VirtualTimeLoop) -> None:
    away = Unavailable("away")
    source = Scripted([away, away, "list", "again"], [[60.0, away], ["event"]])
    loop.run(collect(source, 6))
    pauses = [round(b - a, 6) for a, b in zip(source.listed_at, source.listed_at[1:], strict=False)]
    assert pauses == [0.5, 1.0, 60.5]


def test_a_watch_that_just_ends_is_listed_again(loop: VirtualTimeLoop) -> None:
    source = Scripted(["first", "second"], [[30.0], ["event"]])
    seen = loop.run(collect(source, 4))
    assert seen[0] == "first"
    assert isinstance(seen[1], Gone)
    assert seen[2:] == ["second", "event"]


class Large:
    """A list that can be told to be gone."""


class HoldsItsErrors:
    """A source whose watch still has its list and its error at hand when it fails, as a frame of a traceback does."""

    def __init__(self) -> None:
        self.lists: list[weakref.ref[Large]] = []

    async def list_all(self) -> Large:
        listed = Large()
        self.lists.append(weakref.ref(listed))
        return listed

    async def watch(self, listed: Large) -> AsyncIterator[str]:
        error = Gone("gap", f"what came after {listed} is missing")
        yield "event"
        raise error


def test_a_list_whose_watch_failed_does_not_wait_for_a_garbage_collection(loop: VirtualTimeLoop) -> None:
    source = HoldsItsErrors()
    gc.disable()
    try:
        loop.run(collect(source, 9))
    finally:
        gc.enable()
    assert len(source.lists) == 3
    assert [each() for each in source.lists[:-1]] == [None, None]
