"""Requests that Schemathesis makes from the OpenAPI document, against a service on a real Redis.

They run in a process of their own, by ``schemathesis/schemathesis.toml``: examples, the edges of every schema, valid
and invalid data by chance (always the same), and sequences that follow from one another. All checks are on.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.openapi_check import operations
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(330)]

RULES = Path(__file__).parent / "schemathesis"
# Said by a replica on a machine that gave it no time: some of its answers are 503 then, rightly.
STOOD_STILL = "the store has not confirmed the registrations"


def test_generated_requests_are_answered_as_the_document_says(
    debian_redis: RedisServer, make_replica: MakeReplica, tmp_path: Path
) -> None:
    # Neither the first start nor the end of leases may make the list incomplete meanwhile: 503 would be right then.
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    replica = make_replica(redis_url=debian_redis.url, lease=300, heartbeat=5, flags=("--router", "r0=http://h:1"))
    replica.start()
    await_sign(lambda: replica.pools().complete, 10, "a complete list")
    pid = replica.pid
    for _ in range(3):
        before = len(replica.log)
        run = generated_requests(replica, tmp_path)
        if run.returncode == 0 or STOOD_STILL not in replica.log[before:]:
            break
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-3_000:]
    # The one that gave the document is not tried again.
    assert f"Tested: {len(list(operations())) - 1}\n" in run.stdout, run.stdout[-3_000:]
    assert replica.says("/healthz", 200)
    assert replica.pid == pid
    assert "Traceback" not in replica.log


def generated_requests(replica: Replica, directory: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(RULES / "schemathesis.toml")),
            *("run", f"{replica.url}/openapi.json", "--checks", "all", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=directory,
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(RULES / "hooks.py")},
        check=False,
    )
