"""The table of values in the chart's README, from ``values.yaml``: ``python -m tests.charts.readme --write``.

A value is described by the comment above it that begins with ``# -- ``. A map with such a comment is one row; of a map
without one each key is.
"""

import json
import re
import sys
from typing import Any

from tests.charts.engine import CHART
from tests.charts.rendered import objects_of
from tests.documents import PROJECT, replaced

README = CHART / "README.md"
VALUES = CHART / "values.yaml"

_line = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(?: |$)")
_comment = re.compile(r"^ *# -- (.*)$")


def described() -> dict[tuple[str, ...], str]:
    """What the comments say, by the path of the value below them, in the order of the file."""
    found: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    said = ""
    for line in VALUES.read_text().splitlines():
        if comment := _comment.match(line):
            said = f"{said} {comment[1]}".strip()
        elif key := _line.match(line):
            path = [*((indent, name) for indent, name in path if indent < len(key[1])), (len(key[1]), key[2])]
            if said:
                found[tuple(name for _, name in path)] = said
            said = ""
    return found


def undescribed() -> list[str]:
    """Values that no comment describes, and no comment of a map around them."""
    (values,) = objects_of(VALUES.read_text())
    known = described()
    return [
        ".".join(path) for path in _leaves(values) if not any(path[:end] in known for end in range(1, len(path) + 1))
    ]


def _leaves(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(values, dict) or not values:
        return [path]
    return [leaf for key, each in values.items() for leaf in _leaves(each, (*path, key))]


def table() -> str:
    """A row for each described value: its name, default and description."""
    (values,) = objects_of(VALUES.read_text())
    rows = ["| value | default | meaning |", "| --- | --- | --- |"]
    for path, said in described().items():
        default = values
        for key in path:
            default = default[key]
        cells = [f"`{'.'.join(path)}`", f"`{json.dumps(default, ensure_ascii=False)}`", said]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def written() -> str:
    """The README as it should be."""
    return replaced(README.read_text(), "values", table())


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.charts.readme --write")
    README.write_text(written())
    print(f"wrote {README.relative_to(PROJECT)}")
