"""Answers as they are sent, and how errors become answers."""

import json
from typing import Any

import pytest

from discovery.errors import DiscoveryError, Fault, Gone, Rejected, Unavailable
from discovery.http.answers import answer, answer_as_is, problem, refuse, too_many


def sent(coroutine_of: Any) -> tuple[int, dict[str, str], bytes]:
    """Run something that answers; status, headers and body of the one answer it must have sent."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    with pytest.raises(StopIteration):  # nothing waits, so one step is all of it
        coroutine_of(send).send(None)
    start, body = messages
    assert start["type"] == "http.response.start"
    assert body["type"] == "http.response.body"
    assert not body.get("more_body")
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


def test_an_answer_says_how_long_it_is_and_a_304_does_not() -> None:
    assert sent(lambda send: answer(send, 200, [(b"x", b"y")], b"body")) == (
        200,
        {"x": "y", "content-length": "4"},
        b"body",
    )
    assert sent(lambda send: answer_as_is(send, 304, [(b"etag", b'W/"x"')])) == (304, {"etag": 'W/"x"'}, b"")


def test_a_problem_has_title_status_and_detail_and_faults_only_where_there_are_some() -> None:
    status, headers, body = sent(lambda send: problem(send, 404, "There is nothing."))
    assert (status, headers["content-type"]) == (404, "application/problem+json")
    assert headers["content-length"] == str(len(body))
    assert json.loads(body) == {"title": "Not Found", "status": 404, "detail": "There is nothing."}
    faults = [Fault("$.a", "is wrong"), Fault("$.b[0]", "too")]
    _, _, body = sent(lambda send: problem(send, 422, "Two faults.", title="Invalid", faults=faults))
    assert json.loads(body) == {
        "title": "Invalid",
        "status": 422,
        "detail": "Two faults.",
        "errors": [{"path": "$.a", "message": "is wrong"}, {"path": "$.b[0]", "message": "too"}],
    }


def test_what_was_rejected_is_answered_with_its_status_faults_and_headers() -> None:
    error = Rejected(429, "Too many", "Slower.", faults=(Fault("$", "x"),), headers=(("retry-after", "7"),))
    status, headers, body = sent(lambda send: refuse(send, error))
    assert (status, headers["retry-after"]) == (429, "7")
    assert json.loads(body)["errors"] == [{"path": "$", "message": "x"}]


def test_what_is_unavailable_is_tried_again_soon_and_on_another_connection() -> None:
    seen = set()
    for _ in range(60):
        status, headers, body = sent(lambda send: refuse(send, Unavailable("The store does not answer.")))
        assert (status, headers["connection"]) == (503, "close")
        assert json.loads(body)["detail"] == "The store does not answer."
        seen.add(headers["retry-after"])
    assert seen == {"1", "2"}, "a relay must not wait longer, and all must not come at once"


def test_any_other_error_of_ours_tells_nothing() -> None:
    for error in (Gone("gap", "secret position"), DiscoveryError("secret")):
        status, _, body = sent(lambda send, error=error: refuse(send, error))
        assert status == 500
        assert b"secret" not in body


def test_readers_above_a_cap_are_told_to_come_back_at_different_times() -> None:
    errors = [too_many("streams", 10_000) for _ in range(200)]
    assert {error.status for error in errors} == {503}
    assert "10,000 streams" in errors[0].detail
    waits = {int(dict(error.headers)["retry-after"]) for error in errors}
    assert min(waits) >= 1
    assert len(waits) > 5
