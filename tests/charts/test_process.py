"""Render, then run: the program serves with exactly the words, variables and files of a rendered pod."""

import contextlib
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.charts.program import Program, program_of
from tests.charts.rendered import Chart, Rendered
from tests.live.dynamodb_server import CREDENTIALS, REGION, DynamoDBServer
from tests.live.redis_server import RedisServer
from tests.live.signs import await_sign, free_port
from tests.mcs.certificates import Authority

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

PASSWORD = "of a mounted Secret"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer("redis", tmp_path / "redis").start()
    server.cli("ACL", "SETUSER", "discovery", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    yield server
    server.stop()


@contextmanager
def running(program: Program, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The program with nothing of this environment but what Python itself needs."""
    assert program.words[0] == "discovery"
    own = {name: text for name, text in os.environ.items() if name in ("PATH", "HOME") or name.startswith("COVERAGE")}
    words = [sys.executable, "-m", "discovery", *program.words[1:]]
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=own | program.variables, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


def port_of(rendered: Rendered, name: str) -> int:
    """The number of a port of the container, as the Service would find it."""
    service = rendered.one("Service", "server")
    assert name in [port["targetPort"] for port in service["spec"]["ports"]] or name == "health"
    return next(port["containerPort"] for port in rendered.container["ports"] if port["name"] == name)


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionError:
        return 0, ""
    finally:
        connection.close()


def post(port: int, pool: dict[str, str]) -> int:
    """The status of a registration."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("POST", "/pools", json.dumps(pool), {"Content-Type": "application/json"})
        return connection.getresponse().status


def probed(rendered: Rendered, probe: str) -> int:
    """What a probe of the container gets."""
    asked: dict[str, Any] = rendered.container[probe]["httpGet"]
    return get(port_of(rendered, asked["port"]), asked["path"])[0]


def helm_test(rendered: Rendered) -> int:
    """Run what the pod of ``helm test`` runs, with the address of the program in place of that of the Service."""
    (pod,) = rendered.hooks
    (container,) = pod["spec"]["containers"]
    python, *words = [*container["command"], *container.get("args", ())]
    assert python == "python"
    service = "http://discovery.prod.svc:8080"
    assert service in words
    words[words.index(service)] = f"http://127.0.0.1:{port_of(rendered, 'http')}"
    return subprocess.run([sys.executable, "-I", *words], timeout=60, check=False).returncode


def test_the_program_serves_with_what_is_rendered(chart: Chart, redis: RedisServer, tmp_path: Path) -> None:
    """A password from a mounted Secret, a health port, settings of every kind; asked as probes and the Service ask."""
    rendered = chart.render(
        {
            "listen": {"port": free_port()},
            "healthListen": {"enabled": True, "port": free_port()},
            "redis": {
                "url": f"redis://discovery@127.0.0.1:{redis.port}/3",
                "existingSecret": "redis",
                "existingSecretPasswordKey": "redis-password",
                "prefix": "of-the-chart",
            },
            "router": {"static": [{"id": "router-0", "url": "http://10.0.1.5:9000"}]},
            "config": {"drainDelaySecs": 0, "leaseDurationSecs": 86400, "maxBodyBytes": 1048576},
        }
    )
    program = program_of(rendered, tmp_path / "pod", {"redis": {"redis-password": PASSWORD}})
    log = tmp_path / "log"
    with running(program, log):
        await_sign(lambda: probed(rendered, "readinessProbe") == 200, 30, f"ready; {log.read_text()}")
        assert probed(rendered, "livenessProbe") == probed(rendered, "startupProbe") == 200
        assert get(port_of(rendered, "http"), "/pools")[0] == 200
        assert helm_test(rendered) == 0
        status, routers = get(port_of(rendered, "http"), "/routers")
        assert (status, json.loads(routers)["routers"]) == (200, [{"id": "router-0", "url": "http://10.0.1.5:9000"}])
    lines = log.read_text().splitlines()
    assert all(json.loads(line) for line in lines), "logFormat json is the chart's default"
    assert not [line for line in lines if "unknown" in line]
    assert redis.database(3).keys("{of-the-chart}:*")


def test_it_serves_from_a_table_with_keys_of_a_secret(chart: Chart, tmp_path: Path) -> None:
    """DynamoDB by its values, credentials by variables of the pod; what one pod is told the next one lists."""
    server = DynamoDBServer(tmp_path / "dynamodb").start()
    table = server.table()
    keys = [{"name": name, "valueFrom": {"secretKeyRef": {"name": "aws", "key": name.lower()}}} for name in CREDENTIALS]
    rendered = chart.render(
        {
            "listen": {"port": free_port()},
            "registrationStorage": "dynamodb",
            "dynamodb": {"table": table.name, "region": REGION, "endpointUrl": server.url},
            "extraEnv": keys,
            "config": {"drainDelaySecs": 0},
        }
    )
    secrets = {"aws": {name.lower(): text for name, text in CREDENTIALS.items()}}
    program, log = program_of(rendered, tmp_path / "pod", secrets), tmp_path / "log"
    try:
        with running(program, log):
            await_sign(lambda: probed(rendered, "readinessProbe") == 200, 30, f"ready; {log.read_text()}")
            assert helm_test(rendered) == 0
            pool = {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p1", "model": "m"}
            assert post(port_of(rendered, "http"), pool) == 200
            status, metrics = get(port_of(rendered, "http"), "/metrics")
            assert status == 200
            (units,) = re.findall(r"^discovery_dynamodb_read_units_total (\S+)$", metrics, re.MULTILINE)
            assert float(units) > 0
            assert "discovery_store_revision" not in metrics, "a table counts no changes"
        (item,) = table.scan()
        assert item["sk"] == {"S": "c1#n1#p1"}
        with running(program, log):
            await_sign(lambda: probed(rendered, "readinessProbe") == 200, 30, f"ready; {log.read_text()}")
            listed = json.loads(get(port_of(rendered, "http"), "/pools")[1])["pools"]
            assert [each["dgd_name"] for each in listed] == ["p1"]
    finally:
        table.close()
        server.close()


def get_securely(port: int, context: ssl.SSLContext) -> int:
    """The status of the lists by https; 0 where the handshake is refused."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/pools")
            return connection.getresponse().status
        except (ssl.SSLError, ConnectionError):
            return 0


def test_with_certificates_for_clients_probes_ask_the_other_port(chart: Chart, tmp_path: Path) -> None:
    """Certificate, key and client CA from Secrets as they are mounted."""
    authority = Authority(tmp_path, "ours")
    (certificate, key), client = authority.sign("server"), authority.sign("client")
    rendered = chart.render(
        {
            "listen": {"port": free_port()},
            "healthListen": {"port": free_port()},
            "replicaCount": 1,
            "registrationStorage": "memory",
            "tls": {"enabled": True, "existingSecret": "discovery-tls", "clientCaSecret": "clients"},
            "config": {"drainDelaySecs": 0},
        }
    )
    secrets = {
        "discovery-tls": {"tls.crt": certificate.read_text(), "tls.key": key.read_text()},
        "clients": {"ca.crt": authority.certificate.read_text()},
    }
    log = tmp_path / "log"
    with running(program_of(rendered, tmp_path / "pod", secrets), log):
        await_sign(lambda: probed(rendered, "readinessProbe") == 200, 30, f"ready; {log.read_text()}")
        assert probed(rendered, "livenessProbe") == probed(rendered, "startupProbe") == 200
        nobody = ssl.create_default_context(cafile=str(authority.certificate))
        known = ssl.create_default_context(cafile=str(authority.certificate))
        known.load_cert_chain(*client)
        assert get_securely(port_of(rendered, "http"), nobody) == 0
        await_sign(lambda: get_securely(port_of(rendered, "http"), known) == 200, 30, "the list")
