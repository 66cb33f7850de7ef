"""Requests that are none, byte by byte: what is refused, what is taken, and where each ends.

Behind each of them lies a whole request on the same connection. It is answered where the first one was taken, and
never where that was refused or was the last of its connection: whoever sees an end elsewhere smuggles requests.
"""

import contextlib
import re
import socket
from collections.abc import Iterator

import pytest

from tests.http.sockets import Answer, Served, served

HOST = b"Host: a\r\n"
POST = b"POST /echo HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BEHIND = b"POST /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 8\r\n\r\nsmuggled"


def get(*lines: bytes, target: bytes = b"/ok", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET %b %b\r\n%b\r\n" % (target, version, b"".join(line + b"\r\n" for line in (HOST.strip(), *lines)))


def post(*lines: bytes, body: bytes = b"abc") -> bytes:
    return POST + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


REFUSED: dict[str, tuple[int, bytes]] = {
    # The request line
    "HTTP/0.9": (400, b"GET /ok\r\n"),
    "HTTP/0.9, said": (400, get(version=b"HTTP/0.9")),
    "HTTP/1.2": (400, get(version=b"HTTP/1.2")),
    "HTTP/2.0": (400, get(version=b"HTTP/2.0")),
    "HTTP/2 in its first bytes": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"),
    "version in small letters": (400, get(version=b"http/1.1")),
    "tabs between the words": (400, b"GET\t/ok\tHTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space before the method": (400, b" " + get()),
    "method in small letters": (400, b"get" + get()[3:]),
    "unknown method": (400, b"FOO" + get()[3:]),
    "method without an end": (400, b"A" * 10_000),
    "CONNECT": (501, b"CONNECT a:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "authority for a path": (400, get(target=b"a:80")),
    "a path without its slash": (400, get(target=b"ok")),
    "only a host": (400, get(target=b"http://")),
    "impossible port": (400, get(target=b"http://a:99999999/ok")),
    "NUL in the path": (400, get(target=b"/o\0k")),
    "control character in the path": (400, get(target=b"/o\x01k")),
    "DEL in the path": (400, get(target=b"/o\x7fk")),
    "tab in the path": (400, get(target=b"/o\tk")),
    "no ASCII in the path": (400, get(target="/ök".encode())),
    "escaped path that is no UTF-8": (400, get(target=b"/ok%ff")),
    "escaped path that is overlong UTF-8": (400, get(target=b"/%c0%af")),
    "escaped surrogate in the path": (400, get(target=b"/%ed%a0%80")),
    "target over the limit": (414, get(target=b"/" + b"x" * 5000)),
    # Lines and headers
    "LF alone": (400, b"GET /ok HTTP/1.1\nHost: a\n\n"),
    "LF alone behind a header": (400, b"GET /ok HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
    "LF alone at the end": (400, b"GET /ok HTTP/1.1\r\nHost: a\r\n\n"),
    "CR alone": (400, b"GET /ok HTTP/1.1\rHost: a\r\r"),
    "CR alone in a value": (400, get(b"X: y\rZ: 1")),
    "NUL in a value": (400, get(b"X: y\0z")),
    "control character in a value": (400, get(b"X: y\x01z")),
    "escape sequence in a value": (400, get(b"X: \x1b[2J")),
    "NUL in a name": (400, get(b"X\0: y")),
    "no ASCII in a name": (400, get(b"X\xff: y")),
    "space in a name": (400, get(b"X y: z")),
    "space before the colon": (400, get(b"X : y")),
    "space before the first name": (400, b"GET /ok HTTP/1.1\r\n Host: a\r\n\r\n"),
    "no name": (400, get(b": y")),
    "no colon": (400, get(b"X")),
    "folded line": (400, get(b"X: y", b" z")),
    "line folded by a tab": (400, get(b"X: y", b"\tz")),
    "folded Host": (400, b"GET /ok HTTP/1.1\r\nHost:\r\n a\r\n\r\n"),
    "head over the limit": (431, get(b"X: " + b"x" * 5000)),
    "many headers": (431, get(*[b"X: y"] * 1000)),
    "no Host": (400, b"GET /ok HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, get(b"Host: a")),
    "two Hosts, HTTP/1.0": (400, get(b"Host: b", version=b"HTTP/1.0")),
    "two Hosts in one": (400, b"GET /ok HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    "Host with a user": (400, b"GET /ok HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    "Host with a path": (400, b"GET /ok HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    "Host with a space": (400, b"GET /ok HTTP/1.1\r\nHost: a b\r\n\r\n"),
    # The length
    "length with a plus": (400, post(b"Content-Length: +3")),
    "negative length": (400, post(b"Content-Length: -3")),
    "hexadecimal length": (400, post(b"Content-Length: 0x3")),
    "length with decimals": (400, post(b"Content-Length: 3.0")),
    "length as a list": (400, post(b"Content-Length: 3, 3")),
    "no length": (400, post(b"Content-Length:")),
    "length of two words": (400, post(b"Content-Length: 3 4")),
    "length of 400 digits": (400, post(b"Content-Length: " + b"9" * 400)),
    "length that wraps to 3": (400, post(b"Content-Length: 18446744073709551619")),
    "length in other digits": (400, post("Content-Length: ٣".encode())),
    "superscript length": (400, post(b"Content-Length: \xb3")),
    "the length twice": (400, post(b"Content-Length: 3", b"Content-Length: 3")),
    "two lengths": (400, post(b"Content-Length: 3", b"Content-Length: 4")),
    "length over the limit": (413, post(b"Content-Length: 10001")),
    "length over the limit, to be asked for": (413, post(b"Content-Length: 10001", b"Expect: 100-continue", body=b"")),
    # Codings
    "length, then chunks": (400, post(b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")),
    "chunks, then a length": (400, post(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=b"0\r\n\r\n")),
    "chunked twice": (400, post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")),
    "chunked twice in a list": (400, post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n")),
    "something behind chunked": (400, post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n")),
    "something before chunked": (501, post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")),
    "xchunked": (501, post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n")),
    "quoted chunked": (501, post(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n")),
    "chunked with a parameter": (501, post(b"Transfer-Encoding: chunked;q=1", body=b"0\r\n\r\n")),
    "identity": (501, post(b"Transfer-Encoding: identity", body=b"0\r\n\r\n")),
    "identity and a length": (400, post(b"Transfer-Encoding: identity", b"Content-Length: 3")),
    "no coding": (400, post(b"Transfer-Encoding:", body=b"0\r\n\r\n")),
    "no coding and a length": (400, post(b"Transfer-Encoding:", b"Content-Length: 3")),
    "vertical tab before chunked": (400, post(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n")),
    "form feed behind chunked": (400, post(b"Transfer-Encoding: chunked\x0c", body=b"0\r\n\r\n")),
    "space before the colon of chunked": (400, post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n")),
    "folded chunked": (400, post(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n")),
    "compressed body": (415, post(b"Content-Encoding: gzip", b"Content-Length: 3")),
    # Chunks
    "negative chunk": (400, CHUNKED + b"-1\r\nx\r\n0\r\n\r\n"),
    "chunk with a plus": (400, CHUNKED + b"+1\r\nx\r\n0\r\n\r\n"),
    "chunk with 0x": (400, CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n"),
    "chunk that is no number": (400, CHUNKED + b"g\r\nx\r\n0\r\n\r\n"),
    "chunk without a size": (400, CHUNKED + b"\r\nx\r\n0\r\n\r\n"),
    "space behind the size": (400, CHUNKED + b"1 \r\nx\r\n0\r\n\r\n"),
    "space before the size": (400, CHUNKED + b" 1\r\nx\r\n0\r\n\r\n"),
    "size that overflows": (400, CHUNKED + b"ffffffffffffffff1\r\nx\r\n0\r\n\r\n"),
    "size that wraps to 1": (400, CHUNKED + b"10000000000000001\r\nx\r\n0\r\n\r\n"),
    "chunk ends with LF": (400, CHUNKED + b"1\nx\n0\n\n"),
    "chunk ends with CR": (400, CHUNKED + b"1\rx\r0\r\r"),
    "chunk longer than its size": (400, CHUNKED + b"1\r\nxyz\r\n0\r\n\r\n"),
    "chunk without its end": (400, CHUNKED + b"1\r\nx0\r\n\r\n"),
    "chunks over the limit": (413, CHUNKED + b"2710\r\n" + b"x" * 10_000 + b"\r\n1\r\nx\r\n0\r\n\r\n"),
    "LF in an extension": (400, CHUNKED + b"1;a\nb\r\nx\r\n0\r\n\r\n"),
    "LF in a quoted extension": (400, CHUNKED + b'1;a="\n"\r\nx\r\n0\r\n\r\n'),
    "NUL in an extension": (400, CHUNKED + b"1;a\0\r\nx\r\n0\r\n\r\n"),
    "length among the trailers": (400, CHUNKED + b"1\r\nx\r\n0\r\nContent-Length: 5\r\n\r\n"),
    "coding among the trailers": (400, CHUNKED + b"1\r\nx\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "trailer without a colon": (400, CHUNKED + b"1\r\nx\r\n0\r\nT v\r\n\r\n"),
    # Other protocols
    "TLS": (400, b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160)),
    "SSH": (400, b"SSH-2.0-OpenSSH_9.2\r\n"),
    "Redis": (400, b"*1\r\n$4\r\nPING\r\n"),
    "SMTP": (400, b"EHLO discovery\r\n"),
    "NULs": (400, bytes(100)),
}

TAKEN: dict[str, tuple[list[bytes], bytes]] = {
    "line ends before a request": ([], b"\r\n\r\n" + get()),
    "more spaces than one": ([], b"GET  /ok  HTTP/1.1\r\n" + HOST + b"\r\n"),
    "absolute form": ([], get(target=b"http://a/ok")),
    "no Host, but its header": ([], b"GET /ok HTTP/1.1\r\nHost:\r\n\r\n"),
    "Latin-1 in a value": ([], get(b"X: \xe4")),
    "GET with a length": ([], b"GET /ok HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"),
    "GET in chunks": ([], b"GET /ok HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
    "zeros before the length": ([b"abc"], post(b"Content-Length: 0000000003")),
    "capital chunks": ([b"x"], post(b"Transfer-Encoding: CHUNKED", body=b"1\r\nx\r\n0\r\n\r\n")),
    "zeros before the size": ([b"x"], CHUNKED + b"0000000000000000001\r\nx\r\n000\r\n\r\n"),
    "extension": ([b"x"], CHUNKED + b'1;a="b;c"\r\nx\r\n0;d\r\n\r\n'),
    "trailer": ([b"x"], CHUNKED + b"1\r\nx\r\n0\r\nT: v\r\n\r\n"),
    "no body": ([b""], post(body=b"")),
    "a length that is none": ([b""], post(b"Content_Length: 8", body=b"")),
    "a coding that is none": ([b""], post(b"Transfer_Encoding: chunked", body=b"")),
    "offer of another protocol": (
        [b"x"],
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 1", body=b"x"),
    ),
    "offer, with chunks": (
        [b"x"],
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n0\r\n\r\n"),
    ),
    "offer among the trailers": (
        [b"x"],
        post(b"Connection: Upgrade", b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n0\r\nUpgrade: h2c\r\n\r\n"),
    ),
    "another method in a header": ([b"x"], post(b"X-HTTP-Method-Override: DELETE", b"Content-Length: 1", body=b"x")),
}

LAST: dict[str, bytes] = {
    "asked to close": post(b"Connection: close", b"Content-Length: 3"),
    "asked for both": post(b"Connection: keep-alive, close", b"Content-Length: 3"),
    "HTTP/1.0": b"POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.0 that wants to stay": b"POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.0 in chunks": b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.0 that knows 100": b"POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(max_header_bytes=4000, max_body_bytes=10_000) as running:
        yield running


def answers(raw: bytes) -> list[Answer]:
    """All that came back, as whole answers; fails on anything else."""
    found = []
    while raw:
        head, end, raw = raw.partition(b"\r\n\r\n")
        assert end, f"a head without an end: {head!r}"
        line, *lines = head.decode("ascii").split("\r\n")
        assert re.fullmatch(r"HTTP/1\.1 [1-5][0-9]{2} [A-Za-z -]+", line), line
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), lines
        length = int(headers.get("content-length", "0"))
        assert len(raw) >= length, "the connection ended inside a body"
        found.append(Answer(int(line.split()[1]), headers, raw[:length]))
        raw = raw[length:]
    return found


def exchange(server: Served, request: bytes, piece: int) -> tuple[list[Answer], list[bytes]]:
    """Send the request and another one behind it in pieces; what was answered, and which bodies the app took."""
    data = request + BEHIND
    before = len(server.app.seen)
    with server.peer() as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(data), piece):
                peer.send(data[start : start + piece])
            peer.get("/ok", "Connection: close")
        found = answers(peer.ended())
    return found, server.app.seen[before:]


PIECES = [pytest.param(1 << 20, id="at once"), pytest.param(5, id="in pieces")]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(("status", "request_"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_request_is_refused_and_nothing_behind_it_is_done(
    server: Served, status: int, request_: bytes, piece: int
) -> None:
    started = len(server.app.started)
    found, seen = exchange(server, request_, piece)
    assert [answer.status for answer in found] == [status], found
    assert found[0].problem["detail"]
    assert found[0].headers["connection"] == "close"
    assert found[0].headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in found[0].headers["content-security-policy"]
    assert seen == []
    assert len(server.app.started) == started


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(("bodies", "request_"), TAKEN.values(), ids=TAKEN)
def test_what_is_odd_but_clear_is_taken_and_ends_where_it_ends(
    server: Served, bodies: list[bytes], request_: bytes, piece: int
) -> None:
    found, seen = exchange(server, request_, piece)
    assert [answer.status for answer in found] == [200, 200, 200], found
    assert seen == [*bodies, b"smuggled"]
    assert found[1].body == b"smuggled"


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("request_", LAST.values(), ids=LAST)
def test_nothing_behind_the_last_request_of_a_connection_is_done(server: Served, request_: bytes, piece: int) -> None:
    found, seen = exchange(server, request_, piece)
    assert [answer.status for answer in found] == [200], found
    assert found[0].headers["connection"] == "close"
    assert seen == [b"abc"]


@pytest.mark.parametrize("behind", ["POST /park", "GET /stream"])
@pytest.mark.parametrize("bad", [b"\0", b"GET /ok HTTP/1.1\r\n\r\n", post(b"Content-Length: 3, 3")])
def test_a_refused_request_behind_a_running_one_ends_both(server: Served, behind: str, bad: bytes) -> None:
    started, before = len(server.app.started), len(server.app.seen)
    with server.peer() as peer:
        peer.send(f"{behind} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        if behind == "GET /stream":
            peer.read_until(b"data: first\n\n\r\n")
        with contextlib.suppress(ConnectionError):
            peer.send(bad + BEHIND)
        assert peer.ended() == b""
    assert server.app.started[started:] in ([], [behind.split()[1]])
    assert server.app.seen[before:] == []


@pytest.mark.parametrize(
    "filler",
    [
        pytest.param(b"1;" + b"e" * 1_000_000, id="an extension of a megabyte"),
        pytest.param(b"".join(b"1;%d\r\nx\r\n" % number for number in range(100_000)), id="extensions without end"),
        pytest.param(b"0\r\n" + b"T: v\r\n" * 200_000, id="trailers without end"),
        pytest.param(b"0" * 1_000_000, id="zeros without end"),
    ],
)
def test_what_stands_between_chunks_is_bounded(server: Served, filler: bytes) -> None:
    started = len(server.app.started)
    with server.peer() as peer:
        with contextlib.suppress(ConnectionError):
            peer.send(CHUNKED + filler)
        raw = peer.ended()
    if raw:  # else the connection was reset while bytes were still on their way
        assert [answer.status for answer in answers(raw)] in ([413], [400])
    assert len(server.app.started) == started


def test_the_body_is_asked_for_once_and_a_refusal_follows_it(server: Served) -> None:
    with server.peer() as peer:
        peer.send(post(b"Transfer-Encoding: chunked", b"Expect: 100-continue", body=b""))
        assert peer.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.send(b"nonsense\r\n" + BEHIND)
        found = answers(peer.ended())
    assert [answer.status for answer in found] == [400]
    assert b"smuggled" not in server.app.seen[-1:]


@pytest.mark.parametrize("cut", [socket.SHUT_WR, socket.SHUT_RDWR])
def test_a_request_cut_anywhere_is_never_started(server: Served, cut: int) -> None:
    whole = post(b"Transfer-Encoding: chunked", b"X: y", body=b"3\r\nabc\r\n0\r\n\r\n")
    started = len(server.app.started)
    for length in range(1, len(whole)):
        with server.peer() as peer:
            peer.send(whole[:length])
            peer.socket.shutdown(cut)
            if cut == socket.SHUT_WR:
                assert peer.ended() == b"", whole[:length]
    with server.peer() as peer:
        peer.send(whole)
        assert peer.answer().body == b"abc"
    assert len(server.app.started) == started + 1
