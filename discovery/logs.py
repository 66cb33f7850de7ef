"""Log lines: one line for each change of state, as text for people or as JSON for collectors, on standard error.

Everything that logs goes through here, uvicorn and asyncio included. A line never holds a raw control character, so
that nothing a client sends can forge a second line or colour a terminal, and never the password of a URL.
Knows nothing of settings; formats what ``logging`` hands over.
"""

import logging
import re
import sys
import time
from typing import Any, Literal

import msgspec

_OWN_ATTRIBUTES = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",  # uvicorn's second copy of the message, with escape sequences
}
_LIBRARIES = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "asyncio", "aiohttp", "redis")
# Up to the last @ of a URL's authority, as people write passwords with @ and / in them.
_user_info = re.compile(r"(?<=://)[^\s\"'<>]*@").sub
_password_parameter = re.compile(r"(?i)(?<=[?&]password=)[^\s&\"']+").sub
# JSON need not escape these, but terminals and line readers act on them.
_raw_control = re.compile(r"[\x7f-\x9f\u2028\u2029]").sub


def configure(log_format: Literal["text", "json"], level: str) -> None:
    """Send every log line of the process to standard error in this format; calling it again replaces the last call."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _LIBRARIES:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        # Their information is about themselves; ours already says when the service starts and stops.
        library.setLevel(logging.NOTSET if level == "debug" else max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a closed standard error must not stop whoever logs


def one_line(text: str) -> str:
    """The text with every character that does not print, line breaks and terminal controls included, escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO discovery.stores.redis.store: The store answers again. outage_secs=3``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; what was passed as ``extra`` follows as name=value, a traceback follows escaped."""
        parts = [f"{_time(record)} {record.levelname} {record.name}: {_message(record)}"]
        parts += [f"{name}={_text_value(value)}" for name, value in _extra(record).items()]
        if traceback := _traceback(self, record):
            parts.append("| " + traceback)
        return one_line(" ".join(parts))


class JsonFormatter(logging.Formatter):
    """One object a line: time (RFC 3339, UTC), level, logger, message, then what was passed as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if traceback := _traceback(self, record):
            fields["exception"] = traceback
        return _encode(_extra(record) | fields)


def _encode(fields: dict[str, Any]) -> str:
    try:
        line = msgspec.json.encode(fields, enc_hook=_any_text).decode()
    except (
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ):  # lone surrogates, numbers and keys that JSON has not
        plain = {one_line(str(name)): one_line(_any_text(value)) for name, value in fields.items()}
        line = msgspec.json.encode(plain).decode()
    return _raw_control(lambda match: f"\\u{ord(match[0]):04x}", line)


def _message(record: logging.LogRecord) -> str:
    try:
        return _without_secrets(record.getMessage())
    except Exception as error:  # a wrong format costs its arguments, never the line
        return f"{record.msg!s} ({type(error).__name__} while its arguments were put in)"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: _without_secrets(value) if isinstance(value, str) else value
        for name, value in record.__dict__.items()
        if name not in _OWN_ATTRIBUTES
    }


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    parts += [formatter.formatStack(record.stack_info)] if record.stack_info else []
    return _without_secrets("\n".join(parts))


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _text_value(value: Any) -> str:
    text = _any_text(value)
    return text if text and " " not in text and '"' not in text else f'"{text.replace(chr(34), chr(92) + chr(34))}"'


def _any_text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _without_secrets(text: str) -> str:
    if "://" not in text:
        return text
    return _password_parameter("***", _user_info("***@", text))
