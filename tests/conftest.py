"""Fixtures that several suites share: a real server of each kind."""

import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.live.redis_server import KINDS, RedisServer

if TYPE_CHECKING:
    from tests.live.dynamodb_server import DynamoDBServer

# A shell starts what it puts into the background with SIGINT ignored, nohup what it runs with SIGHUP ignored, and every
# process below inherits that: scripts under test could not be ended so. What is started from here has the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says how busy the machine is. What must be quick is measured where it is promised, and
# pytest's timeout ends what never does.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: it is not worth looking for garbage among them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that may take longest begin first, so that none of them runs on alone when all others are done."""
    items.sort(key=_allowed_secs, reverse=True)


def _allowed_secs(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


@pytest.fixture(params=KINDS)
def redis_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A fresh, empty server; the test runs on Redis and on Valkey."""
    server = RedisServer(request.param, tmp_path / "server")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def debian_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A fresh, empty ``redis-server``, for faults whose outcome does not hang on the kind of server."""
    server = RedisServer("redis", tmp_path / "server")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="session")
def dynamodb_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[DynamoDBServer]":
    """One running server for all tests of a worker; no test stops it."""
    from tests.live.dynamodb_server import DynamoDBServer  # its client takes long to import

    server = DynamoDBServer(tmp_path_factory.mktemp("moto"))
    try:
        yield server.start()
    finally:
        server.close()
