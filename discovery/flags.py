"""Flags and their variables: what a flag is, and how words and the environment become one checked value for each.

``settings`` declares the flags and the rules between them; this module knows the rules that hold for every flag:

- a flag wins over its variable, an empty variable is unset, and a fault names the one of the two that was used;
- a value that begins with ``-`` stands after ``=``, so that a flag without a value never takes the next flag;
- an empty value, and a flag given twice that is no list, are refused;
- a list is a repeated flag, or a variable with white space between the values;
- words that belong to no flag are refused, unless the command takes arguments: these fill a positional flag.

Words are read here rather than by the library that prints the help: that one takes ``-5`` as a value and
``--redis_url`` for ``--redis-url``, and quotes whatever it did not expect, which may be a password.
Pure: words and a mapping come in, values or ``Misconfigured`` go out.
"""

import difflib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from discovery.errors import Misconfigured

PREFIX = "DISCOVERY_"

_number = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch
_whole = re.compile(r"[+-]?[0-9]+").fullmatch
_plain_flag = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9_-]{0,60}").fullmatch
# What Kubernetes sets in every pod of a namespace with a Service called "discovery" or "discovery-…".
_service_link = re.compile(
    r"DISCOVERY_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:ADDR|PORT|PROTO))?)"
).fullmatch


class Group(NamedTuple):
    """A heading in the help; with ``chooser``, the flags below it are for these values of that flag alone."""

    title: str
    chooser: str | None = None
    values: tuple[str, ...] = ()


class Kind(Protocol):
    """What values a flag takes. ``read`` turns text into the value or raises ``ValueError`` with what it must be."""

    @property
    def metavar(self) -> str:
        """How the value is called in the help."""

    @property
    def choices(self) -> tuple[str, ...]:
        """All possible values where they can be counted."""

    def read(self, text: str) -> Any:
        """The value, or ``ValueError``."""


class Flag(msgspec.Struct, frozen=True):
    """One flag. It is declared as an annotation of the field that it fills, whose name and default it takes.

    A ``positional`` one is given by its values alone, as arguments of the command.
    """

    group: Group
    kind: Kind
    help: str
    many: bool = False
    secret: bool = False
    short: str = ""
    positional: bool = False
    default: str = ""
    field: str = ""

    @property
    def name(self) -> str:
        """``--lease-duration-secs``; of a positional one what the help calls its values."""
        return self.kind.metavar if self.positional else "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        """``DISCOVERY_LEASE_DURATION_SECS``; a positional one has none."""
        return "" if self.positional else PREFIX + self.field.upper()


class Given(NamedTuple):
    """What the user gave for one flag: ``source`` is the flag's or the variable's name, for faults."""

    source: str
    texts: tuple[str, ...]


# ---- kinds of values


class Choice(msgspec.Struct, frozen=True):
    """One of a few words."""

    choices: tuple[str, ...]
    metavar: str = ""

    def read(self, text: str) -> str:
        """The word itself."""
        if text not in self.choices:
            raise ValueError(f"must be {', '.join(self.choices[:-1])} or {self.choices[-1]}")
        return text


class Switch(msgspec.Struct, frozen=True):
    """On or off: the bare flag is on."""

    choices: tuple[str, ...] = ("true", "false")
    metavar: str = ""

    def read(self, text: str) -> bool:
        """True or false, also from what people write into variables."""
        word = text.lower()
        if word not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            raise ValueError("must be true or false")
        return word in ("true", "1", "yes", "on")


class Number(msgspec.Struct, frozen=True):
    """A number from ``lowest`` to ``highest``; ``above`` leaves ``lowest`` itself out. Whole values become ``int``."""

    what: str
    lowest: float
    highest: float
    above: bool = False
    whole: bool = False
    metavar: str = "SECONDS"
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> int | float:
        """The number; ``int`` where it is whole, so that it prints as 15 and not as 15.0."""
        if (_whole if self.whole else _number)(text):
            number = float(text)  # not int(): that refuses 5,000 digits with an error of its own
            if self.lowest <= number <= self.highest and (number > self.lowest or not self.above):
                return int(number) if number.is_integer() and abs(number) <= 2**53 else number
        start = f"above {self.lowest:.12g} and at most" if self.above else f"from {self.lowest:.12g} to"
        raise ValueError(f"must be {self.what} {start} {self.highest:.12g}")


class Text(msgspec.Struct, frozen=True):
    """Text that a function checks or turns into something: it gives the value or raises ``ValueError``."""

    metavar: str = "TEXT"
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> Any:
        """What ``parse`` makes of it."""
        return self.parse(text)


# ---- from declarations to flags


def declared(struct: type[msgspec.Struct]) -> tuple[Flag, ...]:
    """The flags that the fields of a settings struct declare, in order."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    found = []
    for name, annotation in struct.__annotations__.items():
        for flag in getattr(annotation, "__metadata__", ()):
            if isinstance(flag, Flag):
                default = flag.default or _default_text(defaults[name])
                found.append(msgspec.structs.replace(flag, field=name, default=default))
    return tuple(found)


def _default_text(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(value) if isinstance(value, tuple) else str(value)


# ---- from words and variables to what was given


def given(flags: Sequence[Flag], words: Sequence[str], variables: Mapping[str, str]) -> dict[str, Given]:
    """What was given for each field, flags before variables; ``Misconfigured`` for the first fault in the words."""
    found = {field: Given(name, tuple(texts)) for field, (name, texts) in _from_words(flags, words).items()}
    for flag in flags:
        text = variables.get(flag.variable, "").strip()
        if text and flag.field not in found:
            found[flag.field] = Given(flag.variable, tuple(text.split()) if flag.many else (text,))
    return {flag.field: found[flag.field] for flag in flags if flag.field in found}


def _from_words(flags: Sequence[Flag], words: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    by_name = {name: flag for flag in flags if not flag.positional for name in (flag.name, flag.short) if name}
    arguments = next((flag for flag in flags if flag.positional), None)
    found: dict[str, tuple[str, list[str]]] = {}
    rest = deque(words)
    previous = ""
    while rest:
        name, equals, text = _split(rest.popleft())
        flag = by_name.get(name)
        if flag is None and arguments is not None and not name.startswith("-"):
            found.setdefault(arguments.field, (arguments.name, []))[1].append(name)
            previous = arguments.name
            continue
        if flag is None:
            raise Misconfigured(_unexpected(name, previous, by_name))
        if isinstance(flag.kind, Switch):
            text = text if equals else "true"
        elif not equals:
            text = _next_value(flag, rest)
        if not text:
            raise Misconfigured(f"{flag.name} has an empty value: give one, or leave the flag out")
        if flag.field in found and not flag.many:
            raise Misconfigured(f"{flag.name} is given twice: it takes one value")
        found.setdefault(flag.field, (flag.name, []))[1].append(text)
        previous = flag.name
    return found


def _split(word: str) -> tuple[str, bool, str]:
    """``--flag=value`` or ``-fvalue`` taken apart: the flag, whether a value is attached, the value."""
    if word.startswith("--") or not word.startswith("-"):
        name, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        return name, bool(equals), text
    return word[:2], len(word) > 2, word[2:].removeprefix("=")


def _next_value(flag: Flag, rest: deque[str]) -> str:
    if not rest:
        raise Misconfigured(f"{flag.name} needs a value")
    if rest[0].startswith("-"):
        raise Misconfigured(f"{flag.name} needs a value; one that begins with - is given after =, as in {flag.name}=-x")
    return rest.popleft()


def _unexpected(name: str, previous: str, by_name: Mapping[str, Flag]) -> str:
    """Why a word is no flag. What is not plainly a flag is not repeated: it may be a part of a password."""
    if not _plain_flag(name):
        place = f"after {previous}" if previous else "at the start"
        return f"an argument {place} is not expected here: every value belongs to a flag"
    bare = {known.lstrip("-"): known for known in by_name}  # the dashes alone would make short names alike
    near = difflib.get_close_matches(name.lstrip("-"), bare, n=1)
    return f"unknown flag {name}" + (f": did you mean {bare[near[0]]}?" if near else ": --help lists the flags")


# ---- from what was given to values


def values(flags: Iterable[Flag], found: Mapping[str, Given]) -> dict[str, Any]:
    """The checked value of every flag that was given; ``Misconfigured`` names the flag or variable at fault."""
    return {flag.field: _value(flag, found[flag.field]) for flag in flags if flag.field in found}


def _value(flag: Flag, given: Given) -> Any:
    read = [_read(flag, given.source, text) for text in given.texts]
    return tuple(read) if flag.many else read[0]


def _read(flag: Flag, source: str, text: str) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 arrive as lone surrogates and would fail much later
        raise Misconfigured(f"{source} is not UTF-8 text") from None
    try:
        return flag.kind.read(text)
    except ValueError as error:
        # From None: a chained error of a URL parser would carry the password into a traceback.
        raise Misconfigured(f"{source} {error}{'' if flag.secret else _shown(text)}") from None


def _shown(text: str) -> str:
    """What was given, for the end of a fault, unless it could hold a password."""
    return "" if "@" in text or "://" in text or len(text) > 60 else f", not {text!r}"


def refuse_foreign(flags: Iterable[Flag], found: Mapping[str, Given], chosen: Mapping[str, str]) -> None:
    """Refuse what belongs to another mode or store than the chosen one; ``chosen`` has the choosing flags' values."""
    for flag in flags:
        chooser, wanted = flag.group.chooser, flag.group.values
        if flag.field in found and chooser and chosen[chooser] not in wanted:
            name = "--" + chooser.replace("_", "-")
            raise Misconfigured(
                f"{found[flag.field].source} needs {name} {' or '.join(wanted)}, but {name} is {chosen[chooser]}"
            )


def unknown_variables(known: Iterable[str], variables: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each ``DISCOVERY_`` variable that no flag has; never its value."""
    names = frozenset(known)
    for name, text in sorted(variables.items()):
        if text.strip() and name.upper().startswith(PREFIX) and name not in names and not _is_service_link(name, text):
            near = difflib.get_close_matches(name.upper(), sorted(names), n=1)
            yield f"the variable {_escaped(name)} is unknown and ignored" + (
                f": did you mean {near[0]}?" if near else ""
            )


def _is_service_link(name: str, text: str) -> bool:
    return _service_link(name) is not None or (
        name.endswith("_PORT") and text.partition("://")[0] in ("tcp", "udp", "sctp")
    )


def _escaped(name: str) -> str:
    return name if name.isprintable() else ascii(name)[1:-1]
