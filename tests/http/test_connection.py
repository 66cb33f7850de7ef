"""What one peer can and cannot do to the HTTP server, over real sockets."""

import contextlib
import json
import select
import socket
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.http.sockets import Served, eventually, served

HEAD = b"POST /echo HTTP/1.1\r\nHost: test\r\n"


class TestRequestDeadline:
    """F03: a request has one deadline for everything up to its end, whatever trickles in."""

    @pytest.mark.parametrize(
        ("begin", "byte"),
        [
            pytest.param(HEAD + b"X: ", b"x", id="F03 header drip"),
            pytest.param(b"GET /", b"x", id="F03 request line drip"),
            pytest.param(b"\r\n", b"\r\n", id="F03 line breaks before a request"),
            pytest.param(HEAD + b"Content-Length: 500\r\n\r\n", b"x", id="F03 body drip"),
            pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", id="F03 chunk drip"),
        ],
    )
    def test_trickle_is_refused_in_total_time(self, begin: bytes, byte: bytes) -> None:
        with served(request_timeout_secs=0.4) as server, server.peer() as peer:
            peer.send(begin)
            peer.drip(byte)
            assert 0.3 < peer.age < 2
            assert peer.answer().problem["status"] == 408
            assert peer.ended() == b""
            assert server.app.started == []

    @pytest.mark.parametrize(
        ("begin", "byte"),
        [
            pytest.param(b"", b"\r\n", id="F03 line breaks after an answer"),
            pytest.param(HEAD + b"X: ", b"x", id="F03 second request"),
        ],
    )
    def test_trickle_after_an_answer(self, begin: bytes, byte: bytes) -> None:
        with served(request_timeout_secs=0.4, keep_alive_secs=60) as server, server.peer() as peer:
            peer.get("/ok")
            assert peer.answer().status == 200
            since = time.monotonic()
            peer.send(begin or byte)
            peer.drip(byte)
            assert 0.3 < time.monotonic() - since < 2
            assert peer.answer().status == 408
            assert peer.ended() == b""

    def test_silence_is_closed_without_a_word(self) -> None:
        with served(request_timeout_secs=0.3) as server, server.peer() as peer:
            assert peer.ended() == b""
            assert 0.2 < peer.age < 2

    def test_others_are_served_beside_300_slow_ones(self) -> None:
        with served(request_timeout_secs=1.5) as server, contextlib.ExitStack() as stack:
            slow = [stack.enter_context(server.peer()) for _ in range(300)]
            for peer in slow:
                peer.send(HEAD + b"X: ")
            eventually(lambda: server.server.connections == 300, "300 connections")
            with server.peer() as quick:
                times = []
                for _ in range(9):
                    since = time.monotonic()
                    quick.get("/ok")
                    assert quick.answer().body == b"ok"
                    times.append(time.monotonic() - since)
                assert statistics.median(times) < 0.2
            for peer in slow:
                assert peer.answer().status == 408
                assert peer.age < 5

    def test_running_stream_and_long_poll_are_under_no_receive_deadline(self) -> None:
        with served(request_timeout_secs=0.2) as server, server.peer() as stream, server.peer() as poll:
            stream.get("/stream")
            stream.read_until(b"data: first\n\n")
            poll.post("/park", b"{}")
            for _ in range(3):  # deadlines of others pass meanwhile
                with server.peer() as silent:
                    assert silent.ended() == b""
            server.write(b"data: later\n\n")
            stream.read_until(b"data: later\n\n")
            server.app.release.set()
            assert poll.answer().status == 201

    def test_stream_of_http_1_0_is_the_bare_bytes_up_to_the_close(self) -> None:
        with served(transfer_timeout_secs=0.1) as server, server.peer() as stream:
            stream.send(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            head = stream.read_until(b"\r\n\r\n").lower()
            assert b"transfer-encoding" not in head, "HTTP/1.0 knows no chunks"
            assert b"content-length" not in head
            assert b"\r\nconnection: close\r\n" in head
            assert stream.read_until(b"\n\n") == b"data: first\n\n"
            eventually(lambda: server.app.streams, "the stream is open")
            server.write(b"data: later\n\n")
            assert stream.read_until(b"\n\n") == b"data: later\n\n"
            exchange = server.app.streams[0].__self__
            assert server.call(lambda: exchange.write_now(b"data: pushed\n\n"))
            assert stream.read_until(b"\n\n") == b"data: pushed\n\n"
            server.ask(lambda: exchange.send({"type": "http.response.body", "body": b"data: last\n\n"}))
            assert stream.ended() == b"data: last\n\n", "the close is the end, and nothing stands before it"

    def test_partial_request_behind_an_answer_gets_its_own_deadline(self) -> None:
        with served(request_timeout_secs=0.3, keep_alive_secs=60) as server, server.peer() as peer:
            peer.post("/park", b"{}")
            peer.send(HEAD + b"X: ")
            with server.peer() as silent:
                assert silent.ended() == b""
            assert peer.is_open()
            server.app.release.set()
            assert peer.answer().status == 201
            assert peer.answer().status == 408

    def test_idle_connection_is_kept_for_a_while(self) -> None:
        with served(request_timeout_secs=0.1, keep_alive_secs=0.6) as server, server.peer() as peer:
            for _ in range(3):
                peer.get("/ok")
                assert peer.answer().status == 200
            since = time.monotonic()
            with server.peer() as silent:
                assert silent.ended() == b""
            assert peer.is_open()
            assert peer.ended() == b""
            assert 0.5 < time.monotonic() - since < 3


class TestSizes:
    """F04: what is too large is refused before it is held."""

    @pytest.mark.parametrize(
        ("status", "head"),
        [
            pytest.param(431, b"GET /ok HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3000, id="F04 one line, never ended"),
            pytest.param(431, b"GET /ok HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3000 + b"\r\n\r\n", id="F04 one line"),
            pytest.param(431, b"GET /ok HTTP/1.1\r\n" + b"X: y\r\n" * 600, id="F04 many headers"),
            pytest.param(414, b"GET /" + b"x" * 3000, id="F04 request line, never ended"),
            pytest.param(414, b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", id="F04 request line"),
            pytest.param(414, b"GET /?" + b"x" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", id="F04 query"),
            pytest.param(431, b"\r\n" * 1500, id="F04 line breaks"),
        ],
    )
    def test_head_over_the_limit(self, status: int, head: bytes) -> None:
        with served(max_header_bytes=2000) as server, server.peer() as peer:
            peer.send(head)
            assert peer.answer().problem["status"] == status
            assert peer.ended() == b""
            assert server.app.started == []

    def test_head_over_the_limit_in_pieces(self) -> None:
        with served(max_header_bytes=2000) as server, server.peer() as peer:
            peer.send(b"GET /ok HTTP/1.1\r\nHost: a\r\n")
            peer.drip(b"X: " + b"x" * 50 + b"\r\n", pace_secs=0.001)
            assert peer.answer().status == 431

    def test_head_over_the_limit_behind_another_request(self) -> None:
        with served(max_header_bytes=2000) as server, server.peer() as peer:
            peer.get("/ok")
            assert peer.answer().status == 200
            peer.send(
                b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\nGET /ok HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3000 + b"\r\n\r\n"
            )
            assert b"X: xxx" not in peer.ended()
            assert len(server.app.started) <= 2

    def test_head_up_to_the_limit_and_a_body_in_the_same_read_are_taken(self) -> None:
        with served(max_header_bytes=2000, max_body_bytes=3000) as server, server.peer() as peer:
            peer.post("/echo", b"b" * 3000, "X: " + "x" * 1800)
            peer.post("/echo", b"c" * 3000, "X: " + "x" * 1800)
            assert [peer.answer().body, peer.answer().body] == [b"b" * 3000, b"c" * 3000]

    @pytest.mark.parametrize("length", [1001, 99_999_999_999])
    def test_content_length_over_the_limit_is_refused_before_the_body(self, length: int) -> None:
        with served(max_body_bytes=1000) as server, server.peer() as peer:
            peer.post("/echo", b"", length=length)
            assert peer.answer().problem["detail"] == "The body is larger than the limit of 1000 bytes."
            assert peer.ended() == b""
            assert server.app.started == []

    def test_body_of_exactly_the_limit(self) -> None:
        with served(max_body_bytes=1000) as server, server.peer() as peer:
            peer.post("/echo", b"x" * 1000)
            assert peer.answer().body == b"x" * 1000
            peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n")
            assert peer.answer().body == b"x" * 1000

    def test_peer_that_sends_a_refused_body_anyway_is_heard_out_for_a_moment(self) -> None:
        """A reset in the middle of its sending could take the refusal from it."""
        with served(max_body_bytes=1000) as server, server.peer() as peer:
            peer.post("/echo", b"x" * 500_000)
            assert peer.answer().status == 413
            assert peer.ended() == b""
            for _ in range(20):
                peer.send(b"x" * 65536)
            assert server.server.connections == 1
            eventually(lambda: server.server.connections == 0, "the end of the moment")

    def test_chunked_body_is_refused_when_it_passes_the_limit(self) -> None:
        with served(max_body_bytes=1000) as server, server.peer() as peer:
            peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1f4\r\n" + b"x" * 500 + b"\r\n")
            peer.send(b"1f5\r\n" + b"x" * 501 + b"\r\n")  # no end in sight
            assert peer.answer().problem["status"] == 413
            assert peer.ended() == b""
            assert server.app.started == []

    @pytest.mark.parametrize(
        "filler",
        [
            pytest.param(b"1;" + b"e" * 1000 + b"\r\nx\r\n", id="F04 chunk extensions"),
            pytest.param(b"0\r\nT: " + b"t" * 1000, id="F04 trailer"),
        ],
    )
    def test_what_surrounds_the_chunks_is_bounded_too(self, filler: bytes) -> None:
        with served(max_body_bytes=1000, max_header_bytes=1000) as server, server.peer() as peer:
            peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + filler)
            peer.drip(b"e" * 1000 if filler.startswith(b"0") else filler, pace_secs=0.001)
            assert peer.answer().status == 413
            assert server.app.started == []

    @pytest.mark.parametrize("close", [socket.SHUT_WR, socket.SHUT_RDWR])
    def test_short_body_and_close_never_reaches_the_app(self, close: int) -> None:
        with served() as server:
            with server.peer() as peer:
                peer.post("/echo", b"half of it", length=20)
                eventually(lambda: server.server.connections == 1, "the connection")
                peer.socket.shutdown(close)
                eventually(lambda: server.server.connections == 0, "the end of the connection")
            with server.peer() as peer:
                peer.post("/echo", b"whole")
                assert peer.answer().body == b"whole"
            assert server.app.seen == [b"whole"]
            assert server.app.started == ["/echo"]


class TestParsing:
    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"GET /ok HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            (b"GET /ok HTTP/1.1\r\n\r\n", 400),
            (b"GET /ok HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
            (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501),
            (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
            (HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
            (HEAD + b"Content-Length: -1\r\n\r\nabc", 400),
            (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415),
            (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 501),
            (b"GET /ok\r\n\r\n", 400),
            (b"GET http:// HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET /ok%C3 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET /%ed%a0%80?x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET http://a/%ff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00", 400),
            (b"nonsense\r\n\r\n", 400),
        ],
    )
    def test_refused(self, head: bytes, status: int) -> None:
        with served() as server, server.peer() as peer:
            peer.send(head)
            assert peer.answer().problem["status"] == status
            assert peer.ended() == b""
            assert server.app.started == []

    def test_identity_content_encoding_is_none(self) -> None:
        with served() as server, server.peer() as peer:
            peer.post("/echo", b"abc", "Content-Encoding: identity")
            assert peer.answer().body == b"abc"

    def test_http_1_0_without_host_is_answered_and_closed(self) -> None:
        with served() as server, server.peer() as peer:
            peer.send(b"GET /ok HTTP/1.0\r\n\r\n")
            assert peer.answer().headers["connection"] == "close"
            assert peer.ended() == b""

    @pytest.mark.parametrize("in_one_piece", [True, False])
    def test_offer_of_another_protocol_is_ignored_and_its_body_kept(self, in_one_piece: bool) -> None:
        offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
        with served() as server, server.peer() as peer:
            peer.post("/echo", b"java" if in_one_piece else b"", *offer, length=4)
            if not in_one_piece:
                peer.send(b"java")
            answer = peer.answer()
            assert (answer.status, answer.body) == (200, b"java")
            assert "upgrade" not in answer.headers
            peer.get("/ok", *offer)
            peer.get("/ok")
            assert [peer.answer().body, peer.answer().body] == [b"ok", b"ok"]
            assert server.app.seen == [b"java"]

    def test_offer_of_another_protocol_that_waits_with_its_body(self) -> None:
        with served() as server, server.peer() as peer:
            peer.post("/echo", b"", "Connection: Upgrade", "Upgrade: h2c", "Expect: 100-continue", length=4)
            assert peer.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            peer.send(b"java")
            answer = peer.answer()
            assert (answer.status, answer.body) == (200, b"java")

    def test_websocket_is_not_offered(self) -> None:
        with served() as server, server.peer() as peer:
            peer.get(
                "/ok", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"
            )
            assert peer.answer().body == b"ok"

    def test_trailers_do_not_become_headers(self) -> None:
        with served() as server, server.peer() as peer:
            peer.send(
                HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nHost: b\r\nContent-Encoding: gzip\r\n\r\n"
            )
            assert peer.answer().body == b"abc"
            peer.get("/ok")
            assert peer.answer().status == 200

    def test_body_is_asked_for_only_when_it_will_be_taken(self) -> None:
        with served(max_body_bytes=1000) as server, server.peer() as peer:
            peer.post("/echo", b"", "Expect: 100-continue", length=4)
            assert peer.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            peer.send(b"body")
            assert peer.answer().body == b"body"
            peer.post("/echo", b"", "Expect: 100-continue", length=1001)
            assert peer.answer().status == 413

    def test_head_gets_no_body(self) -> None:
        with served() as server, server.peer() as peer:
            peer.send(b"HEAD /ok HTTP/1.1\r\nHost: a\r\n\r\n")
            assert peer.answer(to_head=True).headers["content-length"] == "2"
            peer.get("/ok")
            assert peer.answer().body == b"ok"

    def test_few_pipelined_requests_are_answered_in_order(self) -> None:
        with served() as server, server.peer() as peer:
            peer.send(b"".join(HEAD + b"Content-Length: 1\r\n\r\n%d" % number for number in range(8)))
            assert [peer.answer().body for _ in range(8)] == [b"%d" % number for number in range(8)]

    def test_nothing_more_is_read_while_requests_wait_behind_a_running_one(self) -> None:
        with served() as server, server.peer() as peer:
            peer.post("/park", b"{}")
            eventually(lambda: server.server.in_flight == 1, "the running request")
            (connection,) = server.call(lambda: list(server.server._shared.connections))
            peer.get("/ok")
            eventually(lambda: server.call(lambda: connection.flow.read_paused), "the end of reading")
            for _ in range(4):
                peer.get("/ok")
            assert server.call(lambda: len(connection.pipeline)) == 1
            server.app.release.set()
            assert [peer.answer().body for _ in range(6)] == [b"released"] + [b"ok"] * 5

    def test_a_peer_that_leaves_is_noticed_though_requests_wait_behind_the_running_one(self) -> None:
        with served() as server:
            with server.peer() as peer:
                peer.send(HEAD.replace(b"/echo", b"/park") + b"\r\nGET /ok HTTP/1.1\r\nHost: a\r\n\r\n")
                eventually(lambda: server.server.in_flight == 1, "the running request")
            eventually(lambda: server.app.disconnected == ["park"], "the peer's leaving")
            eventually(lambda: server.server.in_flight == 0, "the end of the running request")
            assert server.app.started == ["/park"]

    def test_connection_goes_on_after_pipelined_requests(self) -> None:
        with served() as server, server.peer() as peer:
            for _ in range(3):
                peer.send(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
                assert [peer.answer().body, peer.answer().body] == [b"ok", b"ok"]

    def test_many_pipelined_requests_end_the_connection(self) -> None:
        with served() as server, server.peer() as peer:
            peer.post("/park", b"{}")
            eventually(lambda: server.server.in_flight == 1, "the running request")
            with contextlib.suppress(ConnectionError):
                peer.send(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n" * 50_000)
            assert b" 200 " not in peer.ended()
            eventually(lambda: server.server.in_flight == 0, "the end of the running request")
            assert server.app.started == ["/park"]

    def test_requests_that_came_whole_are_answered_before_what_follows_them_is_refused(self) -> None:
        with served() as server, server.peer() as peer:
            peer.send(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n" * 2 + b"garbage\r\n\r\n")
            assert [peer.answer().body, peer.answer().body] == [b"ok", b"ok"]
            assert peer.answer().problem["status"] == 400
            assert peer.ended() == b""

    def test_an_idle_connection_holds_nothing_of_its_last_request(self) -> None:
        with served() as server, server.peer() as peer:
            for path in ("/ok", "/echo"):
                peer.post(path, b"body")
                peer.answer()
                (connection,) = server.call(lambda: list(server.server._shared.connections))
                held = server.call(lambda c=connection: (c.running, c.cycle, c.scope, c.headers, c.content, c.unread))
                assert held == (None, None, None, [], b"", None)

    @pytest.mark.parametrize("garbage", [b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100])
    def test_garbage_during_a_stream_aborts_and_writes_nothing(self, garbage: bytes) -> None:
        with served() as server, server.peer() as peer:
            peer.get("/stream")
            peer.read_until(b"data: first\n\n\r\n")
            peer.send(garbage)
            assert peer.ended() == b""
            eventually(lambda: server.app.disconnected == ["stream"], "the app's disconnect")


class TestLeaving:
    def test_half_close_ends_a_stream(self) -> None:
        with served() as server, server.peer() as peer:
            peer.get("/stream")
            peer.read_until(b"data: first\n\n\r\n")
            since = time.monotonic()
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.ended() == b""
            assert time.monotonic() - since < 2
            eventually(lambda: server.app.disconnected == ["stream"], "the app's disconnect")

    def test_peer_that_leaves_a_long_poll_is_noticed(self) -> None:
        with served() as server:
            with server.peer() as peer:
                peer.get("/park")
                eventually(lambda: server.server.in_flight == 1, "the running request")
            eventually(lambda: server.app.disconnected == ["park"], "the app's disconnect")
            eventually(lambda: server.server.in_flight == 0, "the end of the request")

    def test_stream_with_a_request_behind_it_is_told_too(self) -> None:
        with served() as server, server.peer() as peer:
            peer.get("/stream")
            peer.read_until(b"data: first\n\n\r\n")
            peer.get("/ok")
            peer.send(b"garbage")
            server.write(b"data: still there\n\n")
            server.call(lambda: [c.transport.abort() for c in list(server.server._shared.connections)])
            eventually(lambda: server.app.disconnected == ["stream"], "the app's disconnect")
            server.write(b"data: after the end\n\n")  # a disconnect, never an error
            assert "/ok" not in server.app.started

    def test_writing_into_a_closed_connection_is_silent(self) -> None:
        """The publisher may write at any moment between the peer's leaving and the app's noticing."""
        with served() as server, server.peer() as peer:
            peer.get("/stream")
            peer.read_until(b"data: first\n\n\r\n")

            def abort_and_write() -> None:
                (connection,) = server.server._shared.connections
                connection.transport.abort()
                with contextlib.suppress(StopIteration):
                    server.app.streams[0]({"type": "http.response.body", "body": b"x", "more_body": True}).send(None)

            server.call(abort_and_write)
            server.write(b"data: after\n\n")
            eventually(lambda: server.app.disconnected == ["stream"], "the app's disconnect")


class TestStalledPeers:
    def test_peer_that_never_reads_an_answer_is_cut(self) -> None:
        with served_without_kernel(write_stall_timeout_secs=0.4) as server, server.peer(receive_buffer=4096) as peer:
            peer.get("/big")
            eventually(lambda: server.server.connections == 1, "the connection")
            eventually(lambda: server.server.connections == 0, "the end of the connection")
            assert 0.3 < peer.age < 3
            assert len(peer.ended()) < server.app.answer_bytes

    def test_peer_that_never_reads_a_stream_is_cut(self) -> None:
        with served_without_kernel(write_stall_timeout_secs=0.4) as server, server.peer(receive_buffer=4096) as peer:
            peer.get("/torrent")
            eventually(lambda: server.app.disconnected == ["torrent"], "the app's disconnect")
            eventually(lambda: server.server.connections == 0, "the end of the connection")
            assert 0.3 < peer.age < 3

    def test_peer_that_never_reads_the_rest_after_a_closing_answer_is_cut(self) -> None:
        with served_without_kernel(write_stall_timeout_secs=0.4) as server, server.peer(receive_buffer=4096) as peer:
            peer.get("/big", "Connection: close")
            eventually(lambda: server.server.connections == 1, "the connection")
            eventually(lambda: server.server.connections == 0, "the end of the connection")

    def test_few_unread_bytes_end_with_the_keep_alive_time(self) -> None:
        """Below the mark at which writing pauses nobody watches until the connection is to be closed."""
        limits = {"write_stall_timeout_secs": 0.5, "keep_alive_secs": 0.3}
        with served_without_kernel(**limits) as server, server.peer(receive_buffer=4096) as peer:
            server.app.answer_bytes = _kernel_takes(peer.socket) + 30_000
            peer.get("/big")
            eventually(lambda: server.server.connections == 1, "the connection")
            eventually(lambda: server.server.connections == 0, "the end of the connection")
            assert 0.7 < peer.age < 3

    def test_few_unread_bytes_end_after_a_half_close(self) -> None:
        with served_without_kernel(write_stall_timeout_secs=0.3) as server, server.peer(receive_buffer=4096) as peer:
            server.app.answer_bytes = _kernel_takes(peer.socket) + 30_000
            peer.get("/big")
            eventually(lambda: server.server.in_flight == 0 and server.app.started, "the answer")
            peer.socket.shutdown(socket.SHUT_WR)
            eventually(lambda: server.server.connections == 0, "the end of the connection")

    def test_slow_reader_that_makes_progress_is_not_cut(self) -> None:
        with served(write_stall_timeout_secs=1.0) as server, server.peer(receive_buffer=65536) as peer:
            peer.get("/big")
            peer.read_until(b"\r\n\r\n")
            left = server.app.answer_bytes
            while left:  # 80 reads of 100 kB in 2.4 s and more: longer than the stall time
                left -= len(peer.read(min(left, 100_000)))
                select.select([], [], [], 0.03)
            assert peer.age > 2
            peer.get("/ok")
            assert peer.answer().body == b"ok"

    def test_slow_reader_is_cut_at_the_transfer_time(self) -> None:
        limits = {"transfer_timeout_secs": 0.5, "write_stall_timeout_secs": 60}
        with served(**limits) as server, server.peer(receive_buffer=4096) as peer:
            peer.get("/big")
            with contextlib.suppress(ConnectionResetError):
                while peer.age < 5:
                    assert peer.socket.recv(1000), "an end that looks like a clean one"
                    select.select([], [], [], 0.01)
            assert 0.4 < peer.age < 3

    def test_stream_and_long_poll_outlive_the_transfer_time(self) -> None:
        limits = {"transfer_timeout_secs": 0.2, "request_timeout_secs": 0.2}
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(served(**limits))
            stream, poll, torrent = (stack.enter_context(server.peer(receive_buffer=65536)) for _ in range(3))
            stream.get("/stream")
            stream.read_until(b"data: first\n\n\r\n")
            poll.get("/park")
            torrent.get("/torrent")
            while torrent.age < 0.8:
                torrent.read(1_000)
                select.select([], [], [], 0.001)
            server.write(b"data: later\n\n")
            stream.read_until(b"data: later\n\n")
            server.app.release.set()
            assert poll.answer().status == 201


def test_refusals_are_json_with_the_phrase_of_their_status() -> None:
    with served() as server, server.peer() as peer:
        peer.send(b"GET /ok HTTP/1.1\r\n\r\n")
        answer = peer.answer()
        assert json.loads(answer.body) == {
            "title": "Bad Request",
            "status": 400,
            "detail": "An HTTP/1.1 request must have exactly one Host header.",
        }
        assert answer.headers["connection"] == "close"
        assert "date" in answer.headers


@contextlib.contextmanager
def served_without_kernel(**limits: float) -> Iterator[Served]:
    """A server whose sockets lack the kernel's own limit, which would end a stalled peer where the server forgot to."""
    with served(**limits) as server:
        for listener in server.server._server.sockets:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        yield server


def _kernel_takes(receiver: socket.socket) -> int:
    """How many bytes the kernel buffers for a receiver with such a small buffer that never reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as other:
        size = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        other.connect(listener.getsockname())
        sender, _ = listener.accept()
        with sender:
            sender.setblocking(False)
            total = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    total += sender.send(b"x" * 65536)
            return total
