"""What becomes of pools when the place of Redis is taken by another server, as seen through addresses that move.

A failover as Sentinel plans one: the replica is promoted, and clients go on with the old master for seconds; then that
one is demoted, and the address leads to the new one. Epoch and revision are the same on both.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import verdict
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.relay import many
from tests.live.replica import Replica
from tests.live.router import Poller
from tests.live.signs import await_sign
from tests.live.tcp_proxy import TcpProxy
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE = 4.0  # a refused relay comes back after up to two seconds, and has to be well within a lease
EPOCH = "{discovery}:epoch"
CHANNEL = "{discovery}:changes"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two servers that know nothing of each other and hold the same epoch."""
    pair = RedisServer("redis", tmp_path / "one"), RedisServer("redis", tmp_path / "two")
    try:
        for server in pair:
            server.arguments += ("--repl-diskless-sync-delay", "0")
            server.start()
            server.cli("SET", EPOCH, "in-use-before")
        yield pair
    finally:
        for server in pair:
            server.close()


@pytest.fixture
def paths(servers: tuple[RedisServer, RedisServer]) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """An address for each replica of the service; both lead to the first server."""
    pair = TcpProxy(servers[0].port), TcpProxy(servers[0].port)
    yield pair
    for proxy in pair:
        proxy.close()


def follow(replica: RedisServer, master: RedisServer) -> None:
    replica.cli("REPLICAOF", "127.0.0.1", master.port)
    await_sign(
        lambda: replica.cli("INFO", "replication").get("master_link_status") == "up", 10, "the replica is in sync"
    )


def start(make_replica: MakeReplica, paths: tuple[TcpProxy, TcpProxy]) -> tuple[Replica, Replica]:
    a, b = (
        make_replica(name, redis_url=proxy.url, lease=LEASE, heartbeat=1).launch()
        for name, proxy in zip("ab", paths, strict=True)
    )
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
    return a, b


def agree(a: Replica, b: Replica) -> bool:
    one, other = a.pools(), b.pools()
    return one.complete and other.complete and verdict.same_bytes(one, other)


@pytest.mark.parametrize("quiet", [False, True], ids=["connections-stay", "connections-are-cut"])
def test_f16_f17_a_failover_that_loses_every_renewal_costs_no_pool_and_moves_all_connections(
    servers: tuple[RedisServer, RedisServer],
    paths: tuple[TcpProxy, TcpProxy],
    make_replica: MakeReplica,
    traffic: Traffic,
    quiet: bool,
) -> None:
    """Where connections stay, the demoted server says what it is; where they are cut, nobody sees an error."""
    old, new = servers
    follow(new, old)
    a, b = start(make_replica, paths)
    relays = many(traffic, [a, b], [f"c1/n1/p{number}" for number in range(10)], interval=0.5)
    names = [relay.name for relay in relays]
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists(*names) and replica.pools().complete, 8, "all are listed")
    logged = {replica.name: len(replica.log.splitlines()) for replica in (a, b)}
    pollers = [Poller(traffic, [replica], every=0.02) for replica in (a, b)]

    revision = "{discovery}:revision"
    await_sign(lambda: new.cli("GET", revision) == old.cli("GET", revision), 5, "all was replicated")
    new.cli("REPLICAOF", "NO", "ONE")
    await_sign(lambda: not new.cli("KEYS", "{discovery}:pool:*"), LEASE + 2, "no lease lives on the new master")
    assert new.cli("GET", EPOCH) == old.cli("GET", EPOCH)
    assert new.cli("GET", revision) == old.cli("GET", revision)
    for proxy in paths:
        proxy.target_port = new.port
        if quiet:
            proxy.cut()
    if not quiet:
        follow(old, new)
    demoted = time.monotonic()

    await_sign(lambda: new.subscribers(CHANNEL) == 2, 5, "both listen to the new master")
    await_sign(lambda: old.subscribers(CHANNEL) == 0, 2, "nobody listens to the old one")
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.post(relays[0].body).status == 200, 3, "writes are taken")
    a.register("c1/n1/after")
    await_sign(lambda: b.lists("c1/n1/after"), 1, "an announcement reaches the other replica")
    # One lease for the loss, one more where the time without a master was an outage.
    await_sign(lambda: agree(a, b), demoted + 3 * LEASE + 4 - time.monotonic(), "both say the same and are complete")
    for poller in pollers:
        assert verdict.missing(poller.stop(), relays) == []
    for replica in (a, b):
        assert len(replica.log.splitlines()) - logged[replica.name] < 10
    assert ("is a read-only replica" in a.log + b.log) is not quiet
    assert "another master_replid" in a.log + b.log


def test_f18_two_masters_that_become_one_are_one_list_again(
    servers: tuple[RedisServer, RedisServer],
    paths: tuple[TcpProxy, TcpProxy],
    make_replica: MakeReplica,
    traffic: Traffic,
) -> None:
    one, other = servers
    paths[1].target_port = other.port
    a, b = start(make_replica, paths)
    (of_a,), (of_b,) = many(traffic, [a], ["c1/n1/pa"], interval=0.5), many(traffic, [b], ["c1/n1/pb"], interval=0.5)
    await_sign(lambda: a.pools().names == [of_a.name] and b.pools().names == [of_b.name], 5, "each knows its own")
    pollers = [Poller(traffic, [a]), Poller(traffic, [b])]
    b.register("c1/n1/silent")

    paths[1].target_port = one.port
    follow(other, one)
    await_sign(lambda: a.lists(of_a.name, of_b.name) and b.lists(of_a.name, of_b.name), 5, "both know both")
    a.register("c1/n1/after-a")
    await_sign(lambda: b.lists("c1/n1/after-a"), 1, "b hears of a")
    b.register("c1/n1/after-b")
    await_sign(lambda: a.lists("c1/n1/after-b"), 1, "a hears of b")
    await_sign(lambda: not b.lists("c1/n1/silent"), 4 * LEASE, "what nobody renewed is gone at last", every=0.1)
    await_sign(lambda: agree(a, b), 3 * LEASE + 2, "both say the same and are complete")
    assert verdict.missing(pollers[0].stop(), [of_a]) == []
    assert verdict.missing(pollers[1].stop(), [of_b]) == []
