"""The results in the README, made from the last full run in the history.

A full run writes them between the markers; ``python -m tests.bench.readme --write`` does it by itself, and without
``--write`` says whether they are there.
"""

import argparse
import sys
from collections.abc import Iterator

from tests.bench.goals import number
from tests.bench.history import Entry, entries
from tests.live.replica import PROJECT

README = PROJECT / "README.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
MAIN_VERSIONS = ("Python", "uvicorn", "uvloop", "Redis", "etcd", "Consul", "Linux")


def main() -> int:
    """Write or compare, and give the exit code."""
    parser = argparse.ArgumentParser("python -m tests.bench.readme", description=__doc__)
    parser.add_argument("--write", action="store_true", help="change the README where it differs")
    wanted = parser.parse_args().write
    if wanted:
        write()
    elif _right() != README.read_text():
        print("README.md: the results differ; write them with: python -m tests.bench.readme --write", file=sys.stderr)
        return 1
    return 0


def write() -> None:
    """Put the results of the last full run into the README."""
    README.write_text(_right())


def _right() -> str:
    return placed(README.read_text(), section(entries()))


def placed(readme: str, results: str, begin: str = BEGIN, end: str = END) -> str:
    """The README with these results between its markers."""
    before, _, rest = readme.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{results}{end}{after}"


def section(known: list[Entry]) -> str:
    """What stands between the markers."""
    if not known:
        return "No full run is recorded yet; `scripts/bench` records one.\n"
    return "\n".join([*_heading(known[-1]), "", *_table(known[-1]), "", *_footnotes(known)]) + "\n"


def _heading(entry: Entry) -> Iterator[str]:
    versions = ", ".join(f"{name} {entry['versions'][name]}" for name in MAIN_VERSIONS if name in entry["versions"])
    goals = [row for row in entry["rows"] if row["met"] is not None or "absent" in row]
    met = sum(row["met"] is True for row in goals)
    yield f"**{met} of {len(goals)} goals met** on {entry['date'][:10]} (commit {entry['commit']}),"
    yield f"on {entry['machine']} of a shared machine, where others used up to {entry['busy_with_others']:.0%} of the"
    yield f"processors just before a goal was measured; {versions}."


def _table(entry: Entry) -> Iterator[str]:
    yield "| goal | what | measured | beside | wanted | got, by round | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in entry["rows"]:
        if row["met"] is not None or "absent" in row:
            yield f"| {' | '.join(_cells(row))} |"


def _cells(row: Entry) -> list[str]:
    beside = row.get("reference", "")
    if "absent" in row:
        return [row["goal"], row["what"], "", beside, _bound(row), "", f"not measured: {row['absent']}"]
    unit, compared = row["unit"], "product" in row
    measured = f"{number(row['product' if compared else 'figure'])} {unit}"
    if compared:
        beside += f": {number(row['beside'])} {unit}"
    got = f"{number(row['figure'])}{'x' if compared else ''} ({number(row['low'])}..{number(row['high'])})"
    return [row["goal"], row["what"], measured, beside, _bound(row), got, "met" if row["met"] else "**missed**"]


def _bound(row: Entry) -> str:
    """Without the name of what is beside, which has a column of its own."""
    return str(row["wanted"]).removesuffix(f" {row.get('reference')}")


def _footnotes(known: list[Entry]) -> Iterator[str]:
    entry = known[-1]
    minutes = entry["took_secs"] / 60
    yield f"The run took {minutes:.0f} minutes. A figure is the median of {_rounds(entry)} rounds, in turn with what is"
    yield "beside it; the spread is that of the rounds. `tests/bench/history.jsonl` has this run and those before it."


def _rounds(entry: Entry) -> str:
    counts = sorted({row["rounds"] for row in entry["rows"] if row.get("rounds", 1) > 1})
    return " or ".join(map(str, counts)) or "1"


if __name__ == "__main__":
    sys.exit(main())
