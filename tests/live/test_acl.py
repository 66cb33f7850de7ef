"""The service under a Redis user that has the rights that the README names, and no other."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.documents import Block, read, steps
from tests.live.conftest import MakeReplica
from tests.live.redis_cluster import RedisCluster
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica, pool
from tests.live.sentinel_group import SentinelGroup
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

PASSWORD = "a-password"
LEASE = 3.0

Admin = Callable[..., Any]


def acl_lines(word: str = "acl") -> list[list[str]]:
    """The words of each ACL line in a block of the README, with a real password."""
    blocks = [step for step in steps(read("README.md")) if isinstance(step, Block) and word in step.words]
    assert len(blocks) == 1, f"the README has one block of ACL lines for {word}"
    return [line.replace("PASSWORD", PASSWORD).split() for line in blocks[0].text.splitlines()]


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[Admin]:
    """Commands as an administrator, after the README's lines were given."""
    redis_server.cli("ACL", "SETUSER", "admin", "reset", "on", ">admin", "~*", "&*", "+@all")
    client = redis.Redis(port=redis_server.port, username="admin", password="admin", decode_responses=True)
    for words in acl_lines():
        client.execute_command(*words)
    client.execute_command("ACL", "LOG", "RESET")
    yield client.execute_command
    client.close()


def url(server: RedisServer, database: int = 0) -> str:
    return f"redis://discovery:{PASSWORD}@127.0.0.1:{server.port}/{database}"


def refused(admin: Admin) -> set[str]:
    """What Redis refused to anybody since the lines were given."""
    return {entry["object"] for entry in admin("ACL", "LOG", "128")}


def complete(replica: Replica) -> bool:
    return replica.pools().complete


def renew(replica: Replica, stop: threading.Event) -> None:
    while not stop.wait(0.3):
        replica.post(pool("c1/n1/kept"))


@pytest.fixture
def kept() -> Iterator[Callable[[Replica], None]]:
    """A relay that keeps ``c1/n1/kept`` registered until the test is over."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def keep(replica: Replica) -> None:
        threads.append(threading.Thread(target=renew, args=(replica, stop)))
        threads[-1].start()

    yield keep
    stop.set()
    for thread in threads:
        thread.join(10)


def test_everything_works_with_the_rights_of_the_readme(
    redis_server: RedisServer, admin: Admin, start_replica: MakeReplica, kept: Callable[[Replica], None]
) -> None:
    overheard = Overheard(redis_server, admin)
    a, b = (start_replica(name, redis_url=url(redis_server), lease=LEASE) for name in "ab")
    kept(a)
    await_sign(lambda: complete(a) and complete(b), 3 * LEASE, "both are complete, from an empty Redis")
    a.register("c1/n1/one", instance_id="new")
    await_sign(lambda: b.lists("c1/n1/one"), 1, "an announcement arrives")
    assert a.request("DELETE", "/pools/c1/n1/one?instance_id=old").status == 204
    assert b.lists("c1/n1/one")
    assert a.request("DELETE", "/pools/c1/n1/one?instance_id=new").status == 204
    await_sign(lambda: not b.lists("c1/n1/one"), 1, "a deregistration arrives")
    b.register("c1/n1/ends")
    await_sign(lambda: not a.lists("c1/n1/ends"), LEASE + 2, "a lease ends")

    admin("SCRIPT", "FLUSH")
    a.register("c1/n1/two")
    admin("SET", "{discovery}:revision", "1")
    await_sign(lambda: not complete(a), 3, "a revision that went back is noticed")
    assert admin("GET", "{discovery}:settling")
    await_sign(lambda: complete(a) and complete(b), 3 * LEASE, "complete again")
    admin("FLUSHALL")
    await_sign(lambda: not complete(b), 3, "an emptied Redis is noticed")
    await_sign(lambda: complete(a) and complete(b), 3 * LEASE, "complete again")
    redis_server.freeze_for(3.5)
    await_sign(lambda: admin("GET", "{discovery}:settling"), 5, "a long outage makes all replicas settle")
    await_sign(lambda: complete(a) and complete(b), 3 * LEASE, "complete again")

    assert a.pools().names == b.pools().names == ["c1/n1/kept"]
    assert refused(admin) == set()
    granted = {word[1:] for word in acl_lines()[0] if word.startswith("+")}
    assert granted - overheard.stop() == {"role"}, (
        "nothing is granted for nothing; behind Sentinel the role is asked for"
    )


class Overheard:
    """Every command that a server runs, from scripts too, but for those of the test's own connections."""

    def __init__(self, server: RedisServer, own: Admin) -> None:
        self.words: set[str] = set()
        self._own = own("CLIENT INFO")["addr"]
        self._client = redis.Redis(port=server.port, username="admin", password="admin")
        monitor = self._client.monitor()
        monitor.__enter__()
        threading.Thread(target=self._listen, args=(monitor,), daemon=True).start()

    def _listen(self, monitor: Any) -> None:
        with contextlib.suppress(redis.ConnectionError, OSError, ValueError):
            for said in monitor.listen():
                if f"{said['client_address']}:{said['client_port']}" != self._own:
                    first, *others = said["command"].lower().split(" ")
                    self.words |= {first, f"{first}|{others[0]}" if others else first}

    def stop(self) -> set[str]:
        """The commands so far, with their subcommands."""
        self._client.close()
        return self.words


def test_another_database_needs_select(redis_server: RedisServer, admin: Admin, make_replica: MakeReplica) -> None:
    replica = make_replica(redis_url=url(redis_server, 3), lease=LEASE).start(sign="/healthz")
    await_sign(lambda: b"'select'" in replica.get("/readyz").body, 5, "/readyz names the right that is missing")
    assert replica.get("/readyz").status == 503
    admin("ACL", "SETUSER", "discovery", "+select")
    await_sign(lambda: replica.says("/readyz", 200), 5, "ready without a restart")
    admin("ACL", "LOG", "RESET")
    replica.register("c1/n1/one")
    assert replica.lists("c1/n1/one")
    assert refused(admin) == set()
    assert admin("PUBSUB", "NUMSUB", "{discovery}:changes@3") == ["{discovery}:changes@3", 1]


def grant(server: RedisServer, *words: str) -> None:
    """The lines of the README for the service's user; the default user stays, for the test."""
    for word in words:
        for line in acl_lines(word):
            if line[2] != "default":
                server.client.execute_command(*line)
    server.client.execute_command("ACL", "LOG", "RESET")


def test_on_a_cluster_one_more_right_is_enough(tmp_path: Path, start_replica: MakeReplica) -> None:
    cluster = RedisCluster("redis", tmp_path / "cluster", masters=2)
    try:
        for node in cluster.start().nodes:
            grant(node, "acl", "acl-cluster")
        replica = start_replica(redis_url=cluster.url_with(f"discovery:{PASSWORD}@"), lease=LEASE)
        replica.register("c1/n1/one")
        target = next(node for node in cluster.nodes if node is not cluster.owner())
        cluster.move_slot(target)
        await_sign(lambda: replica.post(pool("c1/n1/two")).status == 200, 3, "writes reach the new owner")
        assert replica.delete("c1/n1/one").status == 204
        await_sign(lambda: complete(replica), 3 * LEASE, "complete")
        for node in cluster.nodes:
            assert refused(node.client.execute_command) == set()
    finally:
        cluster.close()


def test_a_user_of_the_sentinels_who_may_only_ask_is_enough(tmp_path: Path, start_replica: MakeReplica) -> None:
    group = SentinelGroup("redis", tmp_path / "group")
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    try:
        group.start()
        for server in group.servers:
            grant(server, "acl")
        for sentinel in group.sentinels:
            grant(sentinel, "acl-sentinel")
        flags = ("--redis-sentinel-user", "discovery", "--redis-sentinel-password-path", str(password))
        replica = start_replica(redis_url=group.url_with(f"discovery:{PASSWORD}@"), lease=LEASE, flags=flags)
        replica.register("c1/n1/one")
        users = {client["user"] for server in group.sentinels for client in server.client.client_list()}
        assert users == {"default"}, "who asked has hung up"
        password.write_text("wrong")
        group.kill_master()
        await_sign(lambda: b"invalid username-password" in replica.get("/readyz").body, 10, "a wrong password is told")
        assert PASSWORD not in replica.log
        password.write_text(PASSWORD)
        await_sign(lambda: replica.post(pool("c1/n1/one")).status == 200, 15, "it heals")
        for server in [*group.sentinels, group.master()]:
            refusals = server.client.execute_command("ACL", "LOG", "128")
            assert {entry["reason"] for entry in refusals} <= {"auth"}
    finally:
        group.close()


@pytest.mark.parametrize(
    "words",
    [
        ["GET", "foreign"],
        ["SET", "foreign", "1"],
        ["EVAL", "return redis.call('GET', 'foreign')", "0"],
        ["PUBLISH", "foreign", "1"],
        ["SUBSCRIBE", "foreign"],
        ["PSUBSCRIBE", "*"],
        ["KEYS", "*"],
        ["FLUSHALL"],
        ["FLUSHDB"],
        ["CONFIG", "GET", "*"],
        ["SCRIPT", "FLUSH"],
        ["CLIENT", "LIST"],
        ["ACL", "LIST"],
        ["MONITOR"],
        ["SHUTDOWN"],
    ],
    ids=" ".join,
)
def test_the_user_can_do_no_more(redis_server: RedisServer, admin: Admin, words: list[str]) -> None:
    answers = say(redis_server, ["AUTH", "discovery", PASSWORD], words)
    assert answers[0] == "+OK"
    # From within a script the refusal begins with ERR, in the words of each server.
    assert answers[1].startswith(("-NOPERM", "-ERR ACL failure", "-ERR The user executing the script can't access"))


def test_the_default_user_is_closed_also_for_a_connection_that_resets(redis_server: RedisServer, admin: Admin) -> None:
    answers = say(redis_server, ["AUTH", "discovery", PASSWORD], ["RESET"], ["GET", "{discovery}:epoch"])
    assert answers[:2] == ["+OK", "+RESET"]
    assert answers[2].startswith("-NOAUTH")


def say(server: RedisServer, *commands: list[str]) -> list[str]:
    """The first line of the answer to each command, on one connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        lines = connection.makefile("rb")
        answers = []
        for words in commands:
            parts = b"".join(b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()) for word in words)
            connection.sendall(b"*%d\r\n" % len(words) + parts)
            answers.append(lines.readline().decode().strip())
        lines.close()
        return answers
