"""The image, built once for a session: its steps carried out, and its tree made read-only."""

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import PROJECT
from tests.image import cage, wheels
from tests.image.building import Building, make_read_only, make_removable


def pytest_report_header() -> str:
    """Said plainly, since it is no skip: how far the tests of the image go here."""
    return f"image: {cage.described()}"


GIVEN = {"VERSION": "9.8.7", "REVISION": "0123abcd", "CREATED": "2026-11-30T08:04:24Z", "SOURCE": "https://example.com"}


@pytest.fixture(scope="session")
def image() -> Iterator[Building]:
    # Not in pytest's own folder, which no other user may enter.
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    folder.chmod(0o755)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    needed = [*project["build-system"]["requires"], f"{project['project']['name']}[server,dynamodb,tracing]"]
    try:
        wheels.pack(needed, folder / "wheels", without={project["project"]["name"]})
        built = Building(folder, PROJECT, GIVEN, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "wheels")})
        built.carry_out((PROJECT / "Dockerfile").read_text())
        make_read_only(built.root)
        yield built
    finally:
        make_removable(folder)
        shutil.rmtree(folder)
