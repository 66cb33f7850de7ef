"""The service over TLS as it is run: certificates renewed under load, client certificates, probes, and the commands."""

import contextlib
import http.client
import json
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.program import DISCOVERY, environment
from tests.live.replica import Replica, pool
from tests.live.signs import await_sign, free_port
from tests.mcs.certificates import Authority

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

Pair = tuple[Path, Path]
GENERATIONS = 5
REFUSED, HEALED = "renewed certificate files are not used", "the certificate files can be used again"
CLIENTS = 4


class Mounted:
    """Certificate and key, as Kubernetes mounts them or as tools write them."""

    def __init__(self, directory: Path, pair: Pair) -> None:
        self.directory = directory
        directory.mkdir()
        self._number = 0
        self.certificate, self.key = directory / "tls.crt", directory / "tls.key"
        self.swap(pair)
        for path in (self.certificate, self.key):
            path.symlink_to(f"..data/{path.name}")

    def swap(self, pair: Pair) -> None:
        """Both at once, by a link to another directory."""
        self._number += 1
        fresh = self.directory / f"..{self._number}"
        fresh.mkdir()
        for path, name in zip(pair, ("tls.crt", "tls.key"), strict=True):
            shutil.copy(path, fresh / name)
        link = self.directory / "..new"
        link.symlink_to(fresh.name)
        link.replace(self.directory / "..data")

    def overwrite(self, pair: Pair, pause_secs: float) -> None:
        """The certificate first, in two halves, and after a pause the key."""
        text = pair[0].read_bytes()
        with self.certificate.open("wb", buffering=0) as file:
            file.write(text[:200])
            file.write(text[200:])
        time.sleep(pause_secs)  # the fault itself: nothing to wait for
        shutil.copy(pair[1], self.key)


class SecureReplica(Replica):
    """A replica on https; ``trust`` is what its clients trust and show."""

    def __init__(self, directory: Path, files: Mounted, trust: ssl.SSLContext, *flags: str) -> None:
        tls = ("--tls-cert-path", str(files.certificate), "--tls-key-path", str(files.key))
        super().__init__(directory, flags=(*tls, *flags))
        self.url = f"https://127.0.0.1:{self.port}"
        self.trust = trust

    def opened(self, timeout: float = 10) -> http.client.HTTPSConnection:
        """A connection after its handshake."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.trust)
        connection.connect()
        return connection

    def says(self, path: str, status: int) -> bool:
        """Whether it answers so, by https."""
        assert self.running, self.log[-3000:]
        try:
            with contextlib.closing(self.opened()) as connection:
                connection.request("GET", path)
                return connection.getresponse().status == status
        except OSError:
            return False


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "ca").mkdir()
    return Authority(tmp_path / "ca", "ours")


@pytest.fixture
def replicas() -> Iterator[list[SecureReplica]]:
    made: list[SecureReplica] = []
    yield made
    for replica in made:
        replica.close()
        print(f"---- log\n{replica.log[-4000:]}")


def trusting(authority: Authority, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(*client)
    return context


class Load:
    """Clients that open one connection after the other, each with a handshake of its own and one request."""

    def __init__(self, replica: SecureReplica) -> None:
        self.replica = replica
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            try:
                self._once(number)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))

    def _once(self, number: int) -> None:
        with contextlib.closing(self.replica.opened()) as connection:
            certificate: Any = connection.sock.getpeercert()
            if number % 2:
                connection.request("GET", "/pools")
            else:
                body = json.dumps(pool(f"c1/n1/p{number}"))
                connection.request("POST", "/pools", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            self.seen[certificate["subject"][0][0][1]] += 1

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


def renewed(files: Mounted, pairs: list[Pair], secs: float, every_secs: float) -> None:
    """Another pair again and again: swapped at once, written one after the other, and now and then a broken one."""
    until, number = time.monotonic() + secs, 0
    while time.monotonic() < until or number < 2 * GENERATIONS:
        number += 1
        pair = pairs[number % len(pairs)]
        if number % 4 == 0:
            files.swap((pair[0], pairs[(number + 1) % len(pairs)][1]))
        elif number % 4 == 2:
            files.overwrite(pair, every_secs / 2)
        else:
            files.swap(pair)
        time.sleep(every_secs)  # the rhythm of the renewals is the fault


RENEWALS = [
    pytest.param(4, 0.3, id="4 s, each 0.3 s"),
    pytest.param(60, 2, id="60 s, each 2 s", marks=[pytest.mark.soak, pytest.mark.timeout(150)]),
]


@pytest.mark.parametrize(("secs", "every_secs"), RENEWALS)
def test_f47_certificates_are_renewed_under_load_and_no_handshake_fails(
    authority: Authority, tmp_path: Path, replicas: list[SecureReplica], secs: float, every_secs: float
) -> None:
    pairs = [authority.sign(f"generation-{number}") for number in range(GENERATIONS)]
    files = Mounted(tmp_path / "mount", pairs[0])
    replica = SecureReplica(tmp_path, files, trusting(authority))
    replicas.append(replica)
    replica.start()
    with contextlib.closing(replica.opened(30)) as stream:
        stream.request("GET", "/pools/events", headers={"accept": "text/event-stream"})
        events = stream.getresponse()
        load = Load(replica)
        await_sign(lambda: sum(load.seen.values()) > 20, 20, "clients that are served")
        try:
            renewed(files, pairs, secs, every_secs)
            files.swap((pairs[1][0], pairs[2][1]))
            await_sign(lambda: replica.log.count(REFUSED) > replica.log.count(HEALED), 10, REFUSED)
            for number in (3, 4):
                files.swap(pairs[number])
                before = load.seen[f"generation-{number}"]
                await_sign(lambda: load.seen[f"generation-{number}"] > before, 10, f"generation {number}")  # noqa: B023
        finally:
            load.end()
        assert load.failures == []
        with contextlib.closing(replica.opened()) as connection:
            connection.request("POST", "/pools", json.dumps(pool("c1/n1/last")), {"content-type": "application/json"})
            assert connection.getresponse().status == 200
        line = b""
        while b'"last"' not in line:
            line = events.readline()
            assert line, "the stream that was opened under the first certificate has ended"
    assert replica.log.count(REFUSED) == replica.log.count(HEALED) > 0
    assert "Traceback" not in replica.log
    assert "a TLS handshake failed" not in replica.log
    replica.terminate()
    assert replica.exit_code(10) == 0


def plain(port: int, path: str) -> int:
    """The status of a plain HTTP request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def test_clients_present_certificates_probes_use_their_own_address_and_commands_take_files(
    authority: Authority, tmp_path: Path, replicas: list[SecureReplica]
) -> None:
    client = authority.sign("client")
    files = Mounted(tmp_path / "mount", authority.sign("server"))
    health = free_port()
    flags = ("--tls-client-ca-path", str(authority.certificate), "--health-listen", f"127.0.0.1:{health}")
    replica = SecureReplica(tmp_path, files, trusting(authority, client), *flags)
    replicas.append(replica)
    replica.start()
    assert "TLS on, client certificates on" in replica.log

    assert [plain(health, path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
    assert [plain(health, path) for path in ("/pools", "/status", "/", "/openapi.json")] == [404] * 4
    assert plain(replica.port, "/healthz") == 400

    ca = ("--url", replica.url, "--ca-path", str(authority.certificate))
    shown = (*ca, "--cert-path", str(client[0]), "--key-path", str(client[1]))
    key = ("--cluster-id", "c1", "--namespace", "n1", "--dgd-name", "p1", "--model", "m")
    log = tmp_path / "register.log"
    with log.open("wb") as output:
        agent = subprocess.Popen([*DISCOVERY, "register", *key, *shown], env=environment(), stderr=output)
    try:
        await_sign(lambda: "registered c1/n1/p1" in log.read_text(), 20, "a registration by https")
        done = command("pools", *shown, "-o", "name")
        assert (done.returncode, done.stdout) == (0, "c1/n1/p1\n")
        done = command("doctor", "c1/n1/p1", *shown)
        assert (done.returncode, done.stdout.count("\n"), "c1/n1/p1" in done.stdout) == (0, 1, True)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(20) == 0
    finally:
        agent.kill()
        agent.wait(10)
    done = command("pools", *shown, "-o", "name")
    assert (done.returncode, done.stdout) == (0, "")

    done = command("pools", *ca)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "certificate required" in done.stderr
    done = command("doctor", "--url", replica.url)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "its certificate is not trusted" in done.stderr


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    """One command run to its end."""
    return subprocess.run(
        [*DISCOVERY, *words], env=environment(), capture_output=True, text=True, timeout=30, check=False
    )


def test_a_pair_that_does_not_belong_together_stops_the_start_in_one_line(authority: Authority, tmp_path: Path) -> None:
    certificate, _ = authority.sign("one")
    _, key = authority.sign("two")
    done = command("serve", "--listen", "127.0.0.1:0", "--tls-cert-path", str(certificate), "--tls-key-path", str(key))
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "WARNING" not in line]
    assert line == f"discovery: the key {key} does not belong to the certificate {certificate}"
