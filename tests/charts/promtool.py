"""Prometheus' own judgement of the chart's alerts: ``promtool check rules`` and ``promtool test rules``.

Takes rules as objects and series as text, and hands them over as JSON, which is YAML. Knows neither what alerts mean
nor how a deployment behaves.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

RULES = "rules.yaml"


class Finding(NamedTuple):
    """What promtool said."""

    good: bool
    text: str


def check(groups: list[dict[str, Any]], folder: Path) -> Finding:
    """Whether Prometheus would load these rules, each told from the others."""
    return _run(folder, groups, "check", "rules", "--lint=all", "--lint-fatal", RULES)


def test(groups: list[dict[str, Any]], tests: list[dict[str, Any]], folder: Path) -> Finding:
    """Whether the rules say of some series what the tests expect of them."""
    (folder / "tests.yaml").write_text(json.dumps({"rule_files": [RULES], "evaluation_interval": "1m", "tests": tests}))
    return _run(folder, groups, "test", "rules", "tests.yaml")


def _run(folder: Path, groups: list[dict[str, Any]], *words: str) -> Finding:
    (folder / RULES).write_text(json.dumps({"groups": groups}))
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    return Finding(done.returncode == 0, done.stdout + done.stderr)
