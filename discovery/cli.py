"""The command line: words in, one command run, an exit code out. The only place that exits.

0: as asked. 1: the answer is bad news. 2: wrong usage or nobody to ask, with exactly one line on standard error.
A command is imported when it is run, so that ``discovery version`` does not wait for a web server to load.
"""

import difflib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec

from discovery import logs, process_title, settings
from discovery.errors import Misconfigured, Rejected

_log = logging.getLogger(__name__)

_READERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "serve": settings.read_serve,
    "pools": settings.read_pools,
    "register": settings.read_register,
    "doctor": settings.read_doctor,
    "version": settings.read_version,
    "completion": settings.read_completion,
}
_HELP = ("--help", "-h")
_SERVER_EXTRA = (
    "hiredis",
    "httptools",
    "kubernetes",
    "prometheus_client",
    "redis",
    "starlette",
    "uvicorn",
    "uvloop",
    "yaml",
)


def main(argv: list[str] | None = None) -> None:
    """Run the command that ``argv`` (else the process's arguments) names, and exit with its code."""
    process_title.cover_passwords()
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except Misconfigured as error:
        _say(str(error))
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(words: Sequence[str]) -> int:
    command = words[0] if words else None
    if command in _HELP or (command in _READERS and any(word in _HELP for word in words)):
        return _help(None if command in _HELP else command)
    if command == "--version" and len(words) == 1:
        command = "version"
    if command not in _READERS:
        raise Misconfigured(_no_command(command))
    given = _READERS[command](words[1:])
    if isinstance(given, settings.RegisterSettings):
        given = _checked(given)
    _start_logs(given)
    return _run_command(command, given)


def _help(command: str | None) -> int:
    from discovery import usage

    usage.print_help(command)
    return 0


def _no_command(word: str | None) -> str:
    names = ", ".join(_READERS)
    near = difflib.get_close_matches(word or "", _READERS, n=1)
    if word is None:
        return f"a command is needed, one of {names}; discovery --help says more"
    if near:
        return f"unknown command {word}: did you mean {near[0]}?"
    return f"the first word must be a command, one of {names}; discovery --help says more"


def _checked(given: settings.RegisterSettings) -> settings.RegisterSettings:
    """The settings with the registration in canonical form; what a registry would refuse is refused here."""
    from discovery import registrations

    try:
        registration = registrations.parse(registrations.encode(given.registration))
    except Rejected as error:
        faults = registrations.describe(error.faults) or error.detail
        raise Misconfigured(f"the registration is not valid: {faults}") from None
    return msgspec.structs.replace(given, registration=registration)


def _start_logs(given: Any) -> None:
    """Commands that run on keep a log from here on; the others say their warnings in plain lines."""
    if isinstance(given, settings.ServeSettings | settings.RegisterSettings):
        logs.configure(given.log_format, given.log_level)
    if isinstance(given, settings.ServeSettings):
        return  # it logs its warnings itself, after the line that says that it starts
    for warning in given.warnings:
        if isinstance(given, settings.RegisterSettings):
            logs.event(_log, logging.WARNING, "service.doubtful", "%s", warning)
        else:
            _say(f"warning: {warning}")


def _run_command(name: str, given: Any) -> int:
    try:
        run: Callable[[Any], int] = import_module(f"discovery.commands.{name}").run
        return run(given)
    except ModuleNotFoundError as error:  # at the top of the command, or where it opens what it was told to use
        if (error.name or "").partition(".")[0] in _SERVER_EXTRA:
            raise Misconfigured(f"{name} needs the server extra: pip install 'pool-discovery[server]'") from None
        raise


def _say(text: str) -> None:
    print(logs.one_line(f"discovery: {text}"), file=sys.stderr)
