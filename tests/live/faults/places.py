"""Where the store of a fault test runs: one server behind proxies, a group with Sentinels, a cluster.

A place knows how to start and end its servers, what the replicas are given as ``--redis-url``, and what the store holds
in the end. What can happen there is in ``faults``.
"""

import json
from pathlib import Path
from typing import Any, Protocol

from tests.live.faults.surroundings import PlacedReplica, PlacedServer, Surroundings
from tests.live.redis_cluster import RedisCluster
from tests.live.redis_server import Kind, RedisServer
from tests.live.replica import Replica
from tests.live.sentinel_group import SentinelGroup
from tests.live.signs import free_port
from tests.live.tcp_proxy import TcpProxy

NAMES = ("a", "b")
HOST = "redis.test"
FIRST_PASSWORD = "first-secret"


class Place(Protocol):
    """One way to run the store."""

    def start(self) -> None:
        """Start all servers."""

    def close(self) -> None:
        """End them all."""

    def replica(self, directory: Path, name: str, **settings: Any) -> Replica:
        """A replica that uses this store; not started yet."""

    def stored(self) -> dict[str, int]:
        """The pools in the store, each with the version of its registration."""


def stored_on(server: RedisServer) -> dict[str, int]:
    """The pools on one server, each with the version of its registration."""
    keys = list(server.client.scan_iter("{discovery}:pool:*", count=1000))
    values = server.client.mget(keys) if keys else []
    prefix = len("{discovery}:pool:")
    return {
        key[prefix:]: int(json.loads(value)["metadata"]["version"])
        for key, value in zip(keys, values, strict=True)
        if value is not None
    }


class Standalone:
    """One server that both replicas reach by a host name, each through a proxy of its own; and a spare server.

    With Valkey the server's wall clock can be set as well. The replicas use an ACL user whose password is in a file.
    """

    def __init__(self, kind: Kind, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.password_path = directory / "password"
        self.password_path.write_text(FIRST_PASSWORD + "\n")
        self.clock = Surroundings(directory, "server")
        self.server = self._server(kind, "server", self.clock)
        self.spare = self._server(kind, "spare", self.clock)
        self.surroundings = {name: Surroundings(directory, f"replica-{name}") for name in NAMES}
        self.proxies: dict[str, TcpProxy] = {}
        self._names = {name: free_port() for name in NAMES}

    def _server(self, kind: Kind, name: str, clock: Surroundings) -> RedisServer:
        users = self._write_users(name, FIRST_PASSWORD)
        arguments = ("--aclfile", str(users), "--repl-diskless-sync-delay", "0")
        if kind == "valkey":
            return PlacedServer(kind, self._directory / name, clock, *arguments)
        return RedisServer(kind, self._directory / name, *arguments)

    def _write_users(self, name: str, password: str) -> Path:
        path = self._directory / f"{name}.acl"
        rights = f"user default on nopass ~* &* +@all\nuser discovery on >{password} ~{{discovery}}:* &* +@all\n"
        path.write_text(rights)
        return path

    def start(self) -> None:
        """The server and the proxies; the spare stays down."""
        self.server.start()
        self.server.cli("SET", "{discovery}:epoch", "in-use-before", "NX")
        for name in NAMES:
            self.proxies[name] = TcpProxy(self.server.port, port=self._names[name])
            self.surroundings[name].set_hosts(redis_test="127.0.0.1")

    def close(self) -> None:
        """Everything."""
        for proxy in self.proxies.values():
            proxy.close()
        for server in (self.server, self.spare):
            if server.running:
                server.thaw()
            server.close()

    def replica(self, directory: Path, name: str, **settings: Any) -> Replica:
        """By its host name, with user and password file."""
        flags = (*settings.pop("flags", ()), "--redis-password-path", str(self.password_path))
        url = f"redis://discovery@{HOST}:{self._names[name]}"
        replica = PlacedReplica(directory, name, redis_url=url, flags=flags, **settings)
        return replica.place(self.surroundings[name])

    def stored(self) -> dict[str, int]:
        """On the server."""
        return stored_on(self.server)

    def rotate(self, password: str) -> None:
        """The servers take this password of the replicas' user and no other, and cut who came with the old one."""
        for server in (self.server, self.spare):
            self._write_users(server.directory.name, password)
        self.server.cli("ACL", "LOAD")
        self.server.cli("CLIENT", "KILL", "USER", "discovery")

    def turn_to(self, server: RedisServer) -> None:
        """From now on ``server`` is the server, and the other the spare."""
        if server is self.spare:
            self.server, self.spare = self.spare, self.server

    def follow(self) -> RedisServer:
        """Start the spare, make it a replica of the server, in sync; gives it."""
        if not self.spare.running:
            self.spare.start()
        self.spare.cli("REPLICAOF", "127.0.0.1", self.server.port)
        return self.spare


class WithSentinels:
    """A master, a replica, three Sentinels."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.group = SentinelGroup(kind, directory)

    def start(self) -> None:
        """All of them."""
        self.group.start()
        self.group.master().cli("SET", "{discovery}:epoch", "in-use-before", "NX")

    def close(self) -> None:
        """All of them."""
        self.group.close()

    def replica(self, directory: Path, name: str, **settings: Any) -> Replica:
        """By the Sentinels' addresses."""
        return Replica(directory, name, redis_url=self.group.url, **settings)

    def stored(self) -> dict[str, int]:
        """On the master of the moment."""
        return stored_on(self.group.master())


class WithCluster:
    """Three masters; the owner of the deployment's slot has a replica."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.cluster = RedisCluster(kind, directory, replicas=1)

    def start(self) -> None:
        """All of them."""
        self.cluster.start()
        self.cluster.owner().cli("SET", "{discovery}:epoch", "in-use-before", "NX")

    def close(self) -> None:
        """All of them."""
        self.cluster.close()

    def replica(self, directory: Path, name: str, **settings: Any) -> Replica:
        """By the nodes' addresses."""
        return Replica(directory, name, redis_url=self.cluster.url, **settings)

    def stored(self) -> dict[str, int]:
        """On the owner of the slot."""
        return stored_on(self.cluster.owner())
