"""The events of the log: one table, which the code keeps to and docs/logs.md shows."""

import ast
from collections.abc import Iterator
from pathlib import Path

from discovery import logs
from tests.documents import PROJECT

DOCUMENT = PROJECT / "docs" / "logs.md"
MARKS = "<!-- events -->\n", "<!-- /events -->\n"


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted((PROJECT / "discovery").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("event", "logs.event"):
                yield path, node


def table() -> str:
    return "\n| event | what happened |\n| --- | --- |\n" + "".join(
        f"| `{name}` | {text} |\n" for name, text in logs.EVENTS.items()
    ) + "\n"  # fmt: skip


def with_table(text: str) -> str:
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return before + MARKS[0] + table() + MARKS[1] + after


def test_every_event_of_the_code_is_in_the_table_and_the_other_way_round() -> None:
    named = set()
    for path, call in calls():
        name = call.args[2]
        assert isinstance(name, ast.Constant), f"{path}:{call.lineno}: the name of an event is a text"
        named.add(name.value)
    assert named == set(logs.EVENTS)
    assert set(logs.REPEATED) <= named


def test_the_document_shows_the_table() -> None:
    """``python -m tests.test_events`` writes it."""
    text = DOCUMENT.read_text()
    assert text == with_table(text)


def test_the_document_names_every_field() -> None:
    text = DOCUMENT.read_text()
    shown = text.partition("<!-- fields -->")[2].partition("<!-- /fields -->")[0]
    first_cells = [line.split("|")[1] for line in shown.splitlines() if line.startswith("| `")]
    named = {word for cell in first_cells for word in cell.strip(" `").split("`, `")}
    assert named == set(logs.Fields.__annotations__)


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
