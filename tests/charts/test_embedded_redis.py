"""The Redis that the chart brings, started with exactly what is rendered for its container, on Redis and on Valkey.

What differs from the cluster are paths, which lie in a folder of the test, and the port.
"""

import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from tests.charts.rendered import Chart, Object, Rendered
from tests.live.redis_server import KINDS, Kind, server_binary
from tests.live.replica import Replica, pool
from tests.live.signs import await_sign, free_port
from tests.live.test_acl import acl_lines

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

VALUES: dict[str, Any] = {"redis": {"embedded": {"password": "with $trange 'signs\""}}}


class Embedded:
    """The container of the StatefulSet as processes of this machine."""

    def __init__(self, rendered: Rendered, kind: Kind, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.container: Object = rendered.one("StatefulSet", "redis")["spec"]["template"]["spec"]["containers"][0]
        self.secret = rendered.one("Secret", "redis")["data"]
        for mount in self.container["volumeMounts"]:
            (folder / mount["mountPath"][1:]).mkdir(parents=True)
        for name, text in rendered.one("ConfigMap", "redis")["data"].items():
            moved = text.replace("port 6379", f"port {self.port}").replace("dir /data", f"dir {folder}/data")
            (folder / "etc/redis/config" / name).write_text(moved)
        (folder / "bin").mkdir()
        (folder / "bin/redis-server").symlink_to(server_binary(kind))

    @property
    def password(self) -> str:
        return base64.b64decode(self.secret["password"]).decode()

    def start(self, password: bytes | None = None) -> "subprocess.Popen[bytes]":
        """The command of the container; the password lies there as a mounted Secret has it."""
        (self.folder / "etc/redis/secret/password").write_bytes(
            self.password.encode() if password is None else password
        )
        words = [self._moved(word) for word in self.container["command"]]
        variables = {each["name"]: self._moved(each["value"]) for each in self.container["env"]}
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.Popen(
            words, cwd="/", env={"PATH": path, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def probe(self, name: str) -> int:
        """The exit code of a probe's command."""
        words = list(self.container[name]["exec"]["command"])
        words[1:1] = ["-p", str(self.port)]
        return subprocess.run(words, capture_output=True, timeout=30).returncode

    def client(self, user: str | None, password: str | None) -> Any:
        return redis.Redis(
            port=self.port, username=user, password=password, socket_timeout=5, retry=Retry(NoBackoff(), 0)
        )

    def _moved(self, text: str) -> str:
        return f"{self.folder}{text}" if text.startswith("/") else text


@pytest.fixture(params=KINDS)
def embedded(request: pytest.FixtureRequest, chart: Chart, tmp_path: Path) -> Embedded:
    return Embedded(chart.render(VALUES), request.param, tmp_path / "pod")


@pytest.fixture
def running(embedded: Embedded) -> Iterator["subprocess.Popen[bytes]"]:
    # With the new line at its end that many Secrets are made with by accident; the service drops it too.
    process = embedded.start(embedded.password.encode() + b"\n")
    try:
        await_sign(lambda: embedded.probe("startupProbe") == 0, 30, "the startup probe passes")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_the_service_works_on_it_as_a_user_that_can_do_no_more(
    embedded: Embedded, running: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    assert embedded.probe("readinessProbe") == embedded.probe("livenessProbe") == 0
    file = embedded.folder / "etc/redis/secret/password"
    flags = ("--redis-password-path", str(file))
    address = f"redis://discovery@127.0.0.1:{embedded.port}/0"
    replica = Replica(tmp_path, redis_url=address, flags=flags, lease=1, heartbeat=0.4).start()
    try:
        assert replica.post(pool("c1/n1/p1")).status == 200
        await_sign(lambda: replica.pools().complete, 20, "the list is complete")
        assert replica.delete("c1/n1/p1").status == 204
        assert "announcements are refused" not in replica.log
    finally:
        replica.close()
    with embedded.client("discovery", embedded.password) as service:
        for words in (["CONFIG", "GET", "*"], ["FLUSHALL"], ["SET", "of-somebody-else", "x"]):
            with pytest.raises(NoPermissionError):
                service.execute_command(*words)
        assert service.info("memory")["maxmemory"] == 384 << 20
        assert service.info("memory")["maxmemory_policy"] == "noeviction"


def test_nobody_else_can_do_anything(embedded: Embedded, running: "subprocess.Popen[bytes]") -> None:
    for user, password in (("default", embedded.password), ("discovery", "another"), (None, None)):
        with embedded.client(user, password) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
    with embedded.client("probe", "none") as probe:
        assert probe.ping()
        with pytest.raises(NoPermissionError):
            probe.get("{discovery}:revision")
    assert embedded.password not in Path(f"/proc/{running.pid}/cmdline").read_text()
    assert embedded.password not in Path(f"/proc/{running.pid}/environ").read_text()
    rules = embedded.folder / "run/redis/users.acl"
    assert embedded.password not in rules.read_text()
    assert rules.stat().st_mode & 0o077 == 0


def test_it_ends_with_0_at_sigterm(embedded: Embedded, running: "subprocess.Popen[bytes]") -> None:
    running.terminate()
    assert running.wait(20) == 0


def test_an_empty_password_is_refused_in_words(embedded: Embedded) -> None:
    process = embedded.start(b"\n")
    printed, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"the password of Redis is empty" in printed


def test_its_rights_are_those_of_the_readme(chart: Chart) -> None:
    container = chart.render(VALUES).one("StatefulSet", "redis")["spec"]["template"]["spec"]["containers"][0]
    rights = next(each["value"] for each in container["env"] if each["name"] == "RIGHTS")
    line = acl_lines()[0]
    assert rights.split() == line[line.index("-@all") + 1 :]


@pytest.mark.parametrize(
    ("limit", "line"),
    [("512Mi", "maxmemory 384mb"), ("2Gi", "maxmemory 1536mb"), ("500M", None), (None, None), (1073741824, None)],
)
def test_a_full_redis_refuses_before_it_is_killed(chart: Chart, limit: object, line: str | None) -> None:
    resources = {"limits": {"memory": limit}} if limit else None
    text = chart.render({"redis": {"embedded": {"resources": resources, "password": "x"}}}).one("ConfigMap", "redis")
    found = [each for each in text["data"]["redis.conf"].splitlines() if each.startswith("maxmemory ")]
    assert found == ([line] if line else [])


def test_its_volume_can_come_and_go_by_an_upgrade(chart: Chart) -> None:
    kept = {"enabled": True, "size": "2Gi", "storageClass": "-"}
    with_volume = chart.render({"redis": {"embedded": {"persistence": kept, "password": "x"}}})
    without = chart.render({"redis": {"embedded": {"password": "x"}}})
    claim = with_volume.one("PersistentVolumeClaim")
    assert claim["spec"]["storageClassName"] == ""
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert "appendonly yes" in with_volume.one("ConfigMap", "redis")["data"]["redis.conf"]
    assert without.all("PersistentVolumeClaim") == []
    fixed = [each.one("StatefulSet", "redis")["spec"] for each in (with_volume, without)]
    for spec in fixed:
        del spec["template"]
    assert fixed[0] == fixed[1]
