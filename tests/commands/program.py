"""The program as users start it: a process with pipes, or on a terminal of a given size."""

import asyncio
import fcntl
import os
import pty
import signal
import socket
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.commands.forked import Forker, Start

DISCOVERY = (sys.executable, "-m", "discovery")
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


FORKER: Forker | None = None
"""What starts the program, in tests of this package: see its conftest."""


def environment(**more: str) -> dict[str, str]:
    """An environment without colours, sizes and flags of whoever runs the tests."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | {"PYTHONUNBUFFERED": "1"} | more


class Program:
    """A program that was started: its output and errors where it has pipes, and its end."""

    def __init__(self, control: socket.socket) -> None:
        self.returncode: int | None = None
        self._pid = 0
        self._control = control
        self._ended: asyncio.Task[int] | None = None
        self._pipes: list[tuple[asyncio.ReadTransport, asyncio.StreamReader]] = []

    @property
    def stdout(self) -> asyncio.StreamReader:
        return self._pipes[0][1]

    @property
    def stderr(self) -> asyncio.StreamReader:
        return self._pipes[1][1]

    async def opened(self, *pipes: int) -> None:
        """Wait for its process id, and read from these pipes from now on."""
        loop = asyncio.get_running_loop()
        for pipe in pipes:
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.connect_read_pipe(lambda made=protocol: made, open(pipe, "rb", 0))  # noqa: SIM115
            self._pipes.append((transport, reader))
        told, self._writer = await asyncio.open_connection(sock=self._control)
        self._pid = int(await told.readline())
        self._ended = asyncio.create_task(self._end(told))

    async def wait(self) -> int:
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        """What it still says until it has ended."""
        out, err, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return out, err

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self._pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def stop_reading(self) -> None:
        """Close the pipe of its output."""
        self._pipes[0][0].close()

    async def close(self) -> None:
        """Kill it if it is still there, and close what it was read from."""
        self.send_signal(signal.SIGKILL)
        await self.wait()
        self._writer.close()
        for transport, _ in self._pipes:
            transport.close()
        await asyncio.sleep(0)  # transports close their files in the next round of the loop

    async def _end(self, told: asyncio.StreamReader) -> int:
        self.returncode = int(await told.readline())
        return self.returncode


@asynccontextmanager
async def started(*words: str, **variables: str) -> AsyncIterator[Program]:
    """The program with pipes; killed at the end if it is still there."""
    (out, its_out), (err, its_err) = os.pipe(), os.pipe()
    with open(os.devnull, "rb") as nothing:
        program = _start(Start(words, environment(**variables), False), nothing.fileno(), its_out, its_err)
    os.close(its_out)
    os.close(its_err)
    await program.opened(out, err)
    try:
        yield program
    finally:
        await program.close()


def _start(start: Start, *files: int) -> Program:
    assert FORKER is not None, "the fixture forker starts it"
    return Program(FORKER.start(start, *files))


async def ran(*words: str, **variables: str) -> tuple[int, str, str]:
    """The program run to its end: exit code, standard output, standard error."""
    async with started(*words, **variables) as process:
        out, err = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


class Terminal:
    """What a program drew so far, as raw text."""

    def __init__(self, process: Program, main: int) -> None:
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
    program = _start(Start(words, environment(TERM="xterm-256color", **variables), True), other, other, other)
    os.close(other)
    await program.opened()
    terminal = Terminal(program, main)
    try:
        yield terminal
    finally:
        await program.close()
        terminal.close()
