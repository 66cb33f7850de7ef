"""Tables of DynamoDB for stores that run in the tests' own process."""

import os
import re
import urllib.parse
from typing import Any

import pytest

from discovery.metrics import Counters
from discovery.stores.dynamodb.store import DynamoStore
from tests.live.dynamodb_server import CREDENTIALS, REGION, Table

LIVE_URL = os.environ.get("DYNAMODB_LIVE_URL", "")


def live_table() -> Table:
    """A fresh table where ``DYNAMODB_LIVE_URL`` says; the test is not run where it says nothing."""
    if not LIVE_URL:
        pytest.skip("not run: DYNAMODB_LIVE_URL names no DynamoDB")
    host = urllib.parse.urlsplit(LIVE_URL).hostname or ""
    named = re.fullmatch(r"dynamodb\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?", host)
    # DynamoDB Local takes every credential, but none at all it does not take.
    return (Table(LIVE_URL, named[1]) if named else Table(LIVE_URL, REGION, CREDENTIALS)).create()


def dynamo_store(table: Table, lease_secs: float, **changed: Any) -> DynamoStore:
    """A store on a table, as the service opens it; it finds the table's credentials in the environment."""
    settings: dict[str, Any] = {
        "table": table.name,
        "region": table.region,
        "endpoint_url": table.url,
        "lease_secs": lease_secs,
        "timeout_secs": 1.5,
        "counters": Counters(),
    }
    return DynamoStore(**(settings | changed))
