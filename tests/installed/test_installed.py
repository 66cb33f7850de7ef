"""What each extra is needed for, and what is there without: really installed, not only imagined.

One service of the environment with the extra ``server`` runs, and everything without an extra calls it.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.commands.program import environment
from tests.documents import PROJECT
from tests.installed.conftest import Installed
from tests.live.signs import await_sign, free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

CONSUMER = Path(__file__).with_name("consumer.py")
PROJECT_TABLE = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
POOL = {"cluster_id": "c1", "namespace": "n1", "dgd_name": "from-shell", "model": "another"}


@pytest.fixture(scope="module")
def service(with_server: Installed) -> Iterator[str]:
    """The URL of a service that keeps registrations in memory."""
    port = free_port()
    words = with_server.command("discovery", "serve", "--listen", f"127.0.0.1:{port}", "--drain-delay-secs", "0")
    log = (with_server.place / "log").open("w+")
    process = subprocess.Popen(words, cwd=with_server.place, env=environment(), stdout=log, stderr=log)
    try:
        await_sign(lambda: "listens on" in (with_server.place / "log").read_text(), 30, "the service listens")
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(10)
        log.close()


def names_of(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def installed(environment: Installed) -> set[str]:
    """The distributions of an environment."""
    found = [path.name.partition("-")[0] for path in environment.packages.glob("*.dist-info")]
    return {canonicalize_name(name) for name in found}


# ---- the wheel


def test_the_wheel_has_the_types_and_what_is_no_python(wheel: Path) -> None:
    files = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "discovery").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert "discovery/py.typed" in sources
    assert {file for file in files if not file.startswith("pool_discovery-")} == sources


def test_without_an_extra_there_is_what_the_client_needs_and_nothing_of_the_server(plain: Installed) -> None:
    assert names_of(PROJECT_TABLE["dependencies"]) == {"aiohttp", "cyclopts", "msgspec", "rich"}
    assert installed(plain) >= {"pool-discovery", *names_of(PROJECT_TABLE["dependencies"])}
    for extra in ("server", "dynamodb", "tracing", "test"):
        assert not installed(plain) & names_of(PROJECT_TABLE["optional-dependencies"][extra]), extra


def test_the_server_needs_no_other_extra(with_server: Installed) -> None:
    assert installed(with_server) >= names_of(PROJECT_TABLE["optional-dependencies"]["server"])
    for extra in ("dynamodb", "tracing"):
        assert not installed(with_server) & names_of(PROJECT_TABLE["optional-dependencies"][extra])


# ---- without an extra


def test_a_pool_is_registered_shown_and_explained(plain: Installed, service: str) -> None:
    (plain.place / "pool.json").write_text(json.dumps(POOL))
    words = plain.command("discovery", "register", "--url", service, "--file", "pool.json")
    with subprocess.Popen(words, cwd=plain.place, env=environment(), stderr=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stderr is not None
            while "registered c1/n1/from-shell" not in (line := relay.stderr.readline()):
                assert line, "it ended"
            listed = plain.run("discovery", "pools", "--url", service, "-o", "json")
            assert [pool["dgd_name"] for pool in json.loads(listed.stdout)["pools"]] == ["from-shell"], listed
            for words in (["pools", "-o", "table"], ["pools", "-o", "yaml"], ["doctor", "c1/n1/from-shell"]):
                shown = plain.run("discovery", *words, "--url", service)
                assert (shown.returncode, "from-shell" in shown.stdout) == (0, True), shown
            relay.send_signal(signal.SIGTERM)
            assert "deregistered c1/n1/from-shell" in relay.stderr.read()
        finally:
            relay.kill()
    assert relay.returncode == 0


def test_the_library_registers_follows_and_lists(plain: Installed, service: str) -> None:
    done = plain.run("python", shutil.copy(CONSUMER, plain.place), service)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["from-python http://10.0.0.1:8000", "[]", "['from-python']"]


def test_strict_types_hold_for_those_who_use_the_library(plain: Installed, tmp_path: Path) -> None:
    """And a mistake is seen: the types are those of the installed package, not ``Any``."""
    # Away from the sources, which would be found before what is installed.
    consumer, mistaken, settings = (tmp_path / name for name in ("consumer.py", "mistaken.py", "mypy.ini"))
    consumer.write_text(CONSUMER.read_text())
    mistaken.write_text("from discovery.client import sync\n\nsync.Client('http://a').list(model=7)\n")
    # What users see of these is nothing; to read them would take longer than all the rest.
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in ("aiohttp", "yarl"))
    settings.write_text(f"[mypy]\nstrict = true\n{skipped}")
    words = [sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", tmp_path / "cache"]
    words += ["--python-executable", *plain.command("python"), consumer, mistaken]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)
    (error,) = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert re.search(r'mistaken\.py:3: error: Argument "model".* has incompatible type "int"', error), done


@pytest.mark.parametrize("words", [("version",), ("serve", "--help")])
def test_what_asks_nobody_works(plain: Installed, words: tuple[str, ...]) -> None:
    done = plain.run("discovery", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_service_is_refused_with_the_line_that_installs_it(plain: Installed) -> None:
    done = plain.run("discovery", "serve")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "discovery: serve needs the server extra: pip install 'pool-discovery[server]'\n"


# ---- with the server alone


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            ("--registration-storage", "dynamodb", "--dynamodb-table", "pools", "--dynamodb-region", "eu-west-1"),
            "--registration-storage dynamodb needs the dynamodb extra: pip install 'pool-discovery[dynamodb]'",
        ),
        (
            ("--otlp-endpoint", "http://127.0.0.1:4318"),
            "--otlp-endpoint needs the tracing extra: pip install 'pool-discovery[server,tracing]'",
        ),
    ],
    ids=["dynamodb", "tracing"],
)
def test_what_needs_another_extra_is_refused_with_the_line_that_installs_it(
    with_server: Installed, words: tuple[str, ...], refusal: str
) -> None:
    done = with_server.run("discovery", "serve", *words)
    assert (done.returncode, done.stderr) == (2, f"discovery: {refusal}\n")
