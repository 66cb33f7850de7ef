"""The programs of ``docs/router.md`` and ``docs/relay.md`` are as short as promised, the long one is the tested one.

``python -m tests.test_programs_in_documents --write`` writes the reference router's code anew. The programs are run in
``tests/live/test_programs_in_documents.py``.
"""

import ast
import sys

import pytest

from tests.documents import PROJECT, Block, between, read, replaced, steps

ROUTER = "docs/router.md"
RELAY = "docs/relay.md"
CODE = "tests/live/reference_router.py"


def program(document: str, *words: str) -> str:
    """The one block with these words."""
    (found,) = (step for step in steps(read(document)) if isinstance(step, Block) and step.words == words)
    return found.text


def with_code(text: str) -> str:
    """``docs/router.md`` with the reference router's code put in anew."""
    return replaced(text, "reference router", f"```python\n{read(CODE).rstrip()}\n```")


def test_the_reference_router_of_the_page_is_the_one_that_is_tested() -> None:
    text = read(ROUTER)
    assert text == with_code(text), "run: .venv/bin/python -m tests.test_programs_in_documents --write"
    assert "async def pass_on" in between(text, "reference router")


@pytest.mark.parametrize(
    ("document", "words", "lines"),
    [(ROUTER, ("python", "router"), 20), (RELAY, ("python", "relay"), 10), (RELAY, ("sh", "relay"), 10)],
)
def test_programs_are_as_short_as_promised(document: str, words: tuple[str, str], lines: int) -> None:
    code = program(document, *words)
    assert len(code.splitlines()) <= lines
    assert max(map(len, code.splitlines())) <= 150


@pytest.mark.parametrize("code", [program(ROUTER, "python", "router"), program(RELAY, "python", "relay"), read(CODE)])
def test_programs_need_the_base_package_alone(code: str) -> None:
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = {node.module for node in found if isinstance(node, ast.ImportFrom)}
    named |= {each.name for node in found if isinstance(node, ast.Import) for each in node.names}
    others = {str(name).partition(".")[0] for name in named} - sys.stdlib_module_names
    assert others <= {"aiohttp", "discovery", "msgspec", "multidict", "yarl"}
    ours = {str(name) for name in named if str(name).startswith("discovery")}
    assert ours <= {"discovery.client", "discovery.errors", "discovery.model"}


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        page = PROJECT / ROUTER
        page.write_text(with_code(page.read_text(encoding="utf-8")), encoding="utf-8")
