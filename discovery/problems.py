"""What is wrong with a replica as a whole, in the words of all: logs, ``/readyz``, ``/status``, ``doctor``, the page.

Pure: reasons go in, sentences come out. What is wrong with one pool is explained by ``listing.explain``.
"""

from collections.abc import Sequence

WHOLE = "the list is complete"
DRAINING = "this replica is shutting down"


def store_fails(reason: str) -> str:
    """The store does not answer or refuses, after it was read once."""
    return f"the store fails, the last list stays: {reason}"


def not_complete(reason: str) -> str:
    """Pools may be missing from the list."""
    return f"the list is not complete: {reason}"


def watcher_fails(reason: str, *, listed: bool) -> str:
    """A watcher does not see its cluster now; ``reason`` begins with its name, ``listed`` is whether it ever did."""
    return f"a watcher fails, its last view stays: {reason}" if listed else f"a watcher fails: {reason}"


def sees_less(warning: str) -> str:
    """A watcher is well, and cannot see all that there is."""
    return f"a watcher does not see everything: {warning}"


def joined(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
