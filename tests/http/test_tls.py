"""The server over TLS, on real sockets: handshakes and bounds, big answers, renewed files, client certificates."""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from discovery.errors import Misconfigured
from discovery.http.certificates import Certificates, TlsFiles
from discovery.http.tls import TlsConnection
from tests.http.sockets import App, Peer, Served, eventually, served
from tests.mcs.certificates import Authority, expired

CLIENT_HELLO_BEGINS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


class Mount:
    """A directory as Kubernetes mounts a Secret: files are links through ``..data``, which is swapped at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._generation = 0
        directory.mkdir()

    def show(self, **files: Path) -> None:
        """From now on these files, ``tls_crt`` as ``tls.crt``; none is ever half there."""
        self._generation += 1
        generation = self.directory / f"..{self._generation}"
        generation.mkdir()
        for name, path in files.items():
            shutil.copy(path, generation / name.replace("_", "."))
        link = self.directory / "..new"
        link.symlink_to(generation.name)
        link.rename(self.directory / "..data")
        for name in (file.replace("_", ".") for file in files):
            with contextlib.suppress(FileExistsError):
                (self.directory / name).symlink_to(f"..data/{name}")

    @property
    def files(self) -> TlsFiles:
        ca = self.directory / "ca.crt"
        paths = str(self.directory / "tls.crt"), str(self.directory / "tls.key")
        return TlsFiles(*paths, str(ca) if ca.is_symlink() else None)


class Material:
    """Authorities and what they signed, made once for all tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory, "ours")
        self.other_authority = Authority(directory, "theirs")
        self.first = self.authority.sign("first")
        self.second = self.authority.sign("second")
        self.client = self.authority.sign("client")
        self.other_client = self.other_authority.sign("other-client")
        self.both = directory / "both.crt"
        self.both.write_bytes(self.authority.certificate.read_bytes() + self.other_authority.certificate.read_bytes())
        self.expired = expired(directory / "expired")

    def encrypted(self) -> Path:
        path = self.directory / "encrypted.key"
        command = ["openssl", "pkey", "-in", str(self.first[1]), "-aes256", "-passout", "pass:x", "-out", str(path)]
        subprocess.run(command, check=True, timeout=30)
        return path


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def mount(tmp_path: Path, material: Material) -> Mount:
    mount = Mount(tmp_path / "mount")
    mount.show(tls_crt=material.first[0], tls_key=material.first[1])
    return mount


class Trust:
    """A client's side of TLS."""

    def __init__(self, material: Material, client: tuple[Path, Path] | None = None) -> None:
        self.context = ssl.create_default_context(cafile=str(material.authority.certificate))
        if client is not None:
            self.context.load_cert_chain(*client)


class TlsPeer(Peer):
    """A client that speaks TLS and says and reads exactly what it is told to."""

    socket: ssl.SSLSocket

    def __init__(self, port: int, trust: Trust, session: ssl.SSLSession | None = None, **options: Any) -> None:
        super().__init__(port, **options)
        plain = self.socket
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket = trust.context.wrap_socket(
                plain, server_hostname="127.0.0.1", session=session, suppress_ragged_eofs=False
            )
        except BaseException:
            plain.close()
            raise

    @property
    def subject(self) -> str:
        """Whom the server's certificate names."""
        (((_, name),),) = self.socket.getpeercert()["subject"]  # type: ignore[index, misc]
        return str(name)

    def ended_how(self) -> str:
        """``clean`` with a TLS end, ``cut`` without; fails when it stays open."""
        try:
            while self.socket.recv(65536):
                pass
        except (ssl.SSLEOFError, ConnectionError):
            return "cut"
        return "clean"


@contextlib.contextmanager
def secured(files: TlsFiles, app: App | None = None, **limits: Any) -> Iterator[Served]:
    with served(app, certificates=Certificates(files), **limits) as server:
        yield server


def look(server: Served) -> None:
    """What happens once a second, now."""
    certificates = server.server._certificates
    assert certificates is not None
    server.ask(certificates.look)


def texts(caplog: pytest.LogCaptureFixture, what: str = "discovery.http.certificates") -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == what]


# ---- what goes through


def test_requests_are_answered_one_after_the_other(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as peer:
        for _ in range(3):
            peer.get("/ok")
            assert peer.answer().body == b"ok"
        assert peer.subject == "first"
        assert peer.socket.version() == "TLSv1.3"
        body = b"x" * 60_000
        peer.post("/echo", body)
        assert peer.answer().body == body
        peer.send(b"".join(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n" for _ in range(5)))
        assert [peer.answer().body for _ in range(5)] == [b"ok"] * 5


def test_a_body_that_comes_byte_by_byte_in_records_of_its_own(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as peer:
        peer.post("/echo", b"", length=20)
        for _ in range(20):
            peer.send(b"y")
        assert peer.answer().body == b"y" * 20


@pytest.mark.parametrize(
    ("version", "spoken"),
    [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_1, None)],
)
def test_tls_before_1_2_is_refused(
    material: Material, mount: Mount, version: ssl.TLSVersion, spoken: str | None
) -> None:
    trust = Trust(material)
    with pytest.warns(DeprecationWarning, match="TLSv1_1") if spoken is None else contextlib.nullcontext():
        trust.context.minimum_version = trust.context.maximum_version = version
    if spoken is None:
        trust.context.set_ciphers("DEFAULT:@SECLEVEL=0")
    trust.context.set_alpn_protocols(["h2", "http/1.1"])
    with secured(mount.files) as server:
        if spoken is None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                TlsPeer(server.port, trust)
            assert server.server.failed_handshakes == 1
            return
        with TlsPeer(server.port, trust) as peer:
            assert (peer.socket.version(), peer.socket.selected_alpn_protocol()) == (spoken, "http/1.1")
            peer.get("/ok")
            assert peer.answer().body == b"ok"


def test_a_stream_gets_its_events_and_a_clean_end(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as peer:
        peer.get("/stream")
        peer.read_until(b"data: first\n\n")
        eventually(lambda: server.app.streams, "the stream")
        server.write(b"data: second\n\n")
        peer.read_until(b"data: second\n\n")
        peer.socket.close()
        eventually(lambda: server.app.disconnected == ["stream"], "the end of the stream")
        eventually(lambda: server.server.connections == 0, "no connection")


def test_close_says_so_in_tls_and_waits_for_nobody(material: Material, mount: Mount) -> None:
    """The client never answers the end with an end of its own, as pooled clients that look away."""
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as peer:
        peer.get("/ok", "Connection: close")
        assert peer.answer().body == b"ok"
        eventually(lambda: server.server.connections == 0, "closed without a word of the client")
        assert peer.ended_how() == "clean"


def test_idle_connections_do_not_hold_up_the_stop(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as idle:
        idle.get("/ok")
        idle.answer()
        with Peer(server.port) as silent, Peer(server.port) as shaking:
            shaking.send(CLIENT_HELLO_BEGINS)
            eventually(lambda: server.server.connections == 3, "three connections")
            began = time.monotonic()
            server.ask(lambda: server.server.stop(60))
            assert time.monotonic() - began < 30
            assert idle.ended_how() == "clean"
            assert silent.ended() == shaking.ended() == b""


def test_a_request_in_flight_at_the_stop_is_answered(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as peer:
        peer.get("/park")
        eventually(lambda: server.server.in_flight == 1, "the request")
        stop = asyncio.run_coroutine_threadsafe(server.server.stop(20), server._loop)
        eventually(lambda: not server.server._server.is_serving(), "the stop")
        server.app.release.set()
        assert peer.answer().body == b"released"
        assert peer.ended_how() == "clean"
        stop.result(20)


# ---- bounds


def only_connection(server: Served) -> TlsConnection:
    (connection,) = server.server._shared.connections
    transport = connection.transport
    assert isinstance(transport, TlsConnection)
    return transport


def test_a_big_answer_to_a_slow_reader_is_encrypted_piece_by_piece(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material), receive_buffer=4096) as peer:
        peer.get("/big")
        eventually(lambda: server.server._shared.unflushed, "an answer that is not taken")
        connection = only_connection(server)
        encrypted, left = server.call(
            lambda: (connection.transport.get_write_buffer_size(), connection.get_write_buffer_size())
        )
        assert encrypted < 400_000
        assert left > server.app.answer_bytes - 6_000_000  # the kernel takes some
        assert encrypted < left
        assert peer.answer().body == b"b" * server.app.answer_bytes
        peer.get("/ok")
        assert peer.answer().body == b"ok"


def test_a_big_last_answer_is_whole_before_the_end(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material), receive_buffer=4096) as peer:
        peer.get("/big", "Connection: close")
        eventually(lambda: server.server._shared.unflushed, "an answer that is not taken")
        assert peer.answer().body == b"b" * server.app.answer_bytes
        assert peer.ended_how() == "clean"


def test_f05_a_peer_that_reads_nothing_is_cut_off(material: Material, mount: Mount) -> None:
    with secured(mount.files, write_stall_timeout_secs=0.3) as server:
        for path in ("/big", "/torrent"):
            with TlsPeer(server.port, Trust(material), receive_buffer=4096) as peer:
                peer.get(path)
                eventually(lambda: server.server._shared.unflushed, "an answer that is not taken")
                eventually(lambda: server.server.connections == 0, "its end")
                assert peer.ended_how() == "cut"
        eventually(lambda: server.server.in_flight == 0, "no request")


@pytest.mark.parametrize("sent", [b"", CLIENT_HELLO_BEGINS], ids=["silent", "in the middle of its first message"])
def test_a_handshake_has_a_deadline(mount: Mount, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with secured(mount.files, handshake_timeout_secs=0.2, request_timeout_secs=60) as server, Peer(server.port) as peer:
        peer.send(sent)
        eventually(lambda: server.server.connections == 1, "it counts as a connection")
        assert peer.ended() == b""
        eventually(lambda: server.server.connections == 0, "no connection")
        assert server.server.failed_handshakes == (1 if sent else 0)
    said = "a TLS handshake failed: it was not done within 0.2 seconds (1 since the start)"
    assert texts(caplog, "discovery.http.peers") == ([said] if sent else [])


class Wire(Peer):
    """A client that sees what goes over the wire, and decrypts it by hand."""

    def __init__(self, port: int, material: Material) -> None:
        super().__init__(port)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        trust = Trust(material).context
        self.tls = trust.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.received_bytes = 0

    def begin(self) -> bytes:
        """The first message of a handshake."""
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def receive(self) -> None:
        data = self.socket.recv(65536)
        assert data
        self.received_bytes += len(data)
        self.incoming.write(data)

    def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.send(self.outgoing.read())
                self.receive()
            else:
                self.send(self.outgoing.read())
                return

    def say(self, data: bytes) -> None:
        self.tls.write(data)
        self.send(self.outgoing.read())

    def hear(self, sign: bytes) -> bytes:
        """What comes up to the sign, decrypted."""
        heard = b""
        while sign not in heard:
            try:
                heard += self.tls.read(65536)
            except ssl.SSLWantReadError:
                self.receive()
        return heard


def test_a_first_message_in_pieces_is_taken_and_costs_nothing_before_it_is_whole(
    material: Material, mount: Mount
) -> None:
    with secured(mount.files) as server, Wire(server.port, material) as peer:
        hello = peer.begin()
        for piece in (hello[:1], hello[1:4], hello[4:-1]):
            peer.send(piece)
            eventually(lambda: server.server.connections == 1, "a connection")
        (connection,) = server.call(lambda: list(server.server._shared.connections))
        assert isinstance(connection, TlsConnection)
        eventually(lambda: len(connection._hello) == len(hello) - 1, "all but the last byte")
        assert connection._tls is None
        peer.send(hello[-1:])
        peer.receive()
        peer.shake_hands()
        peer.say(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n")
        assert peer.hear(b"ok").endswith(b"\r\n\r\nok")


def test_many_small_pieces_travel_together(material: Material, mount: Mount) -> None:
    """A record for each would be three times the bytes."""
    with secured(mount.files) as server, Wire(server.port, material) as peer:
        peer.shake_hands()
        peer.say(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        peer.hear(b"data: first\n\n")
        before = peer.received_bytes
        pieces = [b"event %06d\n" % number for number in range(10_000)]
        server.call(lambda: only_connection(server).writelines([*pieces, b"", b"x" * 200_000, b"end"]))
        assert peer.hear(b"end") == b"".join(pieces) + b"x" * 200_000 + b"end"
        assert peer.received_bytes - before < 1.02 * (13 * len(pieces) + 200_000)


def test_a_handshake_that_trickles_is_no_excuse(mount: Mount) -> None:
    with secured(mount.files, handshake_timeout_secs=0.3) as server, Peer(server.port) as peer:
        peer.send(CLIENT_HELLO_BEGINS)
        peer.drip(b"\0")
        assert peer.ended() == b""
        assert server.server.failed_handshakes == 1


def test_after_the_handshake_the_deadlines_of_requests_begin(material: Material, mount: Mount) -> None:
    with (
        secured(mount.files, handshake_timeout_secs=0.2, request_timeout_secs=1) as server,
        TlsPeer(server.port, Trust(material)) as peer,
    ):
        peer.send(b"GET /ok HTTP/1.1\r\n")
        answer = peer.answer()
        assert (answer.status, peer.ended_how()) == (408, "clean")
        assert peer.age > 0.9
        assert server.server.failed_handshakes == 0


def test_peers_in_their_handshake_count_against_the_limit(material: Material, mount: Mount) -> None:
    with secured(mount.files, max_connections=2) as server, Peer(server.port) as silent, Peer(server.port):
        eventually(lambda: server.server.connections == 2, "two connections")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsPeer(server.port, Trust(material))
        assert server.server.turned_away == 1
        silent.socket.close()
        eventually(lambda: server.server.connections == 1, "one connection")
        with TlsPeer(server.port, Trust(material)) as peer:  # its handshake and its requests are one connection
            peer.get("/ok")
            assert peer.answer().body == b"ok"
            assert server.server.connections == 2


@contextlib.contextmanager
def held(server: Served) -> Iterator[None]:
    """The server's loop stands still: what is sent meanwhile arrives in one read."""
    go_on = threading.Event()
    server._loop.call_soon_threadsafe(go_on.wait, 20)
    try:
        yield
    finally:
        go_on.set()


def test_what_was_received_before_reading_stopped_is_not_forgotten(material: Material, mount: Mount) -> None:
    """Requests behind a parked one wait, in records that were received together with it."""
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as peer:
        peer.get("/ok")
        peer.answer()
        with held(server):
            peer.get("/park")
            for _ in range(3):
                peer.post("/echo", b"z" * 20_000)
        eventually(lambda: server.server.in_flight == 1, "the parked request")
        server.app.release.set()
        assert [peer.answer().body for _ in range(4)] == [b"released", *[b"z" * 20_000] * 3]


def test_records_are_decrypted_no_faster_than_requests_are_answered(material: Material, mount: Mount) -> None:
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as peer:
        peer.get("/ok")
        peer.answer()
        with held(server):
            peer.get("/park")
            for _ in range(20):
                peer.get("/ok")
        eventually(lambda: server.server.in_flight == 1, "the parked request")
        server.app.release.set()
        assert [peer.answer().status for _ in range(21)] == [201] + [200] * 20


# ---- misunderstandings


def test_plain_http_on_the_port_is_told_to_use_https(mount: Mount) -> None:
    with secured(mount.files) as server, Peer(server.port) as peer:
        peer.get("/ok")
        answer = peer.answer()
        assert (answer.status, answer.problem["detail"]) == (400, "This port speaks TLS: use https://.")
        assert peer.ended() == b""
        assert server.app.started == []
        assert server.server.failed_handshakes == 0


def test_tls_on_a_plain_port_is_told_to_use_http(material: Material) -> None:
    with served() as server:
        with Peer(server.port) as peer:
            peer.send(CLIENT_HELLO_BEGINS + bytes(512))
            assert peer.answer().problem["detail"] == "This port speaks plain HTTP: use http://."
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsPeer(server.port, Trust(material))


def test_broken_handshakes_leave_no_traceback(
    material: Material, mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    distrust = Trust(material)
    distrust.context = ssl.create_default_context()
    with secured(mount.files) as server:
        with Peer(server.port) as peer:
            peer.send(CLIENT_HELLO_BEGINS)
            eventually(lambda: server.server.connections == 1, "the first peer")
        with Peer(server.port) as peer:
            peer.send(b"\x16" + b"\xff" * 2000)
            peer.ended()
        with pytest.raises(ssl.SSLCertVerificationError):
            TlsPeer(server.port, distrust)
        with TlsPeer(server.port, Trust(material)) as peer:
            peer.get("/ok")
            peer.answer()
            # Not of this connection's keys, in the middle of it.
            os.write(peer.socket.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
            assert peer.ended_how() == "cut"
        eventually(lambda: server.server.failed_handshakes == 3, "three failures")
        eventually(lambda: server.server.connections == 0, "no connection")
    assert [record for record in caplog.records if record.levelno > logging.INFO or record.exc_info] == []
    (said,) = texts(caplog, "discovery.http.peers")
    assert said == "a TLS handshake failed: the client hung up (1 since the start)"


# ---- renewed files


def subject_now(server: Served, material: Material) -> str:
    with TlsPeer(server.port, Trust(material)) as peer:
        peer.get("/ok")
        assert peer.answer().body == b"ok"
        return peer.subject


def test_f47_a_renewed_pair_is_shown_to_new_connections_and_open_ones_go_on(
    material: Material, mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with secured(mount.files) as server, TlsPeer(server.port, Trust(material)) as before:
        before.get("/stream")
        before.read_until(b"data: first\n\n")
        mount.show(tls_crt=material.second[0], tls_key=material.second[1])
        assert subject_now(server, material) == "first"
        look(server)
        assert subject_now(server, material) == "second"
        eventually(lambda: server.app.streams, "the stream")
        server.write(b"data: still there\n\n")
        before.read_until(b"data: still there\n\n")
        look(server)
    (said,) = texts(caplog)
    assert said.startswith("uses the certificate that ends on 20")


def test_f47_a_certificate_written_before_its_key_is_not_used_until_both_are_there(
    material: Material, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificate, key = (Path(shutil.copy(path, tmp_path)) for path in material.first)
    refused: list[int] = []
    certificates = Certificates(TlsFiles(str(certificate), str(key)), on_refused=lambda: refused.append(1))
    with served(certificates=certificates) as server:
        shutil.copy(material.second[0], certificate)
        for _ in range(3):
            look(server)
            assert subject_now(server, material) == "first"
        shutil.copy(material.second[1], key)
        look(server)
        assert subject_now(server, material) == "second"
    broken, taken, healed = texts(caplog)
    assert broken == (
        "renewed certificate files are not used, those before stay in use: "
        f"the key {key} does not belong to the certificate {certificate}"
    )
    assert taken.startswith("uses the certificate that ends on ")
    assert healed == "the certificate files can be used again"
    assert len(refused) == 1


BROKEN = ["empty", "missing", "cut", "expired", "encrypted", "no PEM"]


@pytest.mark.parametrize("how", BROKEN)
def test_f47_a_broken_renewal_leaves_the_old_pair_in_use(
    material: Material, mount: Mount, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    odd = tmp_path / "odd"
    whole = material.second[0].read_bytes()
    odd.write_bytes({"cut": whole[:-40], "no PEM": b"\x30\x82"}.get(how, b""))
    broken = {
        "expired": {"tls_crt": material.expired[0], "tls_key": material.expired[1]},
        "encrypted": {"tls_crt": material.first[0], "tls_key": material.encrypted()},
        "missing": {"tls_key": material.second[1]},
    }.get(how, {"tls_crt": odd, "tls_key": material.second[1]})
    with secured(mount.files) as server:
        mount.show(**broken)
        look(server)
        look(server)
        assert subject_now(server, material) == "first"
        assert len(texts(caplog)) == 1
        mount.show(tls_crt=material.second[0], tls_key=material.second[1])
        look(server)
        assert subject_now(server, material) == "second"
    reasons = {
        "empty": "tls.crt is empty",
        "missing": "tls.crt cannot be read: No such file or directory",
        "cut": "cannot be used: ",
        "expired": "tls.crt expired on 20",
        "encrypted": "tls.key is encrypted: give it without a passphrase",
        "no PEM": "tls.crt holds no certificate in PEM form",
    }
    assert reasons[how] in texts(caplog)[0]


def test_files_that_change_while_they_are_read_are_read_again(
    material: Material, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap comes right after the new files were loaded: what was loaded is left, and the next look takes all."""
    from discovery.http import certificates

    load = certificates._load
    with secured(mount.files) as server:
        mount.show(tls_crt=material.second[0], tls_key=material.second[1])

        def load_and_swap(files: TlsFiles) -> Any:
            loaded = load(files)
            mount.show(tls_crt=material.first[0], tls_key=material.first[1])
            return loaded

        monkeypatch.setattr(certificates, "_load", load_and_swap)
        look(server)
        monkeypatch.undo()
        assert subject_now(server, material) == "first"
        mount.show(tls_crt=material.second[0], tls_key=material.second[1])
        look(server)
        assert subject_now(server, material) == "second"


def test_a_certificate_that_ends_while_it_is_used_is_told_of_once(
    material: Material, mount: Mount, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    certificates = Certificates(mount.files)
    assert time.time() < certificates.not_after < time.time() + 3 * 86400
    later = certificates.not_after + 1
    monkeypatch.setattr(time, "time", lambda: later)
    for _ in range(3):
        asyncio.run(certificates.look())
    (said,) = texts(caplog)
    assert said.startswith(f"the certificate {mount.files.certificate} expired on 20")
    assert said.endswith(": clients will refuse it")


# ---- what does not start


def test_what_cannot_be_used_is_refused_at_the_start_in_one_line(material: Material, tmp_path: Path) -> None:
    certificate, key = map(str, material.first)
    ca = str(material.authority.certificate)
    empty, garbage = tmp_path / "empty", tmp_path / "garbage"
    empty.write_bytes(b"")
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    encrypted, other = str(material.encrypted()), str(material.second[1])
    both = f"the certificate {garbage} with the key {key}"
    for files, said in (
        (TlsFiles("/none", key), "the certificate /none cannot be read: No such file or directory"),
        (TlsFiles(certificate, "/none"), "the key /none cannot be read: No such file or directory"),
        (TlsFiles(certificate, str(tmp_path)), f"the key {tmp_path} cannot be read: Is a directory"),
        (TlsFiles(str(empty), key), f"the certificate {empty} is empty"),
        (TlsFiles(key, key), f"the certificate {key} holds no certificate in PEM form"),
        (TlsFiles(certificate, certificate), f"the key {certificate} holds no private key in PEM form"),
        (TlsFiles(certificate, encrypted), f"the key {encrypted} is encrypted: give it without a passphrase"),
        (TlsFiles(certificate, other), f"the key {other} does not belong to the certificate {certificate}"),
        (TlsFiles(str(garbage), key), f"{both} cannot be used: it is no PEM"),
        (TlsFiles(certificate, key, "/none"), "the client CA /none cannot be read: No such file or directory"),
        (TlsFiles(certificate, key, key), f"the client CA {key} holds no certificate in PEM form"),
        (TlsFiles(certificate, key, str(garbage)), f"the client CA {garbage} cannot be used: it is no PEM"),
    ):
        with pytest.raises(Misconfigured) as caught:
            Certificates(files)
        assert str(caught.value) == said
    assert Certificates(TlsFiles(certificate, key, ca)).context.verify_mode is ssl.CERT_REQUIRED


def test_f47_an_expired_certificate_does_not_start(material: Material, mount: Mount) -> None:
    mount.show(tls_crt=material.expired[0], tls_key=material.expired[1])
    with pytest.raises(Misconfigured) as caught:
        Certificates(mount.files)
    assert str(caught.value).startswith(f"the certificate {mount.files.certificate} expired on 2020-01-02")
    assert str(caught.value).endswith(": renew it")


# ---- client certificates


@contextlib.contextmanager
def demanding(material: Material, mount: Mount, ca: Path | None = None) -> Iterator[Served]:
    mount.show(tls_crt=material.first[0], tls_key=material.first[1], ca_crt=ca or material.authority.certificate)
    with secured(mount.files) as server:
        yield server


def admitted(server: Served, trust: Trust, session: ssl.SSLSession | None = None) -> bool:
    """Whether a request is answered; else the server has said no in TLS and the app heard nothing."""
    heard = len(server.app.started)
    try:
        with TlsPeer(server.port, trust, session) as peer:
            peer.get("/ok")
            assert peer.answer().body == b"ok"
            return True
    except (ssl.SSLError, ConnectionError):
        assert len(server.app.started) == heard
        return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_without_a_trusted_certificate_are_not_heard(
    material: Material, mount: Mount, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ours, theirs, nobody = (Trust(material, client) for client in (material.client, material.other_client, None))
    for trust in (ours, theirs, nobody):
        trust.context.maximum_version = version
    with demanding(material, mount) as server:
        assert [admitted(server, trust) for trust in (ours, nobody, theirs, ours)] == [True, False, False, True]
        assert server.server.failed_handshakes == 2
    assert texts(caplog, "discovery.http.peers") == [
        "a TLS handshake failed: peer did not return a certificate (1 since the start)"
    ]


def test_a_client_that_sends_on_still_reads_why_it_is_refused(material: Material, mount: Mount) -> None:
    """To TLS 1.3 the handshake is over before the certificate is looked at; a reset would destroy the alert."""
    with demanding(material, mount) as server, TlsPeer(server.port, Trust(material)) as peer:
        peer.post("/echo", b"z" * 300_000)
        with pytest.raises(ssl.SSLError, match="certificate required"):
            peer.answer()
        assert server.app.started == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_removed_client_ca_takes_effect_for_new_connections_also_resumed_ones(
    material: Material, mount: Mount, version: ssl.TLSVersion
) -> None:
    theirs = Trust(material, material.other_client)
    theirs.context.maximum_version = version
    with demanding(material, mount, material.both) as server, TlsPeer(server.port, theirs) as before:
        before.get("/ok")
        before.answer()
        session = before.socket.session
        assert admitted(server, theirs, session)
        ca = material.authority.certificate
        mount.show(tls_crt=material.first[0], tls_key=material.first[1], ca_crt=ca)
        look(server)
        assert not admitted(server, theirs)
        assert not admitted(server, theirs, session)
        assert admitted(server, Trust(material, material.client))
        before.get("/ok")
        assert before.answer().body == b"ok"
