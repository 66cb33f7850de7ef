"""The history of full runs and the results in the README that are made from it."""

import json

import pytest

from tests.bench import readme
from tests.bench.__main__ import Part, Run
from tests.bench.arguments import GOALS, QUICK_GOALS, is_full, parsed, plan_for
from tests.bench.goals import NONE_AT_ALL, Bound, Row
from tests.bench.history import append, differences, entries, last_of_kind, summary
from tests.bench.load import CannotMeasure
from tests.bench.plan import FULL, QUICK


def row(figures=((60, 100), (80, 100), (40, 100)), wanted=0.6, what="POST"):
    made = Row("W1", what, "req/s", Bound(">=", wanted), "post")
    for product, reference in figures:
        made.add(product, reference)
    return made


def loss():
    made = Row("P1", "lost", "writes", NONE_AT_ALL)
    made.add(0)
    return made


def missing():
    return Row("R2", "GET", "req/s", Bound(">=", 10), "consul-health", "no consul here")


def informing():
    made = Row("W1", "server CPU", "us/req", None, "post")
    made.add(80, 40)
    return made


def entry(*rows, machine="2 x Quick", date="2026-12-01T10:00:00Z"):
    return {
        "date": date,
        "commit": "abc1234",
        "machine": machine,
        "versions": {"Python": "3.11.7", "msgspec": "0.23.0", "Redis": "7.0.15"},
        "took_secs": 1260.0,
        "busy_with_others": 0.031,
        "rows": [summary(each) for each in rows],
    }


def test_a_summary_has_the_middle_and_the_spread_and_no_more_digits_than_mean_something():
    kept = summary(row(((60, 100), (80, 100.0), (12.34567, 100))))
    assert (kept["figure"], kept["low"], kept["high"], kept["rounds"]) == (0.6, 0.1235, 0.8, 3)
    assert (kept["product"], kept["beside"], kept["met"], kept["wanted"]) == (60, 100, True, ">= 0.6x post")


def test_a_summary_of_what_could_not_be_measured_says_why_and_nothing_more():
    kept = summary(missing())
    assert kept["absent"] == "no consul here"
    assert kept["met"] is None
    assert "figure" not in kept


def test_runs_come_back_from_the_file_in_their_order_and_by_machine(tmp_path):
    path = tmp_path / "history.jsonl"
    assert entries(path) == []
    made = [entry(row(), date="1"), entry(row(), missing(), machine="8 x Slow", date="2"), entry(loss(), date="3")]
    for each in made:
        append(each, path)
    assert entries(path) == made
    assert last_of_kind("2 x Quick", made) == made[2]
    assert last_of_kind("8 x Slow", made) == made[1]
    assert last_of_kind("1 x Other", made) is None


def test_a_difference_is_shown_for_what_both_runs_measured():
    before = entry(row(((50, 100),)), loss(), missing())
    text = differences([row(((60, 100),)), row(what="another"), loss(), missing()], before)
    lines = [line for line in text.splitlines() if line.startswith(("| W1", "| P1", "| R2"))]
    assert len(lines) == 2
    assert "1.20" in lines[0]
    assert "0.50 (0.50..0.50)" in lines[0]
    assert differences([row(what="another")], before) == "none of these rows was measured before"


def test_the_results_say_of_each_goal_what_was_wanted_and_whether_it_was_met():
    text = readme.section(
        [entry(row(wanted=0.9), date="old"), entry(row(), row(wanted=0.7), loss(), missing(), informing())]
    )
    assert "**2 of 4 goals met** on 2026-12-01 (commit abc1234)" in text
    assert "on 2 x Quick" in text
    assert "up to 3%" in text
    assert "Python 3.11.7, Redis 7.0.15." in text
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert lines == [
        "| W1 | POST | 60.00 req/s | post: 100.0 req/s | >= 0.6x | 0.60x (0.40..0.80) | met |",
        "| W1 | POST | 60.00 req/s | post: 100.0 req/s | >= 0.7x | 0.60x (0.40..0.80) | **missed** |",
        "| P1 | lost | 0 writes |  | <= 0 writes | 0 (0..0) | met |",
        "| R2 | GET |  | consul-health | >= 10x |  | not measured: no consul here |",
    ]


def test_results_go_between_the_markers_and_nowhere_else():
    text = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter {readme.END}\n"
    assert readme.placed(text, "new\n") == f"before\n{readme.BEGIN}\nnew\n{readme.END}\nafter {readme.END}\n"


def test_the_readme_shows_the_last_full_run():
    text = readme.README.read_text()
    assert text.count(readme.BEGIN) == text.count(readme.END) == 1
    assert readme.placed(text, readme.section(entries())) == text, "run: python -m tests.bench.readme --write"


def test_the_history_has_full_runs_only():
    for kept in entries():
        assert {each["goal"] for each in kept["rows"]} == set(GOALS)


@pytest.mark.parametrize(
    ("words", "full"),
    [
        ([], True),
        (["--json", "x"], True),
        (["--quick"], False),
        (["--rounds", "1"], False),
        (["--only", "R1"], False),
        (["--size", "100"], False),
        (["--minutes", "1"], False),
    ],
)
def test_only_a_run_of_all_goals_as_they_are_meant_is_a_full_one(words, full):
    assert is_full(parsed(words)) is full


def test_a_quick_run_has_the_main_goals_and_any_that_are_named():
    assert parsed(["--quick"]).only == QUICK_GOALS
    assert parsed(["--quick", "--only", "s3"]).only == {"S3"}
    assert plan_for(parsed(["--quick"])) == QUICK
    assert FULL.least_rounds >= 3
    assert QUICK.least_rounds >= 3


def test_a_part_that_fails_once_is_measured_again_and_one_that_fails_twice_counts_as_not_met(monkeypatch):
    monkeypatch.setattr("tests.bench.__main__.busy_share", lambda: 0.0)
    attempts = []

    def fail_once():
        attempts.append(1)
        if len(attempts) == 1:
            raise CannotMeasure("a moment")
        yield row()

    def fail():
        yield row()
        raise CannotMeasure("always")

    run = Run()
    run.take(Part(frozenset({"W1"}), fail_once), frozenset({"W1"}))
    assert [each.met for each in run.rows] == [True]
    assert not run.failed
    run.take(Part(frozenset({"W1", "W2"}), fail), frozenset({"W1"}))
    assert [(each.goal, each.met, each.absent) for each in run.rows[1:]] == [("W1", None, "the measurement failed")]
    assert run.failed
    json.dumps([each.as_json() for each in run.rows], allow_nan=False)
