"""A program that is not ours as a process of its own, from its start until its block ends."""

import contextlib
import http.client
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import CannotMeasure
from tests.live.signs import await_sign

PATIENCE_SECS = 30


@dataclass(frozen=True)
class Server:
    """Where it listens, and which process it is."""

    port: int
    pid: int


@contextlib.contextmanager
def started(name: str, command: Sequence[str], port: int, sign: str, log: Path) -> Iterator[Server]:
    """Run it once it answers ``sign`` with 200."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        await_sign(lambda: _answers(name, process, port, sign, log), PATIENCE_SECS, f"{name} answers")
        yield Server(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(name: str, process: "subprocess.Popen[bytes]", port: int, sign: str, log: Path) -> bool:
    if process.poll() is not None:
        said = log.read_text(errors="replace")[-300:]
        raise CannotMeasure(f"{name} ended with {process.returncode}: {said!r}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", sign)
        answer = connection.getresponse()
        return answer.read() != b'""\n' and answer.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
