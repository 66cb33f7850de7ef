"""Waiting for a sign with a deadline, never for a fixed time; and ports that nobody else will take meanwhile."""

import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

Sign = TypeVar("Sign")

_PORTS = random.SystemRandom()


def await_sign(sign: Callable[[], Sign], within: float, what: str, *, every: float = 0.02) -> Sign:
    """Ask ``sign`` until it gives something true and return that; fail the test, saying ``what``, after ``within`` s.

    An assertion that fails inside ``sign`` counts as "not yet", and its text is shown when the time is over.
    """
    deadline = time.monotonic() + within
    last: object = None
    while True:
        try:
            seen = sign()
        except AssertionError as error:
            last = error
        else:
            if seen:
                return seen
            last = seen
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {within} s: {what} (last seen: {last!r})")
        time.sleep(every)


def hold_for(secs: float, sign: Callable[[], object], what: str, *, every: float = 0.05) -> None:
    """Check that ``sign`` stays true for ``secs`` seconds; this is for promises that something does not happen."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        assert sign(), what
        time.sleep(every)


def free_port() -> int:
    """A TCP port that is free now and outside the range the kernel hands to outgoing connections.

    A port from that range could be taken by some client's connection while the server that owns it is down.
    """
    for _ in range(1000):
        port = _PORTS.randint(11000, 31000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port between 11000 and 31000")
