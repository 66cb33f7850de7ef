"""An answer from its first bytes to its end, and what a peer gets where the app fails."""

import asyncio
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from discovery.http.exchange import (
    JOINED_BYTES,
    REMEMBERED_TARGET_BYTES,
    SHARED_BYTES,
    TURN_BYTES,
    WIRE,
    Exchange,
    begin,
    target_of,
)
from discovery.http.limits import Limits
from discovery.http.peers import SharedState
from tests.http.sockets import App, eventually, served


class Recorded:
    """A transport that keeps what each system call would send."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closed = False
        self.filled = lambda: None

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.calls.append(b"".join(parts))
        self.filled()

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        raise AssertionError("reading was never paused")


class Owner:
    """As much of a connection as an exchange needs."""

    def __init__(self) -> None:
        self.transport: Any = Recorded()
        self.flow = FlowControl(self.transport)
        self.shared = SharedState(Limits())
        self.shared.default_headers = [(b"date", b"now"), (b"x-default", b"1")]
        self.completed = 0
        self.aborted = False

    def on_response_complete(self) -> None:
        self.completed += 1

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.aborted = True

    def exchange(
        self, method: str = "GET", body: bytes = b"", *, keep_alive: bool = True, http_version: str = "1.1"
    ) -> Exchange:
        scope = {"method": method, "raw_path": b"/x", "http_version": http_version}
        return Exchange(scope, body, self, keep_alive=keep_alive)


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def part(body: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def length(number: int) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % number)


def step(coroutine: Any) -> Any:
    """What a coroutine returns that has to end without waiting for anything."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("it waits")


def send(exchange: Exchange, *messages: dict[str, Any]) -> None:
    for message in messages:
        step(exchange.send(message))


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


HEAD = b"HTTP/1.1 200 OK\r\ndate: now\r\nx-default: 1\r\n"


class TestTheAnswerOnTheWire:
    @pytest.mark.parametrize("size", [2, JOINED_BYTES, JOINED_BYTES + 1])
    def test_head_and_first_bytes_leave_in_one_call_and_what_follows_goes_straight(self, size: int) -> None:
        owner = Owner()
        exchange = owner.exchange()
        send(exchange, start(200, length(size + 3)))
        assert owner.transport.calls == []
        send(exchange, part(b"x" * size, more=True))
        assert owner.transport.calls == [HEAD + b"content-length: %d\r\n\r\n" % (size + 3) + b"x" * size]
        assert (owner.completed, exchange.response_complete) == (0, False)
        send(exchange, part(b"end"))
        assert owner.transport.calls[1:] == [b"end"]
        assert (owner.completed, exchange.response_complete, owner.transport.closed) == (1, True, False)

    def test_a_body_in_pieces_leaves_behind_its_head_without_a_copy(self) -> None:
        owner, pieces = Owner(), [b"x" * JOINED_BYTES, b"y", b"z" * 10]
        written: list[tuple[bytes, ...]] = []
        owner.transport.writelines = lambda parts: written.append(tuple(parts))
        exchange = owner.exchange()
        size = sum(map(len, pieces))
        send(exchange, start(200, length(size)), {"type": "http.response.body", "pieces": pieces})
        ((head, *rest),) = written
        assert head == HEAD + b"content-length: %d\r\n\r\n" % size
        assert all(one is other for one, other in zip(rest, pieces, strict=True))
        assert (owner.transport.calls, owner.completed, exchange.response_complete) == ([], 1, True)

    def test_a_long_body_in_pieces_leaves_by_and_by_so_that_others_get_their_turn(self) -> None:
        owner, pieces = Owner(), [bytes([number]) * (TURN_BYTES // 4) for number in range(11)]
        exchange = owner.exchange()
        size = sum(map(len, pieces))
        send(exchange, start(200, length(size)))
        sending = exchange.send({"type": "http.response.body", "pieces": pieces})
        for turn in (1, 2):
            assert sending.send(None) is None, "it waits for something else than its next turn"
            assert (len(owner.transport.calls), owner.completed, exchange.response_complete) == (turn, 0, False)
        assert step(sending) is None
        assert (len(owner.transport.calls), owner.completed, exchange.response_complete) == (3, 1, True)
        assert b"".join(owner.transport.calls) == HEAD + b"content-length: %d\r\n\r\n" % size + b"".join(pieces)

    def test_a_long_body_in_pieces_waits_for_a_slow_peer_and_ends_with_it(self) -> None:
        async def slow() -> None:
            owner, pieces = Owner(), [b"x" * TURN_BYTES] * 4
            owner.transport.filled = owner.flow.pause_writing
            exchange = owner.exchange()
            send(exchange, start(200, length(4 * TURN_BYTES)))
            sending = asyncio.ensure_future(exchange.send({"type": "http.response.body", "pieces": pieces}))
            for written in (1, 2):
                await _turns(5)
                assert (len(owner.transport.calls), sending.done()) == (written, False)
                owner.flow.resume_writing()
            await _turns(5)
            exchange.disconnect()
            owner.flow.resume_writing()
            await sending
            assert (len(owner.transport.calls), exchange.response_complete) == (3, False)

        asyncio.run(slow())

    def test_a_body_in_pieces_is_held_to_its_length_its_chunks_and_its_method(self) -> None:
        in_pieces = {"type": "http.response.body", "pieces": [b"12", b"345"]}
        with pytest.raises(RuntimeError, match="Content-Length"):
            send(Owner().exchange(), start(200, length(6)), in_pieces)
        chunked, head = Owner(), Owner()
        send(chunked.exchange(), start(), in_pieces)
        assert chunked.transport.calls[0].endswith(b"\r\n\r\n5\r\n12345\r\n0\r\n\r\n")
        send(head.exchange("HEAD"), start(200, length(5)), in_pieces)
        assert head.transport.calls == [HEAD + b"content-length: 5\r\n\r\n"]

    def test_a_body_of_no_known_length_leaves_in_chunks(self) -> None:
        owner = Owner()
        exchange = owner.exchange()
        send(exchange, start(), part(b"first", more=True), part(b"", more=True), part(b"last"))
        head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
        assert owner.transport.calls == [head + b"5\r\nfirst\r\n", b"4\r\nlast\r\n0\r\n\r\n"]

    def test_a_long_chunk_is_framed_without_a_copy(self) -> None:
        owner, shared = Owner(), b"x" * SHARED_BYTES
        written: list[tuple[bytes, ...]] = []
        owner.transport.writelines = lambda parts: written.append(tuple(parts))
        exchange = owner.exchange()
        send(exchange, start(), part(shared, more=True), part(shared))
        assert all(body is shared for _, body, _ in written)
        before = HEAD + b"transfer-encoding: chunked\r\n\r\n"
        framed = b"%x\r\n%b\r\n" % (SHARED_BYTES, shared)
        assert b"".join(map(b"".join, written)) == before + framed + framed + b"0\r\n\r\n"
        assert (owner.transport.calls, owner.completed) == ([], 1)

    @pytest.mark.parametrize(
        ("method", "status", "headers", "body"),
        [("HEAD", 200, [length(5)], b"12345"), ("HEAD", 200, [], b"1"), ("GET", 204, [], b""), ("GET", 304, [], b"")],
    )
    def test_an_answer_without_a_body_is_its_head(
        self, method: str, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        owner = Owner()
        exchange = owner.exchange(method)
        send(exchange, start(status, *headers), part(body))
        (written,) = owner.transport.calls
        assert written.startswith(b"HTTP/1.1 %d " % status)
        assert written.endswith(b"\r\n\r\n")
        assert (b"content-length: 5\r\n" in written) == bool(headers)
        assert b"chunked" not in written
        assert owner.completed == 1

    def test_head_of_an_empty_first_part_does_not_wait_for_the_next(self) -> None:
        owner = Owner()
        exchange = owner.exchange()
        send(exchange, start(), part(b"", more=True))
        assert owner.transport.calls == [HEAD + b"transfer-encoding: chunked\r\n\r\n"]

    @pytest.mark.parametrize(
        ("keep_alive", "headers", "closes"),
        [
            (True, [], 0),
            (False, [], 1),
            (True, [(b"connection", b"Close")], 1),
            (False, [(b"Connection", b"x, close")], 1),
            (True, [(b"connection", b"closed")], 0),
        ],
    )
    def test_the_last_answer_says_so_once_and_closes(
        self, keep_alive: bool, headers: list[tuple[bytes, bytes]], closes: int
    ) -> None:
        owner = Owner()
        exchange = owner.exchange(keep_alive=keep_alive)
        send(exchange, start(200, length(1), *headers), part(b"x"))
        (written,) = owner.transport.calls
        lines = written.lower().split(b"\r\n")
        assert sum(b"close" in line.split(b": ")[-1].split(b", ") for line in lines) == closes
        assert owner.transport.closed == bool(closes)

    def test_a_header_of_its_own_stands_for_the_one_of_all_answers(self) -> None:
        owner = Owner()
        send(owner.exchange(), start(200, length(0), (b"X-Default", b"2")), part())
        assert owner.transport.calls == [b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 0\r\nx-default: 2\r\n\r\n"]

    @pytest.mark.parametrize(
        ("announced", "body", "written"), [(2, b"abc", 0), (4, b"abc", 1)], ids=["more than announced", "less"]
    )
    def test_a_body_of_another_length_than_announced_is_a_fault(
        self, announced: int, body: bytes, written: int
    ) -> None:
        owner = Owner()
        exchange = owner.exchange()
        send(exchange, start(200, length(announced)))
        with pytest.raises(RuntimeError):
            send(exchange, part(body))
        assert (len(owner.transport.calls), owner.completed) == (written, 0)

    @pytest.mark.parametrize(
        "messages",
        [
            [part(b"x")],
            [start(), start()],
            [start(200, length(1)), part(b"x"), part(b"x")],
            [start(200, length(1)), part(b"x"), start()],
            [{"type": "http.response.push"}],
        ],
    )
    def test_messages_out_of_place_are_a_fault(self, messages: list[dict[str, Any]]) -> None:
        exchange = Owner().exchange()
        send(exchange, *messages[:-1])
        with pytest.raises(RuntimeError):
            send(exchange, messages[-1])

    @pytest.mark.parametrize("header", [(b"x", b"1\r\ny: 2"), (b"x: y", b"1"), (b"", b"1"), (b"x", b"\0")])
    def test_a_header_that_would_end_its_line_is_never_written(self, header: tuple[bytes, bytes]) -> None:
        owner = Owner()
        exchange = owner.exchange()
        with pytest.raises(ValueError, match="a header that cannot be sent"):
            send(exchange, start(200, header))
        assert (owner.transport.calls, exchange.response_started) == ([], False)

    def test_nothing_is_written_once_the_peer_has_left(self) -> None:
        owner = Owner()
        exchange = owner.exchange()
        exchange.disconnect()
        send(exchange, start(200, length(1)), part(b"x"))
        assert exchange.write_now(b"chunk")
        assert (owner.transport.calls, owner.completed) == ([], 0)

    def test_bytes_framed_elsewhere_are_taken_only_while_the_peer_keeps_up(self) -> None:
        owner = Owner()
        exchange = owner.exchange()
        send(exchange, start(), part(b"x", more=True))
        assert exchange.write_now(b"1\r\ny\r\n")
        assert owner.transport.calls[1:] == [b"1\r\ny\r\n"]
        owner.flow.pause_writing()
        assert not exchange.write_now(b"never")
        owner.flow.resume_writing()
        send(exchange, part())
        assert exchange.write_now(b"behind the end")
        assert owner.transport.calls[2:] == [b"0\r\n\r\n"]


class TestAWholeAnswerInOneCall:
    def test_it_is_the_same_as_in_two_messages(self) -> None:
        by_messages, at_once = Owner(), Owner()
        send(by_messages.exchange("POST", b"asked"), start(200, length(1)), part(b"x"))
        exchange = at_once.exchange("POST", b"asked")
        assert exchange.take_body() == b"asked"
        assert exchange.take_body() is None
        assert exchange.answer_now(200, [length(1)], b"x")
        assert at_once.transport.calls == by_messages.transport.calls
        assert (exchange.response_complete, at_once.completed) == (True, 1)

    @pytest.mark.parametrize("hindrance", ["lags", "left", "begun"])
    def test_it_is_left_to_messages_where_it_cannot_be_written_at_once(self, hindrance: str) -> None:
        owner = Owner()
        exchange = owner.exchange("POST", b"asked")
        if hindrance == "lags":
            owner.flow.pause_writing()
        elif hindrance == "left":
            exchange.disconnect()
            assert exchange.take_body() is None
        else:
            send(exchange, start(200, length(2)), part(b"x", more=True))
        written = list(owner.transport.calls)
        assert not exchange.answer_now(200, [length(1)], b"x")
        assert owner.transport.calls == written
        assert not exchange.response_complete


class Untasked(asyncio.Future[Any]):
    needs_no_task = True


class TestTheAppsFirstStep:
    def test_an_app_that_waits_for_nothing_needs_no_task(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert await receive() == {"type": "http.request", "body": b"asked", "more_body": False}
            await send(start(200, length(4)))
            await send(part(b"said"))

        owner = Owner()
        exchange = owner.exchange("POST", b"asked")
        assert begin(exchange, app, owner) is None
        assert owner.transport.calls[0].endswith(b"\r\n\r\nsaid")
        assert WIRE not in exchange.scope

    def test_an_app_that_waits_goes_on_in_a_task_with_what_it_waited_for(self) -> None:
        seen: list[Any] = []

        async def run() -> None:
            awaited = asyncio.get_running_loop().create_future()

            async def app(scope: Any, receive: Any, send: Any) -> None:
                seen.append(await awaited)
                await asyncio.sleep(0)
                async with asyncio.timeout(5):
                    seen.append((await receive())["body"])
                seen.append((await receive())["type"])

            owner = Owner()
            exchange = owner.exchange("POST", b"asked")
            rest = begin(exchange, app, owner)
            assert rest is not None
            task = asyncio.get_running_loop().create_task(rest)
            awaited.set_result("value")
            while len(seen) < 2:
                await asyncio.sleep(0)
            exchange.disconnect()
            await task

        asyncio.run(run())
        assert seen == ["value", b"asked", "http.disconnect"]

    @pytest.mark.parametrize("turns", [0, 1, 3], ids=["before its second step", "in its wait", "later"])
    def test_a_task_that_goes_on_can_be_cancelled(self, turns: int) -> None:
        seen: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def run() -> None:
            owner = Owner()
            rest = begin(owner.exchange(), app, owner)
            assert rest is not None
            task = asyncio.get_running_loop().create_task(rest)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert owner.aborted

        asyncio.run(run())
        assert seen == ["cancelled"]

    def test_an_app_that_outlives_its_cancellation_waits_for_what_it_asked_for_last(self) -> None:
        seen: list[str] = []

        async def run() -> None:
            loop = asyncio.get_running_loop()
            first, second = loop.create_future(), loop.create_future()

            async def app(scope: Any, receive: Any, send: Any) -> None:
                try:
                    await first
                except asyncio.CancelledError:
                    seen.append(await second)

            owner = Owner()
            exchange = owner.exchange()
            exchange.disconnect()
            rest = begin(exchange, app, owner)
            assert rest is not None
            task = loop.create_task(rest)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            second.set_result("second")
            await task

        asyncio.run(run())
        assert seen == ["second"]

    def test_an_app_goes_on_without_a_task_only_where_what_it_waits_for_needs_none(self) -> None:
        seen: list[tuple[str, bool]] = []

        async def run() -> None:
            loop = asyncio.get_running_loop()
            running: set[asyncio.Future[Any]] = set()
            first, second = Untasked(), Untasked()

            async def app(scope: Any, receive: Any, send: Any) -> None:
                for wait in (first, second):
                    seen.append((await wait, asyncio.current_task() is None))
                async with asyncio.timeout(5):
                    await asyncio.sleep(0)
                await send(start(200, length(4)))
                await send(part(b"said"))

            owner = Owner()
            exchange = owner.exchange("POST", b"asked")
            rest = begin(exchange, app, owner)
            assert rest is not None
            rest.go_on(loop, running)
            assert running == {first}
            first.set_result("first")
            await asyncio.sleep(0)
            assert len(running) == 1
            assert running.isdisjoint({first})
            second.set_result("second")
            await asyncio.wait(running)
            await asyncio.sleep(0)
            assert running == set()
            assert owner.transport.calls[0].endswith(b"said")

        asyncio.run(run())
        assert seen == [("first", True), ("second", False)]

    @pytest.mark.parametrize("kind", ["cancelled", "failed"])
    def test_what_goes_on_without_a_task_hears_that_its_wait_was_in_vain(self, kind: str) -> None:
        seen: list[str] = []

        async def run() -> None:
            running: set[asyncio.Future[Any]] = set()
            answer = Untasked()

            async def app(scope: Any, receive: Any, send: Any) -> None:
                try:
                    await answer
                except BaseException as error:
                    seen.append(type(error).__name__)
                    raise

            owner = Owner()
            rest = begin(owner.exchange("POST"), app, owner)
            assert rest is not None
            rest.go_on(asyncio.get_running_loop(), running)
            if kind == "cancelled":
                for one in running:
                    one.cancel()
            else:
                answer.set_exception(OSError("no answer"))
            await asyncio.wait(running)
            assert running == set()
            assert owner.aborted == (kind == "cancelled")
            assert kind == "cancelled" or b" 500 " in owner.transport.calls[0]

        asyncio.run(run())
        assert seen == ["CancelledError" if kind == "cancelled" else "OSError"]

    def test_an_app_that_gives_up_at_once_has_its_peer_reset_and_nobody_else(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            raise asyncio.CancelledError

        owner = Owner()
        assert begin(owner.exchange(), app, owner) is None
        assert owner.aborted

    def test_whoever_waits_for_the_peer_to_leave_hears_of_the_answers_end_too(self) -> None:
        async def run() -> None:
            exchange = Owner().exchange()
            await exchange.receive()
            left = asyncio.create_task(exchange.receive())
            await asyncio.sleep(0)
            send(exchange, start(200, length(1)), part(b"x"))
            assert await left == {"type": "http.disconnect"}

        asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (b"/pools", ("/pools", b"/pools", b"")),
        (b"/a%20b?x=%2F", ("/a b", b"/a%20b", b"x=%2F")),
        (b"/%C3%A9?", ("/é", b"/%C3%A9", b"")),
        (b"http://host:1/pools?q", ("/pools", b"/pools", b"q")),
        (b"/" + b"x" * REMEMBERED_TARGET_BYTES, ("/" + "x" * REMEMBERED_TARGET_BYTES, b"/" + b"x" * 256, b"")),
    ],
)
def test_what_the_request_line_asks_for(url: bytes, target: tuple[str, bytes, bytes]) -> None:
    assert target_of(url) == target
    assert target_of(url) == target  # also when it is remembered


@pytest.mark.parametrize("path", ["/raises", "/silent", "/unknown%0aline"])
def test_error_is_a_problem_document_and_one_record(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with served() as server, server.peer() as peer:
        peer.post(path, b"secret body")
        answer = peer.answer()
        assert answer.problem["status"] == 500
        assert b"reason" not in answer.body
        assert peer.ended() == b""
        eventually(lambda: server.server.in_flight == 0, "the end of the request")
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert f"POST {path}" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "secret" not in caplog.text


def test_error_in_the_middle_of_an_answer_ends_it_short(caplog: pytest.LogCaptureFixture) -> None:
    with served() as server, server.peer() as peer:
        peer.get("/breaks")
        assert peer.ended().endswith(b"\r\n\r\nsome")
    assert [record.getMessage() for record in caplog.records] == ["GET /breaks failed"]


def test_cancelled_app_does_not_leave_its_peer_waiting() -> None:
    with served() as server, server.peer() as peer:
        peer.get("/cancels")
        assert peer.ended() == b""


def test_error_after_the_peer_has_left_is_none_of_the_services(caplog: pytest.LogCaptureFixture) -> None:
    class Late(App):
        async def park(self, scope: object, receive: object, send: object) -> None:
            await super().park(scope, receive, send)
            raise ConnectionError("noticed")

    with served(Late()) as server:
        with server.peer() as peer:
            peer.get("/park")
            eventually(lambda: server.server.in_flight == 1, "the running request")
        eventually(lambda: server.server.in_flight == 0, "the end of the request")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
