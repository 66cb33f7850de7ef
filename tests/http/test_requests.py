"""What requests say: entity tags, preferences, codings, and bodies in pieces."""

import time
from typing import Any

import pytest

from discovery.errors import Rejected
from discovery.http.requests import asked_wait, header, tag_matches, takes_gzip, whole_body

TOKEN = "0123456789abcdef0123456789abcdef"


def scope(*headers: tuple[str, str]) -> Any:
    return {"headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}


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


# ---- headers


def test_several_lines_of_a_header_are_one_list() -> None:
    lines = scope(("a", "1"), ("b", "2"), ("a", "3"))
    assert header(lines, b"a") == b"1, 3"
    assert header(lines, b"c") is None


# ---- the body


def piece(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def taken(*messages: dict[str, Any], limit: int = 10) -> bytes | None:
    """The body that arrives in these messages; fails where it waits for more than there are."""
    waiting = list(messages)

    async def receive() -> Any:
        return waiting.pop(0)

    body = await whole_body(receive, limit)
    assert not waiting
    return body


async def test_a_body_is_whole_in_however_many_pieces_it_comes() -> None:
    assert await taken(piece(b"0123456789", more=False)) == b"0123456789"
    assert await taken(piece(b"01234", more=True), piece(b"", more=True), piece(b"56789", more=False)) == b"0123456789"


async def test_a_body_over_the_limit_is_refused_before_its_end() -> None:
    for messages in ([piece(b"01234567890", more=False)], [piece(b"012345", more=True), piece(b"678901", more=True)]):
        with pytest.raises(Rejected) as refused:
            await taken(*messages)
        assert refused.value.status == 413


async def test_of_a_client_that_leaves_before_the_end_there_is_no_body() -> None:
    assert await taken(piece(b"01", more=True), {"type": "http.disconnect"}) is None
