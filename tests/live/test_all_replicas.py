"""``discovery doctor --all-replicas`` against real replicas: on one Redis, cut off from it, and on two of them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.program import DISCOVERY, environment
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign, free_port
from tests.live.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]


def compared(*replicas: Replica) -> tuple[int, list[str]]:
    """The exit code, and what it printed."""
    urls = ",".join(replica.url for replica in replicas)
    words = [*DISCOVERY, "doctor", "--all-replicas", "--url", urls]
    done = subprocess.run(words, capture_output=True, env=environment(), timeout=30, check=False, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def proxy(debian_redis: RedisServer) -> Iterator[TcpProxy]:
    made = TcpProxy(debian_redis.port)
    yield made
    made.close()


@pytest.fixture
def other_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer("redis", tmp_path / "other")
    try:
        yield server.start()
    finally:
        server.close()


def test_replicas_agree_until_one_is_cut_off_from_redis(
    debian_redis: RedisServer, proxy: TcpProxy, make_replica: MakeReplica
) -> None:
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before", "NX")
    a = make_replica("a", redis_url=debian_redis.url, lease=60, heartbeat=5).launch()
    b = make_replica("b", redis_url=proxy.url, lease=60, heartbeat=5).launch()
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
    for number in range(5):
        (a, b)[number % 2].register(f"c1/n1/p{number}")
    code, lines = compared(a, b)
    etag = a.pools().headers["etag"].removeprefix('W/"').rstrip('"')
    assert (code, lines[-1]) == (0, f"the 2 replicas agree: revision 5, ETag {etag}, 5 pools")
    assert [line.split()[3:] for line in lines[1:3]] == [["redis", "in-use-b", "5", etag, "5", "yes"]] * 2
    proxy.target_port = free_port()
    proxy.cut()
    a.register("c1/n1/new")
    await_sign(lambda: not b.pools().complete, 10, "b knows that it may lack something")
    code, lines = compared(a, b)
    assert code == 1
    assert f"{b.url} is not complete: the store fails, the last list stays: " in lines[-1]
    assert f"{b.url} is behind: it knows revision 5, {a.url} had 6 before that" in lines[-1]
    assert lines[-1].endswith(f": c1/n1/new is listed at {a.url}, and not at {b.url}")


def test_replicas_on_two_servers_are_told_apart(
    debian_redis: RedisServer, other_redis: RedisServer, make_replica: MakeReplica
) -> None:
    servers = (debian_redis, other_redis)
    for server in servers:
        server.cli("SET", "{discovery}:epoch", f"epoch-{server.port}", "NX")
    replicas = [
        make_replica(name, redis_url=server.url, lease=60, heartbeat=5).launch()
        for name, server in zip("ab", servers, strict=True)
    ]
    for replica in replicas:
        await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
        await_sign(lambda replica=replica: replica.pools().complete, 5, f"{replica.name} is complete")
    code, lines = compared(*replicas)
    assert code == 1
    assert "they stand on different stores, databases or prefixes, or not all have noticed a loss: " in lines[-1]
    for server, replica in zip(servers, replicas, strict=True):
        assert f"epoch epoch-{server.port} (redis://127.0.0.1:{server.port}/0) at {replica.url}" in lines[-1]
