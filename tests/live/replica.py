"""One ``discovery serve`` as a process of its own, and the HTTP answers it gives.

The client here is the standard library's, one connection for each request, so nothing of the product is used to test
the product.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.live.signs import await_sign, free_port

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: status, headers by lower-case name, and the bytes of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    secs: float

    @cached_property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def complete(self) -> bool:
        """Whether this list says that it is the whole truth."""
        return bool(self.json["complete"])

    @cached_property
    def pools(self) -> dict[str, dict[str, Any]]:
        """The listings of this list by ``cluster_id/namespace/dgd_name``."""
        return {pool_name(pool): pool for pool in self.json["pools"]}

    @property
    def names(self) -> list[str]:
        """``cluster_id/namespace/dgd_name`` of each listed pool."""
        return list(self.pools)


def pool_name(pool: Mapping[str, Any]) -> str:
    """``cluster_id/namespace/dgd_name`` of a registration, a listing or a pool key."""
    return f"{pool['cluster_id']}/{pool['namespace']}/{pool['dgd_name']}"


def pool(name: str = "c1/n1/p1", **fields: Any) -> dict[str, Any]:
    """The body of a registration of that pool; ``fields`` are set or replaced."""
    cluster_id, namespace, dgd_name = name.split("/")
    body = {"cluster_id": cluster_id, "namespace": namespace, "dgd_name": dgd_name, "model": "m"}
    return {**body, "relays": ["http://10.0.0.1:9000"], **fields}


class Replica:
    """One process of the service. Seconds everywhere; nothing is decided here about what is right."""

    def __init__(
        self,
        directory: Path,
        name: str = "a",
        *,
        redis_url: str | None = None,
        lease: float = 3.0,
        heartbeat: float = 1.0,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.lease = lease
        self.heartbeat = heartbeat
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.drain_delay = 0.3
        self.shutdown_grace = 2.0
        self._stderr = directory / f"replica-{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [sys.executable, "-m", "discovery", "serve", "--listen", f"127.0.0.1:{self.port}"]
        self._command += ["--lease-duration-secs", f"{lease:g}", "--heartbeat-interval-secs", f"{heartbeat:g}"]
        self._command += [] if redis_url is None else ["--redis-url", redis_url]
        for flag, value in (
            ("--drain-delay-secs", self.drain_delay),
            ("--shutdown-grace-secs", self.shutdown_grace),
        ):
            if flag not in flags:
                self._command += [flag, f"{value:g}"]
        self._command += flags

    # The process

    def start(self, *, sign: str = "/readyz", within: float = 20) -> "Replica":
        """Start the process and wait until ``sign`` answers 200; ``/healthz`` where it cannot become ready."""
        self.launch()
        await_sign(lambda: self.says(sign, 200), within, f"{self.name}{sign} answers 200")
        return self

    def launch(self) -> "Replica":
        """Start the process and wait for nothing."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DISCOVERY_")}
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._command, cwd=PROJECT, env=environment, stdout=stderr, stderr=stderr, stdin=subprocess.DEVNULL
            )
        return self

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The running or ended process."""
        assert self._process is not None, f"replica {self.name} was not started"
        return self._process

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def log(self) -> str:
        """All that the process wrote so far."""
        return self._stderr.read_text(errors="replace")

    @property
    def rss(self) -> int:
        """Resident memory in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    @property
    def descriptors(self) -> int:
        """How many file descriptors the process holds."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def running(self) -> bool:
        """Whether the process is there; one that was never started is not."""
        return self._process is not None and self._process.poll() is None

    def terminate(self) -> None:
        """SIGTERM, and return at once."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.process.kill()
        self.process.wait(10)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def exit_code(self, within: float) -> int:
        """Wait for the end of the process and give its exit code; fail after ``within`` seconds."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"replica {self.name} still runs after {within} s:\n{self.log[-3000:]}") from error

    def close(self) -> None:
        """End the process at once; for the end of a test. How it ends in order is for tests that ask for it."""
        if self.running:
            self.kill()

    # HTTP

    def says(self, path: str, status: int) -> bool:
        """Whether ``path`` answers with that status; refused and cut connections count as no."""
        if not self.running:
            raise RuntimeError(f"replica {self.name} ended with {self.process.returncode}:\n{self.log[-3000:]}")
        try:
            return self.get(path, timeout=2).status == status
        except (OSError, http.client.HTTPException):
            return False

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = 10,
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        begun = time.monotonic()
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, content, time.monotonic() - begun)

    def get(self, path: str = "/pools", headers: Mapping[str, str] | None = None, *, timeout: float = 10) -> Answer:
        """GET ``path``."""
        return self.request("GET", path, headers=headers, timeout=timeout)

    def post(self, body: Mapping[str, Any] | bytes | str, *, timeout: float = 10) -> Answer:
        """POST a registration; bytes and text are sent as they are."""
        content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else _encode(body)
        return self.request("POST", "/pools", content, {"content-type": "application/json"}, timeout=timeout)

    def register(self, name: str = "c1/n1/p1", **fields: Any) -> float:
        """Register that pool once, which has to be accepted; gives the moment just before the POST was sent."""
        sent = time.monotonic()
        answer = self.post(pool(name, **fields))
        assert answer.status == 200, f"{self.name} refused {name}: {answer.status} {answer.body!r}"
        return sent

    def delete(self, name: str) -> Answer:
        """DELETE that pool."""
        path = "/".join(urllib.parse.quote(part, safe="") for part in name.split("/"))
        return self.request("DELETE", f"/pools/{path}")

    def pools(self) -> Answer:
        """GET /pools, which has to be 200."""
        answer = self.get("/pools")
        assert answer.status == 200, f"{self.name}: {answer.status} {answer.body!r}"
        return answer

    def lists(self, *names: str) -> bool:
        """Whether all these pools are listed now."""
        return set(names) <= set(self.pools().names)

    def counter(self, name: str) -> float:
        """A figure under ``counters`` of ``/status``, summed over its labels, which follow the name after ``_``."""
        counters = self.get("/status").json["counters"]
        return sum(value for full, value in counters.items() if full == name or full.startswith(f"{name}_"))

    def connect(self, timeout: float = 10) -> socket.socket:
        """A bare connection, for requests that no well-behaved client would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()
