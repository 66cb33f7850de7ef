"""The program as users start it: a process with pipes, or on a terminal of a given size."""

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DISCOVERY = (sys.executable, "-m", "discovery")
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


def environment(**more: str) -> dict[str, str]:
    """An environment without colours, sizes and flags of whoever runs the tests."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | {"PYTHONUNBUFFERED": "1"} | more


@asynccontextmanager
async def started(*words: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program with pipes; killed at the end if it is still there."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *DISCOVERY, *words, stdout=pipe, stderr=pipe, env=environment(**variables)
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ran(*words: str, **variables: str) -> tuple[int, str, str]:
    """The program run to its end: exit code, standard output, standard error."""
    async with started(*words, **variables) as process:
        out, err = await asyncio.wait_for(process.communicate(), 8)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


class Terminal:
    """What a program drew so far, as raw text."""

    def __init__(self, process: asyncio.subprocess.Process, main: int) -> None:
        self.process = process
        self.drawn = ""
        self._main = main
        asyncio.get_running_loop().add_reader(main, self._read)

    def type(self, keys: bytes) -> None:
        os.write(self._main, keys)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._main)
        os.close(self._main)

    def _read(self) -> None:
        try:
            self.drawn += os.read(self._main, 65536).decode("utf-8", "replace")
        except OSError:  # the other side is closed
            asyncio.get_running_loop().remove_reader(self._main)


@asynccontextmanager
async def on_terminal(*words: str, columns: int = 80, rows: int = 24, **variables: str) -> AsyncIterator[Terminal]:
    """The program on a terminal of its own, with a controlling process group so that Ctrl-C reaches it."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *DISCOVERY,
        *words,
        stdin=other,
        stdout=other,
        stderr=other,
        env=environment(TERM="xterm-256color", **variables),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )
    os.close(other)
    terminal = Terminal(process, main)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        terminal.close()
