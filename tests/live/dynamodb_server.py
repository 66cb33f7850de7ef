"""Moto's server as a process of its own: a stand-in for DynamoDB, with tables that tests make, read and write.

The server keeps everything in memory, so a killed one comes back without tables, and it sweeps nothing: an item stays
after its time to live is over, as in DynamoDB for up to days. It believes every credential. Items are read and written
here as they lie in the table, past the service.
"""

import http.client
import itertools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session

from tests.live.signs import await_sign, free_port

REGION = "eu-central-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "dummykeyid", "AWS_SECRET_ACCESS_KEY": "dummysecretkey"}
"""What processes under test find in their environment. Nobody checks them, but without any nothing is sent."""

# What the two commands of the documentation say.
SCHEMA: dict[str, Any] = {
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "sk", "AttributeType": "S"},
    ],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "BillingMode": "PAY_PER_REQUEST",
}
TIME_TO_LIVE = {"Enabled": True, "AttributeName": "expires_at"}

Item = dict[str, dict[str, Any]]
"""An item as it lies in the table: ``{"pk": {"S": "POOL"}, "lease_ends_ms": {"N": "1"}}``."""

_BATCH = 25
"""How many items one request may write."""

# Which service is meant, moto reads from the place where the signature would be.
_LIST_TABLES = {
    "X-Amz-Target": "DynamoDB_20120810.ListTables",
    "Authorization": f"AWS4-HMAC-SHA256 Credential=dummy/20260101/{REGION}/dynamodb/aws4_request",
}


class Table:
    """One table of DynamoDB, wherever it is, under a name that no other test has."""

    def __init__(self, url: str | None, region: str = REGION, credentials: Mapping[str, str] | None = None) -> None:
        """``url`` is the endpoint, None for AWS itself; without ``credentials`` the usual chain gives them."""
        self.url = url
        self.region = region
        self.credentials = dict(credentials or {})
        self.name = f"discovery-test-{uuid.uuid4().hex[:12]}"
        keys = {name.lower(): value for name, value in self.credentials.items()}
        patient = botocore.config.Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 1})
        self.client: Any = botocore.session.Session().create_client(
            "dynamodb", region_name=region, endpoint_url=url, config=patient, **keys
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """What ``discovery serve`` takes to use this table."""
        return self.flags_through(self.url)

    def flags_through(self, url: str | None) -> tuple[str, ...]:
        """The same by way of a proxy at ``url``."""
        endpoint = () if url is None else ("--dynamodb-endpoint-url", url)
        table = ("--registration-storage", "dynamodb", "--dynamodb-table", self.name)
        return (*table, "--dynamodb-region", self.region, *endpoint)

    def create(self) -> "Table":
        """Make the table, and wait until it takes items."""
        self.client.create_table(TableName=self.name, **SCHEMA)
        self.client.get_waiter("table_exists").wait(TableName=self.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        self.client.update_time_to_live(TableName=self.name, TimeToLiveSpecification=TIME_TO_LIVE)
        return self

    def delete(self) -> None:
        """Delete the table with all that is in it."""
        self.client.delete_table(TableName=self.name)

    def close(self) -> None:
        """Give the connections back."""
        self.client.close()

    # Items

    def put_item(self, item: Item) -> None:
        """Write one item as it is."""
        self.client.put_item(TableName=self.name, Item=item)

    def put_items(self, items: Iterable[Item]) -> None:
        """Write many items as they are, in as few requests as there can be."""
        waiting = iter(items)
        while batch := [{"PutRequest": {"Item": item}} for item in itertools.islice(waiting, _BATCH)]:
            while batch:
                answer = self.client.batch_write_item(RequestItems={self.name: batch})
                batch = answer.get("UnprocessedItems", {}).get(self.name, [])

    def delete_item(self, sk: str, pk: str = "POOL") -> None:
        """Delete one item, or nothing where it is not there."""
        self.client.delete_item(TableName=self.name, Key={"pk": {"S": pk}, "sk": {"S": sk}})

    def get_item(self, sk: str, pk: str = "POOL") -> Item | None:
        """One item as it lies there."""
        key = {"pk": {"S": pk}, "sk": {"S": sk}}
        answer = self.client.get_item(TableName=self.name, Key=key, ConsistentRead=True)
        found: Item | None = answer.get("Item")
        return found

    def scan(self) -> list[Item]:
        """Everything that lies in the table."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        return [item for page in pages for item in page["Items"]]


class DynamoDBServer:
    """One server on one port, which stays the same through kills and restarts."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "DynamoDBServer":
        """Start the process and wait until it answers."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with (self.directory / "moto.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        await_sign(self._answers, 30, f"an answer of moto's server on port {self.port}")
        return self

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"moto's server ended with {self.process.returncode}: {self.log[-3000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("POST", "/", b"{}", _LIST_TABLES)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The running or ended process."""
        assert self._process is not None, "the server was not started"
        return self._process

    @property
    def running(self) -> bool:
        """Whether the process is there; a frozen one is."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that the server wrote so far."""
        return (self.directory / "moto.log").read_text(errors="replace")

    def table(self, region: str = REGION) -> Table:
        """Make a fresh table; whoever asks deletes and closes it."""
        return Table(self.url, region, CREDENTIALS).create()

    def kill(self) -> None:
        """SIGKILL: connections break, and all tables are lost."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """An orderly end; nothing happens when the server is down already."""
        if not self.running:
            return
        self.thaw()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def freeze(self) -> None:
        """SIGSTOP: the kernel goes on accepting, and no answer comes."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process at once."""
        if self.running:
            self.kill()
