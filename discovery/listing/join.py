"""Where the sides meet: registrations × views → listings, and what is known of one side only.

Pure: ``now`` is an argument, a warning is a returned line. Touched pools alone are computed anew. Where addresses come
from the registrations themselves there is one side only, and a pool is listed while its registration lives. Else it is
listed while both agree: a live registration, and a relay that can be used; the addresses are then the view's.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from discovery.listing.snapshot import Fragment, Key
from discovery.mcs.slices import Endpoints
from discovery.model import Listing, PoolKey, Registration
from discovery.registrations import listing

SUMMARY_FROM = 20
SUMMARY_KEYS = 5
BARE_SECS = 2.0

Side = Literal["registered", "ready"]
ListChange = tuple[Key, Fragment[Listing] | None]


class OneSided(NamedTuple):
    """A pool of which one side is missing: since when, and whether that was said."""

    side: Side
    since: float
    said: bool = False


class Bare(NamedTuple):
    """A listed pool without frontends: since when, and whether that was said."""

    since: float
    said: bool = False


class Join:
    """The listings that follow from all registrations and addresses so far.

    ``endpoints`` gives a pool's addresses from the views; without it they are the registration's own. ``why`` gives the
    likely cause for a one-sided pool in one line, ``why_bare`` for a listed one without frontends.
    """

    def __init__(
        self,
        endpoints: Callable[[PoolKey], Endpoints | None] | None = None,
        *,
        lease_secs: float = 15.0,
        why: Callable[[PoolKey, Side], str] = lambda key, side: f"the pool {key} is only {side}",
        why_bare: Callable[[PoolKey], str] = lambda key: f"the pool {key} is listed without frontends",
    ) -> None:
        self._endpoints = endpoints
        self._patience_secs = 2 * lease_secs
        self._gather_secs = lease_secs / 3
        self._judged_from = 0.0
        self._why = why
        self._why_bare = why_bare
        self.registrations: dict[PoolKey, Registration] = {}
        self.one_sided: dict[PoolKey, OneSided] = {}
        self._bare: dict[PoolKey, Bare] = {}
        self._relays: dict[PoolKey, tuple[str, ...]] = {}
        self._users: dict[str, int] = {}
        self.shared_relay_addresses = 0

    def registered(self, changes: Iterable[tuple[PoolKey, Registration | None]], now: float) -> list[ListChange]:
        """What changes in the list by these changes of registrations."""
        listed: list[ListChange] = []
        for key, registration in changes:
            if registration is None:
                self.registrations.pop(key, None)
            else:
                self.registrations[key] = registration
            listed.append((key, self._listed(key, registration, now)))
        return listed

    def seen(self, keys: Iterable[PoolKey], now: float) -> list[ListChange]:
        """What changes in the list by other addresses of these pools."""
        return [(key, self._listed(key, self.registrations.get(key), now)) for key in keys]

    def due(self, now: float, *, all_read: bool) -> list[str]:
        """What has to be said by now, each once: pools one-sided for two leases, and listed pools without frontends.

        Before both sides were read nothing is said, and patience begins after that. What becomes due within a
        heartbeat's time of another is said together with it: one cause reaches many pools at nearly the same time.
        """
        if not all_read:
            self._judged_from = now
            return []
        one_sided = self._due_of(self.one_sided, now, self._patience_secs)
        bare = self._due_of(self._bare, now, BARE_SECS)
        lines = self._one_sided_lines(one_sided) + self._bare_lines(bare)
        self.told(one_sided)
        self._bare.update({key: self._bare[key]._replace(said=True) for key in bare})
        return lines

    def told(self, one_sided: Iterable[PoolKey]) -> None:
        """Somebody has said already that these are one-sided."""
        self.one_sided.update({key: self.one_sided[key]._replace(said=True) for key in one_sided})

    def _due_of(
        self, states: Mapping[PoolKey, OneSided] | Mapping[PoolKey, Bare], now: float, patience_secs: float
    ) -> list[PoolKey]:
        ages = {key: now - max(state.since, self._judged_from) for key, state in states.items() if not state.said}
        if max(ages.values(), default=0.0) < patience_secs + self._gather_secs:
            return []
        return sorted(key for key, age in ages.items() if age >= patience_secs)

    def _one_sided_lines(self, keys: list[PoolKey]) -> list[str]:
        if len(keys) < SUMMARY_FROM:
            return [self._why(key, self.one_sided[key].side) for key in keys]
        registered = sum(self.one_sided[key].side == "registered" for key in keys)
        sides = f"{registered} only registered, {len(keys) - registered} only Ready"
        return [f"{len(keys)} pools are known of one side only ({sides}){_among(keys)}"]

    def _bare_lines(self, keys: list[PoolKey]) -> list[str]:
        if len(keys) < SUMMARY_FROM:
            return [self._why_bare(key) for key in keys]
        return [f"{len(keys)} pools are listed without frontends{_among(keys)}"]

    def _listed(self, key: PoolKey, registration: Registration | None, now: float) -> Fragment[Listing] | None:
        found = self._listing(key, registration, now)
        self._use_relays(key, found.relays if found else ())
        return Fragment(key, found) if found else None

    def _listing(self, key: PoolKey, registration: Registration | None, now: float) -> Listing | None:
        if self._endpoints is None:
            return listing(registration) if registration else None
        endpoints = self._endpoints(key)
        is_ready = endpoints is not None and bool(endpoints.relays)
        self._note_sides(key, registration is not None, is_ready, now)
        if registration is None or endpoints is None or not is_ready:
            self._bare.pop(key, None)
            return None
        if endpoints.frontends:
            self._bare.pop(key, None)
        else:
            self._bare.setdefault(key, Bare(now))
        return listing(registration, endpoints.relays, endpoints.frontends)

    def _note_sides(self, key: PoolKey, is_registered: bool, is_ready: bool, now: float) -> None:
        if is_registered == is_ready:
            self.one_sided.pop(key, None)
            return
        side: Side = "registered" if is_registered else "ready"
        known = self.one_sided.get(key)
        if known is None or known.side != side:
            self.one_sided[key] = OneSided(side, now)

    def _use_relays(self, key: PoolKey, relays: tuple[str, ...]) -> None:
        """Count addresses that two pools claim: a pod's address was taken over while its old pool is still listed."""
        old = self._relays.get(key, ())
        if old == relays:
            return
        if relays:
            self._relays[key] = relays
        else:
            del self._relays[key]
        for address in old:
            self._count(address, -1)
        for address in relays:
            self._count(address, +1)

    def _count(self, address: str, step: int) -> None:
        before = self._users.get(address, 0)
        after = before + step
        if after:
            self._users[address] = after
        else:
            del self._users[address]
        self.shared_relay_addresses += (after > 1) - (before > 1)


def _among(keys: list[PoolKey]) -> str:
    return f", among them {', '.join(map(str, keys[:SUMMARY_KEYS]))}; /status lists all"
