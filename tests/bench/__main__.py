"""``scripts/bench``: runs the goals that are asked for, prints one table, and keeps what a full run gave."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.bench import (
    capacity,
    expiry,
    fanout,
    firsts,
    history,
    machine,
    mixed,
    propagation,
    reach,
    readme,
    reads,
    scale,
    sizes,
    storm,
    watching,
    writes,
)
from tests.bench.arguments import GOALS, is_full, parsed, plan_for
from tests.bench.goals import Bound, Row, table
from tests.bench.load import CannotMeasure, require_wrk
from tests.bench.plan import Plan
from tests.bench.servers import busy_share

QUICK_SHARE = 0.9  # of a goal: below it a quick run, whose windows are short, calls it missed
QUIET = 0.15
ATTEMPTS = 2
NEED_WRK = frozenset({"R1", "R2", "R3", "R4", "W1", "W2", "M2"})


class Part(NamedTuple):
    """What is measured together."""

    goals: frozenset[str]
    measure: Callable[[], Iterator[Row]]


@dataclass
class Run:
    """What a run came to so far."""

    began: float = field(default_factory=time.time)
    rows: list[Row] = field(default_factory=list)
    busy: float = 0.0
    failed: bool = False
    secs: dict[str, float] = field(default_factory=dict)

    def take(self, part: Part, wanted: frozenset[str]) -> None:
        """Measure a part; if it cannot be, once more: a long run is not lost to one moment."""
        self.busy = max(self.busy, busy_share())
        began, name = time.monotonic(), ",".join(sorted(part.goals & wanted))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.rows += [row for row in part.measure() if row.goal in wanted]
                break
            except (CannotMeasure, AssertionError, OSError, RuntimeError) as error:
                text = str(error).strip().split("\n")[0][:200]
                print(f"scripts/bench: {name}, attempt {attempt} of {ATTEMPTS}: {text}", file=sys.stderr, flush=True)
        else:
            self.failed = True
            self.rows += [
                Row(goal, "-", "-", Bound(">=", 1), None, "the measurement failed")
                for goal in sorted(part.goals & wanted)
            ]
        self.secs[name] = round(time.monotonic() - began, 1)

    def facts(self) -> dict[str, Any]:
        """When, where and with what."""
        return {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
            "commit": machine.commit(),
            "machine": machine.kind(),
            "versions": machine.versions(),
            "took_secs": round(time.time() - self.began, 1),
            "busy_with_others": round(self.busy, 3),
        }


def main() -> int:
    """Run, print, and give the exit code."""
    arguments = parsed()
    run = Run()
    if NEED_WRK & arguments.only:
        try:
            require_wrk()
        except CannotMeasure as error:
            print(f"scripts/bench: {error}", file=sys.stderr)
            return 2
    for part in _parts(plan_for(arguments), arguments.only):
        if part.goals & arguments.only:
            run.take(part, arguments.only)
    share = QUICK_SHARE if arguments.quick else 1.0
    _tell(run, arguments, share)
    if run.failed:
        return 2
    return 1 if any(row.meets(share) is False for row in run.rows) else 0


def _parts(plan: Plan, wanted: frozenset[str]) -> list[Part]:
    return [
        Part(frozenset({"R1", "R2"}), lambda: reads.measure_lists(plan, wanted)),
        Part(frozenset({"R3"}), lambda: mixed.measure(plan)),
        Part(frozenset({"R4"}), lambda: reads.measure_not_modified(plan)),
        Part(frozenset({"W1"}), lambda: writes.measure(plan)),
        Part(frozenset({"W2"}), lambda: writes.measure_one(plan)),
        Part(frozenset({"P1"}), lambda: propagation.measure(plan)),
        Part(frozenset({"P2"}), lambda: reach.measure(plan)),
        Part(frozenset({"S1", "S2"}), lambda: fanout.measure(plan, wanted)),
        Part(frozenset({"S3"}), lambda: storm.measure(plan)),
        Part(frozenset({"E1"}), lambda: expiry.measure(plan)),
        Part(frozenset({"M1", "M2", "M3"}), lambda: sizes.measure(plan, wanted)),
        Part(frozenset({"M4"}), lambda: firsts.measure(plan)),
        Part(frozenset({"M5"}), lambda: scale.measure(plan)),
        Part(frozenset({"K1"}), lambda: watching.measure_events(plan)),
        Part(frozenset({"K2"}), lambda: watching.measure_start(plan)),
    ]


def _tell(run: Run, arguments: argparse.Namespace, share: float) -> None:
    """Everything that was asked for, and the count of goals last."""
    facts = run.facts()
    run.rows.sort(key=lambda row: GOALS.index(row.goal))
    if run.busy > QUIET:
        print(f"scripts/bench: others used up to {run.busy:.0%} of the processors: ratios are weak", file=sys.stderr)
    if arguments.json is not None:
        report = {**facts, "quick": arguments.quick, "secs": run.secs, "rows": [row.as_json() for row in run.rows]}
        arguments.json.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    if arguments.compare:
        before = history.last_of_kind(facts["machine"], history.entries())
        print("no full run on such a machine yet" if before is None else history.differences(run.rows, before), "\n")
    if is_full(arguments) and not run.failed and not arguments.no_history:
        history.append({**facts, "rows": [history.summary(row) for row in run.rows]})
        readme.write()
        capacity.write()
        print(
            "scripts/bench: kept in tests/bench/history.jsonl, shown in README.md and docs/runbook.md", file=sys.stderr
        )
    print(table(run.rows, share))


if __name__ == "__main__":
    sys.exit(main())
