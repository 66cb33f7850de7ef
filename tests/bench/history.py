"""The runs so far, one line each, in a file of the repository; so that a later change can be compared.

Only a full run is kept: short windows and single goals say too little. A line has the middle and the spread of every
row, and what it was measured with.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.bench.goals import Row, aligned, number, wanted

HISTORY = Path(__file__).with_name("history.jsonl")
DIGITS = 4

Entry = dict[str, Any]


def summary(row: Row) -> Entry:
    """What is kept of one row."""
    kept: Entry = {"goal": row.goal, "what": row.what, "unit": row.unit, "wanted": wanted(row), "met": row.met}
    if row.reference_name is not None:
        kept["reference"] = row.reference_name
    if row.absent is not None:
        return {**kept, "absent": row.absent}
    kept |= {"figure": row.figure, "low": min(row.figures), "high": max(row.figures), "rounds": len(row.product)}
    if row.reference_name is not None:
        kept |= {"product": statistics.median(row.product), "beside": statistics.median(row.reference)}
    return {name: _short(value) for name, value in kept.items()}


def _short(value: object) -> object:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def append(entry: Entry, path: Path = HISTORY) -> None:
    """Add a line."""
    with path.open("a") as file:
        file.write(json.dumps(entry, allow_nan=False) + "\n")


def entries(path: Path = HISTORY) -> list[Entry]:
    """All lines, the oldest first."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def last_of_kind(kind: str, known: Iterable[Entry]) -> Entry | None:
    """The newest run on such a machine."""
    return next((entry for entry in reversed(list(known)) if entry["machine"] == kind), None)


def differences(rows: Sequence[Row], before: Entry) -> str:
    """Each row that was measured beside the same one of an earlier run."""
    known = {_name(row): row for row in before["rows"] if "figure" in row}
    lines = [["goal", "what", "wanted", "before", "now", "now / before"]]
    for row in map(summary, rows):
        then = known.get(_name(row))
        if then is None or "figure" not in row:
            continue
        change = f"{row['figure'] / then['figure']:.2f}" if then["figure"] else "-"
        figures = [f"{number(each['figure'])} ({number(each['low'])}..{number(each['high'])})" for each in (then, row)]
        lines.append([row["goal"], row["what"], row["wanted"], *figures, change])
    if len(lines) == 1:
        return "none of these rows was measured before"
    return "\n".join([f"Beside the run of {before['date']} ({before['commit']}):", "", *aligned(lines)])


def _name(row: Entry) -> tuple[object, ...]:
    return row["goal"], row["what"], row.get("reference")
