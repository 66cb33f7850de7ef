"""The faults: what each does to its place, how long it lasts, and what is promised meanwhile.

``run`` returns when the store answers as ever (or when replicas have to have helped themselves); ``restore`` puts back
what the fault left behind, after the verdict. Durations are the faults themselves, not waits for something.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.live.faults.oracle import Promises
from tests.live.faults.places import Standalone, WithCluster, WithSentinels
from tests.live.replica import Replica
from tests.live.signs import await_sign

NOTICED_SECS = 3.0  # a connection over which nothing comes is noticed and replaced
OUTAGE = Promises(silent=True)
BLIP = Promises()


@dataclass(frozen=True)
class Scene:
    """What a fault may touch."""

    place: Any
    replicas: Mapping[str, Replica]
    lease: float


@dataclass(frozen=True)
class Fault:
    """One fault with its parameters drawn; ``words`` tell people what it does."""

    name: str
    words: str
    run: Callable[[Scene], object]
    promises: Promises = BLIP
    restore: Callable[[Scene], object] = lambda scene: None


Draw = Callable[[random.Random], Fault]


def _server(scene: Scene) -> Any:
    place: Standalone = scene.place
    return place.server


def _forget_dump(server: Any) -> None:
    (server.directory / "dump.rdb").unlink(missing_ok=True)


# ---- the server goes away


def killed(chance: random.Random, secs: float | None = None) -> Fault:
    """SIGKILL, and back without its data."""
    secs = chance.uniform(0.1, 8) if secs is None else secs

    def run(scene: Scene) -> None:
        _server(scene).kill()
        _forget_dump(_server(scene))
        time.sleep(secs)
        _server(scene).start()

    return Fault("killed", f"kill -9, back empty after {secs:.1f} s", run, Promises(silent=True, loss=True))


def restarted(chance: random.Random, keeps: bool | None = None) -> Fault:
    """An orderly restart, with or without its data."""
    keeps = chance.random() < 0.5 if keeps is None else keeps
    secs = chance.uniform(0, 4)

    def run(scene: Scene) -> None:
        server = _server(scene)
        if keeps:
            server.save()
        server.stop()
        if not keeps:
            _forget_dump(server)
        time.sleep(secs)
        server.start()

    def restore(scene: Scene) -> None:
        _forget_dump(_server(scene))

    words = f"restarted in order {'with' if keeps else 'without'} its data, {secs:.1f} s away"
    return Fault("restarted", words, run, Promises(silent=True, loss=not keeps), restore)


def from_old_data(chance: random.Random) -> Fault:
    """Killed, and back as it was some seconds before."""
    age = chance.uniform(0.5, 3)

    def run(scene: Scene) -> None:
        server = _server(scene)
        server.save()
        time.sleep(age)
        server.kill()
        server.start()

    def restore(scene: Scene) -> None:
        _forget_dump(_server(scene))

    return Fault(
        "from_old_data", f"back at once with data {age:.1f} s old", run, Promises(loss=True, loses_writes=True), restore
    )


# ---- the server is there and silent


def frozen(chance: random.Random, secs: float | None = None) -> Fault:
    """SIGSTOP for a while."""
    secs = chance.choice([0.3, 1, 2.5, 5, 8]) if secs is None else secs
    return Fault("frozen", f"SIGSTOP for {secs:g} s", lambda scene: _server(scene).freeze_for(secs), OUTAGE)


def slept(chance: random.Random) -> Fault:
    """DEBUG SLEEP."""
    secs = round(chance.uniform(0.3, 4.5), 1)
    return Fault("slept", f"DEBUG SLEEP {secs}", lambda scene: _server(scene).cli("DEBUG", "SLEEP", secs), OUTAGE)


def paused(chance: random.Random, mode: str | None = None) -> Fault:
    """CLIENT PAUSE of writes, or of everything."""
    mode = chance.choice(["WRITE", "ALL"]) if mode is None else mode
    secs = round(chance.uniform(0.3, 5), 1)

    def run(scene: Scene) -> None:
        _server(scene).cli("CLIENT", "PAUSE", round(secs * 1000), mode)
        time.sleep(secs)

    promises = OUTAGE if mode == "ALL" else Promises(refused=True)
    return Fault("paused", f"CLIENT PAUSE {mode} for {secs:.1f} s", run, promises)


# ---- the data goes away


def flushed(chance: random.Random) -> Fault:
    """FLUSHALL."""
    return Fault("flushed", "FLUSHALL", lambda scene: _server(scene).flush(), Promises(loss=True))


def scripts_lost(chance: random.Random) -> Fault:
    """SCRIPT FLUSH, several times."""

    def run(scene: Scene) -> None:
        for _ in range(20):
            _server(scene).cli("SCRIPT", "FLUSH")
            time.sleep(0.05)

    return Fault("scripts_lost", "SCRIPT FLUSH, 20 times", run)


def evicting(chance: random.Random) -> Fault:
    """Memory full, with a policy that throws leases away."""
    policy = chance.choice(["volatile-ttl", "volatile-lru", "allkeys-random"])

    def run(scene: Scene) -> None:
        server = _server(scene)
        server.cli("CONFIG", "SET", "maxmemory-policy", policy)
        for _ in range(15):
            used = int(server.client.info("memory")["used_memory"])
            server.cli("CONFIG", "SET", "maxmemory", used - 8_000)
            time.sleep(0.1)
            server.cli("CONFIG", "SET", "maxmemory", used + 50_000_000)
            time.sleep(0.1)

    def restore(scene: Scene) -> None:
        _server(scene).cli("CONFIG", "SET", "maxmemory", 0)
        _server(scene).cli("CONFIG", "SET", "maxmemory-policy", "noeviction")

    return Fault(
        "evicting", f"evictions by {policy} for 3 s", run, Promises(loss=True, loses_writes=True, refused=True), restore
    )


def full(chance: random.Random) -> Fault:
    """Memory full, and nothing may be thrown away."""
    secs = chance.uniform(0.5, 2.0)

    def run(scene: Scene) -> None:
        _server(scene).cli("CONFIG", "SET", "maxmemory", 1)
        time.sleep(secs)
        _server(scene).cli("CONFIG", "SET", "maxmemory", 0)

    return Fault("full", f"out of memory with noeviction for {secs:.1f} s", run, Promises(refused=True))


# ---- connections


def clients_killed(chance: random.Random, kind: str | None = None) -> Fault:
    """CLIENT KILL of subscriptions, of the other connections, or of both, again and again."""
    kinds = (kind or chance.choice(["pubsub", "normal", "pubsub normal"])).split()

    def run(scene: Scene) -> None:
        for _ in range(4):
            for each in kinds:
                _server(scene).client_kill(each)
            time.sleep(0.3)

    return Fault("clients_killed", f"CLIENT KILL TYPE {' and '.join(kinds)}, 4 times in 1.2 s", run)


def output_limited(chance: random.Random) -> Fault:
    """Subscriptions are cut at each message, as those of a slow reader are."""
    secs = chance.uniform(1, 4)

    def run(scene: Scene) -> None:
        server = _server(scene)
        server.cli("CONFIG", "SET", "client-output-buffer-limit", "pubsub 1 1 1")
        for _ in range(round(secs / 0.25)):
            server.cli("PUBLISH", "{discovery}:changes", "x" * 100_000)  # what fits into the first buffer never counts
            time.sleep(0.25)
        server.cli("CONFIG", "SET", "client-output-buffer-limit", "pubsub 33554432 8388608 60")

    return Fault("output_limited", f"no output buffer for subscriptions for {secs:.1f} s", run)


def half_open(chance: random.Random, of: str | None = None, subscribed: bool | None = None) -> Fault:
    """The connections that are open pass nothing more, without an error; new ones work."""
    of = chance.choice(["a", "b", "ab"]) if of is None else of
    which = chance.choice([None, True]) if subscribed is None else subscribed

    def run(scene: Scene) -> None:
        for name in of:
            scene.place.proxies[name].freeze(subscribed=which)
        time.sleep(NOTICED_SECS)

    def restore(scene: Scene) -> None:
        for name in of:
            scene.place.proxies[name].discard()

    kind = "subscription" if which else "connections"
    return Fault("half_open", f"{kind} of {' and '.join(of)} half-open", run, Promises(of=frozenset(of)), restore)


def cut_off(chance: random.Random, of: str | None = None, secs: float | None = None) -> Fault:
    """A replica's path to the server swallows everything, also what is new."""
    of = chance.choice(["a", "b", "ab"]) if of is None else of
    secs = chance.uniform(0.5, 10) if secs is None else secs

    def run(scene: Scene) -> None:
        for name in of:
            scene.place.proxies[name].swallow()
        time.sleep(secs)
        for name in of:
            scene.place.proxies[name].thaw()

    words = f"{' and '.join(of)} cut off for {secs:.1f} s"
    return Fault("cut_off", words, run, Promises(silent=True, of=frozenset(of)))


def dropped(chance: random.Random) -> Fault:
    """Connections are reset again and again."""
    of = chance.choice(["a", "b", "ab"])

    def run(scene: Scene) -> None:
        for _ in range(12):
            for name in of:
                scene.place.proxies[name].cut()
            time.sleep(0.25)

    return Fault("dropped", f"connections of {' and '.join(of)} reset 4 times a second for 3 s", run)


def slow(chance: random.Random) -> Fault:
    """A path that delays, or that lets only a few bytes through."""
    of, kind = chance.choice(["a", "b", "ab"]), chance.choice(["delay", "long delay", "trickle"])
    secs = chance.uniform(2, 5)

    def run(scene: Scene) -> None:
        for name in of:
            proxy = scene.place.proxies[name]
            if kind == "trickle":
                proxy.trickle(1500)
            else:
                proxy.delay_answers(0.15 if kind == "delay" else 1.2)
        time.sleep(secs)
        for name in of:
            scene.place.proxies[name].trickle(0)
            scene.place.proxies[name].delay_answers(0)
            if kind != "delay":
                scene.place.proxies[name].cut()

    return Fault("slow", f"{kind} between {' and '.join(of)} and the server for {secs:.1f} s", run)


# ---- other servers


def split(chance: random.Random) -> Fault:
    """Two masters, one for each replica; then the second is made a replica of the first."""
    secs = chance.uniform(2, 7)

    def run(scene: Scene) -> None:
        place: Standalone = scene.place
        other = place.follow()
        await_sign(lambda: other.client.info("replication")["master_link_status"] == "up", 10, "in sync")
        other.cli("REPLICAOF", "NO", "ONE")
        place.proxies["b"].target_port = other.port
        place.proxies["b"].cut()
        time.sleep(secs)
        other.cli("REPLICAOF", "127.0.0.1", place.server.port)
        time.sleep(0.3)
        place.proxies["b"].target_port = place.server.port
        place.proxies["b"].cut()

    # Two faults in one: the data parts, and later one half of it is thrown away.
    promises = Promises(loss=True, loses_writes=True, log_lines=18)
    return Fault("split", f"two masters for {secs:.1f} s", run, promises, _spare_down)


def _spare_down(scene: Scene) -> None:
    scene.place.spare.stop()
    _forget_dump(scene.place.spare)


def moved(chance: random.Random) -> Fault:
    """The server's host name gets another address, where a promoted replica listens; the old one goes away."""
    keeps = chance.random() < 0.5

    def run(scene: Scene) -> None:
        from tests.live.tcp_proxy import TcpProxy

        place: Standalone = scene.place
        old = place.server
        other = place.follow() if keeps else place.spare.start()
        if keeps:
            await_sign(lambda: other.client.info("replication")["master_link_status"] == "up", 10, "in sync")
            other.cli("REPLICAOF", "NO", "ONE")
        address = "127.0.0.2" if place.proxies["a"].host != "127.0.0.2" else "127.0.0.3"
        before = dict(place.proxies)
        for name, proxy in before.items():
            place.proxies[name] = TcpProxy(other.port, host=address, port=proxy.port)
            place.surroundings[name].set_hosts(redis_test=address)
        for proxy in before.values():
            proxy.close()
        place.turn_to(other)
        old.kill()

    words = f"the host name moves to another server, {'promoted' if keeps else 'empty'}"
    return Fault("moved", words, run, Promises(loss=True, loses_writes=True), _spare_down)


def password_rotated(chance: random.Random) -> Fault:
    """The server gets a new password and cuts whoever used the old one; the file follows later."""
    secs = chance.uniform(0.2, 3)
    password = f"secret-{chance.randrange(10**9)}"

    def run(scene: Scene) -> None:
        place: Standalone = scene.place
        place.rotate(password)
        time.sleep(secs)
        place.password_path.write_text(password + "\n")

    return Fault("password_rotated", f"a new password, in the file {secs:.1f} s later", run, OUTAGE)


# ---- clocks and processes


def server_clock(chance: random.Random) -> Fault:
    """The wall clock of the Valkey server steps."""
    offset = chance.choice(["+0", "+2h", "-3h", "+90", "-45", "+10"])

    def run(scene: Scene) -> None:
        place: Standalone = scene.place
        before = _offset(place)
        place.clock.set_clock(offset)
        wanted = _seconds(offset)
        if abs(wanted - before) > 1:
            await_sign(lambda: abs(_offset(place) - wanted) < 1, 5, "the server's clock stepped")

    return Fault("server_clock", f"the server's clock is off by {offset}", run, Promises(leases_move=True))


def _offset(place: Standalone) -> float:
    seconds, micros = place.server.client.time()
    return float(seconds) + micros / 1e6 - time.time()


def _seconds(offset: str) -> float:
    return float(offset.rstrip("h")) * (3600 if offset.endswith("h") else 1)


def replica_clock(chance: random.Random) -> Fault:
    """The wall clock of a replica steps: no effect at all."""
    name, offset = chance.choice("ab"), chance.choice(["+0", "+5h", "-5h", "-60"])

    def run(scene: Scene) -> None:
        scene.place.surroundings[name].set_clock(offset)
        time.sleep(1.5)

    return Fault("replica_clock", f"the clock of {name} is off by {offset}", run)


def replica_stopped(chance: random.Random, secs: float | None = None) -> Fault:
    """A replica's process is stopped for longer than a lease."""
    name = chance.choice("ab")

    def run(scene: Scene) -> None:
        scene.replicas[name].freeze()
        time.sleep(scene.lease + 1 if secs is None else secs)
        scene.replicas[name].thaw()

    promises = Promises(of=frozenset(name), stopped=True)
    return Fault("replica_stopped", f"SIGSTOP of replica {name} for more than a lease", run, promises)


# ---- Sentinel


def sentinel_failover(chance: random.Random) -> Fault:
    """Planned: nobody sees an error, and seconds of renewals are gone."""

    def run(scene: Scene) -> None:
        place: WithSentinels = scene.place
        old = place.group.master()
        place.group.failover()
        # Until it is told, it takes writes as before, and all of those are lost.
        await_sign(lambda: old.role() == "slave", 20, "the old master was made a replica")

    return Fault(
        "sentinel_failover", "a planned failover", run, Promises(loss=True, loses_writes=True), _sentinels_at_rest
    )


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


ANYWHERE: dict[str, Draw] = {"replica_stopped": replica_stopped}
STANDALONE: dict[str, Draw] = {
    "killed": killed,
    "restarted": restarted,
    "from_old_data": from_old_data,
    "frozen": frozen,
    "slept": slept,
    "paused": paused,
    "flushed": flushed,
    "scripts_lost": scripts_lost,
    "evicting": evicting,
    "full": full,
    "clients_killed": clients_killed,
    "output_limited": output_limited,
    "half_open": half_open,
    "cut_off": cut_off,
    "dropped": dropped,
    "slow": slow,
    "split": split,
    "moved": moved,
    "password_rotated": password_rotated,
    "replica_clock": replica_clock,
    **ANYWHERE,
}
VALKEY_ONLY: dict[str, Draw] = {"server_clock": server_clock}
SENTINEL: dict[str, Draw] = {
    "sentinel_failover": sentinel_failover,
    "sentinel_master_killed": sentinel_master_killed,
    "sentinel_master_frozen": sentinel_master_frozen,
    "sentinels_killed": sentinels_killed,
    "sentinel_master_flushed": sentinel_master_flushed,
    **ANYWHERE,
}
CLUSTER: dict[str, Draw] = {
    "cluster_failover": cluster_failover,
    "cluster_owner_killed": cluster_owner_killed,
    "cluster_slot_moved": cluster_slot_moved,
    "cluster_flushed": cluster_flushed,
    **ANYWHERE,
}
