"""The scripts from outside: what they refuse, what they install and when, what they start, and that nothing is left.

``setup``, ``check`` and ``test`` run in a copy of the scripts whose Python and package managers only write down what
they were asked; that a fresh clone really installs is what every first run of ``scripts/test`` shows. ``run`` starts
the real thing.
"""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.signs import await_sign, free_port

PROJECT = Path(__file__).resolve().parents[1]
SCRIPTS = [PROJECT / "scripts" / name for name in ("setup", "run", "check", "test")] + [PROJECT / ".ci" / "run"]
RUN = str(PROJECT / "scripts" / "run")
TOOLS = ["bash", "cat", "dirname", "env", "flock", "grep", "head", "ln", "mkdir", "rm", "sha256sum", "sleep"]
TOOLS += ["sort", "touch"]
TEST_PROGRAMS = [
    "chromium",
    "curl",
    "faketime",
    "openssl",
    "prometheus",
    "promtool",
    "redis-cli",
    "redis-server",
    "tmux",
]
POOL = {"cluster_id": "us-east-1", "namespace": "prod", "dgd_name": "llama-70b", "model": "m"}


def text_of(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **settings)


def executable(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/bash", *lines, "")))
    path.chmod(0o755)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_parses_and_can_be_started(script: Path) -> None:
    parsed = text_of(["bash", "-n", str(script)])
    assert (parsed.returncode, parsed.stderr) == (0, "")
    assert script.stat().st_mode & stat.S_IXUSR
    assert script.read_text().startswith("#!/usr/bin/env bash\n")


class TestConstraints:
    """Every distribution that the extras name is pinned, and nothing but pins stands in the file."""

    lines = tuple(line for line in (PROJECT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))

    def test_holds_exact_versions_alone(self) -> None:
        assert [line for line in self.lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._]+", line)] == []

    def test_pins_all_that_the_project_asks_for(self) -> None:
        project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
        wanted = [
            *project["dependencies"],
            *(each for extra in project["optional-dependencies"].values() for each in extra),
        ]
        pinned = {self.normal(line.split("==")[0]) for line in self.lines}
        assert {self.normal(re.split(r"[\[>=]", each)[0]) for each in wanted} - pinned == set()

    @staticmethod
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()


STAND_IN = """\
while read -r words; do
  if [[ "$*" == *"$words"* ]]; then
    echo "refused: $words" >&2
    exit 1
  fi
done <"%PLACE%/refused"
case "$*" in
  --version) echo "Python 3.9.2" ;;
  "-m venv --clear "*)
    echo "venv" >>"%PLACE%/log"
    mkdir -p "$4/bin"
    ln -sf "$0" "$4/bin/python"
    ln -sf "$0" "$4/bin/lint-imports"
    ;;
  "-m pip install"*)
    echo "${*:2}" >>"%PLACE%/log"
    sleep 0.2
    ;;
  "-m pytest"*) echo "pytest$(printf ' <%s>' "${@:3}")" >>"%PLACE%/log" ;;
  "-m mypy"*) echo "mypy" >>"%PLACE%/log" ;;
esac"""

APT_GET = """\
echo "RUNLEVEL=$RUNLEVEL apt-get ${*:4}" >>"%PLACE%/log"
case "$*" in
  *" update") touch "%PLACE%/updated" ;;
  *" install "*)
    [[ -e "%PLACE%/updated" ]] || exit 100
    for name in chromium curl faketime openssl prometheus promtool redis-cli redis-server tmux; do
      ln -sf /bin/true "%PLACE%/programs/$name"
    done
    ;;
esac"""


class Clone:
    """A copy of the scripts in a folder of its own; Python and apt-get on its PATH are stand-ins that keep a log."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs, self.stamp = root / "clone", root / "programs", root / "clone/.venv/.setup-stamp"
        self._log, self._refused, self._place = root / "log", root / "refused", str(root)
        for path in (self._log, self._refused):
            path.touch()
        self.programs.mkdir()
        for tool in TOOLS:
            (self.programs / tool).symlink_to(shutil.which(tool) or tool)
        for tool in TEST_PROGRAMS:
            executable(self.programs / tool)
        executable(self.programs / "sudo", 'exec "${@:2}"')
        executable(self.programs / "python3", STAND_IN.replace("%PLACE%", self._place))
        for file in (*SCRIPTS, PROJECT / "pyproject.toml", PROJECT / "constraints.txt"):
            copy = self.root / file.relative_to(PROJECT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)

    def refuse(self, *words: str) -> None:
        """From now on a Python command that contains one of these fails."""
        self._refused.write_text("".join(f"{each}\n" for each in words))

    def add_apt_get(self) -> None:
        executable(self.programs / "apt-get", APT_GET.replace("%PLACE%", self._place))

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.root / script), *arguments],
            env={"PATH": str(self.programs)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *arguments: str) -> tuple[int, str, str]:
        """The exit code and what was printed to stdout and to stderr."""
        process = self.start(script, *arguments)
        printed, errors = process.communicate(timeout=30)
        return process.returncode, printed, errors

    def logged(self) -> list[str]:
        """What the stand-ins were asked since the last look."""
        lines = self._log.read_text().splitlines()
        self._log.write_text("")
        return lines

    @property
    def installed(self) -> list[str]:
        """What a set-up that installs asks for."""
        constrained = f"pip install --quiet --constraint {self.root}/constraints.txt"
        return [f"{constrained} --editable {self.root}[server,dynamodb,tracing,test]"]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A fresh copy of the scripts; nothing is set up yet."""
    return Clone(tmp_path)


class TestSetup:
    """Installs what is missing, once, and says in one line what it cannot."""

    def test_makes_the_environment_from_the_constraints_and_then_only_looks(self, clone: Clone) -> None:
        code, printed, _ = clone.run("scripts/setup")
        assert (code, printed, clone.logged()) == (0, "", ["venv", *clone.installed])
        assert clone.run("scripts/setup") == (0, "", "")
        assert clone.run("scripts/setup", "--tests") == (0, "", "")
        assert clone.logged() == []

    @pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt"])
    def test_installs_again_into_the_same_environment_when_what_it_was_made_from_changed(
        self, clone: Clone, file: str
    ) -> None:
        clone.run("scripts/setup")
        clone.logged()
        with (clone.root / file).open("a") as text:
            text.write("# more\n")
        assert clone.run("scripts/setup")[0] == 0
        assert clone.logged() == clone.installed

    def test_makes_the_environment_anew_when_the_clone_was_moved(self, clone: Clone) -> None:
        clone.run("scripts/setup")
        clone.logged()
        clone.root = clone.root.rename(clone.root.with_name("moved"))
        assert clone.run("scripts/setup")[0] == 0
        assert clone.logged() == ["venv", *clone.installed]

    def test_an_environment_of_another_copy_is_left_alone(self, clone: Clone, tmp_path: Path) -> None:
        others = tmp_path / "others"
        (others / "bin").mkdir(parents=True)
        (others / "mine").touch()
        (clone.root / ".venv").symlink_to(others)
        assert clone.run("scripts/setup")[0] == 0
        assert (others / "mine").exists()
        assert not (clone.root / ".venv").is_symlink()

    def test_runs_at_once_install_once(self, clone: Clone) -> None:
        started = [clone.start("scripts/setup") for _ in range(4)]
        for process in started:
            process.communicate(timeout=30)
        assert [process.returncode for process in started] == [0] * 4
        assert clone.logged() == ["venv", *clone.installed]

    def test_a_failed_installation_is_no_setup(self, clone: Clone) -> None:
        clone.refuse("-m pip install")
        code, _, errors = clone.run("scripts/setup")
        assert code == 1
        assert errors.splitlines()[-1].startswith("scripts/setup: pip could not install")
        assert not clone.stamp.exists()
        clone.refuse()
        assert clone.run("scripts/setup")[0] == 0
        assert clone.logged()[-1:] == clone.installed

    def test_an_interpreter_that_went_away_is_replaced(self, clone: Clone) -> None:
        clone.run("scripts/setup")
        clone.logged()
        python = clone.root / ".venv/bin/python"
        python.unlink()
        python.symlink_to("/nonexistent")
        assert clone.run("scripts/setup")[0] == 0
        assert clone.logged() == ["venv", *clone.installed]

    @pytest.mark.parametrize(
        ("refused", "line"),
        [
            (
                "version_info",
                "Python 3.11 or newer is needed, found Python 3.9.2; install one with: apt-get install -y",
            ),
            (
                "import ensurepip",
                "the venv module of python3 is missing; install with: apt-get install -y python3-venv",
            ),
        ],
    )
    def test_says_in_one_line_what_python_lacks(self, clone: Clone, refused: str, line: str) -> None:
        clone.refuse(refused)
        code, printed, errors = clone.run("scripts/setup")
        assert (code, printed, len(errors.splitlines())) == (1, "", 1)
        assert errors.startswith(f"scripts/setup: {line}")
        assert clone.logged() == []

    def test_installs_the_programs_of_the_tests_without_starting_a_service(self, clone: Clone) -> None:
        clone.add_apt_get()
        for name in TEST_PROGRAMS:
            (clone.programs / name).unlink()
        assert clone.run("scripts/setup")[0] == 0
        assert clone.logged() == ["venv", *clone.installed], "only --tests asks for them"
        code, _, errors = clone.run("scripts/setup", "--tests")
        assert (code, errors.count("\n")) == (0, 1), errors
        asked = clone.logged()
        assert asked[-2:] == [
            "RUNLEVEL=1 apt-get update",
            "RUNLEVEL=1 apt-get install -y --no-install-recommends "
            "chromium curl faketime openssl prometheus redis-tools redis-server tmux",
        ]
        assert clone.run("scripts/setup", "--tests") == (0, "", "")
        assert clone.logged() == []

    def test_names_the_line_that_installs_a_program_where_it_cannot(self, clone: Clone) -> None:
        (clone.programs / "tmux").unlink()
        clone.run("scripts/setup")
        code, _, errors = clone.run("scripts/setup", "--tests")
        assert (code, errors) == (1, "scripts/setup: missing programs: tmux; install with: apt-get install -y tmux\n")

    def test_refuses_an_unknown_argument(self, clone: Clone) -> None:
        code, _, errors = clone.run("scripts/setup", "--test")
        assert (code, errors) == (2, "scripts/setup: unknown argument --test; usage: scripts/setup [--tests]\n")

    def test_of_this_project_is_quick_when_done(self) -> None:
        """The real one, as every other script calls it; some of many runs meet a machine with nothing else to do."""
        secs = [math.inf]
        while min(secs) >= 0.3 and len(secs) <= 20:
            started = time.perf_counter()
            done = text_of([str(PROJECT / "scripts" / "setup")])
            secs.append(time.perf_counter() - started)
            assert (done.returncode, done.stderr) == (0, ""), "run scripts/setup first"
        assert min(secs) < 0.3


class TestCheckAndTest:
    """Every part runs, and the failed ones are named."""

    def test_check_names_the_steps_that_failed(self, clone: Clone) -> None:
        clone.refuse("-m ruff format", "-m mypy")
        code, printed, errors = clone.run("scripts/check")
        assert code == 1
        assert errors.splitlines()[-1] == "scripts/check: failed: format, types"
        assert re.findall("^== (.*)$", printed, re.M) == ["format", "lint", "types", "import contracts", "shell syntax"]

    def test_check_notices_a_script_that_does_not_parse(self, clone: Clone) -> None:
        with (clone.root / "scripts/test").open("a") as text:
            text.write("if true; then\n")
        code, _, errors = clone.run("scripts/check")
        assert (code, errors.splitlines()[-1]) == (1, "scripts/check: failed: shell syntax")

    def test_check_passes_when_all_steps_do(self, clone: Clone) -> None:
        code, printed, _ = clone.run("scripts/check")
        assert (code, printed.splitlines()[-1]) == (0, "scripts/check: all good")

    def test_ci_runs_the_checks_and_every_test(self, clone: Clone) -> None:
        assert clone.run(".ci/run")[0] == 0
        ran = clone.logged()
        assert ran[-3:] == [
            "mypy",
            "pytest <-m> <not live> <-n> <4> <--dist> <worksteal>",
            "pytest <-m> <live and not soak> <-n> <4> <--dist> <worksteal>",
        ]

    def test_a_failed_part_does_not_hide_the_others(self, clone: Clone) -> None:
        clone.refuse("not live", "-m mypy")
        code, _, errors = clone.run("scripts/test")
        assert (code, errors.splitlines()[-1]) == (1, "scripts/test: failed: checks, fast tests")
        assert clone.logged()[-1].startswith("pytest <-m> <live and not soak>")

    def test_arguments_go_to_pytest_alone(self, clone: Clone) -> None:
        assert clone.run("scripts/test", "tests/test_join.py", "-k", "one sided")[0] == 0
        assert clone.logged()[-1] == "pytest <tests/test_join.py> <-k> <one sided>"
        clone.refuse("-m pytest")
        assert clone.run("scripts/test", "tests/test_join.py")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--replicas"], "--replicas needs a number, for example --replicas 2"),
        (["--replicas", "0"], "--replicas takes a whole number from 1 to 16, not '0'"),
        (["--replicas", "-1"], "--replicas takes a whole number from 1 to 16, not '-1'"),
        (["--replicas=two"], "--replicas takes a whole number from 1 to 16, not 'two'"),
        (["--replicas", "2.5"], "--replicas takes a whole number from 1 to 16, not '2.5'"),
        (["--replicas", ""], "--replicas takes a whole number from 1 to 16, not ''"),
        (["--replicas", "17"], "--replicas takes a whole number from 1 to 16, not '17'"),
        (["--replicas", "2", "--first-port", "80800"], "--first-port takes a port from 1 to 65519, not '80800'"),
        (["--first-port", "9000"], "--first-port goes with --replicas; one replica alone takes --listen HOST:PORT"),
        (
            ["--replicas", "2", "--listen=:1"],
            "--listen cannot be given with --replicas, which sets it for each replica",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_run_refuses_in_one_line(clone: Clone, arguments: list[str], line: str) -> None:
    assert clone.run("scripts/run", *arguments) == (2, "", f"scripts/run: {line}\n")
    assert clone.logged() == [], "a refusal comes before anything is installed"


class Running:
    """``scripts/run`` as somebody at a terminal has it; ``output`` holds all that it printed."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.scratch = directory / "tmp"
        self.scratch.mkdir(exist_ok=True)
        self._output = directory / "output"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DISCOVERY_")}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [RUN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, "TMPDIR": str(self.scratch)},
            )
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self._output.read_text()

    def started(self) -> dict[int, str]:
        """The processes that it started and that still run: id → command line."""
        listed = text_of(["ps", "-ww", "--no-headers", "-o", "pid,args", "--ppid", str(self.pid)]).stdout
        lines = [line.split(None, 1) for line in listed.splitlines()]
        return {int(pid): words.strip() for pid, words in lines if "discovery serve" in words or "-server" in words}

    def await_all(self) -> dict[int, str]:
        await_sign(lambda: "Ctrl-C ends" in self.output or self._process.poll() is not None, 30, "all have started")
        assert self._process.poll() is None, self.output
        return self.started()

    def await_exit(self) -> int:
        return self._process.wait(timeout=20)

    def end(self, with_signal: int) -> int:
        os.kill(self.pid, with_signal)
        return self.await_exit()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=40)


StartRun = Callable[..., Running]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[StartRun]:
    """Start ``scripts/run`` with these arguments; what still runs after the test is ended."""
    made: list[Running] = []

    def start(*arguments: str) -> Running:
        made.append(Running(tmp_path, *arguments))
        return made[-1]

    yield start
    for running in made:
        running.close()


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that are free."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    probe = held.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return first


def answer(url: str, body: dict[str, str] | None = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        return response.status, response.read()


def is_gone(pid: int) -> bool:
    """No such process, or one that has ended and only waits to be collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


@pytest.mark.live
@pytest.mark.timeout(60)
class TestRun:
    """One replica on its own, or several on one store; whatever ends it, nothing is left."""

    def test_one_replica_on_the_memory_store_in_the_place_of_the_script(self, run: StartRun) -> None:
        port = free_port()
        running = run("--listen", f"127.0.0.1:{port}", "--lease-duration-secs", "9")
        await_sign(lambda: "listens on" in running.output, 30, "the replica listens")
        _, body = answer(f"http://127.0.0.1:{port}/pools", POOL)
        assert json.loads(body)["lease_duration_secs"] == 9
        assert "kept in memory" in running.output
        assert "discovery serve" in text_of(["ps", "-ww", "--no-headers", "-o", "args", str(running.pid)]).stdout
        assert running.end(signal.SIGTERM) == 0

    @pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
    def test_two_replicas_share_what_one_was_told_and_end_together(
        self, run: StartRun, ended_by: signal.Signals
    ) -> None:
        first = free_ports(2)
        running = run("--replicas", "2", "--first-port", str(first))
        started = running.await_all()
        assert len(started) == 3
        answer(f"http://127.0.0.1:{first}/pools", POOL)
        await_sign(lambda: b"llama-70b" in answer(f"http://127.0.0.1:{first + 1}/pools")[1], 5, "the other lists it")
        for port in (first, first + 1):
            assert f"http://127.0.0.1:{port}/pools\n" in running.output
        store_port = re.search(r"redis-cli -p (\d+) --scan\n", running.output)
        assert store_port, running.output
        keys = text_of(["redis-cli", "-p", store_port[1], "--scan"]).stdout.splitlines()
        assert "{discovery}:pool:us-east-1/prod/llama-70b" in keys
        assert text_of(["redis-cli", "-p", store_port[1], "CONFIG", "GET", "save"]).stdout == "save\n\n"

        assert running.end(ended_by) == 0
        assert [pid for pid in started if not is_gone(pid)] == []
        assert list(running.scratch.iterdir()) == []
        assert running.output.count(" stopped\n") == 2, "each replica closed in order"

    @pytest.mark.parametrize("victim", ["discovery serve", "-server"])
    def test_when_one_dies_all_end_and_it_is_named(self, run: StartRun, victim: str) -> None:
        running = run("--replicas", "2", "--first-port", str(free_ports(2)))
        started = running.await_all()
        os.kill(next(pid for pid, words in started.items() if victim in words), signal.SIGKILL)
        assert running.await_exit() == 1
        assert re.search(r"^scripts/run: .* ended with status 137 .*so the rest is ended too$", running.output, re.M)
        assert [pid for pid in started if not is_gone(pid)] == []
        assert list(running.scratch.iterdir()) == []

    def test_killed_outright_it_still_leaves_no_process(self, run: StartRun) -> None:
        running = run("--replicas", "2", "--first-port", str(free_ports(2)))
        started = running.await_all()
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        await_sign(lambda: all(map(is_gone, started)), 20, "the kernel told them all to end")

    def test_a_port_in_use_is_one_line(self, run: StartRun) -> None:
        first = free_ports(2)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", first + 1))
            taken.listen()
            running = run("--replicas", "2", "--first-port", str(first))
            assert running.await_exit() == 1
        problem = f"cannot listen on port {first + 1} (Address already in use); choose others with --first-port"
        assert running.output == f"scripts/run: {problem}\n"
        assert list(running.scratch.iterdir()) == []

    def test_what_the_service_refuses_is_said_and_ends_all(self, run: StartRun) -> None:
        running = run("--replicas", "2", "--first-port", str(free_ports(2)), "--lease-duration-secs", "never")
        assert running.await_exit() == 2
        assert "--lease-duration-secs" in running.output
        assert list(running.scratch.iterdir()) == []
