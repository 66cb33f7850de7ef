"""Wall clocks that step, and a replica that is stopped."""

import random
import time

from tests.live.faults.fault import Fault, Scene
from tests.live.faults.oracle import Promises
from tests.live.faults.places import Standalone
from tests.live.signs import await_sign

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
