"""One line for each record, whatever it holds; fields that programs can read; no second line, no password."""

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery import logs

LIBRARIES = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    kept = root.handlers[:], root.level, logging.raiseExceptions
    yield
    logging.captureWarnings(False)
    root.handlers[:], logging.raiseExceptions = kept[0], kept[2]
    root.setLevel(kept[1])
    for name in logs._LIBRARIES:
        logging.getLogger(name).setLevel(logging.NOTSET)


def record(message: Any = "Ready.", *arguments: Any, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("discovery.test").makeRecord(
        "discovery.test", level, "file.py", 1, message, arguments, None, extra=extra
    )


def as_text(*arguments: Any, **extra: Any) -> str:
    return logs.TextFormatter().format(record(*arguments, **extra))


def as_json(*arguments: Any, **extra: Any) -> dict[str, Any]:
    line = logs.JsonFormatter().format(record(*arguments, **extra))
    assert len(line.splitlines()) == 1
    fields: dict[str, Any] = json.loads(line)
    return fields


def after_time(line: str) -> str:
    return line.partition(" ")[2]


# ---- both forms


def test_a_line_of_text():
    assert after_time(as_text("%s pools are listed.", 3)) == "INFO discovery.test: 3 pools are listed."
    line = as_text("Ready.", level=logging.WARNING, pools=3, store="redis 7", note="", quote='a"b')
    assert after_time(line) == ('WARNING discovery.test: Ready. pools=3 store="redis 7" note="" quote="a\\"b"')


def test_a_line_of_json():
    fields = as_json("%s pools are listed.", 3, level=logging.ERROR, pools=3, ratio=0.5, keys=["a"], none=None)
    del fields["time"]
    assert fields == {
        "level": "error", "logger": "discovery.test", "message": "3 pools are listed.",
        "pools": 3, "ratio": 0.5, "keys": ["a"], "none": None,
    }  # fmt: skip


def test_the_time_is_utc_with_milliseconds():
    made = record()
    made.created, made.msecs = 1767225599.987, 987.0
    assert json.loads(logs.JsonFormatter().format(made))["time"] == "2025-12-31T23:59:59.987Z"
    assert logs.TextFormatter().format(made).startswith("2025-12-31T23:59:59.987Z INFO")
    now = datetime.fromisoformat(as_json()["time"])
    assert abs((datetime.now(UTC) - now).total_seconds()) < 10


def test_an_extra_never_replaces_what_the_line_is_about():
    assert as_json("Ready.", level=logging.INFO, time="x", logger="y")["logger"] == "discovery.test"
    assert as_json(time="x")["time"] != "x"


FORGERIES = [
    "a\n2026-01-01T00:00:00.000Z ERROR root: forged",
    "a\rb", "a\x1b[31mred", "a\x00b", "a\x85b", "a\u2028b", "a\u202eb", "a\x9b31m", "a\x7f", "a\udc80b", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("text", FORGERIES, ids=ascii)
@pytest.mark.parametrize("place", ["message", "argument", "extra", "exception"])
def test_no_value_makes_a_second_line_or_reaches_the_terminal(text: str, place: str):
    made = record(text) if place == "message" else record("%s", text if place == "argument" else "x")
    if place == "extra":
        made.value = text
    if place == "exception":
        made.exc_info = (ValueError, ValueError(text), None)
    assert logs.TextFormatter().format(made).isprintable()
    line = logs.JsonFormatter().format(made)
    assert line.encode()
    assert not [c for c in line if c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029"]
    json.loads(line)


@given(st.text())
def test_any_text_is_one_line_and_json_gives_it_back(text: str):
    made = record("%s", text)
    assert logs.TextFormatter().format(made).isprintable()
    assert json.loads(logs.JsonFormatter().format(made))["message"] == text


class Untold:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [object(), Untold(), 2**80, float("nan"), {1: {2: 3}}, {("a",): 1}, b"\xff", {"x": "\ud800"}, {3, 1}],
    ids=lambda value: type(value).__name__,
)
def test_any_extra_can_be_logged(value: Any):
    assert "value" in as_json(value=value)
    assert " value=" in as_text(value=value)


def test_an_extra_that_contains_itself_can_be_logged():
    loop: list[Any] = []
    loop.append(loop)
    assert "value" in as_json(value=loop)
    assert " value=" in as_text(value=loop)


def test_wrong_arguments_cost_the_arguments_and_not_the_line():
    assert "%d pools (TypeError" in as_text("%d pools", "three")
    assert as_json("%d pools", "three")["message"].startswith("%d pools (TypeError")


def test_a_traceback_stays_on_the_line():
    try:
        raise KeyError("k")
    except KeyError:
        made = record("It failed.")
        made.exc_info = sys.exc_info()
    line = logs.TextFormatter().format(made)
    assert line.isprintable()
    assert "It failed. | Traceback (most recent call last):\\n" in line
    fields = json.loads(logs.JsonFormatter().format(made))
    assert fields["exception"].splitlines()[-1] == "KeyError: 'k'"


SECRETS = [
    "redis://:Zq9@host:6379/0",
    "redis://user:p@Zq9/x@host",
    "cannot reach rediss://u:p#a/Zq9@h, trying on",
    "unix://:Zq9@/run/redis.sock",
    "redis://host?password=Zq9&db=1",
    "redis://host?db=1&PASSWORD=Zq9",
]


@pytest.mark.parametrize("text", SECRETS)
def test_f23_a_password_in_a_url_is_never_logged(text: str):
    made = record("%s", text, url=text)
    made.exc_info = (ValueError, ValueError(text), None)
    for line in (logs.TextFormatter().format(made), logs.JsonFormatter().format(made)):
        assert "Zq9" not in line
        assert "***" in line


def test_a_url_without_a_password_stays_as_it_is():
    assert as_json("http://10.0.0.1:8000/a?b=c")["message"] == "http://10.0.0.1:8000/a?b=c"


# ---- the set-up


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    output = capsys.readouterr()
    assert output.out == ""
    return output.err.splitlines()


def test_everything_goes_to_standard_error_in_the_chosen_form(capsys: pytest.CaptureFixture[str]):
    logs.configure("json", "info")
    logging.getLogger("discovery.x").info("one")
    logging.getLogger("discovery.x").debug("hidden")
    assert [json.loads(line)["message"] for line in lines(capsys)] == ["one"]


def test_configuring_again_replaces_the_last_configuration(capsys: pytest.CaptureFixture[str]):
    logs.configure("json", "error")
    logs.configure("text", "debug")
    logging.getLogger("discovery.x").debug("one")
    (line,) = lines(capsys)
    assert after_time(line) == "DEBUG discovery.x: one"


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_level_is_the_least_that_is_logged(level: str, heard: list[str], capsys: pytest.CaptureFixture[str]):
    logs.configure("json", level)
    for name in ("debug", "info", "warning", "error"):
        logging.getLogger("discovery.x").log(logging.getLevelName(name.upper()), "x")
    assert [json.loads(line)["level"] for line in lines(capsys)] == heard


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_speak_through_the_same_lines_and_only_when_it_matters(name: str, capsys: pytest.CaptureFixture[str]):
    library = logging.getLogger(name)
    library.addHandler(logging.StreamHandler(sys.stdout))
    library.propagate = False
    logs.configure("json", "info")
    library.info("about itself")
    library.error("it failed\n", extra={"color_message": "\x1b[1mit failed"})
    (line,) = lines(capsys)
    fields = json.loads(line)
    assert (fields["logger"], fields["message"]) == (name, "it failed\n")
    assert "color_message" not in fields


def test_libraries_say_all_at_debug(capsys: pytest.CaptureFixture[str]):
    logs.configure("text", "debug")
    logging.getLogger("uvicorn.error").info("about itself")
    assert len(lines(capsys)) == 1


def test_warnings_of_python_are_lines_too(capsys: pytest.CaptureFixture[str]):
    logs.configure("json", "info")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)  # catch_warnings took the hook away
        warnings.warn("old\nway", stacklevel=1)
        logging.captureWarnings(False)
    (line,) = lines(capsys)
    assert json.loads(line)["logger"] == "py.warnings"


def test_a_closed_standard_error_stops_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    gone = (tmp_path / "gone").open("w")
    monkeypatch.setattr(sys, "stderr", gone)
    logs.configure("text", "info")
    gone.close()
    logging.getLogger("discovery.x").info("nobody reads this")


@pytest.mark.parametrize(
    ("text", "escaped"), [("plain é", "plain é"), ("a\nb", "a\\nb"), ("\x1b", "\\x1b"), ("\u2028", "\\u2028")]
)
def test_one_line(text: str, escaped: str):
    assert logs.one_line(text) == escaped
