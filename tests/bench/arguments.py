"""What a run of the benchmark can be asked for."""

import argparse
import dataclasses
from pathlib import Path

from tests.bench.plan import FULL, QUICK, Plan

GOALS = (
    *("R1", "R2", "R3", "R4", "W1", "W2", "P1", "P2", "S1", "S2", "S3", "E1"),
    *("M1", "M2", "M3", "M4", "M5", "K1", "K2"),
)
QUICK_GOALS = frozenset({"R1", "R4", "W1", "P1", "S1", "E1"})
LONGEST_MINUTES = 600  # leases of a run last longer
DESCRIPTION = """\
Measures the service against references that do the least possible and against what it competes with, in turn, in one
run, on this machine. Only the ratios mean something: single figures move with whatever else the machine does. What
each goal is about:
  R1      GET /pools on 16 connections, beside uvicorn alone (or Starlette) with the same bytes
  R2      the same, beside Redis (SCAN and MGET), etcd by its gateway and by gRPC, and Consul
  R3      the same while all pools beat, beside its own R1
  R4      GET /pools with the current ETag, beside Starlette's 304 and its own 200
  W1      POST /pools through Redis on 32 connections, beside ready bytes for SET PX and PUBLISH, and beside etcd
  W2      the same on one connection, beside redis-py and etcd
  P1      POST to one replica until another shows it, beside Redis and etcd until one watcher has it
  P2      POST to one replica until 1,000 streams of another have it, beside as many watchers of Redis and etcd
  S1, S2  one event to 1,000 and 5,000 subscribers, and the memory of those that wait, beside bare applications
  S3      2,000 heartbeats a second of 10,000 pools while 1,000 subscribers follow
  E1      10,000 leases that end at once, beside the `expired` events of Redis and the leases of etcd
  M1      memory of a replica with 10,000 and 100,000 pools, and of 1,000 streams
  M2      processor time of a change, a heartbeat and a GET, from 100 to 100,000 pools
  M3      start with 10,000 and 100,000 pools in Redis until the first whole list
  M4      scripts/run until the first answered GET; import of the client's library
  M5      four replicas with four times the streams of one, and what idle ones cost Redis
  K1      2,000 pools in 10,000 EndpointSlices, 100 slice events a second: processor time, events on a stream, memory
  K2      the first list of the same, from the start of the process until it is ready
What stands beside "server CPU" is the processor time of the server's process for each request: on a machine that does
something else it is the steadier figure. K1 and K2 have no reference; beside them stands what the fake API server used.
etcd and Consul are measured where they are on the PATH, gRPC with h2load; BIN_ETCD, BIN_H2LOAD, BIN_CONSUL and BIN_WRK
name others. Where one is missing its goals are not measured, and not met. etcd writes to disk and Redis does not.
A full run of all goals adds a line to tests/bench/history.jsonl and its results to README.md.
Exit code: 0 all that was measured is met, 1 some is not, 2 something could not be measured.
"""


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments; ``only`` is always a set of goals."""
    parser = argparse.ArgumentParser(
        "scripts/bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(sorted(QUICK_GOALS))} with 1,000 pools or subscribers and short windows, in less than three "
        "minutes; a goal counts as met at 0.9 of it",
    )
    parser.add_argument("--only", type=goals, metavar="R1,W1", help=f"some of {','.join(GOALS)}")
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N", help="so many rounds, 1 for a glance")
    parser.add_argument(
        "--size", type=int, action="append", metavar="N", help="only where so many pools or subscribers are asked for"
    )
    parser.add_argument(
        "--minutes", type=minutes, metavar="N", help="K1 in one round that long; 10 shows whether memory stays flat"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample to this file")
    parser.add_argument(
        "--compare", action="store_true", help="also show what changed since the last full run on such a machine"
    )
    parser.add_argument("--no-history", action="store_true", help="do not add a full run to the history and the README")
    arguments = parser.parse_args(words)
    if arguments.only is None:
        arguments.only = QUICK_GOALS if arguments.quick else frozenset(GOALS)
    return arguments


def plan_for(arguments: argparse.Namespace) -> Plan:
    """The sizes of the run that is asked for."""
    plan = QUICK if arguments.quick else FULL
    if arguments.minutes is not None:
        plan = dataclasses.replace(plan, event_secs=60 * arguments.minutes, event_rounds=1)
    if arguments.rounds is not None:
        rounds = arguments.rounds
        plan = dataclasses.replace(plan, least_rounds=rounds, list_rounds=rounds, event_rounds=rounds)
    if arguments.size:
        plan = dataclasses.replace(plan, sizes=frozenset(arguments.size))
    return plan


def is_full(arguments: argparse.Namespace) -> bool:
    """Whether it is a run of all goals as they are meant."""
    return plan_for(arguments) == FULL and arguments.only == frozenset(GOALS)


def goals(text: str) -> frozenset[str]:
    """The goals that are named."""
    wanted = frozenset(name.strip().upper() for name in text.split(","))
    if unknown := wanted - frozenset(GOALS):
        raise argparse.ArgumentTypeError(f"there is no goal {', '.join(sorted(unknown))}; there are {', '.join(GOALS)}")
    return wanted


def minutes(text: str) -> float:
    """A number of minutes."""
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if not 0 < given <= LONGEST_MINUTES:
        raise argparse.ArgumentTypeError(f"minutes are a number above 0 and at most {LONGEST_MINUTES}")
    return given
