"""One engine for all tests of a session."""

from collections.abc import Iterator

import pytest

from tests.charts.engine import Engine
from tests.charts.rendered import Chart


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    helm = Engine()
    yield helm
    helm.close()


@pytest.fixture(scope="session")
def chart(engine: Engine) -> Chart:
    return Chart(engine)
