"""What a reader of the lists holds: snapshots, and the rules by which events become the next one.

Pure: ``now`` is an argument, any clock that only goes forward. Knows nothing of connections. The rules: a complete
snapshot replaces everything; an incomplete one only adds and renews, since pools may be missing from it; a delete is
final either way; a pool that incomplete lists have not shown for five minutes is given up.
"""

from collections.abc import Iterable

import msgspec

from discovery.client.listings import Listings, Shelf
from discovery.model import Capacity, Listing, Location, PoolKey, Router

UNSEEN_SECS = 300.0
WHOLE_LIST = "snapshot"
CHANGES = ("put", "delete", "complete")
"""The names of events."""


class Snapshot(msgspec.Struct, frozen=True):
    """All pools at one moment, sorted by key.

    ``complete``: true says that this is the whole truth, false that pools may be missing. ``etag`` is the bare token of
    exactly this list where a server named one. ``age`` is how many seconds ago a server last confirmed the list.
    """

    complete: bool
    pools: tuple[Listing, ...]
    etag: str | None
    age: float

    def pools_for(self, model: str) -> tuple[Listing, ...]:
        """The pools that serve ``model``, sorted by key; empty where none does. Cheap enough for every request."""
        pools = self.pools if isinstance(self.pools, Listings) else Listings(self.pools)
        return pools.by_model.get(model, ())


class RouterSnapshot(msgspec.Struct, frozen=True):
    """All Global Routers at one moment, sorted by id; the other fields are as in ``Snapshot``."""

    complete: bool
    routers: tuple[Router, ...]
    etag: str | None
    age: float


class _Pool(msgspec.Struct, frozen=True):
    """A listing on the wire; what an older or newer server leaves out is empty."""

    cluster_id: str
    namespace: str
    dgd_name: str
    model: str
    relays: tuple[str, ...] = ()
    frontends: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    location: Location = Location()
    instance_id: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] = {}

    def listing(self) -> Listing:
        return Listing(*(getattr(self, field) for field in self.__struct_fields__))


class _Pools(msgspec.Struct, frozen=True):
    complete: bool
    pools: tuple[_Pool, ...]


class _Routers(msgspec.Struct, frozen=True):
    complete: bool
    routers: tuple[Router, ...]


class _Complete(msgspec.Struct, frozen=True):
    complete: bool


class _Key(msgspec.Struct, frozen=True):
    cluster_id: str
    namespace: str
    dgd_name: str


_decode_pools = msgspec.json.Decoder(_Pools).decode
_decode_pool = msgspec.json.Decoder(_Pool).decode
_decode_routers = msgspec.json.Decoder(_Routers).decode
_decode_complete = msgspec.json.Decoder(_Complete).decode
_decode_key = msgspec.json.Decoder(_Key).decode


def read_pools(body: bytes | str, etag: str | None) -> Snapshot:
    """The body of ``GET /pools``; raises ``ValueError`` where it is none."""
    served = _decode_pools(body)
    pools = sorted((pool.listing() for pool in served.pools), key=lambda pool: pool.key)
    return Snapshot(served.complete, Listings(pools), etag, 0.0)


def read_routers(body: bytes, etag: str | None) -> RouterSnapshot:
    """The body of ``GET /routers``; raises as ``read_pools``."""
    served = _decode_routers(body)
    return RouterSnapshot(served.complete, tuple(sorted(served.routers, key=lambda router: router.id)), etag, 0.0)


class Assembly:
    """The list as one subscriber assembles it from events; every change answers whether a reader would see it."""

    def __init__(self) -> None:
        self.started = False
        self.complete = False
        self._pools: dict[PoolKey, Listing] = {}
        self._unseen_since: dict[PoolKey, float] = {}
        self._shelf = Shelf()
        self._told: list[tuple[PoolKey, Listing | None]] = []

    def __len__(self) -> int:
        return len(self._pools)

    @property
    def pools(self) -> Listings:
        """Every pool, sorted by key."""
        return self._shelf.held

    def get(self, key: PoolKey) -> Listing | None:
        """One pool."""
        return self._pools.get(key)

    def is_unseen(self, key: PoolKey) -> bool:
        """Whether it was merged: the server's last, incomplete list lacks it."""
        return key in self._unseen_since

    def correct(self, key: PoolKey, state: Listing | None) -> None:
        """A merged pool was not as it is here."""
        if state is None:
            self.delete(key)
        elif (before := self._pools.get(key)) is not None:
            self._pools[key] = state
            self._shelf.put(state, before)

    def take_told(self) -> list[tuple[PoolKey, Listing | None]]:
        """The pools that were put or deleted since this was asked last, each as it was before."""
        told, self._told = self._told, []
        return told

    @property
    def merged(self) -> bool:
        """Whether the list holds pools that the server's own, incomplete list lacks."""
        return bool(self._unseen_since)

    @property
    def next_drop(self) -> float | None:
        """When the first pool will have gone unseen for too long."""
        return min(self._unseen_since.values()) + UNSEEN_SECS if self._unseen_since else None

    def apply(self, name: str, data: str, now: float) -> bool:
        """Take one event as served. An unknown name changes nothing; unreadable data raises ``ValueError``."""
        match name:
            case "snapshot":
                served = read_pools(data, None)
                return self.snapshot(served.complete, served.pools, now)
            case "put":
                listing = _decode_pool(data).listing()
                self._told.append((listing.key, self.get(listing.key)))
                return self.put(listing)
            case "delete":
                key = _decode_key(data)
                pool_key = PoolKey(key.cluster_id, key.namespace, key.dgd_name)
                self._told.append((pool_key, self.get(pool_key)))
                return self.delete(pool_key)
            case "complete":
                return self.set_complete(_decode_complete(data).complete)
            case _:
                return False

    def snapshot(self, complete: bool, listings: Iterable[Listing], now: float) -> bool:
        """Replace the list, or merge into it where the snapshot is not complete."""
        before = (self.started, self.complete, self._pools)
        shown = {listing.key: listing for listing in listings}
        unseen = {} if complete else {key: self._unseen_since.get(key, now) for key in self._pools if key not in shown}
        self._unseen_since = unseen
        self._pools = {key: self._pools[key] for key in unseen} | shown
        self.started, self.complete = True, complete
        if before[2] != self._pools:
            self._shelf = Shelf(self._pools.values())
        self.drop_unseen(now)
        return before != (self.started, self.complete, self._pools)

    def put(self, listing: Listing) -> bool:
        """A pool appeared or changed."""
        self._unseen_since.pop(listing.key, None)
        before = self._pools.get(listing.key)
        if before == listing:
            return False
        self._pools[listing.key] = listing
        self._shelf.put(listing, before)
        return True

    def delete(self, key: PoolKey) -> bool:
        """A pool left, for a known reason: it goes, whether or not the list is complete."""
        self._unseen_since.pop(key, None)
        if (gone := self._pools.pop(key, None)) is None:
            return False
        self._shelf.delete(gone)
        return True

    def set_complete(self, complete: bool) -> bool:
        """Completeness changed. A list that became complete is the whole truth: what it never showed is gone."""
        changed = complete != self.complete
        self.complete = complete
        if complete:
            changed |= self._forget(list(self._unseen_since))
        return changed

    def drop_unseen(self, now: float) -> bool:
        """Give up the pools that incomplete lists have not shown for too long."""
        return self._forget([key for key, since in self._unseen_since.items() if now - since >= UNSEEN_SECS])

    def not_counting(self, secs: float) -> None:
        """For so long no list was heard at all: that time does not count as not having been shown."""
        self._unseen_since = {key: since + secs for key, since in self._unseen_since.items()}

    def _forget(self, keys: list[PoolKey]) -> bool:
        for key in keys:
            self.delete(key)
        return bool(keys)
