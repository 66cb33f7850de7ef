"""The process's own command line, as ``ps`` shows it to every user of the machine: passwords in it are covered.

Used by ``cli`` alone, ahead of everything else. Python has copied its arguments by then: covering them changes nothing
that the program reads. Where the system does not say where they lie (anything but Linux), they stay as they are.
"""

import ctypes
import re
from pathlib import Path

# Up to the last @ of a URL's authority, as people write passwords with @ and / in them.
_user_info = re.compile(rb"(?<=://)[^\s\"'<>\0]*(?=@)").sub
_password_parameter = re.compile(rb"(?i)(?<=[?&]password=)[^\s&\"'\0]+").sub
_ARG_START, _ARG_END = 47, 48
"""Fields of ``/proc/self/stat``, counted from 0."""


def cover_passwords() -> None:
    """Write asterisks over the user info of every URL among the arguments."""
    try:
        start, end = _own_arguments()
    except (OSError, ValueError, IndexError):
        return
    if 0 < start < end:
        shown = ctypes.string_at(start, end - start)
        covered = covering(shown)
        if covered != shown:
            ctypes.memmove(start, covered, len(covered))


def covering(arguments: bytes) -> bytes:
    """The same bytes, as many of them, without a password."""
    return _password_parameter(_asterisks, _user_info(_asterisks, arguments))


def _asterisks(match: re.Match[bytes]) -> bytes:
    return b"*" * len(match[0])


def _own_arguments() -> tuple[int, int]:
    """Where the arguments lie in memory. The name before the fields may hold anything, so fields count from its end."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[_ARG_START - 2]), int(fields[_ARG_END - 2])
