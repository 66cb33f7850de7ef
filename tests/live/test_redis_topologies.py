"""The service on every way to run Redis: what it promises there, and that it goes on when another server takes over."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live import verdict
from tests.live.conftest import MakeReplica
from tests.live.redis_cluster import RedisCluster
from tests.live.redis_server import KINDS, Kind, RedisServer
from tests.live.relay import many
from tests.live.replica import Replica, pool
from tests.live.router import Poller
from tests.live.sentinel_group import SentinelGroup
from tests.live.signs import await_sign
from tests.live.traffic import Traffic
from tests.mcs.certificates import Authority

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

LEASE = 2.0
HEARTBEAT = 0.6
NAMES = [f"c1/n1/p{number}" for number in range(4)]
AFTER_FAILOVER_SECS = 2.0


@pytest.fixture
def start_two(make_replica: MakeReplica) -> Callable[..., tuple[Replica, Replica]]:
    """Start two replicas on a store that was in use before."""

    def start(url: str, server: RedisServer, flags: tuple[str, ...] = ()) -> tuple[Replica, Replica]:
        server.cli("SET", "{discovery}:epoch", "in-use-before", "NX")
        a, b = (
            make_replica(name, redis_url=url, lease=LEASE, heartbeat=HEARTBEAT, flags=flags).launch() for name in "ab"
        )
        for replica in (a, b):
            await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
            await_sign(lambda replica=replica: replica.pools().complete, LEASE + 5, f"{replica.name} is complete")
        return a, b

    return start


def share_changes(a: Replica, b: Replica) -> None:
    """What one replica is told the other knows at once: registered, changed, deregistered."""
    a.register("c1/n1/one")
    await_sign(lambda: b.lists("c1/n1/one"), 1.5, "a registration arrives")
    b.register("c1/n1/one", model="another")
    await_sign(lambda: a.pools().pools["c1/n1/one"]["model"] == "another", 1.5, "a change arrives")
    assert a.delete("c1/n1/one").status == 204
    await_sign(lambda: not b.lists("c1/n1/one"), 1.5, "a deregistration arrives")


def share_all(a: Replica, b: Replica) -> None:
    """The same, and the end of a lease."""
    a.register("c1/n1/ends")
    await_sign(lambda: b.lists("c1/n1/ends"), 1.5, "a registration arrives")
    share_changes(a, b)
    await_sign(lambda: not b.lists("c1/n1/ends"), LEASE + 2, "a lease ends")


@contextmanager
def nothing_missing(traffic: Traffic, a: Replica, b: Replica) -> Iterator[None]:
    """Relays register and routers read; afterwards no list lacked a pool, and both replicas agree on a complete one."""
    relays = many(traffic, [a, b], NAMES, interval=HEARTBEAT)
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists(*NAMES), 5, f"{replica.name} lists all")
    pollers = [Poller(traffic, [replica], every=0.05) for replica in (a, b)]
    yield
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.pools().complete, 2 * LEASE + 5, f"{replica.name} is complete again")
    await_sign(lambda: verdict.same_bytes(a.pools(), b.pools()), 2, "equal bytes")
    for poller in pollers:
        assert verdict.missing(poller.stop(), relays) == []
    for relay in relays:
        relay.stop()


def await_writes(server: RedisServer, *replicas: Replica) -> None:
    """Wait until writes answer again, and until they reach that server: a demoted one takes them until it is told."""

    def write(replica: Replica) -> bool:
        return replica.post(pool("c1/n1/after")).status == 200

    begun = time.monotonic()
    for replica in replicas:
        left = max(0.5, begun + AFTER_FAILOVER_SECS - time.monotonic())
        await_sign(lambda replica=replica: write(replica), left, f"{replica.name} takes writes again")
    for replica in replicas:
        await_sign(
            lambda replica=replica: write(replica) and server.cli("DEL", "{discovery}:pool:c1/n1/after"),
            10,
            f"writes of {replica.name} reach the new server",
        )


def node(replica: Replica) -> str:
    store = replica.get("/status").json["store"]
    return str(store["node"])


@pytest.mark.parametrize("kind", KINDS)
def test_behind_sentinel_a_planned_failover_and_a_killed_master_cost_no_pool(
    kind: Kind, tmp_path: Path, start_two: Callable[..., tuple[Replica, Replica]], traffic: Traffic
) -> None:
    group = SentinelGroup(kind, tmp_path / "group", host="localhost", replicas=2, failover_timeout=1.5)
    try:
        first = group.start().master()
        a, b = start_two(group.url, first)
        assert a.get("/status").json["store"]["address"] == group.url
        assert node(a) == f"localhost:{first.port}"
        share_all(a, b)
        with nothing_missing(traffic, a, b):
            second = group.failover()
            await_writes(second, a, b)
            await_sign(lambda: node(a) == node(b) == f"localhost:{second.port}", 3, "both read from the new master")
            group.kill_master()
            await_writes(group.await_other_master(second), a, b)
        share_changes(a, b)
    finally:
        group.close()


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_cluster_a_killed_owner_and_a_moved_slot_cost_no_pool(
    kind: Kind, tmp_path: Path, start_two: Callable[..., tuple[Replica, Replica]], traffic: Traffic
) -> None:
    cluster = RedisCluster(kind, tmp_path / "cluster", replicas=1)
    try:
        first = cluster.start().owner()
        a, b = start_two(cluster.url_with(seeds=2), first)
        share_all(a, b)
        with nothing_missing(traffic, a, b):
            cluster.kill_owner()
            second = cluster.await_other_owner(first)
            await_writes(second, a, b)
            added = cluster.add_node()
            cluster.move_slot(added)
            await_writes(added, a, b)
            await_sign(lambda: node(a) == node(b) == f"127.0.0.1:{added.port}", 3, "both read from the new owner")
            if kind == "valkey":
                cluster.move_slot_atomically(second)
                await_writes(second, a, b)
        share_changes(a, b)
    finally:
        cluster.close()


def test_over_tls_renewed_certificates_of_another_authority_are_taken_without_a_restart(
    tmp_path: Path, start_two: Callable[..., tuple[Replica, Replica]], traffic: Traffic
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    server = RedisServer("redis", tmp_path / "server", authority=old)

    def mount(authority: Authority) -> None:
        shutil.copy(authority.certificate, ca)
        for source, mounted in zip(
            authority.sign(f"client-{authority.certificate.stem}"), (certificate, key), strict=True
        ):
            shutil.copy(source, mounted)

    mount(old)
    flags = (
        "--redis-tls-ca-path",
        str(ca),
        "--redis-tls-cert-path",
        str(certificate),
        "--redis-tls-key-path",
        str(key),
    )
    try:
        a, b = start_two(server.start().url, server, flags)
        share_all(a, b)
        with nothing_missing(traffic, a, b):
            server.use(new)
            mount(new)
            await_writes(server, a, b)
    finally:
        server.close()


def test_on_a_socket_a_rotated_password_is_taken_without_a_restart(
    tmp_path: Path, start_two: Callable[..., tuple[Replica, Replica]], traffic: Traffic
) -> None:
    password = tmp_path / "password"
    password.write_text("first-Zq9\n")
    path = tmp_path / "redis.sock"
    server = RedisServer("redis", tmp_path / "server", "--unixsocket", str(path))
    try:
        server.start().cli("ACL", "SETUSER", "service", "on", ">first-Zq9", "~*", "&*", "+@all")
        a, b = start_two(f"unix://service@{path}?db=2", server, ("--redis-password-path", str(password)))
        assert a.get("/status").json["store"]["address"] == f"unix://{path}?db=2"
        share_all(a, b)
        with nothing_missing(traffic, a, b):
            server.cli("ACL", "SETUSER", "service", "resetpass", ">second-Zq9")
            server.client_kill("normal")
            server.client_kill("pubsub")
            await_sign(lambda: a.post(pool("c1/n1/after")).status == 503, 2, "the old password is refused")
            password.write_text("second-Zq9\n")
            for replica in (a, b):
                await_sign(
                    lambda replica=replica: replica.post(pool("c1/n1/after")).status == 200,
                    AFTER_FAILOVER_SECS,
                    f"{replica.name} takes the new password",
                )
        assert "Zq9" not in a.log + b.log
        assert b"Zq9" not in a.get("/status").body + a.get("/metrics").body + a.get("/readyz").body
    finally:
        server.close()
