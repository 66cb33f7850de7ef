"""The list as a follower keeps it: made of events of a stream and of whole lists, whichever come, in the right order.

Pure: ``now`` is an argument, any clock that only goes forward. ``snapshot`` knows what each event means; here it is
known which list of the service that comes to, when it was last confirmed, and whether it is still to be believed.
"""

from typing import NamedTuple

from discovery.client.listings import Listings
from discovery.client.snapshot import CHANGES, WHOLE_LIST, Assembly, Snapshot
from discovery.client.sse import Event
from discovery.model import Listing, PoolKey

LONGEST_TOKEN = 200
MOST_TOLD, MOST_PAST = 1000, 8
LAG_SECS = 1.6
"""For so long a replica may be behind another without saying so."""
DOUBT_SECS = 5.0
"""How long nothing may confirm the list before it no longer claims to be complete.

Several times what a look takes (see ``looks``), so that one which is late, or a replica that restarts, changes nothing.
"""


class _Told(NamedTuple):
    """What an event made of a pool, how it was before, and when every replica knows."""

    state: Listing | None
    before: tuple[Listing, ...]
    settles_at: float


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
        self._told: dict[PoolKey, _Told] = {}
        self._merged: tuple[Listings, dict[PoolKey, Listing | None], Listings] | None = None
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
        """The list for readers. In doubt it keeps its pools, may lack others, and says so by ``complete``.

        What an event told a moment ago is not undone by a list that has that pool as it was: the list may be one of a
        replica that lags. If it is so in truth, a ``put`` says it, or a list that is asked for a little later.
        """
        doubted, told = self.doubted(now), self.told_otherwise()
        exact = not doubted and not told and not self.assembly.merged
        complete = self.assembly.complete and not doubted and not told
        pools = self._as_told(told) if told else self.assembly.pools
        return Snapshot(complete, pools, self.token if exact else None, now - self.confirmed_at)

    def _as_told(self, told: dict[PoolKey, Listing | None]) -> Listings:
        """Made once for each list and what is told otherwise, since routers read for every request."""
        pools = self.assembly.pools
        if self._merged is None or self._merged[0] is not pools or self._merged[1] != told:
            as_told = (told.get(pool.key, pool) for pool in pools)
            self._merged = pools, told, Listings(pool for pool in as_told if pool is not None)
        return self._merged[2]

    def told_otherwise(self) -> dict[PoolKey, Listing | None]:
        """The pools that are shown as they were told, and not as the list has them; None where they are gone."""
        if not self._told:
            return {}
        return {key: told.state for key, told in self._told.items() if self._undoes(key, told)}

    @property
    def settles_at(self) -> float | None:
        """When those lists may be asked for that tell how they are in truth."""
        return min((told.settles_at for key, told in self._told.items() if self._undoes(key, told)), default=None)

    def settle(self, asked_at: float) -> None:
        """The list is as the service said to who asked then: what was told long before has reached every replica."""
        self._told = {key: told for key, told in self._told.items() if told.settles_at > asked_at}

    def _undoes(self, key: PoolKey, told: _Told) -> bool:
        return self.assembly.get(key) in told.before

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
        self._correct_merged()
        self._token, self._between_changes, self._unknown = _sendable(given.etag), True, False
        self.confirmed_at = now
        return changed

    def take_event(self, event: Event, now: float) -> bool:
        """Take the next event of a stream; as ``take_list``. Raises ``ValueError`` for what is none."""
        self.mark += 1
        self.told_at = now
        self._between_changes = False
        changed = self.assembly.apply(event.name, event.data, now)
        for key, before in self.assembly.take_told():
            changed |= self._remember(key, before, now)
        if event.name == WHOLE_LIST:
            self._unknown = False
            self._correct_merged()
        elif event.name not in CHANGES:
            self._unknown = True
        if event.id is not None:
            self._token, self._between_changes = _sendable(event.id), True
        return changed

    def _remember(self, key: PoolKey, before: Listing | None, now: float) -> bool:
        """Whether readers saw something else until now than what was told."""
        known = self._told.get(key)
        otherwise = known is not None and self._undoes(key, known)
        past = (*(known.before if known is not None else ()), *((before,) if before is not None else ()))
        state = self.assembly.get(key)
        self._told[key] = _Told(state, tuple(each for each in past if each != state)[-MOST_PAST:], now + LAG_SECS)
        if len(self._told) > MOST_TOLD:
            self.settle(now)
        return otherwise

    def _correct_merged(self) -> None:
        """What an incomplete list of a replica that lagged brought is not kept because the next one lacks it."""
        for key, state in self.told_otherwise().items():
            if self.assembly.is_unseen(key):
                self.assembly.correct(key, state)


def _sendable(token: str | None) -> str | None:
    """A name that may be sent back in a header; whatever else came is none of the service's."""
    fit = token is not None and 0 < len(token) <= LONGEST_TOKEN and token.isascii() and token.isprintable()
    return token if fit and not {'"', ","} & set(token or "") else None
