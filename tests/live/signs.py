"""Waiting for a sign with a deadline, never for a fixed time; and ports that nobody else will take meanwhile."""

import os
import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

Sign = TypeVar("Sign")

_CHANCE = random.SystemRandom()
_PORTS = range(11_000, 31_000)
_given: set[int] = set()


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
    """A TCP port that is free now, that nobody else is given, and that the kernel hands to no outgoing connection.

    A port from the kernel's range could be taken by some client's connection while the server that owns it is down.
    Until its server listens, a port looks free to everybody: so each worker of pytest has ports of its own, and none
    is given twice.
    """
    for _ in range(10_000):
        port = _CHANCE.choice(_own_ports())
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError(f"no free port in {_own_ports()}")


def _own_ports() -> range:
    """The share of this worker; everything where there are no workers."""
    share = len(_PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first = share * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return _PORTS[first : first + share]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
