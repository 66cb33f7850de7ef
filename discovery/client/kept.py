"""The list as a follower keeps it: made of events of a stream and of whole lists, whichever come, in the right order.

Pure: ``now`` is an argument, any clock that only goes forward. ``snapshot`` knows what each event means; here it is
known which list of the service that comes to, when it was last confirmed, and whether it is still to be believed.
"""

from discovery.client.listings import Listings
from discovery.client.snapshot import CHANGES, WHOLE_LIST, Assembly, Snapshot
from discovery.client.sse import Event
from discovery.model import Listing, PoolKey

LONGEST_TOKEN = 200
LAG_SECS = 1.9
"""For so long a replica may be behind another without saying so."""
DOUBT_SECS = 5.0
"""How long nothing may confirm the list before it no longer claims to be complete.

Several times what a look takes (see ``looks``), so that one which is late, or a replica that restarts, changes nothing.
"""


class KeptList:
    """One list. ``mark`` grows with everything that was taken: what was asked for before it grew may be older."""

    def __init__(self, doubt_secs: float = DOUBT_SECS) -> None:
        self.doubt_secs = doubt_secs
        self.assembly = Assembly()
        self.mark = 0
        self.told_at = float("-inf")
        """When the last event came."""
        self.confirmed_at = float("-inf")
        self._trusted_at = float("-inf")
        self._gone: dict[PoolKey, tuple[Listing, float]] = {}
        """Pools that were taken away a moment ago: as they were, and until when a replica may not know of it."""
        self._token: str | None = None
        self._between_changes = True
        self._unknown = False
        """Whether something was told that was not understood: until a whole list comes, ours may be another."""

    @property
    def started(self) -> bool:
        """Whether there is any list yet."""
        return self.assembly.started

    @property
    def token(self) -> str | None:
        """What the service calls the list that it gave last, of which ours is made; None where it has no name.

        In the middle of a change it has none. Tokens are made of content: were the service back at the one before, it
        would have nothing to send.
        """
        return self._token if self._exact else None

    @property
    def _exact(self) -> bool:
        return self.started and self._between_changes and not self._unknown

    def shown(self, now: float) -> Snapshot:
        """The list for readers. In doubt it keeps its pools, and may lack others.

        A pool that was taken away a moment ago is not shown again for a list that has it as it was: that may be the
        list of a replica that lags. If it is back in truth, a ``put`` says so, or lists still have it a little later.
        """
        doubted, hidden = self.doubted(now), self.hidden(now)
        exact = not doubted and not hidden and not self.assembly.merged
        complete = self.assembly.complete and not doubted
        pools = self.assembly.pools
        if hidden:
            pools = Listings(pool for pool in pools if pool.key not in hidden)
        return Snapshot(complete, pools, self.token if exact else None, now - self.confirmed_at)

    def hidden(self, now: float) -> dict[PoolKey, float]:
        """The pools of the list that are not shown, and until when."""
        if not self._gone:
            return {}
        self._gone = {key: gone for key, gone in self._gone.items() if gone[1] > now}
        return {key: until for key, (was, until) in self._gone.items() if self.assembly.get(key) == was}

    def doubted(self, now: float) -> bool:
        """Whether it has gone unconfirmed for too long."""
        return now > self.doubtful_at

    @property
    def doubtful_at(self) -> float:
        """When it has gone unconfirmed for too long, if nothing happens before."""
        return max(self.confirmed_at, self._trusted_at) + self.doubt_secs

    def trust(self, now: float) -> None:
        """Nothing confirms it, but nothing is wrong either: a replica that lacks pools answered beside the stream's."""
        self._trusted_at = now

    def is_already(self, given: Snapshot) -> bool:
        """Whether a list that the service gives is the one of which ours is made."""
        if not self._exact:
            return False
        if given.etag is not None and self._token is not None:
            return given.etag == self._token
        same = (given.complete, given.pools) == (self.assembly.complete, self.assembly.pools)
        return same and not self.assembly.merged

    def confirm(self, now: float) -> None:
        """The service says that it is still so. Time in which nothing was heard does not count against any pool."""
        if self.started:
            if self.doubted(now):
                self.assembly.not_counting(now - self.confirmed_at)
            self.confirmed_at = now

    def take_list(self, given: Snapshot, now: float) -> bool:
        """Take a whole list: replaces ours, or is merged where it is not complete. Whether readers see a change."""
        self.mark += 1
        self.confirm(now)  # first, since pools are judged by when they were last shown
        changed = self.assembly.snapshot(given.complete, given.pools, now)
        self._remember_removed(now)
        self._token, self._between_changes, self._unknown = _sendable(given.etag), True, False
        self.confirmed_at = now
        return changed

    def take_event(self, event: Event, now: float) -> bool:
        """Take the next event of a stream; as ``take_list``. Raises ``ValueError`` for what is none."""
        self.mark += 1
        self.told_at = now
        self._between_changes = False
        changed = self.assembly.apply(event.name, event.data, now)
        self._remember_removed(now)
        if event.name == "put":  # which nobody says of a pool that is gone
            changed |= self._gone.pop(self.assembly.last_put, None) is not None
        if event.name == WHOLE_LIST:
            self._unknown = False
        elif event.name not in CHANGES:
            self._unknown = True
        if event.id is not None:
            self._token, self._between_changes = _sendable(event.id), True
        return changed

    def _remember_removed(self, now: float) -> None:
        self._gone |= {pool.key: (pool, now + LAG_SECS) for pool in self.assembly.take_removed()}


def _sendable(token: str | None) -> str | None:
    """A name that may be sent back in a header; whatever else came is none of the service's."""
    fit = token is not None and 0 < len(token) <= LONGEST_TOKEN and token.isascii() and token.isprintable()
    return token if fit and not {'"', ","} & set(token or "") else None
