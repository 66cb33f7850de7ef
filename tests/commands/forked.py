"""The program as a process of its own, without the time that Python takes to import it.

``Forker`` is what tests ask; ``python -m tests.commands.forked`` is a process, one for each test session, that has
imported the commands that call a service and runs none. For each start it forks twice: a child that becomes the
program, with the files, the environment and the arguments that it was given, and one that says how the first ended.
All that users see of a start is real but the importing, which tests/test_cli.py and the live tests look at.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from typing import NamedTuple

IMPORTED = (
    "discovery.cli",
    "discovery.client.transport",
    "discovery.commands.doctor",
    "discovery.commands.pools",
    "discovery.commands.register",
    "discovery.registrations",
)
# Python reads these once when it starts, which is over when a program is forked.
READ_AT_START = ("PYTHON", "LC_", "LANG", "COVERAGE")


class Start(NamedTuple):
    """One start: what the program is given, beside its files."""

    words: Sequence[str]
    environment: Mapping[str, str]
    on_terminal: bool


class Forker:
    """Asks the process to start programs. Not to be shared between threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = _read_at_start(environment)
        self._asks, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.commands.forked", str(answers.fileno())]
        with answers:
            self._process = subprocess.Popen(command, env=dict(environment), pass_fds=[answers.fileno()])

    def close(self) -> None:
        """End the process, once every program has ended."""
        self._asks.close()
        self._process.wait(20)

    def start(self, start: Start, stdin: int, stdout: int, stderr: int) -> socket.socket:
        """Start a program with these files. It tells its process id, and then its exit code, a line each."""
        assert _read_at_start(start.environment) == self._environment, "only a real start reads these variables"
        mine, its = socket.socketpair()
        with its:
            files = [stdin, stdout, stderr, its.fileno()]
            socket.send_fds(self._asks, [json.dumps(start).encode()], files)
        return mine


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name.startswith(READ_AT_START)}


# ---- the process


def main() -> None:
    """Import, then fork until nobody can ask any more; returns in processes that become the program."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # what was imported stays: collections in every fork need not go through it
    asked = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the tests reaches this one as well
    while True:
        text, files, _, _ = socket.recv_fds(asked, 1 << 20, 4)
        if not text:
            return _reap(0)
        if os.fork() == 0:
            asked.close()
            return _start(Start(*json.loads(text)), files[:3], socket.socket(fileno=files[3]))
        for file in files:
            os.close(file)
        _reap(os.WNOHANG)


def _reap(options: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _start(start: Start, files: list[int], told: socket.socket) -> None:
    child = os.fork()
    if child == 0:
        told.close()
        return _become(start, files)
    for file in files:
        os.close(file)
    with told:
        told.sendall(b"%d\n" % child)
        told.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def _become(start: Start, files: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if start.on_terminal:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if start.on_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.argv[1:] = start.words
    runpy.run_module("discovery", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
