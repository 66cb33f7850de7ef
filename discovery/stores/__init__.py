"""The registration side: what every store promises, in the words that the replica reads.

A store keeps one value per pool under a lease and announces changes. It is a feed (``list_all`` and ``watch``) that
can also be written to. Errors leave as ``Unavailable``; every call has a deadline of its own. A store judges nothing:
whether the end of a lease is acted on is the replica's to decide.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol

from discovery.model import PoolKey


class Outcome(NamedTuple):
    """What a ``put`` did. ``revision`` and ``epoch`` are the store's when it was done."""

    created: bool
    changed: bool
    revision: int
    epoch: str


class Stored(NamedTuple):
    """One registration as a list found it: its bytes, and what its lease had left at the time of the list's health."""

    value: bytes
    remaining_secs: float


class Health(NamedTuple):
    """What the store says of itself. ``asked_at`` is the monotonic time at which the question was sent."""

    asked_at: float
    epoch: str
    revision: int
    settling: str | None


class Listed(NamedTuple):
    """Every registration, read at or after ``health.revision``; ``loss`` tells why data may have been lost before."""

    health: Health
    items: dict[PoolKey, Stored]
    loss: str | None = None


class Put(NamedTuple):
    """A registration appeared or changed."""

    key: PoolKey
    value: bytes
    lease_secs: float
    epoch: str
    revision: int


class Deleted(NamedTuple):
    """A pool deregistered."""

    key: PoolKey
    epoch: str
    revision: int


class Remaining(NamedTuple):
    """The answer to a question about leases: seconds left for each key, None where the store holds it no longer.

    ``epoch`` was read after them: what it contradicts is void.
    """

    secs: list[float | None]
    epoch: str | None


Event = Put | Deleted | Health | Listed


CONFIRMED_FOR_SECS = 2.0
"""For how long what was read counts as confirmed, where the store is asked each second and answers in one step."""


class Store(Protocol):
    """Where registrations live."""

    @property
    def confirmed_for_secs(self) -> float:
        """For how long what was read counts as confirmed, while no call fails: at least ``CONFIRMED_FOR_SECS``."""

    @property
    def ends_leases(self) -> bool:
        """Whether it ends leases by itself, and what ended is gone, also while nobody can reach it to renew them."""

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """Store a registration under a new lease; equal bytes only renew it. Raises ``Unavailable``: not confirmed."""

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """Remove a pool, and announce it also where it was absent; None where another instance's registration stays."""

    async def list_all(self) -> Listed:
        """Everything, after the announcements have been subscribed to, so that nothing falls in between."""

    def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """What happens after ``listed``; ``Health`` at least once a second; a full ``Listed`` once in a while.

        A put of this very store may be left out once its outcome was given.
        """

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """How long the leases of these pools still live, asked in one batch; the epoch is read last."""

    async def settle(self, reason: str, secs: float, known_until: float | None = None) -> None:
        """Tell every replica that lists are not complete for ``secs``, unless that is told for longer already.

        A store that ends no leases tells it only those that had not read it at ``known_until``, of this clock.
        """

    async def end_settling(self, reason: str) -> None:
        """Take back what ``settle`` told, unless lists are not complete for another reason by now."""

    def share(self, value_of: Callable[[PoolKey], bytes | None]) -> None:
        """Where the bytes of a pool are at hand, so that a list of everything need not hold equal ones again."""

    async def close(self) -> None:
        """Give connections back; never raises."""

    def describe(self) -> dict[str, object]:
        """State for people: kind, address without secrets, counters."""
