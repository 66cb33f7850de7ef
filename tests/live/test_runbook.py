"""The runbook's commands for Redis and for HTTP, run as they stand against a real Redis and a replica on it."""

import os
import subprocess

import pytest

from tests.documents import Block, read, steps
from tests.live.conftest import StartPair
from tests.live.redis_server import RedisServer

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

FIELDS = ("address", "prefix", "revision", "feed_refused", "failing_because")
"""Of the store in /status, as the runbook names them."""


def commands(word: str) -> list[str]:
    blocks = [step for step in steps(read("docs/runbook.md")) if isinstance(step, Block) and step.words == ("sh", word)]
    return sorted({line for block in blocks for line in block.text.splitlines()})


def printed(line: str, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-c", line], env=os.environ | variables, capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


def test_the_commands_of_the_runbook_do_what_it_says(debian_redis: RedisServer, start_pair: StartPair) -> None:
    a, b = start_pair(debian_redis, lease=15, heartbeat=5)
    a.register("us-east-1/prod/llama-70b")
    asked = {line: printed(line, STORE=debian_redis.url) for line in commands("redis")}
    assert not [line for line, text in asked.items() if text.startswith(("ERR", "NOPERM", "(error)"))]
    said = {line.partition('"$STORE" ')[2]: text for line, text in asked.items()}
    assert said["PING"] == "PONG\n"
    assert int(said["GET '{discovery}:revision'"]) >= 1
    assert said["--scan --pattern '{discovery}:pool:*'"] == "{discovery}:pool:us-east-1/prod/llama-70b\n"
    assert 0 < int(said["PTTL '{discovery}:pool:us-east-1/prod/llama-70b'"]) <= 15_000
    assert said["GET '{discovery}:epoch'"].strip() == "in-use-before"
    for line in commands("http"):
        here = line.replace("127.0.0.1:8080", f"127.0.0.1:{a.port}").replace("127.0.0.1:8081", f"127.0.0.1:{b.port}")
        assert printed(here), line
    assert a.get("/status").json["store"].keys() >= {*FIELDS}
