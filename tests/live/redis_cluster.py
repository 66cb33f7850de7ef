"""A Redis Cluster of real processes: slots that move, nodes that come and go, masters that die.

All slots are spread evenly over the masters when it starts. The deployment's keys lie in one slot; its owner is what
most faults are about. The cluster is put together here rather than by ``redis-cli``, which takes many seconds for it.
"""

from pathlib import Path
from typing import Any

import redis

from tests.live.redis_server import Kind, RedisServer
from tests.live.signs import await_sign, free_port
from tests.mcs.certificates import Authority

SLOTS = 16384
START_SECS = 20.0
FAILOVER_SECS = 20.0


class ClusterNode(RedisServer):
    """One node; it keeps its name and what it knows of the others over kills and restarts."""

    def __init__(
        self, kind: Kind, directory: Path, node_timeout: float, *arguments: str, authority: Authority | None = None
    ) -> None:
        cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(round(node_timeout * 1000)))
        self.bus_port = free_port()
        bus = ("--cluster-port", str(self.bus_port), "--cluster-allow-replica-migration", "no")
        tls = ("--tls-cluster", "yes", "--tls-replication", "yes") if authority else ()
        quick = ("--repl-diskless-sync-delay", "0")
        super().__init__(kind, directory, *cluster, *bus, *tls, *quick, *arguments, authority=authority)

    def _refused_while_loading(self) -> None:
        loading = self.client.info("persistence")["loading"]
        if int(loading):
            raise redis.BusyLoadingError("it reads its data")

    def cli(self, *words: str | bytes | int) -> Any:
        """See ``RedisServer.cli``; answers to CLUSTER come as the server gave them."""
        if str(words[0]).upper() != "CLUSTER":
            return super().cli(*words)
        # redis-py takes most answers to CLUSTER apart, some of them by rules of an older server.
        pool = self.client.connection_pool
        connection = pool.get_connection()
        try:
            connection.send_command(*words)
            return connection.read_response()
        finally:
            pool.release(connection)

    @property
    def id(self) -> str:
        """The node's name in the cluster; it stays when the node restarts."""
        return str(self.cli("CLUSTER", "MYID"))

    def role(self) -> str:
        """``master`` or ``slave``, as the node itself says."""
        said: str = self.client.info("replication")["role"]
        return said

    def in_sync(self) -> bool:
        """Whether this replica's link to its master is up."""
        return bool(self.client.info("replication").get("master_link_status") == "up")

    def owner_of(self, slot: int) -> int | None:
        """The port of the slot's owner as this node sees it."""
        for first, last, master, *_ in self.cli("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(master[1])
        return None

    def state(self) -> str:
        """``ok`` or ``fail``."""
        lines = str(self.cli("CLUSTER", "INFO")).splitlines()
        return dict(line.split(":", 1) for line in lines)["cluster_state"]


class RedisCluster:
    """The cluster; ``url`` is what ``--redis-url`` takes."""

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        *,
        masters: int = 3,
        replicas: int = 0,
        prefix: str = "discovery",
        node_timeout: float = 1.0,
        arguments: tuple[str, ...] = (),
        authority: Authority | None = None,
    ) -> None:
        """``replicas`` is how many the owner of the deployment's slot has; the other masters have none.

        With an ``authority`` all nodes speak TLS, also among themselves.
        """
        self.kind = kind
        self.prefix = prefix
        self._directory = directory
        self._node_timeout = node_timeout
        self._arguments = arguments
        self._authority = authority
        self._masters = masters
        self._replicas = replicas
        self._made = 0
        self.nodes: list[ClusterNode] = []
        self.slot = -1

    def _make(self) -> ClusterNode:
        directory = self._directory / f"node-{self._made}"
        node = ClusterNode(self.kind, directory, self._node_timeout, *self._arguments, authority=self._authority)
        self._made += 1
        self.nodes.append(node)
        return node

    @property
    def url(self) -> str:
        """All nodes that are there now."""
        return self.url_with()

    def url_with(self, user_info: str = "", seeds: int = 0) -> str:
        """The URL with ``user:password@``, or only the first ``seeds`` nodes."""
        hosts = ",".join(f"127.0.0.1:{node.service_port}" for node in self.nodes[: seeds or None])
        return f"{'rediss' if self._authority else 'redis'}+cluster://{user_info}{hosts}"

    def start(self) -> "RedisCluster":
        """Start all nodes, join them, and wait until each says that the cluster is whole."""
        masters = [self._make() for _ in range(self._masters)]
        replicas = [self._make() for _ in range(self._replicas)]
        for node in self.nodes:
            node.start()
        self.slot = int(masters[0].cli("CLUSTER", "KEYSLOT", f"{{{self.prefix}}}:"))
        for number, node in enumerate(masters):
            first, last = (SLOTS * n // len(masters) for n in (number, number + 1))
            node.cli("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
            node.cli("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self._meet(node)
        self.await_ok()
        for node in replicas:
            self._replicate(node, self.owner())
        return self

    def _meet(self, node: ClusterNode) -> None:
        node.cli("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].service_port, self.nodes[0].bus_port)

    def _running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running]

    def await_ok(self) -> None:
        """Wait until all running nodes know each other, see the same owner, and say that the cluster is whole."""

        def settled() -> bool:
            running = self._running()
            known = all(
                {node.id for node in running} <= {line.split()[0] for line in each.cli("CLUSTER", "NODES").splitlines()}
                for each in running
            )
            owners = {node.owner_of(self.slot) for node in running}
            return known and len(owners) == 1 and {node.state() for node in running} == {"ok"}

        await_sign(settled, START_SECS, "all nodes agree that the cluster is whole", every=0.05)

    # Who is what

    def owner(self) -> ClusterNode:
        """The master that has the deployment's slot, as most of the nodes that answer see it."""
        return await_sign(self._owner, FAILOVER_SECS, "the nodes name a running master for the slot")

    def _owner(self) -> ClusterNode | None:
        ports = []
        for node in self._running():
            try:
                ports.append(node.owner_of(self.slot))
            except (redis.ConnectionError, redis.TimeoutError):
                continue
        port = max(set(ports), key=ports.count, default=None)
        try:
            found = next(node for node in self._running() if node.port == port)
            return found if found.role() == "master" else None
        except (StopIteration, redis.ConnectionError, redis.TimeoutError):
            return None

    def replica(self) -> ClusterNode:
        """A running replica of the slot's owner."""
        master = self.owner()
        return next(node for node in self._running() if _master_of(master, node.id) == master.id)

    # What can be done to it

    def add_node(self) -> ClusterNode:
        """A new master without slots, known to all."""
        node = self._make()
        node.start()
        self._meet(node)
        self.await_ok()
        return node

    def add_replica(self, master: ClusterNode) -> ClusterNode:
        """A new replica of that master, in sync and known to all."""
        node = self.add_node()
        self._replicate(node, master)
        return node

    def _replicate(self, node: ClusterNode, master: ClusterNode) -> None:
        node.cli("CLUSTER", "REPLICATE", master.id)
        await_sign(lambda: node.role() == "slave" and node.in_sync(), 20, "the replica is in sync", every=0.05)
        name, of = node.id, master.id
        await_sign(lambda: all(_master_of(each, name) == of for each in self._running()), 20, "all know the replica")

    def begin_move(self, target: ClusterNode) -> ClusterNode:
        """Open the slot for moving; no key has moved yet. Gives the owner."""
        source = self.owner()
        target.cli("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source.id)
        source.cli("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target.id)
        return source

    def move_keys(self, source: ClusterNode, target: ClusterNode, count: int = 1000) -> int:
        """Move up to ``count`` keys of the slot; gives how many."""
        keys = source.cli("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        if keys:
            source.cli("MIGRATE", "127.0.0.1", target.service_port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def finish_move(self, source: ClusterNode, target: ClusterNode) -> None:
        """Move what is left and close the slot: the target owns it."""
        while True:
            while self.move_keys(source, target):
                pass
            target.cli("CLUSTER", "SETSLOT", self.slot, "NODE", target.id)
            try:
                source.cli("CLUSTER", "SETSLOT", self.slot, "NODE", target.id)
                break
            except redis.ResponseError as error:  # a key was written meanwhile
                if "still" not in str(error):
                    raise
        for node in self._running():
            if node not in (source, target) and node.role() == "master":
                node.cli("CLUSTER", "SETSLOT", self.slot, "NODE", target.id)
        self.await_ok()

    def move_slot(self, target: ClusterNode) -> ClusterNode:
        """The slot to another master, key by key as ``redis-cli --cluster reshard`` does; gives the former owner."""
        source = self.begin_move(target)
        self.finish_move(source, target)
        return source

    def move_slot_atomically(self, target: ClusterNode) -> ClusterNode:
        """The slot to another master in one step, which Valkey 9 can do; gives the former owner."""
        source = self.owner()
        source.cli("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", target.id)
        await_sign(lambda: target.owner_of(self.slot) == target.port, 20, "the target owns the slot")
        self.await_ok()
        return source

    def failover(self) -> ClusterNode:
        """A planned failover to its end: gives the new owner."""
        old, replica = self.owner(), self.replica()
        replica.cli("CLUSTER", "FAILOVER")
        return self.await_other_owner(old)

    def kill_owner(self) -> ClusterNode:
        """SIGKILL the owner of the slot and return at once; gives the node that was killed."""
        old = self.owner()
        old.kill()
        return old

    def freeze_owner(self) -> ClusterNode:
        """SIGSTOP the owner of the slot and return at once; gives the frozen node."""
        old = self.owner()
        old.freeze()
        return old

    def await_other_owner(self, old: RedisServer) -> ClusterNode:
        """Wait until all nodes but ``old`` see another owner and a whole cluster, and give it."""

        def promoted() -> ClusterNode | None:
            others = [node for node in self._running() if node is not old]
            if {node.state() for node in others} != {"ok"}:
                return None
            ports = {node.owner_of(self.slot) for node in others}
            return next((node for node in others if {node.port} == ports and node.role() == "master"), None)

        return await_sign(promoted, FAILOVER_SECS, "all nodes see another owner of the slot", every=0.05)

    def remove(self, node: ClusterNode) -> None:
        """End a node that has no slots and have all others forget it."""
        name = node.id
        node.stop()
        self.nodes.remove(node)
        for other in self._running():
            other.cli("CLUSTER", "FORGET", name)
        node.close()

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            if node.running:
                node.thaw()
                node.kill()
            node.close()


def _master_of(node: ClusterNode, replica: str) -> str | None:
    """Whose replica that node is, as ``node`` sees it."""
    lines = [line.split() for line in str(node.cli("CLUSTER", "NODES")).splitlines()]
    return next((fields[3] for fields in lines if fields[0] == replica), None)
