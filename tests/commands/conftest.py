"""One forker for all tests of a session."""

from collections.abc import Iterator

import pytest

from tests.commands import program
from tests.commands.forked import Forker


@pytest.fixture(scope="session", autouse=True)
def forker() -> Iterator[Forker]:
    program.FORKER = forker = Forker(program.environment())
    yield forker
    forker.close()
