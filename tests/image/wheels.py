"""Wheels of what is installed here, so that pip can install it elsewhere without a registry.

Each distribution is packed from the list of its files, as it came. pip then resolves and checks versions as ever: what
the constraints forbid, or what is missing, is an error of its own. Of the largest, thousands of files that are
loaded only when somebody asks for them are left out: packing and unpacking them would take longer than all the rest.
"""

import re
import zipfile
from collections.abc import Container, Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_NOT_LOADED = re.compile(
    r"kubernetes/(?:aio/)?client/(?:models|api)/(?!__init__)|botocore/data/(?!dynamodb/|sts/|sso|signin/)[^/]+/"
    r"|pygments/lexers/(?!__init__|_mapping|special)|pygments/styles/(?!__init__|_mapping)|pydantic/v1/|.*/tests?/"
)


def pack(requirements: Iterable[str], folder: Path, *, without: Container[str]) -> None:
    """A wheel for each distribution that the requirements need, theirs included, but for those named ``without``."""
    folder.mkdir(parents=True)
    for found in _closure(requirements):
        if found.metadata["Name"] not in without:
            _pack(found, folder)


def _closure(requirements: Iterable[str]) -> Iterator[Distribution]:
    open_ones = [Requirement(text) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    packed: set[str] = set()
    while open_ones:
        wanted = open_ones.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found = distribution(name)
        if name not in packed:
            packed.add(name)
            yield found
        needed = [Requirement(text) for text in found.requires or ()]
        open_ones += [each for each in needed if _holds(each, extras)]


def _holds(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, ""))


def _pack(found: Distribution, folder: Path) -> None:
    tags = [line.partition(": ")[2] for line in (found.read_text("WHEEL") or "").splitlines() if line[:5] == "Tag: "]
    name = canonicalize_name(found.metadata["Name"]).replace("-", "_")
    files = [file for file in found.files or () if ".." not in file.parts and file.suffix != ".pyc"]
    files = [file for file in files if not _NOT_LOADED.match(str(file))]
    with zipfile.ZipFile(folder / f"{name}-{found.version}-{_joined(tags)}.whl", "w") as wheel:
        for file in files:
            # Written by the installer, not by the wheel.
            if file.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                wheel.write(found.locate_file(file), str(file))


def _joined(tags: list[str]) -> str:
    """One tag for several: ``py2-none-any`` and ``py3-none-any`` are ``py2.py3-none-any``."""
    parts = zip(*(tag.split("-") for tag in tags), strict=True)
    return "-".join(".".join(dict.fromkeys(each)) for each in parts)
