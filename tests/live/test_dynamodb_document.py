"""What ``docs/dynamodb.md`` has people paste: a stand-in for AWS, a table, two replicas on it, and a look at an item.

The stand-in's own folder has moto's server and the ``aws`` program. Here these are the server of this environment, and
a program that makes the same request of the same words: the real one cannot live beside the library that it fixes.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import PROJECT
from tests.live.signs import free_port
from tests.live.test_readme import Reader

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


class Stranger(Reader):
    """A reader of the page, with free ports in place of those that it names."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "docs/dynamodb.md")
        first, stand_in = self.ports, str(free_port())
        self.ports = lambda text: first(text).replace("8000", stand_in)  # type: ignore[assignment]
        hermetic = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
        own = {name: value for name, value in self._environment.items() if not name.startswith("AWS_")}
        self._environment = own | hermetic | {"PYTHONPATH": str(PROJECT), "DISCOVERY_DRAIN_DELAY_SECS": "0"}


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    (tmp_path / ".venv").symlink_to(PROJECT / ".venv")
    programs = tmp_path / "stand-in" / "bin"
    programs.mkdir(parents=True)
    for name, module in (("moto_server", "moto.server"), ("aws", "tests.aws_command")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
    made = Stranger(tmp_path)
    yield made
    made.close()


def test_what_is_pasted_does_what_the_page_shows(stranger: Stranger) -> None:
    assert stranger.follow() >= 8
