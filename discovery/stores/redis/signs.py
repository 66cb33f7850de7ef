"""What Redis says of itself, and whether that means that data may have been lost. Pure: facts in, a reason out.

Some losses leave no trace in the data: a failover loses renewals that were confirmed, an eviction policy takes leases
before their time, and a clock that jumps ends them all at once. Here they are read from the server's own figures, each
of which may be missing, since servers exist that tell less: what is not told is no sign.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CLOCK_STEP_SECS = 1.0
CLOCK_DRIFT = 0.001
"""Two healthy clocks part by less than this share of the time that passes."""
REMEMBERED = 100


class Offset(NamedTuple):
    """The server's clock minus ours is between ``least`` and ``most`` seconds: it was read while the answer travelled.

    ``at`` is our time by which that was known.
    """

    least: float
    most: float
    at: float


class Signs(NamedTuple):
    """What one batch told of the server; None is what it did not tell."""

    role: str | None = None
    run_id: str | None = None
    replid: str | None = None
    evicted_keys: int | None = None
    offset: Offset | None = None
    policy: str | None = None
    limited: bool = False

    @property
    def is_replica(self) -> bool:
        """Whether this server only repeats what another one is told."""
        return self.role in ("slave", "replica")

    @property
    def untold(self) -> list[str]:
        """The names of the figures that a loss would be seen by, and which the server does not tell."""
        figures = {"role": self.role, "master_replid": self.replid, "evicted_keys": self.evicted_keys}
        return [name for name, value in (figures | {"server_time_usec": self.offset}).items() if value is None]


def read(sections: Sequence[object], asked_at: float, answered_at: float) -> Signs:
    """The signs in the answers to INFO, which are bytes, or anything else where the server refused."""
    fields: dict[str, str] = {}
    for section in sections:
        if isinstance(section, bytes):
            lines = (line.partition(":") for line in section.decode(errors="replace").splitlines())
            fields |= {name: value for name, colon, value in lines if colon}
    time_usec = _number(fields, "server_time_usec")
    return Signs(
        fields.get("role"),
        fields.get("run_id"),
        fields.get("master_replid"),
        _number(fields, "evicted_keys"),
        None if time_usec is None else Offset(time_usec / 1e6 - answered_at, time_usec / 1e6 - asked_at, answered_at),
        fields.get("maxmemory_policy"),
        bool(_number(fields, "maxmemory")),
    )


def _number(fields: Mapping[str, str], name: str) -> int | None:
    try:
        return int(fields[name])
    except (KeyError, ValueError):
        return None


def another_server(known: Signs, seen: Signs) -> str | None:
    """Why the server may lack renewals that were confirmed: it is another one, or began anew."""
    if known.replid and seen.replid:
        if known.replid != seen.replid:
            return f"Redis has another master_replid ({known.replid[:8]}, now {seen.replid[:8]}): renewals may be lost"
    elif known.run_id and seen.run_id and known.run_id != seen.run_id:
        return "another Redis process answers: renewals may be lost"
    return None


def evicted(known: Signs, seen: Signs) -> str | None:
    """Whether leases may have been thrown away before their time."""
    if known.evicted_keys is not None and seen.evicted_keys is not None and seen.evicted_keys > known.evicted_keys:
        return "Redis evicted keys before their time"
    return None


def clock_stepped(known: Signs, seen: Signs) -> str | None:
    """Whether the server's clock moved by itself, and leases with it."""
    if known.offset is None or seen.offset is None:
        return None
    before = _later(known.offset, seen.offset.at)
    step = max(0.0, seen.offset.least - before.most) + min(0.0, seen.offset.most - before.least)
    return f"Redis's clock moved by {step:+.1f} s" if abs(step) > CLOCK_STEP_SECS else None


def _later(offset: Offset, at: float) -> Offset:
    """The same offset after both clocks went on."""
    drift = CLOCK_DRIFT * max(0.0, at - offset.at)
    return Offset(offset.least - drift, offset.most + drift, max(at, offset.at))


def moved_on(known: Signs, seen: Signs) -> Signs:
    """What is known after ``seen`` was found harmless, or has become a loss that all share.

    A slow answer leaves the offset as narrow as the quick ones before it had made it.
    """
    values = [old if new is None else new for old, new in zip(known, seen, strict=True)]
    merged = Signs(*values)  # type: ignore[arg-type]
    if known.offset is None or seen.offset is None:
        return merged
    before = _later(known.offset, seen.offset.at)
    least, most = max(before.least, seen.offset.least), min(before.most, seen.offset.most)
    return merged._replace(offset=Offset(least, most, before.at) if least <= most else seen.offset)


class Life:
    """The present life of the store's data: its epoch, the highest revision, and the server that it was read from."""

    def __init__(self, lease_secs: float) -> None:
        self._lease_secs = lease_secs
        self.epoch: str | None = None
        self.revision = 0
        self.signs = Signs()
        self._lost_at = float("-inf")
        self._past: OrderedDict[str, None] = OrderedDict()

    def is_past(self, epoch: str) -> bool:
        """Whether this epoch was replaced: a store that has it still or again is not the one that went on."""
        return epoch in self._past

    def wrote(self, epoch: str, revision: int) -> None:
        """A write or an announcement told of this revision. Another epoch is left for a check to judge."""
        if epoch == self.epoch and revision > self.revision:
            self.revision = revision

    def contradicted(self, seen: Signs, now: float) -> str | None:
        """Why what was answered together with these signs must not be believed.

        An eviction is none within half a lease of the last loss: the hold after that still runs, and a server that
        evicts all the time could otherwise never be believed, nor a pool be dropped. It is kept for a later check.
        """
        reason = another_server(self.signs, seen) or clock_stepped(self.signs, seen)
        if reason is None and now - self._lost_at >= self._lease_secs / 2:
            reason = evicted(self.signs, seen)
        return reason

    def adopt(self, epoch: str, revision: int, seen: Signs, loss: str | None, now: float) -> None:
        """Take what a check has found for the present; ``loss`` is why it is another life than before, if so."""
        keeps_evictions = loss is None and evicted(self.signs, seen)
        signs = moved_on(self.signs, seen)
        self.signs = signs._replace(evicted_keys=self.signs.evicted_keys) if keeps_evictions else signs
        self.revision = max(self.revision, revision) if epoch == self.epoch else revision
        if self.epoch is not None and self.epoch != epoch:
            self._past[self.epoch] = None
            while len(self._past) > REMEMBERED:
                self._past.popitem(last=False)
        self.epoch = epoch
        if loss is not None:
            self._lost_at = now
