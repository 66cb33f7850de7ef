"""The id of a request: taken over, given back, quoted in the problem and in the log where the service is at fault."""

import logging
import re
from typing import Any

import pytest
from starlette.routing import Route

from discovery.errors import Rejected, Unavailable
from discovery.http import api
from discovery.http.request_ids import REQUEST_ID, id_of, taken_over
from tests.http.sockets import served

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize("value", ["a", "0", "7d9f-1:2/3@x=~+._", "x" * 128])
def test_a_well_formed_id_is_taken_over(value: str) -> None:
    assert taken_over(b"x-request-id", value.encode(), None) == value
    assert taken_over(b"x-request-id", value.encode(), "of the trace") == value


@pytest.mark.parametrize(
    "value", [b"", b"x" * 129, b"a b", b"a\tb", b'a"b', b"<b>", b"a;b", b"a,b", b"a%0Ab", b"\xc3\xa9", b"a\nb", b"$x"]
)
def test_a_malformed_id_leaves_what_was_known(value: bytes) -> None:
    assert taken_over(b"x-request-id", value, None) is None
    assert taken_over(b"x-request-id", value, "before") == "before"


def test_a_trace_is_an_id_where_there_is_no_other() -> None:
    assert taken_over(b"traceparent", PARENT.encode(), None) == TRACE
    assert taken_over(b"traceparent", PARENT.encode(), "before") == "before"


@pytest.mark.parametrize(
    "value",
    [
        "", TRACE, PARENT.upper(), "ff" + PARENT[2:], PARENT + "-x", PARENT[:-1], f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)  # fmt: skip
def test_a_malformed_trace_is_none(value: str) -> None:
    assert taken_over(b"traceparent", value.encode(), None) is None


def test_an_id_that_was_made_stays() -> None:
    scope: dict[str, Any] = {}
    made = id_of(scope)
    assert re.fullmatch("[0-9a-f]{16}", made)
    assert id_of(scope) == scope[REQUEST_ID] == made
    assert id_of({}) != made


# ---- over the wire


def failing(error: Exception | None) -> api.App:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        if error is not None:
            raise error
        await api.answer(send, 200, [], b"ok")

    return api._guarded(handler)


def asked(app: api.App, *headers: str) -> Any:
    with served(app) as server, server.peer() as peer:
        peer.get("/x", *headers)
        return peer.answer()


def test_an_answer_has_the_id_that_its_request_brought_and_no_other_has_one() -> None:
    with served(failing(None)) as server, server.peer() as peer:
        found = []
        for headers in (
            ("X-Request-Id: a1",),
            (),
            ("traceparent: " + PARENT,),
            (f"traceparent: {PARENT}", "x-request-ID: b"),
        ):
            peer.get("/x", *headers)
            found.append(peer.answer().headers.get("x-request-id"))
    assert found == ["a1", None, TRACE, "b"]


def test_requests_in_one_piece_keep_their_ids_apart() -> None:
    def request(line: str) -> str:
        return f"GET /x HTTP/1.1\r\nHost: test\r\n{line}\r\n"

    with served(failing(None)) as server, server.peer() as peer:
        peer.send("".join(map(request, ("X-Request-Id: 1\r\n", "", "X-Request-Id: 3\r\n"))).encode())
        assert [peer.answer().headers.get("x-request-id") for _ in range(3)] == ["1", None, "3"]


def test_a_request_that_is_refused_before_it_is_whole_gets_its_id_back() -> None:
    with served(failing(None)) as server, server.peer() as peer:
        peer.get("/x", "X-Request-Id: a1", "Content-Encoding: gzip")
        answer = peer.answer()
    assert (answer.status, answer.headers["x-request-id"], answer.problem["request_id"]) == (415, "a1", "a1")


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unavailable("Not now."), 503), (Rejected(503, "Full", "Too many."), 503), (KeyError("x"), 500)],
)
def test_the_problem_of_a_failed_request_has_an_id_to_quote(error: Exception, status: int) -> None:
    brought = asked(failing(error), "X-Request-Id: a1")
    assert (brought.status, brought.headers["x-request-id"], brought.problem["request_id"]) == (status, "a1", "a1")
    made = asked(failing(error))
    assert made.problem["request_id"] == made.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{16}", made.headers["x-request-id"])


def test_a_client_that_is_at_fault_gets_no_id_that_it_has_not_brought() -> None:
    answer = asked(failing(Rejected(400, "Bad", "That is wrong.")))
    assert "x-request-id" not in answer.headers
    assert "request_id" not in answer.problem


def test_the_log_of_a_fault_has_the_id_of_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = asked(failing(KeyError("x")))
    (line,) = [record for record in caplog.records if record.getMessage() == "GET /x failed"]
    assert line.request_id == answer.problem["request_id"]  # type: ignore[attr-defined]
    assert line.exc_info is not None


def test_the_router_answers_a_fault_with_the_same_id_as_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("x")

    with caplog.at_level(logging.ERROR):
        answer = asked(api._routed([Route("/x", api._Asgi({"GET": broken}))]))
    (line,) = [record for record in caplog.records if record.getMessage() == "GET /x failed"]
    assert line.request_id == answer.problem["request_id"] == answer.headers["x-request-id"]  # type: ignore[attr-defined]
