"""Fixtures of the live suite: replicas that are ended after each test, and the traffic of relays and routers."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.clusters import Cluster, watching
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

MakeReplica = Callable[..., Replica]
StartPair = Callable[..., tuple[Replica, Replica]]


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    """Where relays, pollers and subscribers of the test live."""
    running = Traffic()
    yield running
    running.close()


@contextlib.contextmanager
def ended_after_the_test() -> Iterator[list[Replica]]:
    """A list whose replicas end with the block; pytest shows what they logged when the test failed."""
    made: list[Replica] = []
    yield made
    for replica in made:
        replica.close()
    for replica in made:
        if replica._process is not None:
            print(f"---- log of replica {replica.name}\n{replica.log[-6000:]}")


@pytest.fixture
def make_replica(tmp_path: Path) -> Iterator[MakeReplica]:
    """Make a replica that is not started yet; all of them are ended after the test."""
    with ended_after_the_test() as made:

        def make(name: str = "a", **settings: Any) -> Replica:
            replica = Replica(tmp_path, name, **settings)
            made.append(replica)
            return replica

        yield make


@pytest.fixture
def start_replica(make_replica: MakeReplica) -> MakeReplica:
    """Make a replica and start it, ready when this returns."""
    return lambda name="a", **settings: make_replica(name, **settings).start()


@pytest.fixture
def start_pair(make_replica: MakeReplica) -> StartPair:
    """Start replicas ``a`` and ``b`` on one server that was in use before, so that they are complete from the start."""

    def start(server: RedisServer, **settings: Any) -> tuple[Replica, Replica]:
        # Replicas that find no epoch take the server for one that lost its data, and settle for a lease first.
        server.cli("SET", "{discovery}:epoch", "in-use-before", "NX")
        a, b = (make_replica(name, redis_url=server.url, **settings).launch() for name in "ab")
        for replica in (a, b):
            await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
            await_sign(lambda replica=replica: replica.pools().complete, 5, f"{replica.name} is complete")
        return a, b

    return start


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Start a cluster to watch; all of them end after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Cluster(**options))


@pytest.fixture
def make_watching(make_replica: MakeReplica, tmp_path: Path) -> MakeReplica:
    """Make a replica that watches the clusters given by name, on the memory store; it is not started yet."""

    def make(name: str = "a", mode: str = "mcs", flags: tuple[str, ...] = (), **settings: Any) -> Replica:
        replica = {key: settings.pop(key) for key in ("redis_url", "lease", "heartbeat") if key in settings}
        return make_replica(name, flags=(*watching(tmp_path, mode, **settings), *flags), **replica)

    return make
