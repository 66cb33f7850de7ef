"""The words of the domain as frozen structs: what relays say, what routers see.

Pure data; knows nothing of stores, HTTP or time. What is checked beyond types lives in ``registrations``.
"""

from typing import NamedTuple

import msgspec

Number = int | float


class PoolKey(NamedTuple):
    """What identifies a pool everywhere; sorts in the order in which pools are listed."""

    cluster_id: str
    namespace: str
    dgd_name: str

    def __str__(self) -> str:
        """``cluster_id/namespace/dgd_name``, for people; not reversible where a part holds a slash."""
        return "/".join(self)


class Capacity(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How much of one resource a pool has, for example 16 of ``nvidia.com/gpu``."""

    resource: str
    quantity: Number
    unit: str | None = None


class Location(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Where a pool runs; every part is optional. Latitude and longitude are degrees."""

    region: str | None = None
    zone: str | None = None
    latitude: Number | None = None
    longitude: Number | None = None


NOWHERE = Location()
"""The location that is not said; what is to be left out as a default has to be this very object."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a PoolRelay says of its pool: the body of ``POST /pools`` and, in canonical form, the value in the store.

    Field order is the order of the canonical JSON. Lists are sets: order and repeats carry no meaning.
    """

    cluster_id: str
    namespace: str
    dgd_name: str
    model: str
    relays: tuple[str, ...] = ()
    frontends: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    location: Location = NOWHERE
    instance_id: str | None = None
    metadata: dict[str, str] = {}

    @property
    def key(self) -> PoolKey:
        """The pool that this registration is about."""
        return PoolKey(self.cluster_id, self.namespace, self.dgd_name)


class Listing(msgspec.Struct, frozen=True, gc=False):
    """One pool as routers see it: one entry of ``GET /pools``. Every list and object is always there."""

    cluster_id: str
    namespace: str
    dgd_name: str
    model: str
    relays: tuple[str, ...]
    frontends: tuple[str, ...]
    capabilities: tuple[str, ...]
    capacity: tuple[Capacity, ...]
    location: Location
    instance_id: str | msgspec.UnsetType
    metadata: dict[str, str]

    @property
    def key(self) -> PoolKey:
        """The pool that is listed."""
        return PoolKey(self.cluster_id, self.namespace, self.dgd_name)


class Router(msgspec.Struct, frozen=True):
    """One Global Router as relays see it: one entry of ``GET /routers``."""

    id: str
    url: str


class Accepted(msgspec.Struct, frozen=True):
    """The answer to ``POST /pools``: how long the lease lives and how often to send, in seconds."""

    lease_duration_secs: Number
    heartbeat_interval_secs: Number
    created: bool
