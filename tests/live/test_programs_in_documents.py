"""The programs and commands of ``docs/router.md`` and ``docs/relay.md``, run as a reader runs them.

Only ports differ: 8080 is the service, 8000 a frontend, 9000 the router. A ``sh run`` block has to end well and print
the ``text`` block that follows it, compared as in ``test_readme``.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents import PROJECT, Block, read, steps
from tests.live.conftest import MakeReplica
from tests.live.mock_frontends import WORDS, MockFrontend, words_of
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign, free_port
from tests.live.test_readme import fits
from tests.live.traffic import Traffic
from tests.test_programs_in_documents import RELAY, ROUTER, program

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

POOL = "us-east-1/prod/llama-70b"
MODEL = "llama-3.1-70b"
CHAT = "/v1/chat/completions"


class Desk:
    """A folder, a service, a frontend at whatever ports are free, and what was started there."""

    def __init__(self, directory: Path, service: Replica, frontend: MockFrontend, stack: contextlib.ExitStack) -> None:
        self.service = service
        self.frontend = frontend
        self.router_port = free_port()
        self._directory = directory
        self._stack = stack
        (directory / ".venv").symlink_to(PROJECT / ".venv")

    def __call__(self, text: str) -> str:
        ports = {"8080": self.service.port, "8000": self.frontend.port, "9000": self.router_port}
        return re.sub(r"\b(8080|8000|9000)\b", lambda found: str(ports[found[1]]), text)

    def python(self, name: str, code: str) -> "subprocess.Popen[bytes]":
        (self._directory / name).write_text(self(code) + "\n")
        return self._start([sys.executable, name])

    def shell(self, commands: str) -> "subprocess.Popen[bytes]":
        return self._start(["bash", "-c", self(commands)])

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DISCOVERY_")}
        environment["DISCOVERY_URL"] = self.service.url
        process = subprocess.Popen(command, cwd=self._directory, env=environment, start_new_session=True)
        self._stack.callback(end, process)
        return process

    def run(self, document: str) -> int:
        """Every ``sh run`` block; gives how many there were."""
        found = [step for step in steps(read(document)) if isinstance(step, Block)]
        ran = 0
        for block, following in itertools.pairwise(found):
            if block.words == ("sh", "run"):
                command = ["bash", "-c", self(block.text)]
                came = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, timeout=30)
                assert (came.returncode, came.stderr) == (0, ""), f"{document} line {block.line}: {came}"
                assert following.words == ("text",)
                shown = self(following.text)
                assert fits(shown, came.stdout), f"{document} line {block.line} printed:\n{came.stdout}"
                ran += 1
        return ran

    def is_listed(self) -> bool:
        return POOL in self.service.pools().names

    def await_router(self) -> None:
        await_sign(lambda: self.ask({"model": MODEL})[0] == 200, 20, "the router passes requests on")

    def ask(self, body: dict[str, Any]) -> tuple[int, str]:
        """What the router answers; status 0 while it does not listen."""
        command = ["curl", "-s", "-w", "\n%{http_code}", "--max-time", "10", "-d", json.dumps(body)]
        url = f"http://127.0.0.1:{self.router_port}{CHAT}"
        said = subprocess.run([*command, "-H", "Content-Type: application/json", url], capture_output=True, text=True)
        answer, _, status = said.stdout.rpartition("\n")
        return int(status), answer


def end(process: "subprocess.Popen[bytes]") -> None:
    """With all that it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def terminated(process: "subprocess.Popen[bytes]") -> int:
    """SIGTERM to it alone, and its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(15)


@pytest.fixture
def desk(debian_redis: RedisServer, start_replica: MakeReplica, traffic: Traffic, tmp_path: Path) -> Iterator[Desk]:
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    service = start_replica(redis_url=debian_redis.url, lease=6.0, heartbeat=0.5)
    await_sign(lambda: service.pools().complete, 5, "complete")
    frontend = MockFrontend("the-frontend")
    (tmp_path / "desk").mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: traffic.call(frontend.end()))
        traffic.call(frontend.start())
        yield Desk(tmp_path / "desk", service, frontend, stack)


def test_the_router_of_the_page_routes_and_its_commands_print_what_it_shows(
    desk: Desk, debian_redis: RedisServer
) -> None:
    desk.shell(program(ROUTER, "sh", "stays"))
    await_sign(desk.is_listed, 20, "the pool is listed")
    (listed,) = desk.service.pools().pools.values()
    assert listed["capacity"] == [{"resource": "nvidia.com/gpu", "quantity": 16}]
    desk.python("router.py", program(ROUTER, "python", "router"))
    desk.await_router()
    assert desk.run(ROUTER) == 4

    status, streamed = desk.ask({"model": MODEL, "stream": True})
    assert (status, words_of(streamed)) == (200, list(WORDS))
    assert {served.path for served in desk.frontend.served} == {CHAT}
    assert desk.ask({"model": "other"})[0] == 404
    debian_redis.flush()  # for a lease nobody can say what is missing
    await_sign(lambda: desk.ask({"model": "other"})[0] == 503, 5, "the router does not know")
    assert desk.ask({"model": MODEL})[0] == 200


def test_the_reference_router_starts_as_the_page_says(desk: Desk) -> None:
    command = program(ROUTER, "sh", "reference").replace("tests/live/", f"{PROJECT}/tests/live/")
    desk.service.register(POOL, model=MODEL, frontends=[desk.frontend.url])
    desk.shell(f"exec {command}")
    desk.await_router()
    assert json.loads(desk.ask({"model": MODEL})[1])["choices"][0]["message"]["content"] == "the-frontend"
    assert json.loads(desk.ask({"model": "other"})[1])["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("kind", ["python", "sh"])
def test_the_relay_of_the_page_registers_goes_on_and_deregisters(desk: Desk, kind: str) -> None:
    code = program(RELAY, kind, "relay")
    relay = desk.python("relay.py", code) if kind == "python" else desk.shell(code)
    await_sign(desk.is_listed, 20, "the pool is listed")
    (listed,) = desk.service.pools().pools.values()
    assert (listed["model"], listed["frontends"]) == (MODEL, [desk.frontend.url])
    beats = desk.service.counter("registrations")
    await_sign(lambda: desk.service.counter("registrations") >= beats + 3, 10, "three more heartbeats")
    assert desk.is_listed()
    assert terminated(relay) == 0
    assert not desk.is_listed(), "it deregistered before it ended"
    assert desk.service.pools().complete


def test_the_commands_for_relays_print_what_the_page_shows(desk: Desk) -> None:
    assert desk.run(RELAY) == 2
