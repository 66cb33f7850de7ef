"""Fixtures for stores: one server of tables for all tests of a worker, whose credentials are in the environment."""

from collections.abc import Iterator

import pytest

from tests.live.dynamodb_server import CREDENTIALS, DynamoDBServer
from tests.stores.tables import LIVE_URL


@pytest.fixture(scope="session")
def dynamodb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDBServer]:
    """One running server; no test stops it."""
    server = DynamoDBServer(tmp_path_factory.mktemp("moto"))
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that moto's server and DynamoDB Local believe; AWS itself gets its own."""
    if "amazonaws.com" not in LIVE_URL:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
