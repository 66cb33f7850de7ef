"""When the end of a lease may be acted on: not in an outage of the store, nor for one lease after it or a loss.

Pure: facts and ``now`` in, answers out; all times are seconds of one monotonic clock. The replica reports what it sees
of its store here and asks before it drops a pool. A pool outlives its lease by at most two leases of time in which the
store could be read, however many signs of trouble follow each other.
"""


def least_left_secs(lease_secs: float, heartbeat_secs: float) -> float:
    """What the lease of a live pool has left at the least: one of its heartbeats may have been lost."""
    return max(lease_secs - 2 * heartbeat_secs, lease_secs / 3)


class Holds:
    """What this replica has seen of its store's health."""

    def __init__(self, lease_secs: float) -> None:
        self._lease_secs = lease_secs
        self._failing_since: float | None = None
        self._hold_until = float("-inf")
        self._loss_until = float("-inf")
        self._loss_reason = ""
        self._failing_in_loss = False
        self._readable_secs = 0.0
        self._readable_since: float | None = None

    @property
    def failing_since(self) -> float | None:
        """When the running outage began: the first store call that failed; None while the store answers."""
        return self._failing_since

    def failed(self, now: float) -> bool:
        """A store call failed or timed out. True where this begins an outage."""
        if self._failing_since is not None:
            return False
        self._readable_secs = self.readable_secs(now)
        self._readable_since = None
        self._failing_since = now
        self._failing_in_loss = now < self._loss_until
        return True

    def answered(self, now: float) -> float | None:
        """The store was read. Where this ends an outage: how many seconds it lasted."""
        if self._readable_since is None:
            self._readable_since = now
        if self._failing_since is None:
            return None
        lasted = now - self._failing_since
        self._failing_since = None
        self._hold_until = max(self._hold_until, now + self._lease_secs)
        if self._failing_in_loss:
            self._loss_until = now + self._lease_secs
        self._failing_in_loss = False
        return lasted

    def lost(self, now: float, reason: str) -> None:
        """The store may have lost data: its content is not the whole truth for one lease."""
        self._hold_until = max(self._hold_until, now + self._lease_secs)
        self._loss_until = now + self._lease_secs
        self._loss_reason = reason
        self._failing_in_loss = self._failing_since is not None

    def readable_secs(self, now: float) -> float:
        """For how many seconds the store could be read so far: the clock that bounds every hold."""
        running = 0.0 if self._readable_since is None else now - self._readable_since
        return self._readable_secs + running

    def acts_at(self, now: float, overdue_since_readable: float) -> bool:
        """Whether a pool may be dropped whose lease was found over when ``readable_secs`` was as given."""
        if self._failing_since is not None:
            return False
        return now >= self._hold_until or self.readable_secs(now) - overdue_since_readable >= 2 * self._lease_secs

    def next_action(self, now: float) -> float | None:
        """When the running hold ends; None where there is none or the store is away."""
        return self._hold_until if self._failing_since is None and self._hold_until > now else None

    def quiet(self, now: float) -> bool:
        """Whether the store answers and no hold runs: what it lacks now is not there."""
        return self._failing_since is None and now >= self._hold_until

    def loss(self, now: float) -> str | None:
        """The reason why the store's content may be less than the truth; None where it is whole.

        While the store fails nobody can register anew, so that time does not count.
        """
        return self._loss_reason if now < self._loss_until or self._failing_in_loss else None
