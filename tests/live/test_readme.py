"""The README's commands, run in their order against a real service, have to print what the README shows.

A block marked ``run`` is pasted into a terminal, as a reader would; the ``text`` block after it is what has to appear.
Further words behind the fence: ``in=NAME`` another terminal than the main one; ``stays`` it runs until Ctrl-C, which a
comment asks for; ``again=SECS`` it is repeated for that long until it prints what is shown. A ``text in=NAME`` block is
what appears next in a terminal in which something runs. A line of ``…`` stands for any lines, ``…`` within a line for
any text, and what differs from run to run (dates, ids, times) is compared by its form. Ports are replaced by free ones.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import PROJECT, Block, Interrupt, read, steps
from tests.live.signs import await_sign, free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

PATIENCE_SECS = 20.0

# What no two runs have in common; what the README shows of it only has to have the same form.
VOLATILE = [
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
    r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT",
    r"\b[0-9a-f]{32}-\d+\b",
    r"\breplica [0-9a-f]{8}\b",
    r"\bdiscovery \d+\.\d+\.\d+\b",
    r"\bredis-cli -p \d+\b",
    r"\bredis://127\.0\.0\.1:\d+\b",
    r"\bretry: \d{4}$",
    r"\b\d+\.\d s\b",
    r"^\d{4,5}$",
]
_volatile = re.compile("|".join(f"(?P<v{number}>{form})" for number, form in enumerate(VOLATILE)) + "|…", re.MULTILINE)


class Ports:
    """Free ports in place of 8080 and those after it."""

    def __init__(self) -> None:
        self.first = await_sign(_three_free_ports, 10, "three free ports in a row")

    def __call__(self, text: str) -> str:
        text = re.sub(r"^scripts/run$", f"scripts/run --listen=0.0.0.0:{self.first}", text, flags=re.MULTILINE)
        text = text.replace("scripts/run --replicas 2", f"scripts/run --replicas 2 --first-port {self.first}")
        return re.sub(r"\b808([0-2])\b", lambda found: str(self.first + int(found[1])), text)


def _three_free_ports() -> int | None:
    first = free_port()
    for port in (first + 1, first + 2):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                return None
    return first


class Terminal:
    """One shell that keeps its variables, into which blocks are pasted."""

    def __init__(self, name: str, directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._directory = directory
        self._screen = directory / f"{name}.screen"
        self._seen = 0
        self._pasted = 0
        with self._screen.open("wb") as screen:
            self._shell = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                stdin=subprocess.PIPE,
                stdout=screen,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        self._type("trap : INT")  # like an interactive shell, it outlives the Ctrl-C that ends its command

    def paste(self, commands: str) -> None:
        """Run commands; ``status`` tells when they have ended."""
        self._pasted += 1
        block = self._directory / f"{self.name}-{self._pasted}.sh"
        block.write_text(commands + "\n")
        self._type(f"source ./{block.name} </dev/null; echo $? >{self.name}-{self._pasted}.status")

    def status(self) -> int | None:
        """The exit status of the last commands; None while they run."""
        file = self._directory / f"{self.name}-{self._pasted}.status"
        text = file.read_text() if file.exists() else ""
        return int(text) if text.endswith("\n") else None

    def unseen(self) -> str:
        """What appeared since ``look_away``. The comments of a stream may come at any time and are left out."""
        shown = self._screen.read_bytes()[self._seen :].decode()
        return shown.replace(":\n\n", "")

    def look_away(self) -> None:
        """Take what is there as seen."""
        self._seen = self._screen.stat().st_size

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self._shell.pid, signal.SIGINT)

    def close(self) -> None:
        """End the shell and all that runs in it; Ctrl-C first, so that what it started can end what that started."""
        if self.status() is None:
            self.interrupt()
            try:
                await_sign(lambda: self.status() is not None, PATIENCE_SECS, f"the end of what runs in {self.name}")
            except AssertionError as error:
                print(error)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(10)

    def _type(self, line: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(line.encode() + b"\n")
        self._shell.stdin.flush()


class Reader:
    """Somebody who follows the README, or another document, word by word."""

    def __init__(self, directory: Path, document: str = "README.md") -> None:
        self.document = document
        self.ports = Ports()
        self.faults: list[str] = []
        self._directory = directory
        self._terminals: dict[str, Terminal] = {}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DISCOVERY_")}
        self._environment = environment | {
            "COLUMNS": "120",
            "DISCOVERY_URL": f"http://127.0.0.1:{self.ports.first}",
            "NO_COLOR": "1",
        }

    def terminal(self, name: str) -> Terminal:
        if name not in self._terminals:
            self._terminals[name] = Terminal(name, self._directory, self._environment)
        return self._terminals[name]

    def run(self, block: Block, shown: Block | None) -> None:
        """Paste a block and wait for what the README shows after it."""
        terminal = self.terminal(block.option("in", "main"))
        terminal.look_away()
        deadline = time.monotonic() + float(block.option("again", "0"))
        while True:
            terminal.paste(self.ports(block.text))
            if "stays" in block.words:
                self._await(terminal, shown)
                assert terminal.status() is None, f"line {block.line}: it ended:\n{terminal.unseen()}"
                return
            await_sign(lambda: terminal.status() is not None, PATIENCE_SECS, f"the end of line {block.line}")
            if self._fits(terminal, shown) or time.monotonic() >= deadline:
                break
            time.sleep(0.2)
            terminal.look_away()
        assert terminal.status() == 0, f"line {block.line} failed with {terminal.status()}:\n{terminal.unseen()}"
        self._compare(terminal, shown)

    def watch(self, shown: Block) -> None:
        """Wait for what the README shows next in a terminal in which something runs."""
        self._await(self.terminal(shown.option("in", "main")), shown)

    def interrupt(self, step: Interrupt) -> None:
        """Press Ctrl-C and wait until what ran has ended."""
        terminal = self.terminal(step.terminal)
        terminal.interrupt()
        await_sign(lambda: terminal.status() is not None, PATIENCE_SECS, f"the end after Ctrl-C, line {step.line}")

    def follow(self) -> int:
        """Everything from the first word to the last; how many blocks were run."""
        found = steps(read(self.document))
        ran = 0
        for number, step in enumerate(found):
            following = found[number + 1] if number + 1 < len(found) else None
            own = isinstance(following, Block) and following.words == ("text",)
            if isinstance(step, Interrupt):
                self.interrupt(step)
            elif "run" in step.words:
                self.run(step, following if own else None)  # type: ignore[arg-type]
                ran += 1
            elif step.words[0] == "text" and step.option("in", ""):
                self.watch(step)
        assert not self.faults, "\n\n".join(self.faults)
        return ran

    def close(self) -> None:
        for terminal in reversed(self._terminals.values()):
            terminal.close()

    def _await(self, terminal: Terminal, shown: Block | None) -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while not self._fits(terminal, shown) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._compare(terminal, shown)

    def _fits(self, terminal: Terminal, shown: Block | None) -> bool:
        return shown is None or fits(self.ports(shown.text), terminal.unseen())

    def _compare(self, terminal: Terminal, shown: Block | None) -> None:
        if shown is not None and not self._fits(terminal, shown):
            # Both as they are, so that the right text can be copied from here.
            came = terminal.unseen()
            self.faults.append(f"{self.document} line {shown.line} shows:\n{shown.text}\n\nbut this came:\n{came}")
        terminal.look_away()


def fits(shown: str, came: str) -> bool:
    """Whether ``came`` is what ``shown`` says, but for what differs from run to run."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else _line_pattern(line) + r"[ \r]*\n" for line in shown.strip("\n").splitlines()
    )
    return re.fullmatch(pattern + r"\s*", came.lstrip("\n").rstrip("\n") + "\n") is not None


def _line_pattern(line: str) -> str:
    pieces, end = [], 0
    for found in _volatile.finditer(line):
        form = r".*" if found.lastgroup is None else VOLATILE[int(found.lastgroup[1:])]
        pieces += [re.escape(line[end : found.start()]), form.strip("^$")]
        end = found.end()
    return "".join([*pieces, re.escape(line[end:])])


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader in a folder that has the clone's commands and none of its files."""
    (tmp_path / "scripts").mkdir()
    for name in ("run", "setup"):
        command = tmp_path / "scripts" / name
        command.write_text(f'#!/bin/sh\nexec {PROJECT}/scripts/{name} "$@"\n')
        command.chmod(0o755)
    (tmp_path / ".venv").symlink_to(PROJECT / ".venv")
    made = Reader(tmp_path)
    yield made
    made.close()


def test_every_command_of_the_readme_prints_what_the_readme_shows(reader: Reader) -> None:
    ran = reader.follow()
    assert ran >= 15, f"only {ran} blocks are marked run"


@pytest.mark.parametrize(
    ("shown", "came"),
    [
        ("a\nb", "a\nb\n"),
        ("…\nb", "b\n"),
        ("…\nb", "x\ny\nb\n"),
        ("14846", "9012\n"),
        ("a … c", "a b b c\n"),
        ("retry: 1737\n\ndata: x", "retry: 2999\n\ndata: x\n\n"),
        ("replica 6db3cb35, listens", "replica 00000000, listens\n"),
    ],
)
def test_what_differs_from_run_to_run_fits(shown: str, came: str) -> None:
    assert fits(shown, came)


@pytest.mark.parametrize(
    ("shown", "came"),
    [
        ("a", ""),
        ("a", "a\nb\n"),
        ("a\nb", "a\n"),
        ("true", "false\n"),
        ("14846", "0\n"),
        ("retry: 1737", "retry: x\n"),
        ('etag: W/"edb2c6cca2f69fb34cac747a86260725"', 'etag: W/"edb2c6cca2f69fb34cac747a86260726"\n'),
    ],
)
def test_what_is_wrong_does_not_fit(shown: str, came: str) -> None:
    assert not fits(shown, came)
