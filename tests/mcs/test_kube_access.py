"""How a cluster is reached and as whom: kubeconfigs, the pod's account, plugins, and everything that is rotated."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.config import incluster_config, kube_config

from discovery.errors import Misconfigured
from discovery.mcs.kube import ClusterConnection, Failure, SliceSource, open_contexts
from discovery.mcs.kube_access import InCluster
from tests.mcs.api_process import kubeconfig, write_kubeconfig
from tests.mcs.api_server import ApiServer
from tests.mcs.certificates import Authority
from tests.mcs.kube_feed import DEADLINES, PACE, a_slice, connect, eventually, watching

SECRET = "s3cret-t0ken"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(tokens=["A"]) as server:
        server.apply(a_slice("a"))
        yield server


async def listed(connection: ClusterConnection) -> list[str]:
    found = await SliceSource(connection, selector="", pace=PACE).list_all()
    return [one.metadata.name for one in found.slices]


# ---- tokens


async def test_f33_a_rotated_token_is_read_again_when_the_old_one_is_refused(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("A\n")
    connection = connect(server, tmp_path, tokenFile=str(file))
    source = SliceSource(connection, selector="", pace=PACE)
    async with watching(source) as told:
        await told.heard()
        file.write_text("B\n")
        server.tokens = {"B"}
        server.end_watches()
        await eventually(lambda: len(server.watches) == 1 and len(server.requests) == 4)
        server.apply(a_slice("b"))
        await told.applied("b")
    await connection.close()
    assert told.failing == []
    assert [(request.verb, request.status) for request in server.requests] == [
        ("list", 200),
        ("watch", 200),
        ("watch", 401),
        ("watch", 200),
    ]


async def test_f33_a_rotated_token_is_used_before_the_old_one_is_refused(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("A")
    connection = connect(server, tmp_path, DEADLINES._replace(credentials_secs=0), tokenFile=str(file))
    await listed(connection)
    file.write_text("B")
    server.tokens = {"A", "B"}
    await listed(connection)
    server.tokens = {"B"}
    assert await listed(connection) == ["a"]
    await connection.close()
    assert [request.status for request in server.requests] == [200, 200, 200]


async def test_files_are_not_read_for_every_request(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("A")
    connection = connect(server, tmp_path, DEADLINES, tokenFile=str(file))
    await listed(connection)
    file.write_text("wrong")
    assert await listed(connection) == ["a"]
    await connection.close()


async def test_a_token_that_stays_refused_is_tried_twice_and_told(server: ApiServer, tmp_path: Path) -> None:
    connection = connect(server, tmp_path, token=SECRET)
    with pytest.raises(Failure, match=r"does not accept the credentials \(401\)") as caught:
        await listed(connection)
    await connection.close()
    assert caught.value.kind == "denied"
    assert SECRET not in str(caught.value)
    assert [request.status for request in server.requests] == [401, 401]


async def test_a_token_file_that_is_missing_for_a_moment_does_no_harm(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("A")
    connection = connect(server, tmp_path, DEADLINES._replace(credentials_secs=0), tokenFile=str(file))
    await listed(connection)
    file.unlink()
    assert await listed(connection) == ["a"]
    await connection.close()


async def test_many_who_are_refused_at_once_read_once(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(server, tmp_path, token="A")
    reads = []
    real = connection._cluster.read

    async def read(**how: Any) -> Any:
        reads.append(how)
        await asyncio.sleep(0.05)
        return await real(**how)

    monkeypatch.setattr(connection._cluster, "read", read)
    await asyncio.gather(*(listed(connection) for _ in range(5)))
    assert len(reads) == 1
    await connection.close()


# ---- the pod's own account


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's files and variables, without an address yet."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("A\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(account / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    return account


async def test_in_a_pod_its_own_account_is_used(pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path, "ca")
    (pod / "ca.crt").write_bytes(authority.certificate.read_bytes())
    async with ApiServer(tokens=["A"], tls=authority.server_side("server")) as server:
        server.apply(a_slice("a"))
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        [connection] = open_contexts(None, ())
        assert connection.name == "in-cluster"
        assert await listed(connection) == ["a"]
        (pod / "token").write_text("B")
        server.tokens = {"B"}
        assert await listed(connection) == ["a"]
        await connection.close()


async def test_a_kubeconfig_that_is_given_is_used_in_a_pod_too(pod: Path, server: ApiServer, tmp_path: Path) -> None:
    (pod / "ca.crt").write_text("x")
    path = write_kubeconfig(tmp_path / "kubeconfig", east=(server.url, {"token": "A"}))
    assert [connection.name for connection in open_contexts(str(path), ())] == ["east"]


def test_an_account_that_cannot_be_used_is_named(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pod / "ca.crt").write_text("x")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(Misconfigured, match=r"the pod's service account cannot be used: Service host/port is not set$"):
        open_contexts(None, ())
    assert InCluster.name == "in-cluster"


# ---- credential plugins


def plugin(directory: Path, script: str) -> dict[str, Any]:
    """A user whose credentials a script prints; it counts its runs."""
    file = directory / "plugin"
    file.write_text(f"#!/bin/sh\necho run >> {directory}/runs\n{script}\n")
    file.chmod(0o755)
    said = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(file), "interactiveMode": "Never"}
    return {"exec": said}


def credential(token: str, expires: str | None = None) -> str:
    status = {"token": token} | ({"expirationTimestamp": expires} if expires else {})
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"echo '{json.dumps(said)}'"


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text().splitlines())


@pytest.mark.filterwarnings("ignore:.*utcnow:DeprecationWarning")  # in the client of Kubernetes, from Python 3.12 on
async def test_a_plugin_is_asked_again_only_when_its_credentials_ran_out_or_are_refused(
    server: ApiServer, tmp_path: Path
) -> None:
    connection = connect(
        server,
        tmp_path,
        DEADLINES._replace(credentials_secs=0),
        **plugin(tmp_path, credential("A", "2099-01-01T00:00:00Z")),
    )
    for _ in range(3):
        assert await listed(connection) == ["a"]
    assert runs(tmp_path) == 1

    plugin(tmp_path, credential("B", "2001-01-01T00:00:00Z"))
    server.tokens = {"B"}
    assert await listed(connection) == ["a"]
    assert runs(tmp_path) == 2

    plugin(tmp_path, credential("C", "2099-01-01T00:00:00Z"))
    server.tokens = {"C"}
    assert await listed(connection) == ["a"]
    assert runs(tmp_path) == 3
    await connection.close()
    assert [request.status for request in server.requests] == [200, 200, 200, 401, 200, 200]


@pytest.mark.parametrize(
    "script", [f"echo {SECRET} >&2; exit 1", f'echo \'{{"token": "{SECRET}"\'', f'echo \'{{"x": "{SECRET}"}}\'']
)
async def test_a_plugin_that_fails_is_named_without_what_it_wrote(
    server: ApiServer, tmp_path: Path, script: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(server, tmp_path, **plugin(tmp_path, script))
    with pytest.raises(Failure, match=r"its credential plugin .*/plugin gave no credentials: run it by hand") as caught:
        await listed(connection)
    await connection.close()
    assert caught.value.kind == "credentials"
    assert SECRET not in str(caught.value) + caplog.text
    assert server.requests == []


async def test_a_plugin_that_is_not_installed_is_named(server: ApiServer, tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}}
    connection = connect(server, tmp_path, **user)
    with pytest.raises(Failure, match="its credential plugin no-such-plugin gave no credentials"):
        await listed(connection)
    await connection.close()


# ---- certificates


async def test_a_server_that_an_unknown_authority_signed_is_not_trusted(tmp_path: Path) -> None:
    async with ApiServer(tls=Authority(tmp_path, "other").server_side("server")) as server:
        path = tmp_path / "kubeconfig"
        content = kubeconfig(east=server.url)
        content["clusters"][0]["cluster"]["certificate-authority"] = str(Authority(tmp_path, "ca").certificate)
        path.write_text(json.dumps(content))
        [connection] = open_contexts(str(path), ())
        with pytest.raises(Failure, match=r"cannot be trusted: .*certificate verify failed") as caught:
            await listed(connection)
        await connection.close()
    assert caught.value.kind == "tls"


async def test_rotated_certificates_are_read_again_and_open_watches_go_on(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    certificate, key = ours.sign("client")
    async with ApiServer(tls=theirs.server_side("server", clients=ours)) as server:
        server.apply(a_slice("a"))
        content = kubeconfig(east=(server.url, {"client-certificate": str(certificate), "client-key": str(key)}))
        content["clusters"][0]["cluster"]["certificate-authority"] = str(theirs.certificate)
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(content))
        [connection] = open_contexts(str(path), ())
        connection._deadlines = DEADLINES._replace(credentials_secs=0)
        async with watching(SliceSource(connection, selector="", pace=PACE)) as told:
            await told.heard()
            first = connection._transport
            await listed(connection)
            assert connection._transport is first
            ours.sign("client")
            assert await listed(connection) == ["a"]
            assert connection._transport is not first
            server.apply(a_slice("b"))
            await told.applied("b")
        assert told.failing == []
        assert [request.verb for request in server.requests].count("watch") == 1
        assert first is not None
        await eventually(lambda: first.rest.pool_manager.closed)

        # A new authority of the server's: what is open goes on, and new connections know it.
        await server.close()
        theirs = Authority(tmp_path, "theirs")
        server._tls = theirs.server_side("server", clients=ours)
        await server.start()
        assert await listed(connection) == ["a", "b"]
        await connection.close()


async def test_certificates_that_are_none_are_told(server: ApiServer, tmp_path: Path) -> None:
    content = kubeconfig(east="https://127.0.0.1:1")
    broken = tmp_path / "ca.crt"
    broken.write_text(f"-----BEGIN CERTIFICATE-----\n{SECRET}\n-----END CERTIFICATE-----\n")
    content["clusters"][0]["cluster"]["certificate-authority"] = str(broken)
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(content))
    [connection] = open_contexts(str(path), ())
    with pytest.raises(Failure, match="east: its certificates cannot be loaded: they are no certificates") as caught:
        await listed(connection)
    await connection.close()
    assert SECRET not in str(caught.value)


# ---- kubeconfigs


def test_contexts_come_in_the_order_given(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", east="http://e:1", west="http://w:1", north="http://n:1")
    assert [one.name for one in open_contexts(str(path), ("north", "east"))] == ["north", "east"]
    assert [one.name for one in open_contexts(str(path), ())] == ["east"]


def test_several_files_are_one(tmp_path: Path) -> None:
    east = write_kubeconfig(tmp_path / "a", east="http://e:1")
    west = write_kubeconfig(tmp_path / "b", west="http://w:1")
    paths = os.pathsep.join([str(east), str(tmp_path / "missing"), str(west)])
    assert [one.name for one in open_contexts(paths, ("west", "east"))] == ["west", "east"]


def test_without_a_file_given_it_is_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kubeconfig(tmp_path / "config", home="http://h:1")
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "none"))
    assert [one.name for one in open_contexts(None, ())] == ["home"]


def changed(**parts: Any) -> str:
    return json.dumps(kubeconfig(east=("https://e:1", {"token": SECRET})) | parts)


WRONG = [
    pytest.param(None, (), "there is no kubeconfig at .*/kubeconfig: give --kubeconfig", id="no-file"),
    pytest.param(f"a: [{SECRET}", (), "cannot be read: line 1 is not YAML", id="no-yaml"),
    pytest.param(f"x: {SECRET}\n\t- y", (), "cannot be read: line 2 is not YAML", id="tabs"),
    pytest.param(SECRET, (), "kubeconfig .* cannot be read: a part of it is missing", id="text"),
    pytest.param("", (), "kubeconfig .* cannot be read: a part of it is missing", id="empty"),
    pytest.param(changed(), ("wset",), "--kube-context wset: .* has no context 'wset'; it has east", id="no-context"),
    pytest.param(changed(**{"current-context": ""}), (), "no current context: choose .* from east", id="no-current"),
    pytest.param(changed(clusters=[]), (), "no cluster 'east-cluster'; it has none", id="no-cluster"),
    pytest.param(changed(users=[]), (), "no user 'east-user'; it has none", id="no-user"),
    pytest.param(
        changed(clusters=[{"name": "east-cluster", "cluster": {"server": "e:1"}}]),
        (),
        "cluster east-cluster of .* has no server URL",
        id="no-server",
    ),
    pytest.param(changed(clusters=[{"cluster": {}}]), (), "no cluster 'east-cluster'; it has None", id="no-name"),
    pytest.param(changed(contexts=None), ("east",), "has no context 'east'; it has none", id="no-contexts"),
    pytest.param(changed(users=[{"name": "east-user", "user": SECRET}]), (), "no user 'east-user'", id="odd-user"),
]


@pytest.mark.parametrize(("content", "contexts", "said"), WRONG)
def test_what_is_wrong_with_a_kubeconfig_is_one_line_without_secrets(
    tmp_path: Path, content: str | None, contexts: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Misconfigured, match=said) as caught:
        open_contexts(str(path), contexts)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


async def test_a_kubeconfig_that_breaks_later_is_told_without_secrets(server: ApiServer, tmp_path: Path) -> None:
    connection = connect(server, tmp_path, token=SECRET)
    (tmp_path / "kubeconfig").write_text(changed(contexts=[{"name": "east", "context": {"user": SECRET}}]))
    with pytest.raises(Failure) as caught:
        await listed(connection)
    await connection.close()
    assert caught.value.kind == "credentials"
    assert SECRET not in str(caught.value)


async def test_a_password_in_the_servers_url_is_never_shown(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", east=f"http://user:{SECRET}@127.0.0.1:9")
    [connection] = open_contexts(str(path), ())
    with pytest.raises(Failure, match=r"at 127.0.0.1:9 cannot be reached: Connection refused") as caught:
        await listed(connection)
    await connection.close()
    assert SECRET not in str(caught.value)
