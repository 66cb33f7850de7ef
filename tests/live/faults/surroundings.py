"""What a process believes of the world around it: its wall clock, and which address a host name has.

Both are files that the process looks at through a preloaded library (libfaketime, nss_wrapper), so that a test can
change them while it runs and needs no rights for it. The monotonic clock stays true, as it does where a clock is set.
"""

import glob
from collections.abc import Sequence
from pathlib import Path

from tests.live.redis_server import Kind, RedisServer
from tests.live.replica import Replica


def _library(name: str, package: str) -> str:
    found = sorted(glob.glob(f"/usr/lib/*/{name}") + glob.glob(f"/usr/lib/{name}"))
    assert found, f"{package} is not installed: run scripts/setup --tests"
    return found[0]


class Surroundings:
    """One process's wall clock and host names; ``command`` starts a program among them."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._clock = directory / f"{name}.clock"
        self._hosts = directory / f"{name}.hosts"
        self.set_clock("+0")
        self.set_hosts()

    def set_clock(self, offset: str) -> None:
        """The wall clock is off by this from now on, within a second: ``+2h``, ``-90`` (seconds), ``+0``."""
        self._replace(self._clock, f"{offset}\n")

    def set_hosts(self, **addresses: str) -> None:
        """These names have these addresses from the next look-up on; ``_`` in a name stands for a dot."""
        self._replace(self._hosts, "".join(f"{ip} {name.replace('_', '.')}\n" for name, ip in addresses.items()))

    def _replace(self, path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)

    def command(self, program: Sequence[str], *, names: bool) -> list[str]:
        """The program with its surroundings; ``names`` also wraps the look-up of hosts."""
        preload = [_library("faketime/libfaketime.so.1", "libfaketime")]
        preload += [_library("libnss_wrapper.so", "libnss-wrapper")] if names else []
        return [
            "env",
            f"LD_PRELOAD={' '.join(preload)}",
            f"FAKETIME_TIMESTAMP_FILE={self._clock}",
            "FAKETIME_CACHE_DURATION=1",
            "DONT_FAKE_MONOTONIC=1",
            *([f"NSS_WRAPPER_HOSTS={self._hosts}"] if names else []),
            *program,
        ]


class PlacedReplica(Replica):
    """A replica among surroundings of its own."""

    def place(self, surroundings: Surroundings) -> "PlacedReplica":
        """Before the start."""
        self._command = surroundings.command(self._command, names=True)
        return self


class PlacedServer(RedisServer):
    """A Valkey server with a wall clock of its own; Debian's Redis does not start with one."""

    def __init__(self, kind: Kind, directory: Path, surroundings: Surroundings, *arguments: str) -> None:
        assert kind == "valkey", "only the Valkey server runs under libfaketime"
        super().__init__(kind, directory, *arguments)
        self._surroundings = surroundings

    def _command(self) -> list[str]:
        return self._surroundings.command(super()._command(), names=False)
