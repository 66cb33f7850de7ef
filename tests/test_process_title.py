"""What other users of the machine see of the arguments."""

import subprocess
import sys

import pytest

from discovery.process_title import covering


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["redis://u:s3cret@h:1/0"], ["redis://********@h:1/0"]),
        (["--redis-url=rediss://:p@ss/w@h"], ["--redis-url=rediss://*******@h"]),
        (["redis+sentinel://u:p@a:1,b:2/s/0", "x@y"], ["redis+sentinel://***@a:1,b:2/s/0", "x@y"]),
        (["unix:///run/redis.sock?password=s3cret&db=1"], ["unix:///run/redis.sock?password=******&db=1"]),
        (["redis://h:1/0", "r0=http://10.0.0.1:9000"], ["redis://h:1/0", "r0=http://10.0.0.1:9000"]),
        (["http://h", "a@b"], ["http://h", "a@b"]),
    ],
)
def test_passwords_of_urls_are_covered_and_nothing_else(words: list[str], shown: list[str]) -> None:
    assert covering("\0".join([*words, ""]).encode()).decode().split("\0") == [*shown, ""]


def test_the_process_shows_its_arguments_without_the_password_and_reads_them_whole() -> None:
    program = (
        "import sys; from pathlib import Path; from discovery.process_title import cover_passwords; cover_passwords();"
        "print(Path('/proc/self/cmdline').read_bytes()); print(sys.argv[1:])"
    )
    words = ["--redis-url", "redis://u:s3cret@h:1/0", "ü", "--redis-prefix", "x"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    title, read = done.stdout.splitlines()
    assert "s3cret" not in title
    assert "redis://********@h:1/0" in title
    assert sys.executable in title
    assert read == str(words)
