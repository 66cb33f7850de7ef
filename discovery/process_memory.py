"""What the process does about its own memory: few collections, and freed pages given back to the system.

In the corridor; knows nothing of what is kept in that memory.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable

GIVE_BACK_SECS = 5.0


def make_collections_rare() -> None:
    """Listings live long and hold no cycles: full collections over all of them would only stop the loop.

    The young are collected often all the same: what fails in libraries may leave a cycle of a traceback and its frames.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 1_000)


def give_back() -> None:
    """Give the pages that are free back: glibc keeps those below the newest block, for ever after a crowd has left.

    Some microseconds where nothing is to be given back, else about a millisecond for each 10 MB.
    """
    if _trim is not None:
        _trim(0)


async def keep_giving_back() -> None:
    """Run for ever."""
    while True:
        await asyncio.sleep(GIVE_BACK_SECS)
        give_back()


_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
