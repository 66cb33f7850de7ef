"""What was measured where: the machine, the versions of all that took part, and the commit."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tests.bench import etcd
from tests.live.replica import PROJECT

LIBRARIES = ("uvicorn", "uvloop", "httptools", "starlette", "msgspec", "redis", "hiredis")


def kind() -> str:
    """Machines of one kind can be compared: the number and name of the processors."""
    return f"{os.cpu_count()} x {_processor()}"


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    name = found[1] if found else platform.machine()
    return re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)", "", name)).strip()


def versions() -> dict[str, str]:
    """Of the interpreter, the kernel, the libraries and the programs that are there."""
    found = {"Python": platform.python_version(), "Linux": platform.release().split("-")[0]}
    found |= {name: metadata.version(name) for name in LIBRARIES}
    programs = {
        "Redis": _said(["redis-server", "--version"], r"v=(\S+)"),
        "etcd": etcd.version(),
        "wrk": _said([os.environ.get("BIN_WRK", "wrk"), "-v"], r"wrk (?:debian/)?([\d.]+)"),
        "Consul": _said([os.environ.get("BIN_CONSUL", "consul"), "version"], r"v(\S+)"),
    }
    return found | {name: version for name, version in programs.items() if version is not None}


def _said(command: Sequence[str], pattern: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(pattern, done.stdout + done.stderr)
    return found and found[1]


def commit() -> str:
    """The commit of the service, and whether it was changed since; "unknown" outside a clone."""
    head = _git("rev-parse", "--short", "HEAD")
    if not head:
        return "unknown"
    return f"{head} with changes" if _git("status", "--porcelain", "--", "discovery") else head


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
