"""The package as its users have it: a wheel, installed by pip into environments of its own with what it asks for.

pip finds wheels of what is installed here, and no registry; which of them it takes is up to the metadata of ours.
"""

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.program import environment
from tests.documents import PROJECT
from tests.image import wheels


class Installed:
    """One environment with the package and some of its extras."""

    def __init__(self, place: Path, found_in: Path, extras: str) -> None:
        self._programs = place / "bin"
        venv.EnvBuilder(with_pip=False).create(place)
        words = [sys.executable, "-m", "pip", "--python", self._programs / "python", "--isolated", "install", "--quiet"]
        words += ["--no-index", "--find-links", found_in, "--constraint", PROJECT / "constraints.txt", "--no-compile"]
        done = subprocess.run(
            [*words, "--disable-pip-version-check", f"pool-discovery{extras}"],
            env=environment(), cwd=place, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        self.place = place
        (self.packages,) = place.glob("lib/python*/site-packages")

    def command(self, *words: str | Path) -> list[str]:
        """A program of this environment."""
        return [str(self._programs / words[0]), *map(str, words[1:])]

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment to its end, away from the sources."""
        return subprocess.run(
            self.command(*words), cwd=self.place, env=environment(), capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="installed-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """The package's own, beside wheels of all that its server needs."""
    wheels.pack(["pool-discovery[server]"], folder / "wheels", without={"pool-discovery"})
    hatchling = Path(sys.executable).with_name("hatchling")
    subprocess.run(
        [hatchling, "build", "-t", "wheel", "-d", folder / "wheels"], cwd=PROJECT, check=True, capture_output=True
    )
    (found,) = (folder / "wheels").glob("pool_discovery-*.whl")
    return found


@pytest.fixture(scope="module")
def plain(folder: Path, wheel: Path) -> Installed:
    """Installed without an extra."""
    return Installed(folder / "plain", wheel.parent, "")


@pytest.fixture(scope="module")
def with_server(folder: Path, wheel: Path) -> Installed:
    """Installed with the extra ``server`` alone."""
    return Installed(folder / "server", wheel.parent, "[server]")
