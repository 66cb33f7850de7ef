"""What documents say of the chart works: every ``helm`` line and every block of values is rendered."""

import re
import shlex
from itertools import pairwise
from typing import Any

import pytest
import yaml

from tests.charts.cases import CASES
from tests.charts.engine import Engine
from tests.charts.rendered import Chart
from tests.documents import Block, read, rows, steps

README = "charts/discovery/README.md"


def helm_lines(document: str) -> list[str]:
    """The lines of shell blocks that install or upgrade, joined where they go on."""
    blocks = [step for step in steps(read(document)) if isinstance(step, Block) and step.words[:1] == ("sh",)]
    lines = [line for block in blocks for line in block.text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(r"helm (install|upgrade) ", line)]


def table_of_values() -> list[str]:
    """The values in the README's table of set-ups."""
    section = read("README.md").partition("\n## Deploy with Helm\n")[2].partition("\n## ")[0]
    found = re.findall(r"`(--set [^`]+)`", section)
    assert len(found) == len(rows(section))
    return found


def given(engine: Engine, line: str) -> dict[str, Any]:
    """The values that a line gives with ``--set``, read by Helm."""
    words = shlex.split(line)
    found: dict[str, Any] = {}
    for before, word in pairwise(words):
        if before == "--set":
            merge(found, engine.ask("set_values", text=word))
    return found


def merge(values: dict[str, Any], more: dict[str, Any]) -> None:
    for key, each in more.items():
        if isinstance(each, dict) and isinstance(values.get(key), dict):
            merge(values[key], each)
        else:
            values[key] = each


LINES = [*helm_lines("README.md"), *table_of_values(), *helm_lines(README)]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_document_installs(chart: Chart, engine: Engine, line: str) -> None:
    values = given(engine, line)
    assert chart.render(values).deployment
    if "--set" in line:
        assert chart.outcome(values) != chart.outcome(), "it says nothing"


@pytest.mark.parametrize(
    "block", [step for step in steps(read(README)) if isinstance(step, Block) and "yaml" in step.words]
)
def test_a_block_of_values_installs(chart: Chart, block: Block) -> None:
    assert chart.outcome(yaml.safe_load(block.text)) != chart.outcome()
    assert chart.render(block.text).deployment


def test_both_documents_have_lines() -> None:
    assert len(LINES) > 10


def test_notes_name_the_next_commands(chart: Chart) -> None:
    for case, values in CASES.items():
        notes = chart.render(values).notes
        assert "kubectl --namespace prod rollout status deployment/" in notes, case
        assert "discovery doctor --url http" in notes, case
        assert "\n\n\n" not in notes, case
