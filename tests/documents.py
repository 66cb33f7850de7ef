"""The project's documents as tests see them: fenced blocks, tables, and text between markers."""

import re
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[1]

_fence = re.compile(r"^```(.*)$")
_signal = re.compile(r"<!-- Ctrl-C in=(\w+) -->")


class Block(NamedTuple):
    """One fenced block: the words behind the fence, its lines as one text, and the line number it begins at."""

    words: tuple[str, ...]
    text: str
    line: int

    def option(self, name: str, default: str) -> str:
        """The value of ``name=value`` among the words."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), default)


class Interrupt(NamedTuple):
    """A place where the reader is asked to press Ctrl-C in a terminal."""

    terminal: str
    line: int


def read(name: str) -> str:
    """A document of the project."""
    return (PROJECT / name).read_text(encoding="utf-8")


def steps(text: str) -> list[Block | Interrupt]:
    """The fenced blocks and the interrupts of a document, in order."""
    found: list[Block | Interrupt] = []
    words: tuple[str, ...] | None = None
    lines: list[str] = []
    begin = 0
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _fence.match(line)
        if words is not None and fence:
            found.append(Block(words, "\n".join(lines), begin))
            words = None
        elif words is not None:
            lines.append(line)
        elif fence:
            words, lines, begin = tuple(fence[1].split()), [], number
        elif interrupt := _signal.search(line):
            found.append(Interrupt(interrupt[1], number))
    assert words is None, f"the fenced block of line {begin} is not closed"
    return found


def between(text: str, name: str) -> str:
    """What stands between ``<!-- NAME: begin … -->`` and ``<!-- NAME: end -->``."""
    found = re.search(rf"<!-- {name}: begin[^>]*-->\n(.*?)<!-- {name}: end -->", text, re.DOTALL)
    assert found is not None, f"there are no markers for {name}"
    return found[1].strip("\n")


def replaced(text: str, name: str, content: str) -> str:
    """The same document with other content between the markers."""
    begin, end = rf"<!-- {name}: begin[^>]*-->\n", rf"\n<!-- {name}: end -->"
    changed, count = re.subn(
        f"({begin}).*?({end})", lambda found: f"{found[1]}\n{content}\n{found[2]}", text, flags=re.DOTALL
    )
    assert count == 1, f"there must be one pair of markers for {name}"
    return changed


def rows(table: str) -> list[list[str]]:
    """The cells of each row of a table, without its head; a pipe within a cell is written ``\\|``."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]] for line in lines[2:]
    ]
