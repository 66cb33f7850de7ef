"""The HTTP server as a whole: where it listens, how many it takes, how it drains and stops, what it costs."""

import asyncio
import contextlib
import signal
import socket
import time

import pytest

from discovery.errors import DiscoveryError
from discovery.http.server import CannotListen, HttpServer, Limits, run_async
from tests.http.served_process import served_process
from tests.http.sockets import App, Peer, eventually, served

MEGABYTE = 1_000_000


def flood(peer: Peer, piece: bytes) -> None:
    """Send a gigabyte, or what the server lets itself be sent of it."""
    with contextlib.suppress(ConnectionError):
        for _ in range(1000 * MEGABYTE // len(piece)):
            peer.send(piece)


class TestListening:
    def test_address_in_use_is_one_line_that_names_it(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(CannotListen) as caught:
                run_async(HttpServer(App(), host="127.0.0.1", port=port, limits=Limits()).start())
            assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"
            assert isinstance(caught.value, DiscoveryError)

    @pytest.mark.parametrize(
        ("host", "shown"),
        [
            ("192.0.2.1", "192.0.2.1:0: "),
            ("no-such-host.invalid", "no-such-host.invalid:0: "),
            ("2001:db8::1", "[2001:db8::1]:0: "),
        ],
    )
    def test_address_of_somebody_else(self, host: str, shown: str) -> None:
        with pytest.raises(CannotListen) as caught:
            run_async(HttpServer(App(), host=host, port=0, limits=Limits()).start())
        assert str(caught.value).startswith(f"cannot listen on {shown}")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("host", ["::", "[::]"])
    def test_all_addresses_of_both_families(self, host: str) -> None:
        with served(host=host) as server:
            for address in ("127.0.0.1", "::1"):
                with server.peer(host=address) as peer:
                    peer.get("/ok")
                    assert peer.answer().status == 200

    @pytest.mark.parametrize("host", ["localhost", "0.0.0.0"])
    def test_names_and_all_ipv4_addresses(self, host: str) -> None:
        with served(host=host) as server, server.peer() as peer:
            peer.get("/ok")
            assert peer.answer().status == 200

    def test_connections_notice_a_dead_network_after_the_stall_time(self) -> None:
        with served(write_stall_timeout_secs=7) as server, server.peer() as peer:
            peer.get("/ok")
            assert peer.answer().status == 200
            (connection,) = server.server._shared.connections
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000

    def test_a_silent_peer_is_asked_for_by_the_network_itself(self) -> None:
        """One that waits for a change says nothing for minutes, and may have vanished meanwhile."""
        with served() as server, server.peer() as peer:
            peer.get("/park")
            eventually(lambda: server.server.in_flight == 1, "the long poll")
            (connection,) = server.server._shared.connections
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15

    def test_limits_default_to_the_documented_flags(self) -> None:
        assert Limits() == Limits(20_000, 16_384, 65_536, 10, 30, 300, 75)


class TestCapacity:
    def test_connection_above_the_limit_is_closed_and_running_ones_are_untouched(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with served(max_connections=2) as server, server.peer() as stream, server.peer() as kept:
            stream.get("/stream")
            stream.read_until(b"data: first\n\n")
            kept.get("/ok")
            assert kept.answer().status == 200
            for _ in range(5):
                with contextlib.suppress(ConnectionResetError), server.peer() as surplus:
                    assert surplus.ended() == b""
                    assert surplus.age < 2
            eventually(lambda: server.server.turned_away == 5, "five closed connections")
            server.write(b"data: still here\n\n")
            stream.read_until(b"data: still here\n\n")
            kept.get("/ok")
            assert kept.answer().status == 200
            kept.socket.close()
            eventually(lambda: server.server.connections == 1, "a free place")
            eventually(lambda: not server.server._shared.full, "the end of the shortage")
            with server.peer() as fitting:
                fitting.get("/ok")
                assert fitting.answer().status == 200
                with contextlib.suppress(ConnectionResetError), server.peer() as surplus:
                    assert surplus.ended() == b""
                eventually(lambda: server.server.turned_away == 6, "another closed connection")
        assert [record.getMessage() for record in caplog.records if "in use" in record.getMessage()] == [
            "all 2 connections are in use: new ones are refused or closed at once until some end"
        ] * 2  # once for each shortage, however many it turned away

    def test_the_first_above_the_limit_hear_why_and_may_ask_what_probes_ask(self) -> None:
        with served(max_connections=64, always_answered=frozenset({b"/ok"})) as server, contextlib.ExitStack() as stack:
            for _ in range(64):
                stack.enter_context(server.peer())
            eventually(lambda: server.server.connections == 64, "all places are taken")
            waits = set()
            for _ in range(40):
                with server.peer() as refused:
                    refused.post("/echo", b"", length=5)
                    answer = refused.answer()
                    assert (answer.status, answer.headers["connection"]) == (503, "close")
                    assert "--max-connections" in answer.problem["detail"]
                    waits.add(int(answer.headers["retry-after"]))
                    assert refused.ended() == b""
                eventually(lambda: server.server.connections == 64, "its place is free")
            assert max(waits) - min(waits) >= 2, "they would come back together"
            assert server.app.started == []
            with server.peer() as probe:
                probe.get("/ok")
                answer = probe.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert probe.ended() == b""
            for _ in range(2):
                stack.enter_context(server.peer())
            with contextlib.suppress(ConnectionResetError), server.peer() as beyond:
                beyond.get("/ok")
                assert beyond.ended() == b""

    def test_more_peers_than_descriptors(self) -> None:
        """Without a limit below the descriptors' nobody would be served, and nothing logged, while the peers stay."""
        with served_process(descriptors=128, request_timeout_secs=1) as process, contextlib.ExitStack() as stack:
            with process.peer() as kept:
                kept.get("/ok")
                assert kept.answer().status == 200
                idle = []
                for _ in range(200):
                    with contextlib.suppress(ConnectionResetError):
                        idle.append(stack.enter_context(process.peer()))
                kept.get("/ok")
                assert kept.answer().status == 200
                assert process.open_files <= 128 - 128 // 4 + 20
            eventually(process.answers, "service again after the idle peers' deadline")
            assert all(peer.ended() == b"" for peer in idle)
            log = process.end()
        assert "the limit of 128 open files allows 96 connections, not 20000" in log
        assert "all 96 connections are in use" in log


class TestDraining:
    def test_every_answer_is_the_last_of_its_connection(self) -> None:
        with served() as server, server.peer() as kept, server.peer() as polling, server.peer() as pipelining:
            kept.get("/ok")
            assert "connection" not in kept.answer().headers
            polling.get("/park")
            pipelining.get("/park")
            pipelining.get("/ok")
            eventually(lambda: server.server.in_flight == 2, "the running requests")
            server.call(server.server.drain)
            kept.get("/ok")
            assert kept.answer().headers["connection"] == "close"
            assert kept.ended() == b""
            server.app.release.set()
            for peer in (polling, pipelining):
                answer = peer.answer()
                assert (answer.status, answer.headers["connection"]) == (201, "close")
                assert peer.ended() == b""
            with server.peer() as fresh:
                fresh.post("/echo", b"still taken")
                answer = fresh.answer()
                assert (answer.body, answer.headers["connection"]) == (b"still taken", "close")
                assert fresh.ended() == b""

    def test_stop_closes_idle_connections_at_once_and_refuses_new_ones(self) -> None:
        with served() as server, server.peer() as kept, server.peer() as silent:
            kept.get("/ok")
            assert kept.answer().status == 200
            eventually(lambda: server.server.connections == 2, "both connections")
            since = time.monotonic()
            server.ask(lambda: server.server.stop(5))
            assert time.monotonic() - since < 2
            assert kept.ended() == b""
            assert silent.ended() == b""
            with pytest.raises(ConnectionRefusedError):
                server.peer()

    def test_stop_waits_for_what_runs_and_for_what_is_on_its_way_in(self) -> None:
        with served() as server, server.peer() as running, server.peer() as arriving:
            running.get("/park")
            arriving.post("/echo", b"half", length=8)
            eventually(lambda: server.server.in_flight == 1, "the running request")
            stopped = asyncio.run_coroutine_threadsafe(server.server.stop(5), server._loop)
            eventually(lambda: not server.server._server.is_serving(), "the stop")
            arriving.send(b"half")
            answer = arriving.answer()
            assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"halfhalf", "close")
            assert not stopped.done()
            server.app.release.set()
            answer = running.answer()
            assert (answer.status, answer.headers["connection"]) == (201, "close")
            stopped.result(3)

    def test_stop_lets_an_answer_be_read_to_its_end(self) -> None:
        with served() as server, server.peer(receive_buffer=65536) as slow:
            slow.get("/big")
            head = slow.read_until(b"\r\n\r\n")
            assert b" 200 " in head
            stopped = asyncio.run_coroutine_threadsafe(server.server.stop(5), server._loop)
            eventually(lambda: not server.server._server.is_serving(), "the stop")
            assert len(slow.read(server.app.answer_bytes)) == server.app.answer_bytes
            assert slow.ended() == b""
            stopped.result(3)

    def test_stop_cuts_off_what_outlives_the_grace(self, caplog: pytest.LogCaptureFixture) -> None:
        with served() as server, server.peer() as stream, server.peer() as deaf, server.peer() as dripping:
            stream.get("/stream")
            stream.read_until(b"data: first\n\n\r\n")
            deaf.get("/deaf")
            dripping.send(b"POST /echo HT")
            eventually(lambda: server.server.in_flight == 2, "both requests")
            eventually(lambda: server.server.connections == 3, "all connections")
            since = time.monotonic()
            server.ask(lambda: server.server.stop(0.3))
            assert 0.25 < time.monotonic() - since < 2
            assert stream.ended() == b""
            assert deaf.ended() == b""
            assert dripping.ended() == b""
            assert (server.server.connections, server.server.in_flight) == (0, 0)
        assert "cut off 2 requests that were not done 0.3 s after the stop" in caplog.text

    def test_stop_waits_for_the_work_of_a_peer_that_has_left(self) -> None:
        """A registration that was sent whole is done whole, whoever is left to hear of it."""

        class Slow(App):
            async def echo(self, scope: object, receive: object, send: object) -> None:
                while not self.release.is_set():
                    await asyncio.sleep(0.01)
                await super().echo(scope, receive, send)
                self.seen.append(b"done")

        with served(Slow()) as server:
            with server.peer() as peer:
                peer.post("/echo", b"registration")
                eventually(lambda: server.server.in_flight == 1, "the running request")
            eventually(lambda: server.server.connections == 0, "the peer's leaving")
            stopped = asyncio.run_coroutine_threadsafe(server.server.stop(5), server._loop)
            eventually(lambda: not server.server._server.is_serving(), "the stop")
            assert not stopped.done()
            server.app.release.set()
            stopped.result(2)
            assert server.app.seen[-1] == b"done"


class TestMemory:
    """F04 and slow readers: what peers make this process hold, from outside."""

    def test_huge_chunked_body(self) -> None:
        with served_process() as process, process.peer() as peer:
            before = process.resident_bytes
            peer.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            flood(peer, b"10000\r\n" + b"x" * 65536 + b"\r\n")
            assert peer.answer().status == 413
            assert process.resident_bytes - before < 16 * MEGABYTE

    def test_huge_head(self) -> None:
        with served_process() as process, process.peer() as peer:
            before = process.resident_bytes
            peer.send(b"GET /ok HTTP/1.1\r\nHost: a\r\nX: ")
            flood(peer, b"x" * 65536)
            assert peer.answer().status == 431
            assert process.resident_bytes - before < 16 * MEGABYTE

    def test_peers_that_never_read(self) -> None:
        with served_process(write_stall_timeout_secs=1) as process, contextlib.ExitStack() as stack:
            assert process.answers()
            before = process.resident_bytes
            peers = [stack.enter_context(process.peer(receive_buffer=4096)) for _ in range(20)]
            for peer in peers:
                peer.get("/big")
            eventually(lambda: process.resident_bytes - before > 50 * MEGABYTE, "the answers that nobody reads")
            assert process.answers()
            eventually(lambda: process.resident_bytes - before < 20 * MEGABYTE, "the memory given back")


@pytest.mark.parametrize("pause", ["frozen from outside", "stuck in its own code"])
def test_a_process_that_stood_still_judges_its_peers_only_after_it_has_heard_them(pause: str) -> None:
    """After a pause longer than every deadline, what was sent in time must not be refused as late."""
    with served_process(request_timeout_secs=1, keep_alive_secs=1) as process, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(process.peer()) for _ in range(50)]
        arriving = [stack.enter_context(process.peer()) for _ in range(50)]
        blocking = stack.enter_context(process.peer())
        for peer in kept:
            peer.get("/ok")
            assert peer.answer().status == 200
        for peer in arriving:
            peer.post("/echo", b"half", length=8)
        if pause == "frozen from outside":
            process.popen.send_signal(signal.SIGSTOP)
        else:
            blocking.get("/block")
            blocking.read_until(b"\r\n\r\n")
        paused = time.monotonic()
        for peer in kept:
            peer.get("/ok")
        for peer in arriving:
            peer.send(b"half")
        if pause == "frozen from outside":
            eventually(lambda: time.monotonic() - paused > 2.5, "the end of the pause")
            process.popen.send_signal(signal.SIGCONT)
        assert [peer.answer().status for peer in (*kept, *arriving)] == [200] * 100
