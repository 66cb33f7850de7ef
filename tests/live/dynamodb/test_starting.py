"""A replica that cannot know where its table is, or as whom to ask, ends at once with a line that says what to give."""

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


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, REGION),
        ({"AWS_PROFILE": "nobody"}, "--registration-storage dynamodb: The config profile (nobody) could not be found"),
        ({"AWS_REGION": "eu-west-1a"}, "AWS_REGION must be a region, such as eu-west-1, and not a zone of it"),
    ],
)
def test_the_start_ends_with_one_line(variables: dict[str, str], said: str) -> None:
    own = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "DISCOVERY_"))}
    words = ["serve", "--listen", f"127.0.0.1:{free_port()}", "--registration-storage", "dynamodb"]
    done = subprocess.run(
        [sys.executable, "-m", "discovery", *words, "--dynamodb-table", "pools"],
        env=own | HERMETIC | variables,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"discovery: {said}\n")
