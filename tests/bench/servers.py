"""Every server that a run needs, each a process of its own on the loopback, ended when its block ends."""

import contextlib
import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.live.redis_server import RedisServer
from tests.live.replica import PROJECT, Replica
from tests.live.signs import await_sign, free_port

LONG_LEASE = 86_400.0
# All load comes from one address; the limit stays at work, so that what it costs is measured, but is never reached.
UNREACHED = ("--rate-limit", "1000000")


@contextlib.contextmanager
def redis_server(*arguments: str) -> Iterator[RedisServer]:
    """A Redis that writes nothing to disk."""
    with tempfile.TemporaryDirectory(prefix="discovery-bench-") as directory:
        server = RedisServer("redis", Path(directory), *arguments)
        try:
            yield server.start()
        finally:
            server.close()


@contextlib.contextmanager
def product(redis_url: str | None = None, *flags: str, lease: float = LONG_LEASE) -> Iterator[Replica]:
    """One replica of the service, ready; its registrations need no heartbeat during a run."""
    with launched_product(redis_url, *flags, lease=lease) as replica:
        await_sign(lambda: replica.says("/readyz", 200), 20, "the service is ready")
        yield replica


@contextlib.contextmanager
def launched_product(redis_url: str | None = None, *flags: str, lease: float = LONG_LEASE) -> Iterator[Replica]:
    """The same, just launched."""
    with tempfile.TemporaryDirectory(prefix="discovery-bench-") as directory:
        replica = Replica(
            Path(directory),
            redis_url=redis_url,
            lease=lease,
            heartbeat=lease / 3,
            flags=("--log-level", "warning", *UNREACHED, *flags),
        )
        try:
            yield replica.launch()
        finally:
            replica.close()


class Reference:
    """A running reference."""

    def __init__(self, name: str, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.port = port
        self.pid = process.pid
        self._process = process

    def answers(self) -> bool:
        """Whether it takes requests; an error when it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the reference {self.name} ended with {self._process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextlib.contextmanager
def reference(name: str, *, body: bytes = b"", redis_port: int = 0) -> Iterator[Reference]:
    """One of the applications of ``references``, served by uvicorn."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="discovery-bench-") as directory:
        path = Path(directory, "body")
        path.write_bytes(body)
        command = [sys.executable, "-m", "tests.bench.references", name, str(port), str(path), str(redis_port)]
        process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.DEVNULL)
        try:
            started = Reference(name, port, process)
            await_sign(started.answers, 20, f"the reference {name} answers")
            yield started
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_LOOK_SECS = 0.5


def busy_share() -> float:
    """How much of all processors others use at this moment, from 0 to 1; asked while nothing of ours runs."""
    before = _processor_times()
    time.sleep(_LOOK_SECS)
    all_of_them, idle = (now - then for now, then in zip(_processor_times(), before, strict=True))
    return 1 - idle / all_of_them if all_of_them else 0.0


def _processor_times() -> tuple[int, int]:
    """All time, and idle time."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times), times[3] + times[4]


def cpu_secs(pid: int) -> float:
    """The processor time that a process has used so far; to the nanosecond, where ``stat`` counts hundredths."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def resident_kib(pid: int) -> int:
    """The resident memory of a process in KiB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
