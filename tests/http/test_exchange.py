"""An answer from its first bytes to its end, and what a peer gets where the app fails."""

from typing import Any

import pytest

from discovery.http.exchange import JOINED_BYTES, HeldHead
from tests.http.sockets import App, eventually, served


class Recorded:
    """A transport that keeps what each system call would send."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.calls.append(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Cycle:
    """As much of a request with the app as holds a transport."""

    transport: Any = None


@pytest.fixture
def transport() -> Recorded:
    return Recorded()


@pytest.fixture
def cycle(transport: Recorded) -> Any:
    cycle: Any = Cycle()
    cycle.transport = HeldHead(cycle, transport)  # type: ignore[arg-type]
    return cycle


@pytest.mark.parametrize("length", [2, JOINED_BYTES, JOINED_BYTES + 1])
def test_head_and_first_bytes_leave_in_one_call_and_what_follows_goes_straight(
    cycle: Any, transport: Recorded, length: int
) -> None:
    cycle.transport.write(b"head ")
    assert transport.calls == []
    cycle.transport.write(b"x" * length)
    assert transport.calls == [b"head " + b"x" * length]
    assert cycle.transport is transport


def test_an_answer_without_a_body_leaves_at_its_end(cycle: Any, transport: Recorded) -> None:
    cycle.transport.write(b"head")
    cycle.transport.flush()
    assert (transport.calls, cycle.transport) == ([b"head"], transport)


def test_a_close_leaves_no_head_behind(cycle: Any, transport: Recorded) -> None:
    cycle.transport.write(b"head")
    assert not cycle.transport.is_closing()
    cycle.transport.close()
    assert (transport.calls, transport.closed) == ([b"head"], True)


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
