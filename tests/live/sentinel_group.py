"""A master, its replicas and the Sentinels that watch them, as real processes.

The Sentinels find a dead master within ``down_after`` seconds. With ``prompt`` they also look at the servers several
times a second instead of every ten, which makes a start and a second failover quick; without it they behave as in the
field, where a planned failover loses up to ten seconds of writes.
"""

from pathlib import Path
from typing import Any

import redis

from tests.live.redis_server import Kind, RedisServer
from tests.live.signs import await_sign
from tests.mcs.certificates import Authority

SERVICE = "mymaster"
MAJORITY = 2
TLS_REPLICATION = ("--tls-replication", "yes")
START_SECS = 20.0
FAILOVER_SECS = 20.0


class Sentinel(RedisServer):
    """One Sentinel; its configuration file is its memory, so a restarted one knows what it knew."""

    def __init__(self, kind: Kind, directory: Path, configuration: list[str], authority: Authority | None) -> None:
        super().__init__(kind, directory, *(TLS_REPLICATION if authority else ()), authority=authority)
        self._file = directory / "sentinel.conf"
        self._file.write_text("\n".join(configuration) + "\n")

    def _command(self) -> list[str]:
        binary = super()._command()[0]
        listen = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        return [binary, str(self._file), "--sentinel", *listen]

    def _refused_while_loading(self) -> None:
        """A Sentinel has no data to read."""

    def named_port(self) -> int | None:
        """The port of the server that this Sentinel takes for the master; None while it cannot be asked."""
        try:
            answer = self.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        except (redis.ConnectionError, redis.TimeoutError):
            return None
        return None if answer is None else int(answer[1])

    def flags(self) -> set[str]:
        """What it thinks of the master: ``master``, ``s_down``, ``o_down``, ``failover_in_progress``."""
        return set(_fields(self.cli("SENTINEL", "MASTER", SERVICE))["flags"].split(","))


class GroupServer(RedisServer):
    """A server whose role is written into its configuration file, so that a restart does not undo a failover."""

    def _command(self) -> list[str]:
        binary, *arguments = super()._command()
        (self.directory / "server.conf").touch()
        return [binary, str(self.directory / "server.conf"), *arguments]

    def role(self) -> str:
        """``master`` or ``slave``, as the server itself says."""
        said: str = self.client.info("replication")["role"]
        return said

    def in_sync(self) -> bool:
        """Whether this replica has all that its master had when it was asked."""
        return bool(self.client.info("replication").get("master_link_status") == "up")


class SentinelGroup:
    """One service of Sentinel; ``url`` is what ``--redis-url`` takes."""

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        down_after: float = 1.0,
        failover_timeout: float = 4.0,
        prompt: bool = True,
        host: str = "127.0.0.1",
        server_arguments: tuple[str, ...] = (),
        sentinel_lines: tuple[str, ...] = (),
        authority: Authority | None = None,
    ) -> None:
        """Sentinels begin a failover by themselves at most once in twice the ``failover_timeout``.

        ``host`` other than 127.0.0.1 is a name, which Sentinels and servers then announce instead of the address.

        With an ``authority`` all of them speak TLS, also among themselves.
        """
        self.kind = kind
        self.host = host
        self._prompt = prompt
        announce = () if host == "127.0.0.1" else ("--replica-announce-ip", host)
        tls = TLS_REPLICATION if authority else ()
        arguments = (*announce, "--repl-diskless-sync-delay", "0", *tls, *server_arguments)
        self.servers = [
            GroupServer(kind, directory / f"server-{n}", *arguments, authority=authority) for n in range(replicas + 1)
        ]
        lines = [
            *([] if host == "127.0.0.1" else ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"]),
            f"sentinel monitor {SERVICE} {host} {self.servers[0].service_port} {min(MAJORITY, sentinels)}",
            f"sentinel down-after-milliseconds {SERVICE} {round(down_after * 1000)}",
            f"sentinel failover-timeout {SERVICE} {round(failover_timeout * 1000)}",
            f"sentinel parallel-syncs {SERVICE} 5",
            *sentinel_lines,
        ]
        self.sentinels = [Sentinel(kind, directory / f"sentinel-{n}", lines, authority) for n in range(sentinels)]
        self._scheme = "rediss+sentinel" if authority else "redis+sentinel"

    @property
    def url(self) -> str:
        """All Sentinels and the service."""
        return self.url_with()

    def url_with(self, user_info: str = "") -> str:
        """The URL with ``user:password@`` of the servers."""
        hosts = ",".join(f"{self.host}:{sentinel.service_port}" for sentinel in self.sentinels)
        return f"{self._scheme}://{user_info}{hosts}/{SERVICE}/0"

    def start(self) -> "SentinelGroup":
        """Start all of it, and wait until every Sentinel knows every server and every other Sentinel."""
        for server in self.servers:
            server.start()
        for replica in self.servers[1:]:
            self.attach(replica, self.servers[0])
        for sentinel in self.sentinels:
            sentinel.start()
            if self._prompt:
                sentinel.cli("SENTINEL", "DEBUG", "INFO-PERIOD", "300", "PUBLISH-PERIOD", "300", "PING-PERIOD", "200")
        await_sign(self._settled, START_SECS, "all Sentinels know all servers and each other", every=0.05)
        return self

    def attach(self, replica: RedisServer, master: RedisServer) -> None:
        """Make one server the replica of another, for good."""
        replica.cli("REPLICAOF", self.host, master.service_port)
        replica.cli("CONFIG", "REWRITE")
        await_sign(
            lambda: replica.client.info("replication").get("master_link_status") == "up", 10, "the replica is in sync"
        )

    def _settled(self) -> bool:
        for sentinel in self.sentinels:
            master = _fields(sentinel.cli("SENTINEL", "MASTER", SERVICE))
            if int(master["num-other-sentinels"]) != len(self.sentinels) - 1 or master["flags"] != "master":
                return False
            replicas = [_fields(each) for each in sentinel.cli("SENTINEL", "REPLICAS", SERVICE)]
            usable = [each for each in replicas if each["flags"] == "slave" and each["master-link-status"] == "ok"]
            if len(usable) != len(self.servers) - 1:
                return False
        return True

    # Who is what

    def master(self) -> GroupServer:
        """The server that most of the Sentinels that answer name, and that says itself that it is a master."""
        return await_sign(self._named_master, FAILOVER_SECS, "Sentinels name a server that is a master")

    def replica(self) -> GroupServer:
        """A running server that is not the master."""
        master = self.master()
        return next(server for server in self.servers if server is not master and server.running)

    def _named_master(self) -> GroupServer | None:
        named = [port for sentinel in self.sentinels if sentinel.running and (port := sentinel.named_port())]
        port = max(set(named), key=named.count, default=None)
        if named.count(port) * 2 <= len(named):  # type: ignore[arg-type]
            return None
        server = next(server for server in self.servers if server.service_port == port)
        try:
            return server if server.running and server.role() == "master" else None
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    # What can be done to it

    def begin_failover(self) -> None:
        """Ask for another master, as an administrator does, and return at once."""
        self.sentinels[0].cli("SENTINEL", "FAILOVER", SERVICE)

    def failover(self) -> GroupServer:
        """A planned failover to its end: gives the new master, which all Sentinels name."""
        old = self.master()
        self.begin_failover()
        return self.await_other_master(old)

    def kill_master(self) -> GroupServer:
        """SIGKILL the master and return at once; gives the server that was killed."""
        old = self.master()
        old.kill()
        return old

    def freeze_master(self) -> GroupServer:
        """SIGSTOP the master and return at once; gives the frozen server, to be thawed later."""
        old = self.master()
        old.freeze()
        return old

    def await_other_master(self, old: RedisServer) -> GroupServer:
        """Wait until every running Sentinel names the same server that is not ``old``, and give it."""

        def promoted() -> GroupServer | None:
            ports = {sentinel.named_port() for sentinel in self.sentinels if sentinel.running}
            found = self._named_master()
            return found if found is not None and found is not old and ports == {found.service_port} else None

        return await_sign(promoted, FAILOVER_SECS, "all Sentinels name another master")

    def await_replica(self, server: GroupServer) -> None:
        """Wait until a server that came back was made a replica again and is in sync."""
        await_sign(lambda: server.role() == "slave" and server.in_sync(), 30, "the server is a replica in sync")
        await_sign(self._settled, START_SECS, "all Sentinels know it", every=0.05)

    def split(self) -> tuple[GroupServer, GroupServer]:
        """Two masters, each of which takes writes: the old one, which the frozen Sentinels name, and the replica."""
        old, other = self.master(), self.replica()
        for sentinel in self.sentinels:
            sentinel.freeze()
        other.cli("REPLICAOF", "NO", "ONE")
        return old, other

    def close(self) -> None:
        """End all processes; Sentinels first, so that they do not begin a failover."""
        for each in [*self.sentinels, *self.servers]:
            each.close()


def _fields(answer: Any) -> dict[str, str]:
    """A Sentinel's list of names and values as a mapping, in whatever shape the client gave it."""
    if isinstance(answer, dict):
        return {str(name): str(value) for name, value in answer.items()}
    return dict(zip(answer[::2], map(str, answer[1::2]), strict=True))
