"""A replica that cannot know where its table is, or as whom to ask, ends at once with a line that says what to give."""

import contextlib
import os
import subprocess
import sys

import pytest

from tests.live.dynamodb.replicas import HERMETIC
from tests.live.signs import free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

REGION = (
    "--registration-storage dynamodb needs a region: give --dynamodb-region, or set AWS_REGION or a region in the AWS "
    "profile"
)


STARTS: list[tuple[dict[str, str], str]] = [
    ({}, REGION),
    ({"AWS_PROFILE": "nobody"}, "--registration-storage dynamodb: The config profile (nobody) could not be found"),
]


def test_the_start_ends_with_one_line() -> None:
    own = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "DISCOVERY_"))}
    words = ["serve", "--listen", f"127.0.0.1:{free_port()}", "--registration-storage", "dynamodb"]
    command = [sys.executable, "-m", "discovery", *words, "--dynamodb-table", "pools"]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(command, env=own | HERMETIC | variables, stderr=subprocess.PIPE, text=True)
            )
            for variables, _ in STARTS
        ]
        found = [(process.communicate(timeout=30)[1], process.returncode) for process in started]
    assert found == [(f"discovery: {said}\n", 2) for _, said in STARTS]
