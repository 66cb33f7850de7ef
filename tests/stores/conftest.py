"""For stores: the credentials of the server of tables are in the environment."""

import pytest

from tests.live.dynamodb_server import CREDENTIALS
from tests.stores.tables import LIVE_URL


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that moto's server and DynamoDB Local believe; AWS itself gets its own."""
    if "amazonaws.com" not in LIVE_URL:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
