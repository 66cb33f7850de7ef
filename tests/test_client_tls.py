"""The client library against https: whom it trusts, what it shows, renewed files, and what it says when it fails."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discovery.client import Client, NoAnswer
from discovery.errors import Misconfigured, Rejected
from discovery.http.certificates import Certificates, TlsFiles
from tests.http.sockets import App, served
from tests.live.signs import free_port
from tests.mcs.certificates import Authority, expired

Pair = tuple[Path, Path]


class Lists(App):
    """A service whose list is empty and complete."""

    async def pools(self, scope: Any, receive: Any, send: Any) -> None:
        await self.whole(send, b'{"complete":true,"pools":[]}')


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


def certificates(pair: Pair, clients: Authority | None = None) -> Certificates:
    return Certificates(TlsFiles(*map(str, pair), str(clients.certificate) if clients else None))


async def listed(url: str, **files: Any) -> bool:
    async with Client(url, **files) as client:
        return (await client.list()).complete


async def fault(url: str, **files: Any) -> str:
    with pytest.raises((NoAnswer, Rejected)) as caught:
        await listed(url, **files)
    return str(caught.value)


def shown(pair: Pair) -> dict[str, Path]:
    return {"cert_path": pair[0], "key_path": pair[1]}


async def test_a_private_ca_and_a_client_certificate(ours: Authority, theirs: Authority) -> None:
    with served(Lists(), certificates=certificates(ours.sign("server"), clients=theirs)) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert await listed(url, ca_path=ours.certificate, **shown(theirs.sign("client")))
        advice = (
            " (the client certificate that it wants is given by cert_path and key_path, or --cert-path and --key-path)"
        )
        said = f"{url} broke off: it refused the TLS handshake: "
        assert await fault(url, ca_path=ours.certificate) == f"{said}certificate required{advice}"
        foreign = shown(ours.sign("foreign"))
        assert await fault(url, ca_path=ours.certificate, **foreign) == f"{said}unknown ca{advice}"


async def test_f47_an_expired_certificate_is_named_as_such(ours: Authority, tmp_path: Path) -> None:
    """The service refuses to start with one, but other servers, and balancers before it, do not."""
    pair = expired(tmp_path / "expired")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        said = f"cannot connect to {url}: its certificate is not trusted: certificate has expired"
        assert await fault(url, ca_path=pair[0]) == said


async def test_who_is_not_trusted_and_why(ours: Authority, theirs: Authority) -> None:
    with served(Lists(), certificates=certificates(ours.sign("local", "DNS:localhost"))) as server:
        url = f"https://127.0.0.1:{server.port}"
        said = f"cannot connect to {url}: its certificate is not trusted: "
        mismatch = f"{said}IP address mismatch, certificate is not valid for '127.0.0.1'"
        assert await fault(url, ca_path=ours.certificate) == mismatch
        advice = " (ca_path, or --ca-path, names the CA to trust)"
        unknown = f"{said}unable to get local issuer certificate{advice}"
        assert await fault(url, ca_path=theirs.certificate) == unknown
        assert await fault(url) == unknown


async def test_each_address_of_a_name_is_held_to_that_name(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(socket.AF_INET, 1, 6, "", (f"127.0.0.{number}", 0)) for number in (2, 1, 3)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found, raising=False)
    with served(Lists(), certificates=certificates(ours.sign("named", "DNS:discovery.test"))) as server:
        assert await listed(f"https://discovery.test:{server.port}", ca_path=ours.certificate)
        mismatch = "certificate is not valid for 'another.test'"
        assert mismatch in await fault(f"https://another.test:{server.port}", ca_path=ours.certificate)


async def test_http_and_https_taken_for_each_other(ours: Authority) -> None:
    with served(Lists()) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert await fault(url) == f"cannot connect to {url}: it speaks no TLS: use http://"
    with served(Lists(), certificates=certificates(ours.sign("server"))) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert await fault(url) == f"{url} answered 400: This port speaks TLS: use https://."


async def test_nobody_listens(ours: Authority) -> None:
    url = f"https://127.0.0.1:{free_port()}"
    assert await fault(url, ca_path=ours.certificate) == f"cannot connect to {url}: Connection refused"


async def test_renewed_files_are_used_by_a_client_that_lives_on(
    ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    """A router lives longer than its certificate; while the new key is not there yet the old pair does."""
    files = {name: tmp_path / name for name in ("ca", "cert", "key")}
    copy: Callable[[Path, Path], object] = shutil.copy
    old, new = ours.sign("old-client"), theirs.sign("new-client")
    for name, path in zip(files, (ours.certificate, *old), strict=True):
        copy(path, files[name])
    paths = {f"{name}_path": path for name, path in files.items()}
    before = certificates(ours.sign("before"), clients=ours)
    after = certificates(theirs.sign("after"), clients=theirs)
    with served(Lists(), certificates=before) as first, served(Lists(), certificates=after) as second:
        urls = [f"https://127.0.0.1:{server.port}" for server in (first, second)]
        async with Client(urls[0], **paths) as one, Client(urls[1], **paths) as other:  # type: ignore[arg-type]
            assert (await one.list()).complete
            with pytest.raises(NoAnswer):
                await other.list()
            copy(new[0], files["cert"])
            one._connections.renew()  # the next request needs a new connection
            assert (await one.list()).complete
            copy(new[1], files["key"])
            copy(theirs.certificate, files["ca"])
            assert (await other.list()).complete
            with pytest.raises(NoAnswer):
                await one.list()


def test_what_cannot_be_used_is_refused_before_anybody_is_asked(ours: Authority, tmp_path: Path) -> None:
    certificate, key = ours.sign("client")
    url, plain = "https://127.0.0.1:1", "http://127.0.0.1:1"
    empty = tmp_path / "empty"
    empty.touch()
    other = ours.sign("other")[1]
    no_pem = "it is no PEM, or the key is encrypted ("
    for asked, files, said in (
        (url, {"cert_path": certificate}, "a client certificate needs both its file and that of its key"),
        (url, {"ca_path": "/none"}, "the CA file /none cannot be used: No such file or directory"),
        (url, {"ca_path": empty}, f"the CA file {empty} cannot be used: {no_pem}"),
        (url, {"cert_path": certificate, "key_path": other},
         f"the certificate {certificate} with the key {other} cannot be used: they do not belong together"),
        (url, {"cert_path": empty, "key_path": key},
         f"the certificate {empty} with the key {key} cannot be used: {no_pem}"),
        (plain, {"ca_path": ours.certificate},
         "a CA or client certificate was given, but no URL of the service begins with https://"),
    ):  # fmt: skip
        with pytest.raises(Misconfigured) as caught:
            Client(asked, **files)  # type: ignore[arg-type]
        assert str(caught.value).startswith(said)
