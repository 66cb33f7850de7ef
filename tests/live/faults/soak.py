"""``scripts/soak``: random faults under load for as long as you like, each with its verdict.

The seed decides which faults come, in which order and how long each lasts; what else the machine does meanwhile it does
not decide. Exit code 0: every promise was kept. 1: one was not; the first is printed, with where its record lies.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.faults import faults
from tests.live.faults.fault import Draw, Fault
from tests.live.faults.places import Place, Standalone, WithCluster, WithSentinels
from tests.live.faults.stage import Stage, Verdict
from tests.live.redis_server import KINDS, Kind

WARM_UP_SECS = 120.0  # or a third of a run that is shorter than six minutes
GROWTH = 0.05

TOPOLOGIES: dict[str, tuple[Callable[[Kind, Path], Place], dict[str, Draw]]] = {
    "standalone": (Standalone, faults.STANDALONE),
    "sentinel": (WithSentinels, faults.SENTINEL),
    "cluster": (WithCluster, faults.CLUSTER),
}


def sequence(seed: int, topology: str, kind: Kind, only: list[str] | None = None) -> "Sequence":
    """The faults that this seed stands for."""
    draws = dict(TOPOLOGIES[topology][1])
    if topology == "standalone" and kind == "valkey":
        draws.update(faults.VALKEY_ONLY)
    return Sequence(seed, {name: draws[name] for name in only or draws})


class Sequence:
    """Faults without end: all of them in a random order, then all again in another."""

    def __init__(self, seed: int, draws: dict[str, Draw]) -> None:
        self._chance = random.Random(seed)
        self._draws = draws
        self._bag: list[str] = []

    def __iter__(self) -> "Sequence":
        return self

    def __next__(self) -> Fault:
        if not self._bag:
            self._bag = sorted(self._draws)
            self._chance.shuffle(self._bag)
        return self._draws[self._bag.pop()](self._chance)


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, help="repeat the faults of another run")
    parser.add_argument(
        "--every", type=float, default=20, help="seconds from one fault's begin to the next (default 20)"
    )
    parser.add_argument("--topology", choices=[*TOPOLOGIES], default="standalone")
    parser.add_argument("--server", choices=KINDS, default="valkey", help="(default valkey: its clock can be set too)")
    parser.add_argument("--lease", type=float, default=3.0, help="seconds (default 3)")
    parser.add_argument("--only", action="append", metavar="FAULT", help="only this fault; repeatable")
    parser.add_argument("--keep-going", action="store_true", help="go on after a broken promise")
    parser.add_argument("--directory", type=Path, help="where records and logs go (default: a new folder under /tmp)")
    options = parser.parse_args(words)
    known = {**TOPOLOGIES[options.topology][1], **faults.VALKEY_ONLY}
    for name in options.only or ():
        if name not in known:
            parser.error(f"no fault {name!r} with --topology {options.topology}; there are: {', '.join(sorted(known))}")
    return options


def main(words: list[str] | None = None) -> int:
    """Run it; gives the exit code."""
    options = _options(words)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {seed}, {options.topology} on {options.server}, records in {directory}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that all that was started is ended
    place = TOPOLOGIES[options.topology][0](options.server, directory / "servers")
    with Stage(place, directory, seed=seed, lease=options.lease, interval=options.lease / 6) as stage:
        return Soak(stage, options).run(sequence(seed, options.topology, options.server, options.only))


class Soak:
    """One run, and what it has seen."""

    def __init__(self, stage: Stage, options: argparse.Namespace) -> None:
        self._stage = stage
        self._options = options
        self._begun = time.monotonic()
        self._broken: list[Verdict] = []
        self._verdicts = 0
        self._warm: dict[str, int] = {}

    def run(self, faults_of_seed: Sequence) -> int:
        """Fault after fault until the time is over."""
        end = self._begun + self._options.minutes * 60
        for fault in faults_of_seed:
            due = time.monotonic() + self._options.every
            self._take(self._stage.suffer(fault))
            if time.monotonic() >= end or (self._broken and not self._options.keep_going):
                break
            time.sleep(max(0.0, due - time.monotonic()))
        return self._sum_up()

    def _take(self, verdict: Verdict) -> None:
        self._verdicts += 1
        now = time.monotonic() - self._begun
        memory = {name: replica.rss for name, replica in self._stage.replicas.items()}
        if not self._warm and now >= min(WARM_UP_SECS, self._options.minutes * 60 / 3):
            self._warm = memory
        shown = " ".join(f"{name}:{rss / 2**20:.1f}" for name, rss in memory.items())
        print(f"{now:7.1f} s  {verdict}, MiB {shown}", flush=True)
        if verdict.broken:
            if not verdict.void:
                self._broken.append(verdict)
            for broken in verdict.broken:
                print(f"           {broken}", flush=True)
            print(f"           the record: {verdict.recorded}", flush=True)

    def _sum_up(self) -> int:
        grown = [
            f"replica {name} grew from {before / 2**20:.1f} to {now / 2**20:.1f} MiB"
            for name, before in self._warm.items()
            if (now := self._stage.replicas[name].rss) > before * (1 + GROWTH)
        ]
        for text in grown:
            print(f"broken: memory stays within {GROWTH:.0%} after the warm-up: {text}")
        if self._broken:
            first = self._broken[0]
            print(f"broken: {first.broken[0]} at {first.fault}; the record: {first.recorded}")
        print(f"{self._verdicts} faults, {len(self._broken)} of them with broken promises")
        return 1 if grown or self._broken else 0


if __name__ == "__main__":
    sys.exit(main())
