"""Wall clocks that step, and a replica that is stopped."""

import random
import time

from tests.live.faults.fault import Fault, Scene
from tests.live.faults.oracle import Promises
from tests.live.faults.places import Standalone
from tests.live.signs import await_sign

# ---- clocks and processes


def server_clock(chance: random.Random) -> Fault:
    """The wall clock of the Valkey server steps: leases end early, or late, and every replica says so."""
    step = chance.choice([7200, -10800, 90, -45, 10, -10])

    def run(scene: Scene) -> None:
        place: Standalone = scene.place
        wanted = round(_offset(place)) + step
        place.clock.set_clock(f"{wanted:+d}")
        await_sign(lambda: abs(_offset(place) - wanted) < 1, 5, "the server's clock stepped")

    return Fault("server_clock", f"the server's clock steps by {step:+d} s", run, Promises(leases_move=True, loss=True))


def _offset(place: Standalone) -> float:
    seconds, micros = place.server.client.time()
    return float(seconds) + micros / 1e6 - time.time()


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
