"""How big an installation must be, in the runbook: computed from what the last full run measured.

``python -m tests.bench.capacity --write`` writes the section, a full run does so too, and without ``--write`` it is
said whether it is there. The formulas stand in the text beside their results.
"""

import argparse
import math
import sys
from typing import NamedTuple

from tests.bench.goals import number
from tests.bench.history import Entry, entries
from tests.bench.storm import BEATS_PER_SEC, CHANGE_EVERY, SUBSCRIBERS
from tests.documents import PROJECT, replaced

RUNBOOK = PROJECT / "docs" / "runbook.md"
MARKER = "capacity"

CORE_SHARE = 0.5
"""Of one core, which is all that a replica can use: the rest is for bursts, starts and other tenants."""
MEMORY_SHARE = 1.5
ROUNDS_PER_SEC = 10
HEARTBEAT_SECS = 5
LEAST_SERVING = 1
CHANGE_KB = 1.0
INSTALLATIONS = (
    (100, 1, 100),
    (1000, 10, 500),
    (10_000, 20, 1000),
    (10_000, 200, 1000),
    (10_000, 200, 5000),
    (50_000, 100, 2000),
    (100_000, 200, 5000),
)
"""Pools, changes in a second, and streams over all replicas."""


TEXT = """\
Computed from the run of {date} (commit {commit}) on {machine}.
`scripts/bench` measures your machine and writes this section anew.

| pools | changes/s | streams | replicas | cores each | memory each | sent each | Redis cores | Redis memory |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}

That is with one relay for each pool, a heartbeat every {interval} s, and registrations of one kilobyte. *Changes*
are registrations that say something new, such as another capacity; *streams* are those of all replicas, and
long polls cost as much. What stands under *each* is what a replica takes while one other is away, and what
`resources.requests` should be; of memory it is {spare} times what is used. A filter, such as `?model=…`, makes
a stream cost what matches it alone.

For other numbers: P pools, B heartbeats a second (pools × relays of each ÷ interval), C of them changes,
S streams, and N replicas of which one may be away.

- Cores of a replica, of which it uses one at most and should use {most}:
  C × {change} + ((B − C) × {beat} + min(C, {rounds}) × S × {event} + C × S × {share}) ÷ (N − 1).
  Every replica shows every change, while heartbeats and streams are shared; changes that come close together are
  sent at once, at most {rounds} times a second.
- Memory of a replica: {empty} + P × {pool} + S ÷ (N − 1) × {stream}.
- Cores of Redis, which uses one for commands:
  (B − C) × {redis_beat} + C × {redis_change} + N × {redis_idle} × max(1, P ÷ {idle_pools}).
  The last term, rather too much than too little, is what replicas read while nothing happens.
- Memory of Redis: P × {redis_pool}, and some megabytes for itself.
"""


class Measured(NamedTuple):
    """Microseconds of processor time, megabytes and kilobytes, each of one thing."""

    heartbeat_us: float
    change_us: float
    event_us: float
    small_mb: float
    large_mb: float
    stream_kb: float
    redis_heartbeat_us: float
    redis_change_us: float
    redis_pool_kb: float
    redis_idle_ms: float
    storm_cores: float

    @property
    def pool_kb(self) -> float:
        """Of one more pool in a replica: by what a hundred thousand take more than ten thousand."""
        return (self.large_mb - self.small_mb) * 1e3 / (LARGE - SMALL)

    @property
    def empty_mb(self) -> float:
        """Of a replica without pools."""
        return self.small_mb - self.pool_kb * SMALL / 1e3

    @property
    def share_us(self) -> float:
        """Of one more change in what a stream is sent at once: by what the load of S3 takes beside all else."""
        changes = BEATS_PER_SEC / CHANGE_EVERY
        else_us = changes * self.change_us + (BEATS_PER_SEC - changes) * self.heartbeat_us
        else_us += ROUNDS_PER_SEC * SUBSCRIBERS * self.event_us
        return max(0.0, self.storm_cores * 1e6 - else_us) / (changes * SUBSCRIBERS)


SMALL, LARGE, IDLE_POOLS = 10_000, 100_000, 1000
ROWS = {
    "heartbeat_us": ("M2", "CPU of a heartbeat, 10,000 pools", "us"),
    "change_us": ("M2", "CPU of a change, 10,000 pools", "us"),
    "event_us": ("S1", "server CPU of an event for 1 of 1,000 subscribers", "us"),
    "small_mb": ("M1", "RSS, 10,000 pools", "MB"),
    "large_mb": ("M1", "RSS, 100,000 pools", "MB"),
    "stream_kb": ("M1", "RSS of 1 of 1,000 streams, 10,000 pools", "kB"),
    "redis_heartbeat_us": ("M2", "Redis CPU of a heartbeat, 10,000 pools", "us"),
    "redis_change_us": ("M2", "Redis CPU of a change, 10,000 pools", "us"),
    "redis_pool_kb": ("M1", "Redis memory of 1 of 10,000 pools", "kB"),
    "storm_cores": ("S3", "server CPU meanwhile", "cores"),
    "redis_idle_ms": ("M5", "Redis CPU for 1 of 4 idle replicas, 1,000 pools", "ms/s"),
}
"""Which row each figure is of: goal, what, unit."""


class Needs(NamedTuple):
    """What an installation takes: replicas, and of each its cores, memory and traffic to streams; and Redis."""

    replicas: int
    cores: float
    memory_mb: float
    sent_mb: float
    redis_cores: float
    redis_mb: float


def measured(known: list[Entry]) -> tuple[Entry, Measured] | None:
    """The figures of the last run that has all of them."""
    for entry in reversed(known):
        rows = {(row["goal"], row["what"], row["unit"]): row for row in entry["rows"] if "absent" not in row}
        if rows.keys() >= {*ROWS.values()}:
            figures = {name: rows[row].get("product", rows[row]["figure"]) for name, row in ROWS.items()}
            return entry, Measured(**figures)
    return None


def needs(of: Measured, pools: int, changes: int, streams: int) -> Needs:
    """The fewest replicas of which one may fail, and what each of the others then takes."""
    renewals = pools / HEARTBEAT_SECS - changes
    everywhere = changes * of.change_us / 1e6
    each_stream = (min(changes, ROUNDS_PER_SEC) * of.event_us + changes * of.share_us) / 1e6
    shared = renewals * of.heartbeat_us / 1e6 + streams * each_stream
    if everywhere >= CORE_SHARE:
        raise ValueError(f"{changes:,} changes a second take {everywhere:.2f} cores of every replica, however many")
    serving = max(LEAST_SERVING, math.ceil(shared / (CORE_SHARE - everywhere)))
    memory = of.empty_mb + (pools * of.pool_kb + streams / serving * of.stream_kb) / 1e3
    redis = (renewals * of.redis_heartbeat_us + changes * of.redis_change_us) / 1e6
    redis += (serving + 1) * of.redis_idle_ms / 1e3 * max(1, pools / IDLE_POOLS)
    return Needs(
        replicas=serving + 1,
        cores=everywhere + shared / serving,
        memory_mb=memory * MEMORY_SHARE,
        sent_mb=changes * CHANGE_KB * streams / serving / 1e3,
        redis_cores=redis,
        redis_mb=pools * of.redis_pool_kb / 1e3,
    )


def section(known: list[Entry]) -> str:
    """What stands between the markers."""
    found = measured(known)
    if found is None:
        return "No full run with all figures that this takes is recorded yet; `scripts/bench` records one."
    return _text(*found)


def _text(entry: Entry, of: Measured) -> str:
    return TEXT.format(
        date=entry["date"][:10],
        commit=entry["commit"],
        machine=entry["machine"],
        table="\n".join(f"| {' | '.join(_cells(of, *installation))} |" for installation in INSTALLATIONS),
        interval=HEARTBEAT_SECS,
        spare=f"{MEMORY_SHARE:g}",
        most=f"{CORE_SHARE:g}",
        rounds=ROUNDS_PER_SEC,
        change=_us(of.change_us),
        beat=_us(of.heartbeat_us),
        event=_us(of.event_us),
        share=_us(of.share_us),
        empty=f"{of.empty_mb:.0f} MB",
        pool=f"{of.pool_kb:.1f} kB",
        stream=f"{of.stream_kb:.1f} kB",
        redis_beat=_us(of.redis_heartbeat_us),
        redis_change=_us(of.redis_change_us),
        redis_idle=f"{of.redis_idle_ms:.1f} ms",
        redis_pool=f"{of.redis_pool_kb:.1f} kB",
        idle_pools=f"{IDLE_POOLS:,}",
    )


def _us(figure: float) -> str:
    return f"{number(figure)} µs"


def _cells(of: Measured, pools: int, changes: int, streams: int) -> list[str]:
    need = needs(of, pools, changes, streams)
    counts = [f"{count:,}" for count in (pools, changes, streams, need.replicas)]
    each = [f"{need.cores:.2f}", _megabytes(need.memory_mb), f"{need.sent_mb:.1f} MB/s"]
    return [*counts, *each, f"{need.redis_cores:.2f}", _megabytes(need.redis_mb)]


def _megabytes(size: float) -> str:
    return f"{math.ceil(size / 10) * 10:,} MB"


def written(text: str, known: list[Entry]) -> str:
    """The runbook with this section."""
    return replaced(text, MARKER, section(known).strip())


def write() -> None:
    """Put the section of the last full run into the runbook."""
    RUNBOOK.write_text(written(RUNBOOK.read_text(), entries()))


def main() -> int:
    """Write or compare, and give the exit code."""
    parser = argparse.ArgumentParser("python -m tests.bench.capacity", description=__doc__)
    parser.add_argument("--write", action="store_true", help="change the runbook where it differs")
    if parser.parse_args().write:
        write()
    elif written(RUNBOOK.read_text(), entries()) != RUNBOOK.read_text():
        print("docs/runbook.md differs; write it with: python -m tests.bench.capacity --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
