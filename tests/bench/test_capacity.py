"""What the runbook says of capacity is what the last full run gives, and right where one can check it by hand."""

import ast
import re

import pytest

from tests.bench import capacity
from tests.bench.capacity import ROWS, Measured, measured, needs, section
from tests.bench.goals import Row
from tests.bench.history import Entry, entries, summary

ROUND = Measured(
    heartbeat_us=50,
    change_us=100,
    event_us=10,
    small_mb=100,
    large_mb=1000,
    stream_kb=10,
    redis_heartbeat_us=10,
    redis_change_us=20,
    redis_pool_kb=2,
    redis_idle_ms=1,
    storm_cores=0.41,
)
"""Figures that are easy to reckon with; the load of S3 then takes 0.2 cores more than its parts: 1 µs each."""


def run(*, without: str = "", figures: Measured = ROUND) -> Entry:
    rows = []
    for name, (goal, what, unit) in ROWS.items():
        if name != without:
            beside = "fanout-transport" if name == "event_us" else None
            row = Row(goal, what, unit, None, beside)
            row.add(getattr(figures, name), 5.0 if beside else None)
            rows.append(summary(row))
    return {"date": "2026-01-02T03:04:05Z", "commit": "abc", "machine": "2 x Processor", "rows": rows}


def test_the_runbook_has_the_section_of_the_last_full_run() -> None:
    text = capacity.RUNBOOK.read_text()
    assert text == capacity.written(text, entries()), "run: .venv/bin/python -m tests.bench.capacity --write"


def pattern_of(text: ast.AST) -> str | None:
    """What a text in the code may come out as; None where it has no words of its own."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    words = [part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else None for part in parts]
    return "".join(re.escape(word) if word else ".+" for word in words) if any(words) else None


def test_every_figure_is_one_that_the_benchmark_gives() -> None:
    """Names of rows stand in two places: here, and where they are measured."""
    folder = capacity.RUNBOOK.parents[1] / "tests" / "bench"
    sources = [path for path in folder.glob("*.py") if "capacity" not in path.name and path.name[:5] != "test_"]
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text()))]
    patterns = [
        found for node in nodes if isinstance(node, ast.JoinedStr | ast.Constant) and (found := pattern_of(node))
    ]
    for _, what, _ in ROWS.values():
        assert [each for each in patterns if len(each) > 10 and re.fullmatch(each, what)], what


def test_figures_are_the_services_own_where_something_stands_beside_it() -> None:
    found = measured([run()])
    assert found is not None
    assert found[1] == ROUND


@pytest.mark.parametrize("without", ROWS)
def test_a_run_that_lacks_a_figure_is_passed_over(without: str) -> None:
    complete = run()
    found = measured([complete, run(without=without, figures=ROUND._replace(heartbeat_us=1, change_us=1))])
    assert found is not None
    assert found[0] is complete
    assert "is recorded yet" in section([run(without=without)])


def test_figures_that_are_computed() -> None:
    assert ROUND.pool_kb == pytest.approx(10)
    assert ROUND.empty_mb == pytest.approx(0)
    assert ROUND.share_us == pytest.approx(1)


def test_what_two_replicas_bear() -> None:
    """1,000 heartbeats a second, 20 of them changes: 49 ms, 2 ms, 10 rounds for 100 streams 10 ms, and shares 2 ms."""
    need = needs(ROUND, 5000, 20, 100)
    assert need.replicas == 2
    assert need.cores == pytest.approx(0.049 + 0.002 + 0.010 + 0.002)
    assert need.memory_mb == pytest.approx(1.5 * (50 + 1))
    assert need.sent_mb == pytest.approx(2)
    assert need.redis_cores == pytest.approx(0.0098 + 0.0004 + 2 * 0.001 * 5)
    assert need.redis_mb == pytest.approx(10)


def test_more_streams_take_more_replicas_of_which_one_may_be_away() -> None:
    few, many = needs(ROUND, 5000, 20, 1000), needs(ROUND, 5000, 20, 20_000)
    assert (few.replicas, many.replicas) == (2, 6)
    assert many.cores <= 0.5


def test_what_no_number_of_replicas_bears_is_said() -> None:
    with pytest.raises(ValueError, match="however many"):
        needs(ROUND, 100_000, 6000, 1)


def test_the_table_has_every_installation() -> None:
    text = section([run()])
    assert "(commit abc) on 2 x Processor" in text
    assert len(re.findall(r"^\| [0-9]", text, re.MULTILINE)) == len(capacity.INSTALLATIONS)
    assert "C × 100.0 µs + ((B − C) × 50.00 µs + min(C, 10) × S × 10.00 µs + C × S × 1.00 µs)" in text
