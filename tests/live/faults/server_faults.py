"""One server that goes away, falls silent, or loses its data."""

import random
import time

from tests.live.faults.fault import OUTAGE, Fault, Scene, forget_dump, server_of
from tests.live.faults.oracle import Promises

# ---- the server goes away


def killed(chance: random.Random, secs: float | None = None) -> Fault:
    """SIGKILL, and back without its data."""
    secs = chance.uniform(0.1, 8) if secs is None else secs

    def run(scene: Scene) -> None:
        server_of(scene).kill()
        forget_dump(server_of(scene))
        time.sleep(secs)
        server_of(scene).start()

    return Fault("killed", f"kill -9, back empty after {secs:.1f} s", run, Promises(silent=True, loss=True))


def restarted(chance: random.Random, keeps: bool | None = None) -> Fault:
    """An orderly restart, with or without its data."""
    keeps = chance.random() < 0.5 if keeps is None else keeps
    secs = chance.uniform(0, 4)

    def run(scene: Scene) -> None:
        server = server_of(scene)
        if keeps:
            server.save()
        server.stop()
        if not keeps:
            forget_dump(server)
        time.sleep(secs)
        server.start()

    def restore(scene: Scene) -> None:
        forget_dump(server_of(scene))

    words = f"restarted in order {'with' if keeps else 'without'} its data, {secs:.1f} s away"
    return Fault("restarted", words, run, Promises(silent=True, loss=not keeps), restore)


def from_old_data(chance: random.Random) -> Fault:
    """Killed, and back as it was some seconds before."""
    age = chance.uniform(0.5, 3)

    def run(scene: Scene) -> None:
        server = server_of(scene)
        server.save()
        time.sleep(age)
        server.kill()
        server.start()

    def restore(scene: Scene) -> None:
        forget_dump(server_of(scene))

    return Fault(
        "from_old_data", f"back at once with data {age:.1f} s old", run, Promises(loss=True, loses_writes=True), restore
    )


# ---- the server is there and silent


def frozen(chance: random.Random, secs: float | None = None) -> Fault:
    """SIGSTOP for a while."""
    secs = chance.choice([0.3, 1, 2.5, 5, 8]) if secs is None else secs
    return Fault("frozen", f"SIGSTOP for {secs:g} s", lambda scene: server_of(scene).freeze_for(secs), OUTAGE)


def slept(chance: random.Random) -> Fault:
    """DEBUG SLEEP."""
    secs = round(chance.uniform(0.3, 4.5), 1)
    return Fault("slept", f"DEBUG SLEEP {secs}", lambda scene: server_of(scene).cli("DEBUG", "SLEEP", secs), OUTAGE)


def paused(chance: random.Random, mode: str | None = None) -> Fault:
    """CLIENT PAUSE of writes, or of everything."""
    mode = chance.choice(["WRITE", "ALL"]) if mode is None else mode
    secs = round(chance.uniform(0.3, 5), 1)

    def run(scene: Scene) -> None:
        server_of(scene).cli("CLIENT", "PAUSE", round(secs * 1000), mode)
        time.sleep(secs)

    promises = OUTAGE if mode == "ALL" else Promises(refused=True)
    return Fault("paused", f"CLIENT PAUSE {mode} for {secs:.1f} s", run, promises)


# ---- the data goes away


def flushed(chance: random.Random) -> Fault:
    """FLUSHALL."""
    return Fault("flushed", "FLUSHALL", lambda scene: server_of(scene).flush(), Promises(loss=True))


def scripts_lost(chance: random.Random) -> Fault:
    """SCRIPT FLUSH, several times."""

    def run(scene: Scene) -> None:
        for _ in range(20):
            server_of(scene).cli("SCRIPT", "FLUSH")
            time.sleep(0.05)

    return Fault("scripts_lost", "SCRIPT FLUSH, 20 times", run)


def evicting(chance: random.Random) -> Fault:
    """Memory full, with a policy that throws leases away."""
    policy = chance.choice(["volatile-ttl", "volatile-lru", "allkeys-random"])

    def run(scene: Scene) -> None:
        server = server_of(scene)
        server.cli("CONFIG", "SET", "maxmemory-policy", policy)
        for _ in range(15):
            used = int(server.client.info("memory")["used_memory"])
            server.cli("CONFIG", "SET", "maxmemory", used - 8_000)
            time.sleep(0.1)
            server.cli("CONFIG", "SET", "maxmemory", used + 50_000_000)
            time.sleep(0.1)

    def restore(scene: Scene) -> None:
        server_of(scene).cli("CONFIG", "SET", "maxmemory", 0)
        server_of(scene).cli("CONFIG", "SET", "maxmemory-policy", "noeviction")

    return Fault(
        "evicting", f"evictions by {policy} for 3 s", run, Promises(loss=True, loses_writes=True, refused=True), restore
    )


def evicting_few(chance: random.Random) -> Fault:
    """A few leases are thrown away, and no write is refused: only the server's own count tells of it."""
    policy = chance.choice(["volatile-ttl", "volatile-lru", "volatile-random"])

    def run(scene: Scene) -> None:
        client = server_of(scene).client
        before = int(client.info("stats")["evicted_keys"])
        client.config_set("maxmemory-policy", policy)
        limit = int(client.info("memory")["used_memory"]) - 4_000
        with client.pipeline(transaction=False) as together:  # in one write: nobody else's command comes between
            together.config_set("maxmemory", limit).ping().config_set("maxmemory", 0).execute()
        assert int(client.info("stats")["evicted_keys"]) > before

    def restore(scene: Scene) -> None:
        server_of(scene).cli("CONFIG", "SET", "maxmemory-policy", "noeviction")

    promises = Promises(loss=True, loses_writes=True)
    return Fault("evicting_few", f"a few evictions by {policy}, once", run, promises, restore)


def full(chance: random.Random) -> Fault:
    """Memory full, and nothing may be thrown away."""
    secs = chance.uniform(0.5, 2.0)

    def run(scene: Scene) -> None:
        server_of(scene).cli("CONFIG", "SET", "maxmemory", 1)
        time.sleep(secs)
        server_of(scene).cli("CONFIG", "SET", "maxmemory", 0)

    return Fault("full", f"out of memory with noeviction for {secs:.1f} s", run, Promises(refused=True))
