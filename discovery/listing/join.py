"""Where the sides meet: registrations become listings, and touched pools alone are computed anew.

Pure. Where addresses come from the registrations themselves there is one side only, and a pool is listed while its
registration lives.
"""

from collections.abc import Iterable

from discovery.listing.snapshot import Fragment, Key, pool_fragment
from discovery.model import Listing, PoolKey, Registration
from discovery.registrations import listing


class Join:
    """The listings that follow from all registrations so far."""

    def __init__(self) -> None:
        self._relays: dict[PoolKey, tuple[str, ...]] = {}
        self._users: dict[str, int] = {}
        self.shared_relay_addresses = 0

    def registered(
        self, changes: Iterable[tuple[PoolKey, Registration | None]]
    ) -> list[tuple[Key, Fragment[Listing] | None]]:
        """What changes in the list by these changes of registrations."""
        return [(key, self._listed(key, registration)) for key, registration in changes]

    def _listed(self, key: PoolKey, registration: Registration | None) -> Fragment[Listing] | None:
        self._use_relays(key, registration.relays if registration else ())
        return pool_fragment(listing(registration)) if registration else None

    def _use_relays(self, key: PoolKey, relays: tuple[str, ...]) -> None:
        """Count addresses that two pools claim: a pod's address was taken over while its old pool is still listed."""
        old = self._relays.pop(key, ())
        if relays:
            self._relays[key] = relays
        if old == relays:
            return
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
