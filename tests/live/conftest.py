"""Fixtures of the live suite: replicas that are ended after each test, and the traffic of relays and routers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.replica import Replica
from tests.live.traffic import Traffic

StartReplica = Callable[..., Replica]


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    """Where relays, pollers and subscribers of the test live."""
    running = Traffic()
    yield running
    running.close()


@pytest.fixture
def make_replica(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartReplica]:
    """Make a replica that is not started yet; all of them are ended after the test."""
    made: list[Replica] = []

    def make(name: str = "a", **settings: Any) -> Replica:
        replica = Replica(tmp_path, name, **settings)
        made.append(replica)
        return replica

    yield make
    for replica in made:
        replica.close()
    for replica in made:
        if replica._process is not None:
            # Shown by pytest when the test failed.
            print(f"---- log of replica {replica.name}\n{replica.log[-6000:]}")


@pytest.fixture
def start_replica(make_replica: StartReplica) -> StartReplica:
    """Make a replica and start it, ready when this returns."""
    return lambda name="a", **settings: make_replica(name, **settings).start()
