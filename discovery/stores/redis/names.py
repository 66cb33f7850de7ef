"""Every key and channel of one deployment on Redis, and how parts of commands and answers are written. Pure.

The braces put all keys into one slot of a Redis Cluster, so that one script or one batch may touch any of them.
"""

from discovery.errors import Unavailable
from discovery.model import PoolKey
from discovery.registrations import key_path


class Names:
    """The names under one prefix; channels carry the number of the database, since Redis's own ignore it."""

    def __init__(self, prefix: str, database: int) -> None:
        self.root = f"{{{prefix}}}:"
        self.pools = f"{self.root}pool:"
        self.revision = f"{self.root}revision"
        self.epoch = f"{self.root}epoch"
        self.settling = f"{self.root}settling"
        self.nothing = f"{self.root}nothing"
        """A key that never exists: a question for it is refused while a Cluster moves the slot that all keys share."""
        self.changes = f"{self.root}changes" + (f"@{database}" if database else "")

    def pool(self, key: PoolKey) -> str:
        """The key that holds a pool's registration."""
        return self.pools + key_path(key)


def bulk(part: bytes) -> bytes:
    """One part of a command as bytes on the wire."""
    return b"$%d\r\n%b\r\n" % (len(part), part)


def text(answer: bytes | None) -> str | None:
    """A string that may be absent."""
    return None if answer is None else answer.decode(errors="replace")


def revision_of(answer: bytes | None) -> int:
    """The revision, zero where there is none yet."""
    try:
        return int(answer or 0)
    except ValueError:
        raise Unavailable(
            "the revision in Redis is not a number: delete it, and replicas read everything again"
        ) from None
