"""The image: what its file says, and what comes of it as any user, with nothing to write to.

The steps are carried out into a folder (``building``), since machines that test have no container engine. What a real
engine adds, users and a root file system of their own, is done here by the kernel: the program runs as a user that owns
nothing, without any capability, in a tree without a write bit, and may not write to any file (``cage``).
"""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import discovery
from tests.documents import PROJECT
from tests.image import cage
from tests.image.building import Building
from tests.image.dockerfile import Ignored, PurePosixPath, Step, expanded, steps
from tests.live.signs import await_sign, free_port

pytestmark = pytest.mark.live

DOCKERFILE = PROJECT / "Dockerfile"


# ---- what the file says


def last_stage() -> list[Step]:
    found = steps(DOCKERFILE.read_text())
    return found[max(number for number, step in enumerate(found) if step.word == "FROM") :]


def words_of(word: str) -> list[Step]:
    return [step for step in last_stage() if step.word == word]


def test_the_linter_has_nothing_against_it() -> None:
    program = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([program, "--no-fail", "-f", "json", DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert (found.returncode, json.loads(found.stdout)) == (0, [])


def test_it_has_two_stages_and_the_last_takes_only_what_was_installed() -> None:
    assert [step.word for step in steps(DOCKERFILE.read_text())].count("FROM") == 2
    assert [step.words for step in words_of("COPY")] == [["--from=build", "/opt/discovery", "/opt/discovery"]]


def test_it_runs_as_a_number_that_is_not_root_in_the_group_0() -> None:
    (user,) = [step.rest for step in words_of("USER")]
    number, group = user.split(":")
    assert int(number) > 0
    assert group == "0"


def test_no_shell_stands_between_the_engine_and_the_program() -> None:
    """Only so does SIGTERM reach it; and a health check of the image itself would fail for ``discovery register``."""
    assert [step.exec_form for step in words_of("ENTRYPOINT")] == [["discovery"]]
    assert [step.exec_form for step in words_of("CMD")] == [["serve"]]
    assert [step.rest for step in words_of("HEALTHCHECK")] == ["NONE"]


def test_versions_come_from_the_constraints_alone() -> None:
    build = steps(DOCKERFILE.read_text())
    installs = [step.rest for step in build if step.word == "RUN" and " install " in step.rest]
    assert len(installs) == 1
    assert "--only-binary :all:" in installs[0]
    assert ".[server,dynamodb,tracing]" in installs[0]
    environment = next(step for step in build if step.word == "ENV").pairs
    assert environment["PIP_CONSTRAINT"] == environment["PIP_BUILD_CONSTRAINT"] == "/src/constraints.txt"


def test_its_version_is_that_of_the_program() -> None:
    assert Step("ARG", f"VERSION={discovery.__version__}", 0).rest in [step.rest for step in words_of("ARG")]


@pytest.mark.parametrize(
    ("path", "let_in"),
    [
        ("pyproject.toml", True),
        ("constraints.txt", True),
        ("README.md", True),
        ("LICENSE", True),
        ("discovery/stores/redis/store.py", True),
        ("discovery/py.typed", True),
        ("discovery/stores/__pycache__/memory.cpython-311.pyc", False),
        (".git/config", False),
        (".venv/bin/python", False),
        ("tests/conftest.py", False),
        ("charts/discovery/values.yaml", False),
        ("kubeconfig", False),
        (".env", False),
        ("docs/README.md", False),
    ],
)
def test_the_context_is_what_it_is_built_from_and_nothing_else(path: str, let_in: bool) -> None:
    assert Ignored((PROJECT / ".dockerignore").read_text()).lets_in(PurePosixPath(path)) is let_in


# ---- how the file is read here


def test_steps_are_read_as_an_engine_reads_them() -> None:
    text = '# a\n\nENV A=1 \\\n    # between\n    B="2 3"\nRUN one && \\\n    two\nCMD ["x", "y"]\n'
    found = steps(text)
    assert [(step.word, step.line) for step in found] == [("ENV", 3), ("RUN", 6), ("CMD", 8)]
    assert found[0].pairs == {"A": "1", "B": "2 3"}
    assert found[1].rest == "one && two"
    assert found[2].exec_form == ["x", "y"]
    assert expanded("${A}/$B/$C", {"A": "1", "B": "2"}) == "1/2/"


@pytest.mark.parametrize("text", ["ADD x y\n", "RUN one \\\n"])
def test_a_step_that_is_not_understood_is_no_step_that_is_passed_over(text: str) -> None:
    with pytest.raises(AssertionError, match="line 1"):
        steps(text)


# ---- what comes of it


takes_the_build = pytest.mark.timeout(120)
"""For whichever of these comes first."""


def started(image: Building, words: list[str], **variables: str) -> "subprocess.Popen[str]":
    """A program of the image, with nothing in its environment but what the image sets: no HOME, no LANG, no TMPDIR."""
    program = next(path for path in image.environment()["PATH"].split(":") if Path(path, words[0]).exists())
    return subprocess.Popen(
        [f"{program}/{words[0]}", *words[1:]],
        cwd="/",
        env=image.environment() | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=cage.enter,
    )


def output(image: Building, *words: str, **variables: str) -> str:
    process = started(image, [*words], **variables)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    return printed


@contextlib.contextmanager
def serving(image: Building, *words: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    process = started(image, [*words], **variables)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@takes_the_build
def test_the_image_says_what_it_is(image: Building) -> None:
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in image.stage.labels.items()}
    assert labels["version"] == "9.8.7"
    assert labels["revision"] == "0123abcd"
    assert labels["created"] == "2026-11-30T08:04:24Z"
    assert labels["source"] == "https://example.com"
    assert (labels["title"], labels["licenses"]) == ("discovery", "Apache-2.0")
    assert labels["base.name"] == image.stage.base


@takes_the_build
def test_any_user_runs_it_from_anywhere(image: Building) -> None:
    assert output(image, *image.stage.entrypoint, "version").startswith(f"discovery {discovery.__version__}")


@takes_the_build
def test_the_programs_here_really_have_no_place_to_write_to(image: Building, tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    tmp_path.chmod(0o777)
    attempt = """
import os, sys
print(os.getuid(), os.getgid(), os.getgroups())
try:
    with open(sys.argv[1], "w") as file:
        file.write("x")
except OSError as error:
    print(error.strerror)
"""
    who, why = output(image, "python", "-c", attempt, f"{tmp_path}/file").splitlines()
    if cage.IS_ROOT:
        assert who == f"{cage.ANY_USER} 0 []"
    assert why == ("Permission denied" if cage.HAS_LANDLOCK else "File too large")


@takes_the_build
def test_what_a_start_imports_is_compiled_already_and_nothing_installs(image: Building) -> None:
    """A read-only root keeps no bytecode: without this, each start would compile it again."""
    packages = next(image.root.glob("opt/discovery/lib/python*/site-packages"))
    stores = ("stores/redis/store", "stores/dynamodb/store")
    for module in ("commands/serve", "commands/register", "mcs/kube", *stores, "http/openapi"):
        folder, name = f"discovery/{module}".rsplit("/", 1)
        assert list((packages / folder / "__pycache__").glob(f"{name}.*.pyc")), module
    unwanted = "pip", "ensurepip", "setuptools", "hatchling", "pytest"
    places = [
        packages,
        *image.root.glob("usr/local/lib/python*"),
        *image.root.glob("usr/local/lib/python*/site-packages"),
    ]
    assert [str(place / name) for place in places for name in unwanted if (place / name).exists()] == []
    assert [
        each for folder in ("usr/local/bin", "opt/discovery/bin") for each in (image.root / folder).glob("pip*")
    ] == []
    assert (packages / "aiobotocore").is_dir()
    assert not (image.root / "src").exists()


@takes_the_build
def test_nothing_in_it_can_be_written(image: Building) -> None:
    """The program is asked itself, since root could."""
    writable = "import os, sys; print(*(p for p, f, n in os.walk(sys.argv[1]) if os.access(p, os.W_OK)))"
    if cage.IS_ROOT:
        assert output(image, "python", "-c", writable, str(image.root)).split() == []
    modes = {path.stat().st_mode & 0o222 for path in image.root.rglob("*") if not path.is_symlink()}
    assert modes == {0}


@takes_the_build
def test_it_serves_as_any_user_and_ends_with_0_at_sigterm(image: Building) -> None:
    port = free_port()
    words = [*image.stage.entrypoint, *image.stage.command]
    variables = {"DISCOVERY_LISTEN": f"127.0.0.1:{port}", "DISCOVERY_DRAIN_DELAY_SECS": "0"}
    with serving(image, *words, **variables) as process:
        await_sign(lambda: process.poll() is not None or ask(port, "GET", "/readyz") == 200, 60, "ready, or ended")
        assert process.poll() is None, process.communicate()[0]
        registered = {"cluster_id": "c", "namespace": "n", "dgd_name": "p", "model": "m"}
        assert ask(port, "POST", "/pools", registered) == 200
        assert ask(port, "GET", "/pools/c/n/p") == 200
        assert ask(port, "GET", "/") == 200, "the files of the page were installed too"
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    assert "Traceback" not in printed


@takes_the_build
def test_it_has_what_dynamodb_needs(image: Building) -> None:
    """The extra, and of its data all that a request takes: nobody answers at the end of it, and the log says so."""
    words = [*image.stage.entrypoint, *image.stage.command]
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    flags = {
        "DISCOVERY_LISTEN": "127.0.0.1:0",
        "DISCOVERY_DRAIN_DELAY_SECS": "0",
        "DISCOVERY_REGISTRATION_STORAGE": "dynamodb",
        "DISCOVERY_DYNAMODB_TABLE": "pools",
    }
    endpoint = f"http://127.0.0.1:{free_port()}"
    with serving(image, *words, **flags, **keys, AWS_REGION="eu-west-1", AWS_ENDPOINT_URL=endpoint) as process:
        assert process.stdout is not None
        said = next(line for line in process.stdout if "has not been read yet" in line)
        assert "table pools in eu-west-1 cannot be reached" in said


def ask(port: int, method: str, path: str, body: object = None) -> int:
    """The status of the answer; 0 where nobody listens yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"Content-Type": "application/json"})
        return connection.getresponse().status
    except ConnectionError:
        return 0
    finally:
        connection.close()
