"""Log lines: one line for each change of state, as text for people or as JSON for collectors, on standard error.

Everything that logs goes through here, uvicorn and asyncio included. A line never holds a raw control character, so
that nothing a client sends can forge a second line or colour a terminal, and never the password of a URL.
Changes of state are told with ``event``, by a name out of ``EVENTS`` and with the same fields everywhere; they are
never left out. Of all other warnings the first few of a kind are shown, then how many more there were.
Knows nothing of settings; formats what ``logging`` hands over.
"""

import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack

import msgspec

SHOWN_OF_A_KIND = 10
LEFT_OUT_SECS = 60.0
REMEMBERED_KINDS = 1000

EVENTS = {
    "service.started": "all of a replica is made, and it listens",
    "service.doubtful": "settings that are allowed and most likely not meant",
    "service.cannot_listen": "an address cannot be listened on, and the process ends",
    "service.draining": "told to stop: not ready any more, still answering",
    "service.hurried": "told again to stop",
    "service.cut_off": "requests were not done within the grace",
    "service.stopped": "the last line",
    "service.fault": "a part of the process ended by a fault of ours and begins again",
    "list.complete": "the list is the whole truth again",
    "list.incomplete": "pools may be missing in the list, `cause` says why",
    "pools.mass_loss": "most pools of all clusters ended within one lease and are kept",
    "pools.mass_loss_over": "the hold over a mass loss has ended",
    "pool.one_sided": "a pool is registered but not Ready, Ready but not registered, or named otherwise",
    "pool.alternating": "the relays of a pool send different registrations in turn",
    "pool.unreadable": "a stored registration is skipped",
    "store.failing": "calls to the store fail, the last list stays",
    "store.recovered": "the store answers again",
    "store.data_lost": "the store may have lost data, pools stay for a lease",
    "store.reread": "everything is read again, `cause` says why",
    "store.refuses": "the store refuses one kind of call, the others work",
    "store.accepts": "what the store refused works again",
    "store.setup": "the store is set up in a way that costs data or hides losses",
    "store.odd": "what the store holds or announces cannot be used",
    "watcher.failing": "a watcher fails, its last view stays",
    "watcher.recovered": "a watcher is well again",
    "watcher.odd": "what a cluster shows cannot be used as it is",
    "tokens.valid": "how many tokens are valid at the start",
    "tokens.renewed": "the file of tokens has changed",
    "file.refused": "a renewed file is not taken, what it held before stays in force",
    "file.accepted": "a renewed file is in force, or holds again what is",
    "certificate.used": "which certificate is shown",
    "certificate.doubtful": "clients will refuse the certificate",
    "connections.fewer": "the limit of open files allows fewer connections than were asked for",
    "connections.full": "all connections are in use",
    "handshake.failed": "a TLS handshake failed; one line a minute",
    "request.finished": "a request has ended (access log)",
    "request.refused": "a request was refused before it was whole (access log)",
    "request.failed": "a request ended by a fault of ours, or was cut off",
    "tracing.failing": "spans cannot be exported and are dropped",
    "tracing.recovered": "spans are exported again",
    "heartbeat.registered": "`discovery register` and the library: the pool is registered, or registered anew",
    "heartbeat.lost": "heartbeats fail",
    "heartbeat.stopping": "told to stop",
    "heartbeat.regained": "heartbeats are taken again",
    "heartbeat.deregistered": "the pool was deregistered",
    "heartbeat.left_over": "the pool could not be deregistered, and stays until its lease ends",
    "stream.lost": "the library: the pools cannot be followed, the last list stays",
    "stream.regained": "the library: pools are followed again",
    "stream.step": "the library: it hears of changes by another way: a stream, long polls, or polls",
    "stream.dissent": "the library: replicas give different lists, and go on to",
    "stream.pools_dropped": "the library: pools that incomplete lists have not shown for long were given up",
}
"""What ``event`` may be: one name for each change of state, whatever the words of its line."""

REPEATED = frozenset({"pool.alternating", "pool.unreadable", "request.failed", "store.odd", "watcher.odd"})
"""Those that many pools or requests can have at once: what holds for other warnings holds for them too."""
BY_CAUSE = frozenset({"store.odd", "watcher.odd"})
"""Those of them whose cause is one of a few words: the first of each cause is shown."""


class Fields(TypedDict, total=False):
    """What a line of JSON may have beside its text, by the same names everywhere."""

    pool: str
    watcher: str
    store: str
    cause: str
    lasted_secs: float
    request_id: str
    method: str
    path: str
    status: int
    bytes: int
    duration_ms: float
    identity: str
    peer: str
    version: str
    mode: str
    limits: dict[str, float]
    tls: bool
    tokens: bool
    access_log: bool
    tracing: bool
    listen: str


_STRUCTURED = frozenset(Fields.__annotations__)
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


_process: dict[str, str] = {}
"""What every line of JSON has, since all lines of the process meet in one collector with those of others."""


def event(
    logger: logging.Logger,
    level: int,
    name: str,
    text: str,
    *arguments: object,
    exc_info: bool = False,
    **fields: Unpack[Fields],
) -> None:
    """Tell of a change of state: a line for people, and the same for programs by a name and fields."""
    if logger.isEnabledFor(level):
        logger.log(level, text, *arguments, exc_info=exc_info, extra={"event": name, **fields}, stacklevel=2)


def name_replica(replica: str) -> None:
    """From now on every line of JSON names the replica."""
    _process["replica"] = replica


def say_left_out(*, all_of_it: bool = False) -> None:
    """Say how many lines were left out of the kinds whose time is over; at the end of the process of all kinds."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LimitedHandler):
            handler.say_left_out(all_of_it=all_of_it)


def configure(log_format: Literal["text", "json"], level: str) -> None:
    """Send every log line of the process to standard error in this format; calling it again replaces the last call."""
    handler = LimitedHandler(sys.stderr)
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


def _kind_text(record: logging.LogRecord) -> str:
    fields = record.__dict__
    if (name := fields.get("event")) is not None:
        return f"{name} {fields.get('cause')}" if name in BY_CAUSE else str(name)
    # A text that is an argument as a whole tells its kinds apart by itself.
    return _message(record) if record.msg == "%s" else str(record.msg)


class _Kind:
    """What was seen of one kind of line in its time, which began with the first."""

    __slots__ = ("first", "left_out", "over_at", "shown")

    def __init__(self, first: logging.LogRecord, over_at: float) -> None:
        self.first = first
        self.over_at = over_at
        self.shown = self.left_out = 0


class LimitedHandler(logging.StreamHandler[Any]):
    """Writes every change of state, and of other warnings of a kind the first few a minute; the rest is counted.

    A kind is a logger, a level and an event with its cause, or a text before its arguments are put in: what differs in
    names and numbers alone is one kind.
    """

    def __init__(self, stream: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._kinds: OrderedDict[tuple[str, int, str], _Kind] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or count it."""
        name = record.__dict__.get("event")
        if record.levelno < logging.WARNING or (name is not None and name not in REPEATED):
            super().emit(record)
            return
        self.say_left_out()
        kind = self._kind_of(record)
        if kind.shown < SHOWN_OF_A_KIND:
            kind.shown += 1
            super().emit(record)
        else:
            kind.left_out += 1

    def say_left_out(self, *, all_of_it: bool = False) -> None:
        """See the function of this name. The kinds stand in the order in which their times end."""
        self.acquire()  # ``emit`` holds it already, and may
        try:
            while self._kinds:
                kind = next(iter(self._kinds.values()))
                if not all_of_it and kind.over_at > self._clock():
                    break
                self._tell(self._kinds.popitem(last=False)[1])
        finally:
            self.release()

    def _kind_of(self, record: logging.LogRecord) -> _Kind:
        key = (record.name, record.levelno, _kind_text(record))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(record, self._clock() + LEFT_OUT_SECS)
            if len(self._kinds) > REMEMBERED_KINDS:
                self._tell(self._kinds.popitem(last=False)[1])
        return kind

    def _tell(self, kind: _Kind) -> None:
        if kind.left_out:
            first = kind.first
            text = f"... and {kind.left_out:,} more like this in the last {LEFT_OUT_SECS:g} s: {_message(first)}"
            record = logging.LogRecord(first.name, first.levelno, "", 0, "%s", (text,), None)
            record.left_out = kind.left_out
            super().emit(record)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO discovery.stores.redis.store: The store answers again. outage_secs=3``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; what was passed as ``extra`` follows as name=value, a traceback follows escaped.

        Of an event only the id of the request: its text says the rest.
        """
        parts = [f"{_time(record)} {record.levelname} {record.name}: {_message(record)}"]
        extra = _extra(record)
        if "event" in extra:
            extra = {name: value for name, value in extra.items() if name not in _STRUCTURED or name == "request_id"}
            del extra["event"]
        parts += [f"{name}={_text_value(value)}" for name, value in extra.items()]
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
        return _encode(fields | _extra(record) | fields | _process)


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
