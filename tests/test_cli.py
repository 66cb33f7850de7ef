"""The command line from outside: what is printed where, which code a command exits with, and what it loads for that."""

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from discovery import __version__, cli, logs, settings
from discovery.errors import Misconfigured
from discovery.model import PoolKey

COMMANDS = ["serve", "pools", "register", "doctor", "version", "completion"]
POOL = ["--cluster-id", "c1", "--namespace", "n1", "--dgd-name", "p1", "--model", "m"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables of the shell that runs the tests, and logging as it was."""
    for name in [name for name in os.environ if name.upper().startswith("DISCOVERY_")]:
        monkeypatch.delenv(name)
    root = logging.getLogger()
    kept = root.handlers[:], root.level, logging.raiseExceptions
    yield
    logging.captureWarnings(False)
    root.handlers[:], logging.raiseExceptions = kept[0], kept[2]
    root.setLevel(kept[1])


class Ran:
    """A command in the place of a real one: keeps its settings, and does what the test wants."""

    def __init__(self, outcome: int | BaseException) -> None:
        self.outcome = outcome
        self.settings: Any = None

    def run(self, given: Any) -> int:
        self.settings = given
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def command(monkeypatch: pytest.MonkeyPatch, name: str, outcome: int | BaseException = 0) -> Ran:
    ran = Ran(outcome)
    module = ModuleType(f"discovery.commands.{name}")
    module.run = ran.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return ran


def exit_code(*words: str) -> int:
    with pytest.raises(SystemExit) as exited:
        cli.main(list(words))
    assert isinstance(exited.value.code, int)
    return exited.value.code


def process(*words: str, code: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "discovery"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DISCOVERY_")}
    return subprocess.run(
        [sys.executable, *start, *words],
        capture_output=True,
        text=True,
        timeout=10,
        env=environment | variables,
        check=False,
    )


# ---- exit codes


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_command_exits_with_the_code_that_it_returns(code: int, monkeypatch: pytest.MonkeyPatch):
    ran = command(monkeypatch, "pools", code)
    assert exit_code("pools", "-o", "json") == code
    assert ran.settings == settings.PoolsSettings(output="json")


def test_a_command_that_finds_itself_misconfigured_exits_with_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command(monkeypatch, "pools", Misconfigured("--url is\nwrong"))
    assert exit_code("pools") == 2
    assert capsys.readouterr().err == "discovery: --url is\\nwrong\n"


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    command(monkeypatch, "pools", KeyboardInterrupt())
    assert exit_code("pools") == 130
    assert capsys.readouterr().err == ""


CHOICE = "one of serve, pools, register, doctor, version, completion; discovery --help says more"

REFUSED = [
    ([], f"a command is needed, {CHOICE}"),
    (["regster"], "unknown command regster: did you mean register?"),
    (["redis://:Zq9@h"], f"the first word must be a command, {CHOICE}"),
    (["--listen", "x"], f"the first word must be a command, {CHOICE}"),
    (["version", "--x"], "unknown flag --x: --help lists the flags"),
    (["completion", "tcsh"], "completion needs the name of one shell: bash, zsh or fish"),
    (
        ["serve", "--redis-url", "--log-format", "json"],
        "--redis-url needs a value; one that begins with - is given after =, as in --redis-url=-x",
    ),
    (["serve", "--registration-storage", "dynamodb"], "--registration-storage dynamodb needs --dynamodb-table"),
    (
        ["serve", "--kube-context", "eu"],
        "--kube-context needs --pool-discovery mcs or karmada, but --pool-discovery is registrations",
    ),
    (["doctor", "c1/n1"], "KEY is wrong: a pool is named by cluster_id/namespace/dgd_name, not 'c1/n1'"),
    (["register"], "register needs --cluster-id, --namespace, --dgd-name, --model, as a flag or in --file"),
    (
        ["register", *POOL[:6], "--model", "x" * 513, "--relay", "ftp://r"],
        "the registration is not valid: $.model must have 1 to 512 characters, has 513; "
        "$.relays[0] must be an http or https URL such as http://10.0.3.8:8000",
    ),
    (
        ["register", *POOL, "--frontend", "http://u:Zq9@f"],
        "the registration is not valid: $.frontends[0] must not carry a user name or a password",
    ),
]


@pytest.mark.parametrize(("words", "line"), REFUSED)
def test_a_refusal_is_exit_2_and_exactly_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    assert exit_code(*words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"discovery: {line}\n"


def test_a_refusal_of_the_real_process():
    done = process("serve", "--lease-duration-secs=5")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "discovery: --lease-duration-secs (5) must be above --heartbeat-interval-secs (5)\n"


def test_f23_the_process_never_prints_a_password_of_the_variable():
    for url in ("redis://:p#a/s@s:w%rd@127.0.0.1:6379/0", "redis://:secret1@[::1:6379/0"):
        done = process("serve", DISCOVERY_REDIS_URL=url)
        assert done.returncode == 2
        assert done.stderr.startswith("discovery: DISCOVERY_REDIS_URL ")
        assert done.stderr.count("\n") == 1
        assert not [part for part in ("p#a", "s@s", "w%rd", "secret1") if part in done.stderr + done.stdout]


def test_what_is_wrong_is_refused_before_any_connection():
    with socket.create_server(("127.0.0.1", 0)) as store:
        url = f"redis://127.0.0.1:{store.getsockname()[1]}"
        done = process("serve", "--redis-url", url, "--listen", "127.0.0.1:0", "--router", "a=b")
        assert done.returncode == 2
        store.setblocking(False)
        with pytest.raises(BlockingIOError):
            store.accept()


def test_a_reader_that_leaves_is_no_traceback():
    code = "import sys, os; from discovery.cli import main; os.close(0); main(['serve', '--help'])"
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    with started.stderr as errors:
        assert errors.read() == b""
    assert started.wait(10) == 0


# ---- what a command gets


def test_each_command_gets_its_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DISCOVERY_MAX_POOLS", "5")
    served, registered = command(monkeypatch, "serve"), command(monkeypatch, "register")
    assert exit_code("serve", "--log-level", "error") == 0
    assert served.settings == settings.read_serve(["--log-level", "error"])
    assert served.settings.max_pools == 5
    assert exit_code("register", *POOL, "--capability=b", "--capability=a", "--capability=b") == 0
    assert registered.settings.registration.capabilities == ("a", "b"), "in canonical form"
    asked = command(monkeypatch, "doctor", 1)
    assert exit_code("doctor", "c1/n1/p1", "--url", "http://a") == 1
    assert asked.settings == settings.DoctorSettings(url=("http://a",), keys=(PoolKey("c1", "n1", "p1"),))


def test_warnings_of_the_agent_are_lines_of_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command(monkeypatch, "register")
    monkeypatch.setenv("DISCOVERY_DGD_NAM", "x")
    assert exit_code("register", *POOL, "--log-format", "json") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert '"level":"warning"' in line
    assert "DISCOVERY_DGD_NAM is unknown and ignored: did you mean DISCOVERY_DGD_NAME?" in line


def test_the_log_of_the_service_has_its_form_from_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    ran = command(monkeypatch, "serve")
    monkeypatch.setenv("DISCOVERY_LISTN", "x")
    assert exit_code("serve", "--log-format", "json", "--log-level", "warning") == 0
    assert capsys.readouterr().err == "", "the command itself logs its warnings"
    assert len(ran.settings.warnings) == 1
    assert isinstance(logging.getLogger().handlers[0].formatter, logs.JsonFormatter)
    assert logging.getLogger().level == logging.WARNING


def test_warnings_of_other_commands_are_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command(monkeypatch, "pools")
    monkeypatch.setenv("DISCOVERY_OUTPT", "x")
    assert exit_code("pools") == 0
    assert capsys.readouterr().err == (
        "discovery: warning: the variable DISCOVERY_OUTPT is unknown and ignored: did you mean DISCOVERY_OUTPUT?\n"
    )


# ---- version, and what is loaded


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert exit_code(*words) == 0
    assert capsys.readouterr().out == f"discovery {__version__}\n"


def test_python_m_discovery_is_the_same_command():
    done = process("version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"discovery {__version__}\n", "")


HEAVY = [
    "aiohttp",
    "asyncio",
    "cyclopts",
    "hiredis",
    "prometheus_client",
    "redis",
    "rich",
    "starlette",
    "uvicorn",
    "uvloop",
]
LOADED = f"""
import sys
from discovery.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "loaded"),
    [(["version"], []), (["serve", "--lease-duration-secs=1"], []), (["--help"], ["cyclopts", "rich"])],
)
def test_a_command_loads_no_more_than_it_needs(words: list[str], loaded: list[str]):
    found = set(process(*words, code=LOADED).stderr.splitlines()[-1].split())
    assert found - {"asyncio"} == set(loaded)
    assert loaded or "asyncio" not in found


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "redis"])
def test_without_the_server_extra_serve_says_how_to_install_it(package: str):
    code = f"import sys; sys.modules['{package}'] = None; from discovery.cli import main; main(sys.argv[1:])"
    done = process("serve", "--listen", "127.0.0.1:0", "--redis-url", "redis://127.0.0.1:1", code=code)
    assert done.returncode == 2
    said = "discovery: serve needs the server extra: pip install 'pool-discovery[server]'"
    assert done.stderr.splitlines()[-1] == said
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("package", ["kubernetes", "yaml"])
def test_without_the_server_extra_serve_says_so_before_it_looks_for_clusters(package: str):
    code = f"import sys; sys.modules['{package}'] = None; from discovery.cli import main; main(sys.argv[1:])"
    words = ("serve", "--listen", "127.0.0.1:0", "--pool-discovery", "mcs", "--kubeconfig", "/no/such")
    done = process(*words, code=code)
    assert (done.returncode, done.stderr) == (
        2,
        "discovery: serve needs the server extra: pip install 'pool-discovery[server]'\n",
    )


@pytest.mark.parametrize(
    ("words", "module", "library", "needs"),
    [
        (
            ("--registration-storage", "dynamodb", "--dynamodb-table", "pools", "--dynamodb-region", "eu-west-1"),
            "discovery.stores.dynamodb.store",
            "aiobotocore.session",
            "--registration-storage dynamodb needs the dynamodb extra: pip install 'pool-discovery[dynamodb]'",
        ),
        (
            ("--otlp-endpoint", "http://127.0.0.1:4318"),
            "discovery.tracing",
            "opentelemetry",
            "--otlp-endpoint needs the tracing extra: pip install 'pool-discovery[server,tracing]'",
        ),
    ],
    ids=["dynamodb", "tracing"],
)
def test_a_library_that_is_broken_is_not_told_as_an_extra_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    module: str,
    library: str,
    needs: str,
):
    broken = f"{needs.partition(' needs')[0]} cannot be used, its installation is broken:"
    for error, said in (
        (ModuleNotFoundError(f"No module named '{library}'", name=library), needs),
        (ModuleNotFoundError("No module named 'wrapt'", name="wrapt"), f"{broken} ModuleNotFoundError: No module "),
        (
            ImportError("libssl.so.3: cannot open shared object file", name="_ssl"),
            f"{broken} ImportError: libssl.so.3:",
        ),
    ):
        monkeypatch.setitem(sys.modules, module, Unloadable(error))
        assert exit_code("serve", "--listen", "127.0.0.1:0", *words) == 2
        assert capsys.readouterr().err.startswith(f"discovery: {said}")


class Unloadable(ModuleType):
    """A module whose import ends with an error of what it imports itself."""

    def __init__(self, error: ImportError) -> None:
        super().__init__("unloadable")
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._error


# ---- help


@pytest.fixture
def help_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the program prints on a wide screen."""
    monkeypatch.setenv("COLUMNS", "300")

    def printed(*words: str) -> str:
        assert exit_code(*words) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return printed


def test_the_program_lists_its_commands(help_of: Callable[..., str]):
    for word in ("--help", "-h"):
        text = help_of(word)
        assert [name for name in COMMANDS if not re.search(rf"\b{name} ", text)] == []


@pytest.mark.parametrize("name", ["serve", "pools", "register", "doctor"])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_lists_every_flag_under_its_group_with_default_and_reason(
    name: str, word: str, help_of: Callable[..., str]
):
    text = help_of(name, word)
    heading = ""
    place = {}
    for line in text.splitlines():
        heading = line.strip("╭╮─ ") if line.startswith("╭") else heading
        if found := re.match(r"│ (--[a-z-]+)", line):
            place[found[1]] = heading, line
    flags = settings.flags(name)
    assert set(place) == {flag.name for flag in flags}
    assert list(dict.fromkeys(title for title, _ in place.values())) == list(dict.fromkeys(f.group for f in flags))
    for flag in flags:
        title, line = place[flag.name]
        assert title == flag.group
        assert flag.help in line
        assert (f"Default: {flag.default}." in line) != (flag.default == "required")
        assert "|".join(flag.choices) in line or flag.switch
        assert flag.short in line


def test_the_help_of_doctor_says_how_a_pool_is_named(help_of: Callable[..., str]):
    text = help_of("doctor", "--help")
    (argument,) = settings.arguments("doctor")
    assert re.search(rf"│ KEY +{re.escape(argument.help)} Default: {argument.default}\.", text)
    assert "cluster_id/namespace/dgd_name" in argument.help


def test_help_is_given_whatever_else_is_wrong():
    done = process("serve", "--nonsense", "--help", DISCOVERY_LISTEN="nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--lease-duration-secs" in done.stdout


def test_help_in_a_pipe_is_plain_text_of_80_columns():
    done = process("serve", "--help", TERM="xterm-256color")
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


# ---- shell completion


@pytest.fixture(scope="module")
def script_for_bash() -> str:
    return process("completion", "bash").stdout


def offered(script_for_bash: str, tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    script = tmp_path / "complete.bash"
    script.write_text(
        script_for_bash + '\nCOMP_WORDS=(discovery "$@")\nCOMP_CWORD=$#\n_discovery\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", script, *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ([""], COMMANDS),
        (["po"], ["pools"]),
        (["serve", "--redis-p"], ["--redis-password-path", "--redis-prefix"]),
        (["serve", "--log-format", ""], ["text", "json"]),
        (["pools", "--output", "j"], ["json"]),
        (["pools", "-o", "w"], ["wide"]),
        (["register", "--keep"], ["--keep-on-exit"]),
        (["do"], ["doctor"]),
        (["doctor", "--out"], ["--output"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash_offers_commands_flags_and_values(
    words: list[str], offers: list[str], script_for_bash: str, tmp_path: Path
):
    assert offered(script_for_bash, tmp_path, *words) == offers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell_with_every_flag(shell: str):
    done = process("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("serve", "pools", "register", "doctor"):
        for flag in settings.flags(name):
            assert flag.name.removeprefix("--") in done.stdout
