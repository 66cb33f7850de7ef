"""A Dockerfile as steps in order, and what ``.dockerignore`` lets in. Only what this project's file uses is understood.

An instruction that is not understood is an error, never passed over: a step that is not carried out would go untested.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

INSTRUCTIONS = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "LABEL", "USER", "EXPOSE", "HEALTHCHECK"}
INSTRUCTIONS |= {"ENTRYPOINT", "CMD"}

_variable = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class Step(NamedTuple):
    """One instruction: its word, what follows it as one line, and the number of its first line."""

    word: str
    rest: str
    line: int

    @property
    def words(self) -> list[str]:
        """What follows, in words as the file quotes them."""
        return shlex.split(self.rest)

    @property
    def exec_form(self) -> list[str]:
        """What follows as the words of a program that no shell starts."""
        words = json.loads(self.rest)
        assert isinstance(words, list), f"line {self.line}: {self.word} is in shell form"
        return [str(word) for word in words]

    @property
    def pairs(self) -> dict[str, str]:
        """What follows as names and values."""
        parts = [word.partition("=") for word in self.words]
        assert all(equals for _, equals, _ in parts), f"line {self.line}: {self.word} without ="
        return {name: value for name, _, value in parts}


def steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile, in order."""
    return list(_steps(text))


def _steps(text: str) -> Iterator[Step]:
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not begun and not line.strip()):
            continue
        first = first if begun else number
        begun.append(line.strip().removesuffix("\\").strip())
        if line.rstrip().endswith("\\"):
            continue
        word, _, rest = " ".join(begun).partition(" ")
        assert word in INSTRUCTIONS, f"line {first}: {word} is not understood here"
        yield Step(word, rest.strip(), first)
        begun = []
    assert not begun, f"the instruction of line {first} has no end"


def expanded(text: str, values: Mapping[str, str]) -> str:
    """``$NAME`` and ``${NAME}`` replaced; what has no value is empty, as in an engine."""
    return _variable.sub(lambda found: values.get(found[1] or found[2], ""), text)


class Ignored:
    """The rules of a ``.dockerignore``: the last one that matches a file, or a folder above it, decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._rules = [line for line in lines if line and not line.startswith("#")]

    def lets_in(self, path: PurePosixPath) -> bool:
        """Whether a file, named from the root of the context, may be copied."""
        let_in = True
        for rule in self._rules:
            pattern = rule.removeprefix("!")
            if any(_matches(pattern, part) for part in (path, *path.parents)):
                let_in = rule.startswith("!")
        return let_in


def _matches(pattern: str, path: PurePosixPath) -> bool:
    if pattern.startswith("**/"):
        tail = pattern.removeprefix("**/")
        return "/" not in tail and fnmatchcase(path.name, tail)
    names, patterns = path.parts, PurePosixPath(pattern).parts
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def context_files(context: Path, source: str) -> list[PurePosixPath]:
    """The files below one source of a COPY that ``.dockerignore`` lets in, named from the root of the context."""
    ignored = Ignored((context / ".dockerignore").read_text())
    there = context / source
    found = [there] if there.is_file() else [path for path in there.rglob("*") if path.is_file()]
    names = [PurePosixPath(path.relative_to(context)) for path in found]
    return sorted(name for name in names if ignored.lets_in(name))
