"""Fixtures for replicas on a table: a fresh one for each test, on the one server of the worker."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import ended_after_the_test
from tests.live.dynamodb.replicas import TableReplica
from tests.live.dynamodb_proxy import DynamoDBProxy
from tests.live.dynamodb_server import DynamoDBServer, Table
from tests.live.signs import await_sign

MakeReplica = Callable[..., TableReplica]
StartReplicas = Callable[..., list[TableReplica]]
MakeProxy = Callable[[], DynamoDBProxy]


@pytest.fixture
def table(dynamodb_server: DynamoDBServer) -> Iterator[Table]:
    """A fresh table, of this test alone."""
    made = dynamodb_server.table()
    yield made
    with contextlib.suppress(made.client.exceptions.ResourceNotFoundException):
        made.delete()
    made.close()


@pytest.fixture
def make_proxy(dynamodb_server: DynamoDBServer) -> Iterator[MakeProxy]:
    """A proxy before the server; a replica of its own each, so that it is known who asked."""
    made: list[DynamoDBProxy] = []

    def make() -> DynamoDBProxy:
        made.append(DynamoDBProxy(dynamodb_server.port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def make_replica(tmp_path: Path, table: Table) -> Iterator[MakeReplica]:
    """Make a replica on the table of the test that is not started yet; all of them are ended after the test."""
    with ended_after_the_test() as made:

        def make(name: str = "a", **settings: Any) -> TableReplica:
            replica = TableReplica(tmp_path, name, **{"table": table, **settings})
            made.append(replica)
            return replica

        yield make


@pytest.fixture
def start_replicas(make_replica: MakeReplica) -> StartReplicas:
    """Start replicas with these names and settings of their own at once, all ready and complete on return."""

    def start(names: str = "ab", own: dict[str, dict[str, Any]] | None = None, **settings: Any) -> list[TableReplica]:
        replicas = [make_replica(name, **{**settings, **(own or {}).get(name, {})}).launch() for name in names]
        for replica in replicas:
            await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
            await_sign(lambda replica=replica: replica.pools().complete, 5, f"{replica.name} is complete")
        return replicas

    return start
