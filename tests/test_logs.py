"""One line for each record, whatever it holds; fields that programs can read; no second line, no password."""

import io
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
    logs._process.clear()
    yield
    logging.captureWarnings(False)
    logs._process.clear()
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


# ---- events


def test_an_event_is_a_line_for_people_and_fields_for_programs(capsys: pytest.CaptureFixture[str]):
    log = logging.getLogger("discovery.x")
    for log_format in ("text", "json"):
        logs.configure(log_format, "info")
        text = "the store fails: %s"
        logs.event(log, logging.WARNING, "store.failing", text, "refused", cause="refused", request_id="a1")
    first, second = lines(capsys)
    assert after_time(first) == "WARNING discovery.x: the store fails: refused request_id=a1"
    fields = json.loads(second)
    del fields["time"]
    assert fields == {
        "level": "warning", "logger": "discovery.x", "message": "the store fails: refused",
        "event": "store.failing", "cause": "refused", "request_id": "a1",
    }  # fmt: skip
    assert list(json.loads(second))[:2] == ["time", "level"]


def test_every_line_of_json_names_the_replica(capsys: pytest.CaptureFixture[str]):
    logs.configure("json", "info")
    logs.name_replica("8c31")
    logging.getLogger("discovery.x").info("one", extra={"replica": "forged"})
    assert json.loads(lines(capsys)[0])["replica"] == "8c31"


def test_an_event_below_the_level_is_not_made(capsys: pytest.CaptureFixture[str]):
    logs.configure("json", "warning")
    logs.event(logging.getLogger("discovery.x"), logging.INFO, "list.complete", "%d", "no number")
    assert lines(capsys) == []


def test_an_event_may_come_with_its_traceback(capsys: pytest.CaptureFixture[str]):
    logs.configure("json", "info")
    try:
        raise KeyError("k")
    except KeyError:
        logs.event(logging.getLogger("discovery.x"), logging.ERROR, "service.fault", "it ended", exc_info=True)
    assert json.loads(lines(capsys)[0])["exception"].endswith("KeyError: 'k'")


# ---- floods


class Flooded:
    """A handler with a clock of its own, and what it has written."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.handler = logs.LimitedHandler(self.stream, lambda: self.now)
        self.handler.setFormatter(logging.Formatter("%(message)s"))

    def warn(self, text: str, *arguments: Any, level: int = logging.WARNING, **extra: Any) -> None:
        self.handler.handle(record(text, *arguments, level=level, **extra))

    @property
    def written(self) -> list[str]:
        lines = self.stream.getvalue().splitlines()
        self.stream.truncate(0)
        self.stream.seek(0)
        return lines


def test_of_a_flood_the_first_are_shown_and_the_rest_is_counted():
    flooded = Flooded()
    for number in range(322):
        flooded.warn("pool %d is odd", number)
    assert flooded.written == [f"pool {number} is odd" for number in range(10)]
    flooded.now = 59.9
    flooded.handler.say_left_out()
    assert flooded.written == []
    flooded.now = 60.0
    flooded.handler.say_left_out()
    assert flooded.written == ["... and 312 more like this in the last 60 s: pool 0 is odd"]
    flooded.handler.say_left_out(all_of_it=True)
    assert flooded.written == []


def test_after_its_time_a_kind_is_shown_again_behind_the_count_of_what_was_left_out():
    flooded = Flooded()
    for number in range(12):
        flooded.warn("pool %d is odd", number)
    flooded.now = 61
    assert len(flooded.written) == 10
    flooded.warn("pool %d is odd", 8)
    assert flooded.written == ["... and 2 more like this in the last 60 s: pool 0 is odd", "pool 8 is odd"]


def test_the_first_of_each_kind_is_shown_however_many_others_there_are():
    flooded = Flooded()
    for number in range(20):
        flooded.warn("one %d", number)
        flooded.warn("two %d", number)
        flooded.warn("one %d", number, level=logging.ERROR)
    written = flooded.written
    assert [written.count(f"{kind} 0") for kind in ("one", "two")] == [2, 1]
    for text in ("cluster a is misread", "cluster b is misread"):
        flooded.warn("%s", text)  # whole texts tell themselves apart
    assert flooded.written == ["cluster a is misread", "cluster b is misread"]


def test_changes_of_state_and_information_are_never_left_out():
    flooded = Flooded()
    for number in range(50):
        flooded.warn("the store fails: %d", number, event="store.failing")
        flooded.warn("a request", level=logging.INFO, event="request.finished")
    assert len(flooded.written) == 100


def test_what_many_pools_can_have_at_once_is_one_kind_whatever_its_words():
    flooded = Flooded()
    for number in range(50):
        flooded.warn("%s", f"pool {number} cannot be used", event="watcher.odd")
    assert len(flooded.written) == 10
    flooded.warn("%s", "pool 50 is misread", event="watcher.odd", cause="ports")
    assert flooded.written == ["pool 50 is misread"]
    flooded.handler.say_left_out(all_of_it=True)
    assert flooded.written == ["... and 40 more like this in the last 60 s: pool 0 cannot be used"]


def test_the_kinds_that_are_remembered_are_bounded_and_what_is_forgotten_is_told():
    flooded = Flooded()
    for _ in range(11):
        flooded.warn("the first kind")
    for number in range(logs.REMEMBERED_KINDS):
        flooded.warn(f"kind {number}")
    assert len(flooded.handler._kinds) == logs.REMEMBERED_KINDS
    assert "... and 1 more like this in the last 60 s: the first kind" in flooded.written


def test_a_count_holds_no_second_line_and_no_password():
    flooded = Flooded()
    for _ in range(11):
        flooded.warn("cannot reach %s", "redis://:Zq9@h\nforged")
    flooded.handler.setFormatter(logs.TextFormatter())
    assert len(flooded.written) == 20
    flooded.handler.say_left_out(all_of_it=True)
    (line,) = flooded.written
    assert "Zq9" not in line
    assert line.endswith("left_out=1")


def test_the_process_can_be_asked_for_what_was_left_out(capsys: pytest.CaptureFixture[str]):
    logs.configure("text", "info")
    for _ in range(12):
        logging.getLogger("discovery.x").warning("again")
    logs.say_left_out()
    assert len(lines(capsys)) == 10
    logs.say_left_out(all_of_it=True)
    assert "... and 2 more like this" in lines(capsys)[0]
