"""TLS to servers, Sentinels and nodes of a Cluster: whom the service trusts, what it shows, and big answers."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from discovery.errors import Unavailable
from discovery.stores.redis.address import Access, open_address
from discovery.stores.redis.link import Line, pack
from tests.live.redis_cluster import RedisCluster
from tests.live.redis_server import RedisServer
from tests.live.sentinel_group import SentinelGroup
from tests.mcs.certificates import Authority

pytestmark = pytest.mark.live

# Whether the alert is read before the connection is reset is a matter of luck.
HANGS_UP = "alert certificate required|alert unknown ca|as where it wants a client certificate that it trusts"


class Files:
    """A private CA and a client's certificate; ``line`` uses them, or others where a test says so."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.authority = Authority(directory, name)
        self.certificate, self.key = self.authority.sign(f"client-of-{name}")

    def line(self, url: str, **changed: str | None) -> Line:
        files = {"tls_ca_path": str(self.authority.certificate)}
        files |= {"tls_cert_path": str(self.certificate), "tls_key_path": str(self.key)}
        access = Access(url=url, **(files | changed))
        return Line(open_address(access, prefix="discovery", timeout_secs=1.4), 1.4)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def server(files: Files, tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer("redis", tmp_path / "server", authority=files.authority)
    try:
        yield running.start()
    finally:
        running.close()


async def failure_of(line: Line) -> str:
    with pytest.raises(Unavailable) as caught:
        await line.call(pack("PING"))
    await line.close()
    return str(caught.value)


async def test_big_questions_and_answers_pass_and_a_cut_connection_is_replaced(
    files: Files, server: RedisServer
) -> None:
    line = files.line(server.url)
    assert await line.call(pack("SET", "big", b"x" * 5_000_000)) == [b"OK"]
    answers = await line.call(pack("GET", "big") * 5, 5)
    assert answers == [b"x" * 5_000_000] * 5
    assert server.client_kill("normal") >= 1
    assert await line.call(pack("GET", "big")) == [b"x" * 5_000_000]
    assert line.generation == 2
    await line.close()


async def test_who_is_not_trusted_or_not_let_in_is_said_in_words(
    files: Files, server: RedisServer, tmp_path: Path
) -> None:
    other = Files(tmp_path, "other-ca")
    foreign = {"tls_cert_path": str(other.certificate), "tls_key_path": str(other.key)}
    by_name = server.url.replace("127.0.0.1", "localhost")
    for line, said in (
        (files.line(server.url, tls_ca_path=None), "its certificate is not trusted"),
        (other.line(server.url), "its certificate is not trusted"),
        (files.line(by_name), "Hostname mismatch"),
        (files.line(server.url, tls_cert_path=None, tls_key_path=None), HANGS_UP),
        (files.line(server.url, **foreign), HANGS_UP),
    ):
        text = await failure_of(line)
        assert text.startswith("Redis at rediss://")
        assert re.search(said, text)
        assert "\n" not in text


async def test_files_are_read_for_each_connection_and_a_broken_one_is_named(
    files: Files, server: RedisServer, tmp_path: Path
) -> None:
    ca, key = tmp_path / "mounted-ca", tmp_path / "mounted-key"
    shutil.copy(files.authority.certificate, ca)
    shutil.copy(files.key, key)
    line = files.line(server.url, tls_ca_path=str(ca), tls_key_path=str(key))
    assert await line.call(pack("PING")) == [b"PONG"]
    ca.write_text("no PEM")
    line.reset("a test")
    assert f"the CA file {ca} cannot be used" in await failure_of(line)
    shutil.copy(files.authority.certificate, ca)
    encrypt = ["openssl", "ec", "-in", str(files.key), "-out", str(key), "-aes256", "-passout", "pass:x"]
    subprocess.run(encrypt, check=True, capture_output=True)
    line = files.line(server.url, tls_ca_path=str(ca), tls_key_path=str(key))
    assert f"the key {key} cannot be used" in await failure_of(line)
    key.unlink()
    line = files.line(server.url, tls_ca_path=str(ca), tls_key_path=str(key))
    assert f"the key {key} cannot be used: No such file or directory" in await failure_of(line)


async def test_sentinels_and_the_servers_that_they_name_are_reached_over_tls(files: Files, tmp_path: Path) -> None:
    group = SentinelGroup("redis", tmp_path / "group", sentinels=1, authority=files.authority)
    try:
        line = files.line(group.start().url)
        assert await line.call(pack("SET", "x", "1")) == [b"OK"]
        assert line.node == f"127.0.0.1:{group.master().tls_port}"
        assert re.search(HANGS_UP, await failure_of(files.line(group.url, tls_cert_path=None, tls_key_path=None)))
        await line.close()
    finally:
        group.close()


async def test_nodes_of_a_cluster_are_reached_over_tls(files: Files, tmp_path: Path) -> None:
    cluster = RedisCluster("redis", tmp_path / "cluster", masters=2, authority=files.authority)
    try:
        cluster.start()
        owner = cluster.owner()
        (other,) = (node for node in cluster.nodes if node is not owner)
        line = files.line(f"rediss+cluster://127.0.0.1:{other.tls_port}")
        assert await line.call(pack("SET", "{discovery}:x", "1")) == [b"OK"]
        assert line.node == f"127.0.0.1:{owner.tls_port}"
        cluster.move_slot(other)
        assert await line.call(pack("GET", "{discovery}:x")) == [b"1"]
        assert line.node == f"127.0.0.1:{other.tls_port}"
        await line.close()
    finally:
        cluster.close()
