"""The documents say what the code does: tables are compared with the code, and what can be generated is.

``python -m tests.test_docs --write`` writes the generated parts anew.
"""

import ast
import re
import shlex
import sys
from pathlib import Path

import msgspec
import pytest

from discovery import __version__, settings, usage
from discovery.http import openapi
from discovery.model import Registration
from tests.documents import PROJECT, Block, between, read, replaced, rows, steps

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/clusters.md",
    "docs/dynamodb.md",
    "docs/flags.md",
    "docs/limits.md",
    "docs/logs.md",
    "docs/metrics.md",
    "docs/prometheus.md",
    "docs/runbook.md",
    "docs/sidecar.md",
    "docs/tls.md",
    "docs/tokens.md",
    "charts/discovery/README.md",
)
COMMANDS_WITH_FLAGS = ("serve", "pools", "register", "doctor")


# ---- flags


def flag_table(command: str) -> str:
    """The flags of a command as Markdown, a table for each group."""
    tables: dict[str, list[str]] = {}
    for flag in settings.flags(command):
        name = f"`{flag.name}`" + (f", `{flag.short}`" if flag.short else "")
        cells = [name, f"`{flag.variable}`", _default(flag), flag.help + _choices(flag)]
        row = "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        tables.setdefault(flag.group, []).append(row)
    head = "| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n"
    return "\n\n".join(f"**{group}**\n\n{head}" + "\n".join(lines) for group, lines in tables.items())


def _default(flag: settings.FlagInfo) -> str:
    return flag.default if " " in flag.default or flag.default in ("required", "none", "all") else f"`{flag.default}`"


def _choices(flag: settings.FlagInfo) -> str:
    choices = "" if flag.switch or not flag.choices else " One of " + ", ".join(f"`{c}`" for c in flag.choices) + "."
    return choices + (" Repeatable." if flag.many and "repeat" not in flag.help else "")


def with_flags(text: str) -> str:
    """``docs/flags.md`` with its tables made anew."""
    for command in COMMANDS_WITH_FLAGS:
        text = replaced(text, f"flags of {command}", flag_table(command))
    return text


def test_the_flag_tables_are_those_of_the_code() -> None:
    text = read("docs/flags.md")
    assert text == with_flags(text), "run: .venv/bin/python -m tests.test_docs --write"


def test_the_flag_tables_name_every_flag() -> None:
    for command in COMMANDS_WITH_FLAGS:
        table = between(read("docs/flags.md"), f"flags of {command}")
        named = re.findall(r"^\| `(--[a-z-]+)`", table, re.MULTILINE)
        assert sorted(named) == sorted(flag.name for flag in settings.flags(command))


# ---- what the README says of endpoints, commands, fields and keys


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next of the same or a higher level."""
    level = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert level is not None, f"there is no heading {heading!r}"
    return re.split(rf"^#{{1,{len(level[1])}}} ", text[level.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def names(table: str) -> list[str]:
    """The words in code form in the first column, in order."""
    return [name for row in rows(table) for name in re.findall(r"`([^`]+)`", row[0])]


def test_the_readme_has_every_endpoint_and_no_other() -> None:
    methods = ("get", "post", "put", "patch", "delete")
    served = {
        f"{method.upper()} {path}"
        for path, operations in openapi.document()["paths"].items()
        for method in operations
        if method in methods
    }
    named = names(section(read("README.md"), "Endpoints"))
    assert len(named) == len(set(named))
    assert set(named) == served


def test_the_readme_has_every_command_and_no_other() -> None:
    named = names(section(read("README.md"), "Commands").split("\n\n")[1])
    assert named == [f"discovery {name}" for name in usage.COMMANDS]


def test_the_readme_has_every_field_of_a_registration_in_order() -> None:
    table = section(read("README.md"), "For authors of relays").split("\n\n")[2]
    fields = [name for row in rows(table) for name in re.findall(r"`([^`]+)`", row[0])]
    assert fields == [field.name for field in msgspec.structs.fields(Registration)]


def test_the_readme_names_the_keys_of_redis() -> None:
    from discovery.stores.redis.names import Names

    written = Names("discovery", 0)
    named = names(section(read("README.md"), "Running it on Redis").split("**A user")[0].split("\n\n", 3)[3])
    pool_key = written.pools + "<cluster_id>/<namespace>/<dgd_name>"
    assert named == [pool_key, written.revision, written.epoch, written.settling, written.changes]
    assert f"`{Names('discovery', 3).changes}` on database 3" in read("README.md")


def test_the_ways_to_run_redis_in_the_readme_are_accepted(tmp_path: Path) -> None:
    (block,) = (step for step in steps(read("README.md")) if isinstance(step, Block) and "flags" in step.words)
    there = tmp_path / "file"
    there.write_text("x")
    for line in block.text.splitlines():
        program, command, *words = shlex.split(line)
        assert (program, command) == ("discovery", "serve")
        given = [str(there) if word.startswith("/etc/") else word for word in words]
        assert settings.read_serve(given, {}).registration_storage == "redis"


def test_the_way_to_run_dynamodb_in_the_readme_is_accepted() -> None:
    (block,) = (step for step in steps(read("README.md")) if isinstance(step, Block) and "flags-dynamodb" in step.words)
    program, command, *words = shlex.split(block.text)
    assert (program, command) == ("discovery", "serve")
    assert settings.read_serve(words, {}).registration_storage == "dynamodb"


def test_numbers_in_the_readme_are_those_of_the_code() -> None:
    from discovery.client.snapshot import UNSEEN_SECS
    from discovery.http.requests import MAX_WAIT_SECS
    from discovery.http.streams import COMMENT_SECS
    from discovery.registration_rules import MAX_FRONTENDS, MAX_METADATA, MAX_RELAYS
    from discovery.stores.replica import CONFIRMED_FOR_SECS

    defaults = settings.read_serve([], {})
    text = " ".join(read("README.md").split())
    for said in (
        f"a pool that incomplete lists have not shown for {UNSEEN_SECS / 60:g} minutes",
        f"(at most {MAX_WAIT_SECS})",
        f"a comment, `:`, every {COMMENT_SECS} seconds",
        f"relays (up to {MAX_RELAYS}) and frontends (up to {MAX_FRONTENDS:,})",
        f"text by name, up to {MAX_METADATA} entries",
        f"with 503 within {defaults.store_timeout_ms / 1000:g} seconds",
        f"from {CONFIRMED_FOR_SECS:g} seconds on, `complete: false`",
        f"{defaults.lease_duration_secs} seconds after the start it turns true",
        f"one replica on port {defaults.listen.port}",
    ):
        assert said in text, said


def test_the_rule_of_complete_stands_in_the_readme_and_in_the_openapi_document() -> None:
    for text in (section(read("README.md"), "For authors of routers"), openapi.document()["info"]["description"]):
        for word in ("replace", "merge", "remove nothing", "whatever `complete` says", "5 minutes"):
            assert word in text


# ---- the map of the code, and links


def modules() -> set[str]:
    """Every module that holds code, as the map writes it."""
    package = PROJECT / "discovery"
    return {
        str(path.relative_to(package)) for path in package.rglob("*.py") if len(ast.parse(path.read_text()).body) > 1
    }


def mapped() -> list[str]:
    """Every module that the map in CONTRIBUTING.md names."""
    return [name for name in names(section(read("CONTRIBUTING.md"), "The map")) if name.endswith(".py")]


def test_the_map_has_every_module_and_no_other() -> None:
    found = mapped()
    assert sorted(set(found)) == sorted(found), "a module is named twice"
    assert sorted(found) == sorted(modules())


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", read(name))
    for link in links:
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (PROJECT / name).parent / path if path else PROJECT / name
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_is_named_is_there(name: str) -> None:
    for path in re.findall(r"`((?:scripts|tests|docs|discovery|\.ci)/[\w./-]+)`", read(name)):
        assert (PROJECT / path).exists(), path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks_are_closed_and_lines_of_tables_have_equal_cells(name: str) -> None:
    text = read(name)
    assert all(isinstance(step, Block) is False or step.words for step in steps(text)), "each block says what it holds"
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(widths) == 1, table[:200]


def test_the_changelog_has_this_version() -> None:
    assert re.search(rf"^## \[{re.escape(__version__)}\] ", read("CHANGELOG.md"), re.MULTILINE)


def write() -> None:
    """Write the generated parts of the documents."""
    path = Path(PROJECT / "docs/flags.md")
    path.write_text(with_flags(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_docs --write")
    write()
