"""``scripts/bench``: runs the goals that are asked for and prints one table."""

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import expiry, fanout, firsts, mixed, propagation, reach, reads, scale, sizes, storm, watching, writes
from tests.bench.goals import Row, table
from tests.bench.load import CannotMeasure, require_wrk
from tests.bench.plan import FULL, QUICK, Plan
from tests.bench.servers import busy_share

GOALS = (
    *("R1", "R2", "R3", "R4", "W1", "W2", "P1", "P2", "S1", "S2", "S3", "E1"),
    *("M1", "M2", "M3", "M4", "M5", "K1", "K2"),
)
QUICK_GOALS = frozenset({"R1", "R4", "W1", "P1", "S1", "E1"})
QUICK_SHARE = 0.9  # of a goal: below it a quick run, whose windows are short, calls it missed
QUIET = 0.15
LONGEST_MINUTES = 600  # leases of a run last longer
NEED_WRK = frozenset({"R1", "R2", "R3", "R4", "W1", "W2", "M2"})
DESCRIPTION = """\
Measures the service against references that do the least possible, in turn, in one run, on this machine. Only the
ratios mean something: single figures move with whatever else the machine does. What each row is:
  R1, R2  GET /pools on 16 connections, beside uvicorn alone (or Starlette) with the same bytes, and beside SCAN + MGET
  R3      GET /pools while all pools beat, beside GET alone
  R4      GET /pools with the current ETag
  W1      POST /pools through Redis on 32 connections, beside ready bytes for SET PX and PUBLISH
  W2      the same on one connection, beside redis-py
  P1      POST to one replica until another shows it, beside SET and PUBLISH until a subscriber has it
  P2      POST to one replica until the last of 1,000 streams of another has it, beside as many subscribers of Redis
  S1, S2  one event to many subscribers, and the memory of those that wait
  S3      2,000 heartbeats a second while 1,000 subscribers follow
  E1      many leases that end at once, beside the `expired` events of Redis
  M1      memory of a replica with 10,000 and 100,000 pools, and of 1,000 streams
  M2      processor time of a change, a heartbeat and a GET from 100 to 100,000 pools
  M3      start with 10,000 and 100,000 pools in Redis until the first whole list
  M4      scripts/run until the first answered GET; import of the client's library
  M5      four replicas with four times the streams of one, and what idle ones cost Redis
  K1      2,000 pools in 10,000 EndpointSlices, 100 slice events a second: processor time, events on a stream, memory
  K2      the first list of the same, from the start of the process until it is ready
K1 and K2 have no reference: they want seconds and cores of a machine that does nothing else. Beside them stands
what the fake API server used itself.
Exit code: 0 all goals met, 1 some not met, 2 could not measure.
"""


def main() -> int:
    """Run, print, and give the exit code."""
    arguments = _arguments()
    plan = _plan(arguments)
    rows: list[Row] = []
    busy: list[float] = []
    started = time.time()
    try:
        if NEED_WRK & arguments.only:
            require_wrk()
        for measure in _parts(plan, arguments.only):
            busy.append(busy_share())
            rows.extend(measure())
    except CannotMeasure as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 2
    rows = [row for row in rows if row.goal in arguments.only]
    if max(busy) > QUIET:
        print(f"scripts/bench: others used up to {max(busy):.0%} of the processors: ratios are weak", file=sys.stderr)
    share = QUICK_SHARE if arguments.quick else 1.0
    print(table(rows, share))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_report(rows, started, arguments.quick, max(busy)), indent=1) + "\n")
    return 1 if any(row.meets(share) is False for row in rows) else 0


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = QUICK if arguments.quick else FULL
    if arguments.minutes is not None:
        plan = dataclasses.replace(plan, event_secs=60 * arguments.minutes, event_rounds=1)
    if arguments.rounds is not None:
        plan = dataclasses.replace(plan, least_rounds=arguments.rounds, list_rounds=arguments.rounds)
    if arguments.size:
        plan = dataclasses.replace(plan, sizes=frozenset(arguments.size))
    return plan


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "scripts/bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short windows, fewer goals and sizes, and a goal counts as met at 0.9 of it",
    )
    parser.add_argument("--only", type=_goals, metavar="R1,W1", help=f"some of {','.join(GOALS)}")
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N", help="so many rounds, 1 for a glance")
    parser.add_argument(
        "--size", type=int, action="append", metavar="N", help="only where so many pools or subscribers are asked for"
    )
    parser.add_argument(
        "--minutes", type=_minutes, metavar="N", help="K1 in one round that long; 10 shows whether memory stays flat"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample to this file")
    arguments = parser.parse_args()
    if arguments.only is None:
        arguments.only = QUICK_GOALS if arguments.quick else frozenset(GOALS)
    return arguments


def _goals(text: str) -> frozenset[str]:
    wanted = frozenset(name.strip().upper() for name in text.split(","))
    if unknown := wanted - frozenset(GOALS):
        raise argparse.ArgumentTypeError(f"there is no goal {', '.join(sorted(unknown))}; there are {', '.join(GOALS)}")
    return wanted


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= LONGEST_MINUTES:
        raise argparse.ArgumentTypeError(f"minutes are a number above 0 and at most {LONGEST_MINUTES}")
    return minutes


def _parts(plan: Plan, wanted: frozenset[str]) -> Iterator[Callable[[], Iterator[Row]]]:
    if wanted & {"R1", "R2"}:
        yield lambda: reads.measure_lists(plan, wanted)
    if "R3" in wanted:
        yield lambda: mixed.measure(plan)
    if "R4" in wanted:
        yield lambda: reads.measure_not_modified(plan)
    if "W1" in wanted:
        yield lambda: writes.measure(plan)
    if "W2" in wanted:
        yield lambda: writes.measure_one(plan)
    if "P1" in wanted:
        yield lambda: propagation.measure(plan)
    if "P2" in wanted:
        yield lambda: reach.measure(plan)
    if wanted & {"S1", "S2"}:
        yield lambda: fanout.measure(plan)
    if "S3" in wanted:
        yield lambda: storm.measure(plan)
    if "E1" in wanted:
        yield lambda: expiry.measure(plan)
    if wanted & {"M1", "M2", "M3"}:
        yield lambda: sizes.measure(plan, wanted)
    if "M4" in wanted:
        yield lambda: firsts.measure(plan)
    if "M5" in wanted:
        yield lambda: scale.measure(plan)
    if "K1" in wanted:
        yield lambda: watching.measure_events(plan)
    if "K2" in wanted:
        yield lambda: watching.measure_start(plan)


def _report(rows: list[Row], started: float, quick: bool, busy: float) -> dict[str, object]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "took_secs": round(time.time() - started, 1),
        "quick": quick,
        "processors": os.cpu_count(),
        "busy_with_others": round(busy, 3),
        "python": platform.python_version(),
        "rows": [row.as_json() for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
