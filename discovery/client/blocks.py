"""Which blocks are open within a client's own, and what may not be done: used outside, entered twice, done twice.

Such mistakes raise ``RuntimeError`` before anything is asked of the service. A client that is left while blocks within
are open ends these too, as if each had been left: so nothing runs on, however a program falls apart.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

_registering: set[Hashable] = set()
"""What a process keeps registered at which service. One that was forked inherits the set, and none of the blocks."""


Ending = Callable[[], Coroutine[Any, Any, None]]
"""Leaves a block; more than once does nothing more."""


class Blocks:
    """The blocks of one client; ``service`` is what two clients of the same service have in common."""

    def __init__(self, service: Hashable) -> None:
        self._service = service
        self._entered = False
        self._left = False
        self._open: dict[Ending, Hashable] = {}

    def begin(self) -> None:
        """The client's own block begins."""
        if self._entered:
            raise RuntimeError("a client is entered once: make another one for another block")
        self._entered = True

    def check(self) -> None:
        """Raise unless the client's block runs."""
        if self._left:
            raise RuntimeError("the client is closed: its block has ended")
        if not self._entered:
            raise RuntimeError("a client works within its block: async with Client(...) as client")

    def enter(self, ending: Ending, registers: Hashable = None) -> None:
        """A block within begins, which ``ending`` leaves.

        ``registers`` names the pool that it keeps registered, which no other one may do.
        """
        self.check()
        name = None if registers is None else (os.getpid(), self._service, registers)
        if name is not None and name in _registering:
            raise RuntimeError(f"{registers} is kept registered by this process already: leave that block first")
        if name is not None:
            _registering.add(name)
        self._open[ending] = name

    def leave(self, ending: Ending) -> None:
        """A block within has ended."""
        _registering.discard(self._open.pop(ending, None))

    async def end(self) -> None:
        """The client's own block ends, and with it all within."""
        self._left = True
        await asyncio.gather(*(ending() for ending in list(self._open)), return_exceptions=True)


def not_twice(task: object) -> None:
    """Raise where a block that has a task already is entered again."""
    if task is not None:
        raise RuntimeError("this block was entered before: ask the client for another one")
