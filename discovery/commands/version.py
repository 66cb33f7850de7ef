"""``discovery version``: the name and the version, for people and for bug reports."""

from discovery import __version__
from discovery.settings import VersionSettings


def run(settings: VersionSettings) -> int:
    """Print the version."""
    print(f"discovery {__version__}")
    return 0
