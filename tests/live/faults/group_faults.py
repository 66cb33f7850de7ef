"""A Sentinel group or a Cluster whose master dies, is replaced, or loses its data."""

import random
import time
from typing import Any

from tests.live.faults.fault import BLIP, Fault, Scene
from tests.live.faults.oracle import Promises
from tests.live.faults.places import WithCluster, WithSentinels
from tests.live.signs import await_sign

# ---- Sentinel


def sentinel_failover(chance: random.Random, quiet: bool | None = None) -> Fault:
    """Planned: nobody sees an error, and seconds of renewals are gone.

    Where it is quiet only the other server's identity tells of that: the revision is the same on both.
    """
    quiet = chance.random() < 0.5 if quiet is None else quiet

    def run(scene: Scene) -> None:
        place: WithSentinels = scene.place
        old = place.group.master()
        place.group.failover()
        # Until it is told, it takes writes as before, and all of those are lost.
        await_sign(lambda: old.role() == "slave", 20, "the old master was made a replica")

    words = f"a planned failover{', while there are only renewals' if quiet else ''}"
    promises = Promises(loss=True, loses_writes=True)
    return Fault("sentinel_failover", words, run, promises, _sentinels_at_rest, quiet=quiet)


def sentinel_master_killed(chance: random.Random) -> Fault:
    """The master dies, and comes back later as a replica."""
    killed: list[Any] = []

    def run(scene: Scene) -> None:
        place: WithSentinels = scene.place
        old = place.group.kill_master()
        killed.append(old)
        place.group.await_other_master(old)

    def restore(scene: Scene) -> None:
        killed[0].start()
        scene.place.group.await_replica(killed[0])

    return Fault(
        "sentinel_master_killed", "kill -9 of the master", run, Promises(loss=True, loses_writes=True), restore
    )


def sentinel_master_frozen(chance: random.Random) -> Fault:
    """The master stops answering, is replaced, and wakes up believing that it still is one."""
    frozen: list[Any] = []

    def run(scene: Scene) -> None:
        place: WithSentinels = scene.place
        old = place.group.freeze_master()
        frozen.append(old)
        place.group.await_other_master(old)

    def restore(scene: Scene) -> None:
        frozen[0].thaw()
        scene.place.group.await_replica(frozen[0])

    return Fault(
        "sentinel_master_frozen", "SIGSTOP of the master", run, Promises(loss=True, loses_writes=True), restore
    )


def sentinels_killed(chance: random.Random) -> Fault:
    """One Sentinel dies: nobody should notice."""

    def run(scene: Scene) -> None:
        scene.place.group.sentinels[0].kill()
        time.sleep(1)

    return Fault(
        "sentinels_killed", "kill -9 of one Sentinel", run, BLIP, lambda scene: scene.place.group.sentinels[0].start()
    )


def sentinel_master_flushed(chance: random.Random) -> Fault:
    """FLUSHALL on the master, which its replica follows."""

    def run(scene: Scene) -> None:
        scene.place.group.master().flush()

    return Fault("sentinel_master_flushed", "FLUSHALL on the master", run, Promises(loss=True))


def _sentinels_at_rest(scene: Scene) -> None:
    place: WithSentinels = scene.place
    master = place.group.master()
    for server in place.group.servers:
        if server is not master:
            place.group.await_replica(server)


# ---- Cluster


def cluster_failover(chance: random.Random) -> Fault:
    """Planned: the replica of the slot's owner takes over."""
    return Fault(
        "cluster_failover",
        "a planned failover",
        lambda scene: scene.place.cluster.failover(),
        Promises(loss=True, loses_writes=True),
    )


def cluster_owner_killed(chance: random.Random) -> Fault:
    """The owner of the slot dies; it comes back as a replica."""
    killed: list[Any] = []

    def run(scene: Scene) -> None:
        place: WithCluster = scene.place
        old = place.cluster.kill_owner()
        killed.append(old)
        place.cluster.await_other_owner(old)

    def restore(scene: Scene) -> None:
        place: WithCluster = scene.place
        killed[0].start()
        await_sign(lambda: killed[0].role() == "slave" and killed[0].in_sync(), 30, "the node is a replica in sync")
        place.cluster.await_ok()

    words = "kill -9 of the slot's owner"
    return Fault("cluster_owner_killed", words, run, Promises(loss=True, loses_writes=True), restore)


def cluster_slot_moved(chance: random.Random) -> Fault:
    """The slot goes to another master, key by key, and back."""
    place_of_target = chance.randrange(10)

    def run(scene: Scene) -> None:
        place: WithCluster = scene.place
        owner = place.cluster.owner()
        others = [
            node for node in place.cluster.nodes if node.running and node.role() == "master" and node is not owner
        ]
        former = place.cluster.move_slot(others[place_of_target % len(others)])
        time.sleep(1)
        place.cluster.move_slot(former)  # the one that has a replica, which later faults need

    return Fault(
        "cluster_slot_moved", "the slot moves to another node and back", run, Promises(loss=True, loses_writes=True)
    )


def cluster_flushed(chance: random.Random) -> Fault:
    """FLUSHALL on the slot's owner."""

    def run(scene: Scene) -> None:
        scene.place.cluster.owner().flush()

    return Fault("cluster_flushed", "FLUSHALL on the slot's owner", run, Promises(loss=True))
