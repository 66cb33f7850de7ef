"""Pools in the order of their keys, and by model: what readers hold, and what is kept for them from change to change.

A router reads for every request, and lists are long: a change costs a copy of references, and finding the pools of a
model costs nothing. Pure.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cached_property

from discovery.model import Listing, PoolKey


class Listings(tuple[Listing, ...]):
    """Pools, found by their model without looking at each."""

    @cached_property
    def by_model(self) -> Mapping[str, tuple[Listing, ...]]:
        """The pools of each model, in their order."""
        found: dict[str, list[Listing]] = {}
        for listing in self:
            found.setdefault(listing.model, []).append(listing)
        return {model: tuple(listings) for model, listings in found.items()}


class _Row:
    """Listings in the order of their keys; those who hold its tuple hold it as it was."""

    def __init__(self, listings: Iterable[Listing] = ()) -> None:
        self._listings = sorted(listings, key=_key)
        self._keys = [listing.key for listing in self._listings]
        self._held: tuple[Listing, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self._keys)

    def put(self, listing: Listing) -> None:
        at = bisect_left(self._keys, listing.key)
        if at < len(self._keys) and self._keys[at] == listing.key:
            self._listings[at] = listing
        else:
            self._keys.insert(at, listing.key)
            self._listings.insert(at, listing)
        self._held = None

    def delete(self, key: PoolKey) -> None:
        at = bisect_left(self._keys, key)
        del self._keys[at], self._listings[at]
        self._held = None

    @property
    def held(self) -> tuple[Listing, ...]:
        if self._held is None:
            self._held = tuple(self._listings)
        return self._held


class Shelf:
    """Every pool of a list that changes."""

    def __init__(self, listings: Iterable[Listing] = ()) -> None:
        self._all = _Row(listings)
        self._of_model: dict[str, _Row] = {}
        for model, served in Listings(self._all.held).by_model.items():
            self._of_model[model] = _Row(served)
        self._held: Listings | None = None

    def put(self, listing: Listing, before: Listing | None) -> None:
        """Add it, in place of ``before``."""
        if before is not None and before.model != listing.model:
            self._take_from_model(before)
        self._all.put(listing)
        self._of_model.setdefault(listing.model, _Row()).put(listing)
        self._held = None

    def delete(self, listing: Listing) -> None:
        """Take it out; it has to be there."""
        self._all.delete(listing.key)
        self._take_from_model(listing)
        self._held = None

    @property
    def held(self) -> Listings:
        """All of them as they are now, made once per change, when it is read."""
        if self._held is None:
            self._held = Listings(self._all.held)
            self._held.__dict__["by_model"] = {model: row.held for model, row in self._of_model.items()}
        return self._held

    def _take_from_model(self, listing: Listing) -> None:
        row = self._of_model[listing.model]
        row.delete(listing.key)
        if not row:
            del self._of_model[listing.model]


def _key(listing: Listing) -> PoolKey:
    return listing.key
