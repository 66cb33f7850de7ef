"""A file that is renewed while the process runs: its value as last read well, and who is told of a new one.

Renewals are seen by looking at the path once a second: a mounted Secret is renewed by swapping a symlink two levels up,
which no watch on the file notices. What has just changed is read only when it has stayed the same for one look more,
since whoever writes in several steps leaves a beginning that may be valid by itself. What cannot be read or makes no
sense is said once, and the value from before stays. Knows nothing of what the file is for.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from discovery.logs import event

log = logging.getLogger(__name__)

Value = TypeVar("Value")

LOOK_SECS = 1.0
MAX_BYTES = 4 << 20

_Look = tuple[int, ...] | str


class RenewedFile(Generic[Value]):
    """What ``parse`` makes of a file; ``value`` is always whole, from one reading.

    ``what`` names the file in the log. The path is never said: people have given the secret itself in its place.
    ``parse`` raises ``ValueError`` with one line that is fit for the log.
    """

    def __init__(self, path: str, what: str, parse: Callable[[bytes], Value]) -> None:
        self._path = Path(path)
        self._what = what
        self._parse = parse
        self._listeners: list[Callable[[Value, Value], None]] = []
        self._is_pipe = self._path.is_fifo()  # which can be read only once
        self._taken = self._look()
        self._seen = self._taken
        self._fault = ""
        self.taken = self.refused = 0
        self._content = self._read()
        self.value = parse(self._content)

    @property
    def is_broken(self) -> bool:
        """Whether the file as it is cannot be used, so that what it held before stays in force."""
        return bool(self._fault)

    def on_renewal(self, listener: Callable[[Value, Value], None]) -> None:
        """Have ``listener(before, after)`` called after each renewal, from the event loop."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECS)
            if not self._is_pipe:
                await self.look()

    async def look(self) -> None:
        """Look once, and take what has come to rest since the look before."""
        look = await asyncio.to_thread(self._look)
        before, self._seen = self._seen, look
        if look == self._taken or look != before:
            return
        try:
            content = await asyncio.to_thread(self._read)
            if await asyncio.to_thread(self._look) != look:
                return  # it is being written at this moment
            self._taken = look
            await self._take(content)
        except (OSError, ValueError) as error:
            self._taken = look
            self._say_fault((error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error))

    async def _take(self, content: bytes) -> None:
        if content != self._content:
            before, self.value = self.value, await asyncio.to_thread(self._parse, content)
            self._content = content
            self.taken += 1
            for listener in self._listeners:
                listener(before, self.value)
        elif self._fault:
            event(log, logging.INFO, "file.accepted", "%s holds again what is in force", self._what)
        self._fault = ""

    def _say_fault(self, fault: str) -> None:
        self.refused += 1
        if fault != self._fault:
            text = "%s is not taken, and what it held before stays in force: %s"
            event(log, logging.WARNING, "file.refused", text, self._what, fault, cause=fault)
        self._fault = fault

    def _look(self) -> _Look:
        """What differs after every renewal; a text where there is nothing to read."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            return error.strerror or "missing"
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is a directory")
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is over {MAX_BYTES:,} bytes")
        return content
