"""What a cluster's strictest settings do to a process, done by the kernel of this machine, without an engine.

Called in the child before the program starts. Another user needs root; that no file can be made, opened for writing or
removed needs Landlock, which nearly every kernel has; that no byte can be written to one needs neither. ``described``
says which of them hold here.
"""

import ctypes
import os
import resource

ANY_USER = 1000690000
"""As OpenShift gives them: a number that nobody has, in the group 0."""

IS_ROOT = os.geteuid() == 0

_libc = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_NO_NEW_PRIVILEGES = 38
_WRITES = 1 << 1 | sum(1 << bit for bit in range(4, 13))  # write; remove and make files, folders, sockets and links

HAS_LANDLOCK = _libc.syscall(_CREATE_RULESET, None, 0, 1) > 0


def described() -> str:
    """How far it goes here."""
    user = "another user" if IS_ROOT else "this user, since only root can become another"
    files = (
        "no file can be written" if HAS_LANDLOCK else "no byte can be written to a file (this kernel has no Landlock)"
    )
    return f"programs run as {user}; {files}"


def enter() -> None:
    """From here on this process is nobody, and changes nothing on any disk."""
    if IS_ROOT:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(ANY_USER, ANY_USER, ANY_USER)  # and with that all capabilities are gone
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if HAS_LANDLOCK:
        rules = _check(_libc.syscall(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(_WRITES)), 8, 0))
        _check(_libc.syscall(_RESTRICT_SELF, rules, 0))
        os.close(rules)


def _check(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
