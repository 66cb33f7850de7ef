"""Tokens with real processes: renewed and revoked under running streams, given to the commands, and never shown."""

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.commands.program import DISCOVERY, environment
from tests.http.tokens_file import bearer, content, entry
from tests.live.conftest import MakeReplica, StartPair
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica, pool
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

ENDS_WITHIN_SECS = 10
READER, RELAY, NEXT_RELAY, OPERATOR = (
    "qBReader0000000001",
    "qBRelay00000000002",
    "qBRelay00000000003",
    "qBOperator00000004",
)
SECRETS = [READER, RELAY, NEXT_RELAY, OPERATOR]
KEPT = [entry(OPERATOR, "*", name="operator"), entry(NEXT_RELAY, "register:c1/n1", name="relay-next")]


class Mounted:
    """A Secret as Kubernetes mounts it: renewed by swapping a link to a directory."""

    def __init__(self, directory: Path, file: bytes) -> None:
        self._directory = directory
        self._number = 0
        directory.mkdir()
        self.path = directory / "tokens"
        self.renew(file)
        self.path.symlink_to("..data/tokens")

    def renew(self, file: bytes) -> None:
        self._number += 1
        fresh = self._directory / f"..{self._number}"
        fresh.mkdir()
        (fresh / "tokens").write_bytes(file)
        link = self._directory / "..data_tmp"
        link.symlink_to(fresh.name)
        link.replace(self._directory / "..data")


class Waiting(threading.Thread):
    """A request whose answer takes long, read to its end; ``error`` is what cut it off, if anything did."""

    def __init__(self, replica: Replica, path: str, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.received = b""
        self.status = 0
        self.error: Exception | None = None
        self._connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=40)
        self._connection.request("GET", path, headers=headers)
        self.start()

    def run(self) -> None:
        try:
            response = self._connection.getresponse()
            self.status = response.status
            while chunk := response.read1():
                self.received += chunk
        except (OSError, http.client.HTTPException) as error:
            self.error = error
        finally:
            self._connection.close()

    @property
    def ended(self) -> bool:
        """Cleanly, with the regular end of the body."""
        assert self.error is None, self.error
        return not self.is_alive()


def discovery(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DISCOVERY, *words], capture_output=True, env=environment(), timeout=20, check=False, text=True
    )


@contextmanager
def agent(replica: Replica, token: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """``discovery register`` for a pool of c1."""
    words = ["--cluster-id", "c1", "--namespace", "n1", "--dgd-name", "agent", "--model", "m", "--log-level", "debug"]
    command = [*DISCOVERY, "register", "--url", replica.url, "--token-path", str(token), *words]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stderr, stderr=stderr, env=environment())
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()
            process.wait()


def test_tokens_are_renewed_and_revoked_under_running_streams(make_replica: MakeReplica, tmp_path: Path) -> None:
    old = [entry(READER, "read", name="reader"), entry(RELAY, "register:c1", name="relay")]
    secret = Mounted(tmp_path / "secret", content(*old, *KEPT))
    token, log = tmp_path / "token", tmp_path / "agent.log"
    token.write_text(RELAY + "\n")
    flags = ("--auth-tokens-path", str(secret.path), "--log-level", "debug")
    replica = make_replica(lease=4, heartbeat=1, flags=flags).start()

    def listed(path: str = "/pools", holder: str = OPERATOR) -> Any:
        return replica.get(path, bearer(holder))

    with agent(replica, token, log):
        await_sign(lambda: "c1/n1/agent" in listed().names, 15, "the agent's pool is listed")
        etag = await_sign(lambda: listed().complete and listed().headers["etag"], 15, "the list is complete")
        wait = {"if-none-match": etag, "prefer": "wait=300"}
        cut = [Waiting(replica, path, bearer(READER)) for path in ("/pools/events", "/routers/events")]
        poll = Waiting(replica, "/pools", bearer(READER) | wait)
        kept = Waiting(replica, "/pools/events", bearer(OPERATOR))
        await_sign(lambda: all(b"event: snapshot" in one.received for one in (*cut, kept)), 10, "the streams run")
        await_sign(lambda: listed("/status").json["long_polls"] == 1, 10, "the poll waits")

        token.write_text(NEXT_RELAY)  # in a Secret's own time, the new token reaches the relay before the old one goes
        renewed_at = time.monotonic()
        secret.renew(content(*KEPT))
        await_sign(lambda: all(one.ended for one in (*cut, poll)), ENDS_WITHIN_SECS, "those of the old token end")
        print(f"ended after {time.monotonic() - renewed_at:.1f} s")
        assert (poll.status, listed("/pools", READER).status, listed("/pools", RELAY).status) == (401, 401, 401)
        assert not kept.ended

        secret.renew(b"tokens: " + OPERATOR.encode())
        await_sign(lambda: "is not taken" in replica.log, 10, "a broken file is said")
        assert replica.request("DELETE", "/pools/c1/n2/x", headers=bearer(NEXT_RELAY)).status == 403
        body = json.dumps(pool("c1/n1/seen")).encode()
        posted = replica.request("POST", "/pools", body, bearer(NEXT_RELAY) | {"content-type": "application/json"})
        assert posted.status == 200
        await_sign(lambda: b'"seen"' in kept.received, 10, "the stream of a valid token goes on")
        assert listed().names == ["c1/n1/agent", "c1/n1/seen"]
    assert "c1/n1/agent" not in listed().names, "the agent deregisters with its new token"
    assert not kept.ended

    shown = {
        "log": replica.log,
        "log of the agent": log.read_text(),
        "status": listed("/status?pool=*").body.decode(),
        "metrics": listed("/metrics").body.decode(),
        "process title": Path(f"/proc/{replica.pid}/cmdline").read_bytes().decode(),
        "stream": kept.received.decode(),
    }
    for place, text in shown.items():
        assert not [secret for secret in SECRETS if secret in text], place
    assert "Traceback" not in replica.log
    assert replica.log.count("is not taken") == 1
    [renewal] = [line for line in replica.log.splitlines() if "the tokens were renewed" in line]
    assert renewal.endswith("2 valid; gone: reader, relay")
    replica.terminate()
    assert replica.exit_code(15) == 0
    kept.join(10)
    assert kept.ended


def test_the_commands_take_tokens_and_say_what_is_wrong_with_them(make_replica: MakeReplica, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_bytes(content(entry(READER, "read", name="reader"), *KEPT))
    paths = {name: tmp_path / name for name in ("reader", "wrong", OPERATOR)}
    paths["reader"].write_text(READER)
    paths["wrong"].write_text("x")
    replica = make_replica(lease=2, heartbeat=0.5, flags=("--auth-tokens-path", str(file))).start()
    url = ("--url", replica.url)
    await_sign(lambda: replica.get("/pools", bearer(READER)).complete, 10, "the list is complete")

    def with_token(name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return discovery(*words, *url, "--token-path", str(paths[name]))

    assert (with_token("reader", "pools").returncode, with_token("reader", "doctor").returncode) == (0, 0)
    pool_words = ("--cluster-id", "c1", "--namespace", "n1", "--dgd-name", "p1", "--model", "m")
    no_token = f"{replica.url} answered 401: Send a token that the service knows"
    unknown = f"{replica.url} answered 401: The service does not know this token."
    for done, code, said in [
        (discovery("pools", *url), 2, no_token),
        (with_token("wrong", "doctor"), 2, unknown),
        (with_token("reader", "register", *pool_words), 2, "The token reader lacks the scope register:<cluster_id>."),
        (with_token(OPERATOR, "register", *pool_words), 2, "the token file cannot be read: No such file or directory"),
    ]:
        assert (done.returncode, said in done.stderr) == (code, True), (done.args, done.stderr)
        assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]


def test_a_file_of_tokens_that_is_wrong_is_one_line_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"tokens:\n- name: relay\n  sha256: {RELAY}\n  scopes: [read]\n")
    done = discovery("serve", "--listen", "127.0.0.1:0", "--auth-tokens-path", str(file))
    assert done.returncode == 2
    said = "discovery: the file of --auth-tokens-path cannot be used: tokens[0].sha256 must be the SHA-256 of the token"
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert RELAY not in done.stderr


def test_limits_of_pools_hold_over_replicas(debian_redis: RedisServer, start_pair: StartPair) -> None:
    flags = ("--max-pools", "3", "--max-pools-per-cluster", "2")
    a, b = start_pair(debian_redis, lease=60, heartbeat=5, flags=flags)
    a.register("c1/n1/p1")
    b.register("c1/n1/p2")
    await_sign(lambda: len(a.pools().names) == len(b.pools().names) == 2, 5, "both know both")
    assert (a.post(pool("c1/n1/p3")).status, b.post(pool("c1/n1/p3")).status) == (429, 429)
    a.register("c2/n1/p3")
    await_sign(lambda: b.lists("c2/n1/p3"), 5, "the other one knows it")
    assert (a.post(pool("c3/n1/p4")).status, b.post(pool("c3/n1/p4")).status) == (507, 507)
    for replica in (a, b):
        replica.register("c1/n1/p1", model="another")
    b.delete("c1/n1/p1")
    await_sign(lambda: not a.lists("c1/n1/p1"), 5, "it has left")
    a.register("c1/n1/p3")
