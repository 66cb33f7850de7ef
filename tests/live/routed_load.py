"""Clients of a router that ask without a pause for as long as a test lasts, and a router as a process of its own.

What each answer says is written down; what is right is for the test.
"""

import asyncio
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from tests.live.mock_frontends import WORDS, words_of
from tests.live.replica import PROJECT
from tests.live.signs import await_sign, free_port
from tests.live.traffic import Traffic

PAUSE_SECS = 0.04
_sent = re.compile(r" request (\S+) goes to (\S+) of (\S+)$")
_change = re.compile(r" pool (\S+) is (listed|gone)$")


class Asked(NamedTuple):
    """One request: when it was sent and answered (monotonic), and how; status 0 is an answer that broke."""

    sent: float
    answered: float
    model: str
    status: int
    frontend: str
    code: str | None
    retry_after: str | None
    fault: str


class Load:
    """Some clients with kept connections; each asks, waits for the answer, and asks again for another model."""

    def __init__(self, traffic: Traffic, url: str, models: Sequence[str], *, clients: int = 6) -> None:
        self.asked: list[Asked] = []
        self._url = url
        self._models = models
        self._ending = False
        self._actors: list[Future[None]] = [traffic.spawn(self._run(number)) for number in range(clients)]

    def since(self, moment: float, *models: str) -> list[Asked]:
        """What was asked from ``moment`` on and has been answered, for these models or all."""
        return [one for one in self.asked if one.sent >= moment and (not models or one.model in models)]

    def await_answers(self, number: int, model: str) -> float:
        """Wait for so many more answers for that model, all of them asked for from now on; gives now."""
        now = time.monotonic()
        await_sign(lambda: len(self.since(now, model)) >= number, 30, f"{number} answers for {model}")
        return now

    def stop(self) -> list[Asked]:
        """Wait for the last answers, and give all."""
        self._ending = True
        for actor in self._actors:
            actor.result(20)
        return self.asked

    async def _run(self, number: int) -> None:
        chance = random.Random(number)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            turn = number
            while not self._ending:
                self.asked.append(await self._ask(session, self._models[turn % len(self._models)], chance))
                turn += 1
                await asyncio.sleep(chance.uniform(0, 2 * PAUSE_SECS))

    async def _ask(self, session: aiohttp.ClientSession, model: str, chance: random.Random) -> Asked:
        stream = chance.random() < 0.5
        path = "chat/completions" if stream or chance.random() < 0.5 else "embeddings"
        sent, status, headers, fault, code = time.monotonic(), 0, {}, "", None
        try:
            body = {"model": model, "stream": stream}
            async with session.post(f"{self._url}/v1/{path}", json=body) as answer:
                text = await answer.text()
                status, headers = answer.status, answer.headers
            code = _check(text, status, stream)
        except (aiohttp.ClientError, OSError, AssertionError, ValueError, KeyError) as error:
            fault = repr(error)
        frontend, retry_after = headers.get("X-Frontend", ""), headers.get("Retry-After")
        return Asked(sent, time.monotonic(), model, status, frontend, code, retry_after, fault)


def _check(text: str, status: int, stream: bool) -> str | None:
    """Whether the answer is whole; the code of an error."""
    if status != 200:
        error: Mapping[str, Any] = json.loads(text)["error"]
        assert set(error) == {"message", "type", "param", "code"}, text
        return str(error["code"])
    if stream:
        assert words_of(text) == list(WORDS), text
    else:
        assert json.loads(text)["choices"][0]["finish_reason"] == "stop", text
    return None


class RouterProcess:
    """``reference_router.py`` on a port of its own; its log is the order in which it saw and did things."""

    def __init__(self, directory: Path, urls: Sequence[str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._file = directory / "router.log"
        command = [sys.executable, str(PROJECT / "tests/live/reference_router.py"), "--verbose"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--url", ",".join(urls)]
        with self._file.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def log(self) -> list[str]:
        return self._file.read_text().splitlines()

    def status(self) -> dict[str, Any]:
        """How good its list is; empty while it has none."""
        assert self._process.poll() is None, self.log[-30:]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/status")
            answer = connection.getresponse()
            body = answer.read()
        except ConnectionRefusedError:
            return {}
        finally:
            connection.close()
        return dict(json.loads(body)) if answer.status == 200 else {}

    def lists(self, *pools: str) -> bool:
        """Whether its list is complete and has exactly these."""
        status = self.status()
        return bool(status) and status["complete"] and status["pools"] == sorted(pools)

    def await_change(self, pool: str, what: str) -> None:
        """Wait until it says that the pool is ``listed`` or ``gone``."""
        await_sign(lambda: self.changes(what)[pool], 20, f"the router says that {pool} is {what}", every=0.05)

    def changes(self, what: str) -> Counter[str]:
        """How often it said of which pool that it is ``listed`` or ``gone``."""
        found = (_change.search(line) for line in self.log)
        return Counter(change[1] for change in found if change and change[2] == what)

    def sent_before_gone(self, pool: str) -> set[tuple[str, str]]:
        """What it sent to a pool, as request ids and URLs; that it sent any after it saw the pool go is a fault."""
        sent: set[tuple[str, str]] = set()
        gone = False
        for line in self.log:
            if (found := _sent.search(line)) and found[3] == pool:
                assert not gone, f"sent to a pool that was gone: {line}"
                sent.add((found[1], found[2]))
            elif (change := _change.search(line)) and change[1] == pool:
                gone = change[2] == "gone"
        return sent

    def end(self) -> int:
        """SIGTERM; gives the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def close(self) -> None:
        """SIGKILL where it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
