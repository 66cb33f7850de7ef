"""What headers ask for, and how errors become answers."""

import json
import time
from typing import Any

import pytest

from discovery.errors import DiscoveryError, Fault, Gone, Rejected, Unavailable
from discovery.http.answers import (
    answer,
    asked_wait,
    header,
    not_modified,
    problem,
    refuse,
    tag_matches,
    takes_gzip,
    too_many,
)

TOKEN = "0123456789abcdef0123456789abcdef"


def scope(*headers: tuple[str, str]) -> Any:
    return {"headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}


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


# ---- entity tags

HITS = [
    'W/"%s"',
    '"%s"',
    ' "%s" ',
    '"zz", W/"%s" ,"y"',
    '"zz","%s"',
    '"%s", "unterminated',
    '"a,b", "%s"',
    ', ,"%s"',
    '"zz",, "%s"',
    "*",
    " * ",
]
MISSES = [
    "",
    '"zz"',
    'W/"zz"',
    "W/",
    '"',
    '""',
    '"unterminated',
    '"%s',
    '%s"',
    "%s",
    'w/"%s"',
    'W/ "%s"',
    '"zz" "%s"',
    'zz, "%s"',
    '"%s "',
    '"x%s"',
    '"a, %s"',
    ",,",
    "**",
    '*, "zz"',
    "\x80\xff",
    '"' * 999,
    ", " * 5_000,
]


@pytest.mark.parametrize("value", HITS)
def test_f05_a_condition_that_names_the_tag_is_met_weakly_and_in_lists(value: str) -> None:
    assert tag_matches(value.replace("%s", TOKEN).encode("latin-1"), TOKEN)


@pytest.mark.parametrize("value", MISSES)
def test_f05_any_other_condition_is_not_met_and_never_an_error(value: str) -> None:
    assert not tag_matches(value.replace("%s", TOKEN).encode("latin-1"), TOKEN)


# ---- Prefer: wait


@pytest.mark.parametrize(
    ("value", "secs"),
    [
        ("wait=30", 30),
        ("wait=1", 1),
        ("wait=300", 300),
        ("wait=301", 300),
        ("wait=999999999", 300),
        ("wait=9999999999", 300),
        ("wait=" + "9" * 5_000, 300),
        ("wait=0030", 30),
        ("Wait = 30", 30),
        ('wait="30"', 30),
        ("respond-async, wait=30", 30),
        ("wait=30, respond-async", 30),
        ("wait=30; foo=bar", 30),
        ("handling=lenient; x=y, wait=30", 30),
        ("wait=0", 0),
        ("", 0),
        ("wait", 0),
        ("wait=", 0),
        ("wait=-5", 0),
        ("wait=+5", 0),
        ("wait=1.5", 0),
        ("wait=1e3", 0),
        ("wait=30s", 0),
        ("wait=abc", 0),
        ("wait=\u00b2", 0),
        ("nowait=30", 0),
        ("await=30", 0),
        ("return=minimal; wait=30", 0),
        ("wait:30", 0),
    ],
)
def test_the_wait_is_whole_seconds_up_to_a_limit_and_else_ignored(value: str, secs: int) -> None:
    assert asked_wait(scope(("prefer", value))) == secs


@pytest.mark.parametrize(
    "value", ["wait=" + "0" * 16_000 + "x", "wait" + " " * 16_000, ", wait=1x" * 1_700, "," * 16_000]
)
def test_no_preference_holds_the_process_up(value: str) -> None:
    begun = time.process_time()
    assert asked_wait(scope(("prefer", value))) == 0
    assert time.process_time() - begun < 0.1


def test_preferences_may_come_in_several_lines() -> None:
    assert asked_wait(scope(("prefer", "respond-async"), ("other", "wait=9"), ("prefer", "wait=30"))) == 30
    assert asked_wait(scope()) == 0


# ---- Accept-Encoding


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br", True),
        ("br, gzip", True),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("gzip;q=0.001", True),
        ("gzip; q=1", True),
        ("*", True),
        ("*;q=0.5", True),
        ("", False),
        ("identity", False),
        ("br, deflate", False),
        ("gzip;q=0", False),
        ("gzip;q=0.0", False),
        ("gzip;q=0.000", False),
        ("gzip; q=0", False),
        ("gzip ;q=0", False),
        ("gzip;Q=0", False),
        ("gzip;q=0, *", False),
        ("*, gzip;q=0", False),
        ("*;q=0", False),
        ("gzip;q=", False),
        ("gzipped", False),
    ],
)
def test_gzip_is_taken_where_it_is_named_or_covered_and_not_refused(value: str, taken: bool) -> None:
    assert takes_gzip(value.encode()) is taken


# ---- headers and answers


def test_several_lines_of_a_header_are_one_list() -> None:
    lines = scope(("a", "1"), ("b", "2"), ("a", "3"))
    assert header(lines, b"a") == b"1, 3"
    assert header(lines, b"c") is None


def test_an_answer_says_how_long_it_is_and_a_304_does_not() -> None:
    assert sent(lambda send: answer(send, 200, [(b"x", b"y")], b"body")) == (
        200,
        {"x": "y", "content-length": "4"},
        b"body",
    )
    assert sent(lambda send: not_modified(send, [(b"etag", b'W/"x"')])) == (304, {"etag": 'W/"x"'}, b"")


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
