"""The library for routers and relays: list, follow, register, deregister.

    async with Client(["http://discovery:8080"]) as client:
        snapshot = await client.list(model="m")
        async with client.follow(model="m") as pools:      # the list is there when the block starts
            async for snapshot in pools: ...               # a new one at each change
        async with client.register(registration): ...      # heartbeats until the block ends, then deregisters

Several base URLs are tried in turn, and so are all addresses of a name, beginning with a random one. The service's own
code is not needed: this package knows the words of ``model``, the errors, and HTTP. Errors are ``Rejected`` (do not
send that again), ``Unavailable`` (not now; ``NoAnswer`` when nobody answered at all) and ``Misconfigured`` (a bad URL,
an unreadable token file). What a program does wrong by itself raises ``RuntimeError``, ``TypeError`` or ``ValueError``,
before anything is asked.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self, TypedDict

from discovery.client import diagnosis
from discovery.client.agreement import Comparison, Difference, ReplicaState
from discovery.client.answers import NoAnswer
from discovery.client.blocks import Blocks
from discovery.client.diagnosis import Diagnosis, Explanation
from discovery.client.follow import Pools
from discovery.client.heartbeat import Heartbeat, delete
from discovery.client.looks import QUIET_SECS
from discovery.client.service import Pairs, Request, Service, path_of, target
from discovery.client.snapshot import RouterSnapshot, Snapshot, read_pools, read_routers
from discovery.client.trust import File, Trust
from discovery.errors import Unavailable
from discovery.model import PoolKey, Registration

if TYPE_CHECKING:
    from discovery.client.transport import Connections

__all__ = [
    "Client",
    "Comparison",
    "Diagnosis",
    "Difference",
    "Explanation",
    "Filters",
    "Heartbeat",
    "NoAnswer",
    "Pools",
    "ReplicaState",
    "RouterSnapshot",
    "Snapshot",
]

LIST_SECS = 30.0
PATIENCE_SECS = 2.0

Wanted = str | Iterable[str]

EVERY: tuple[str, ...] = ("every",)
"""No filter: this very object, so that nothing that a program makes can mean it by accident."""


class Filters(TypedDict, total=False):
    """Filters to be passed on: ``client.list(**filters)``."""

    model: Wanted
    cluster_id: Wanted
    namespace: Wanted
    capability: Wanted
    region: Wanted


class Client:
    """One service, at one or several base URLs; use it within ``async with``, which ends whatever was begun within.

    ``token_path`` names a file with a bearer token. For https ``ca_path`` names the CA to trust in place of the
    system's, and ``cert_path`` with ``key_path`` what to show to a service that wants a certificate; all are PEM files.
    Files are read again for each request, and may be renewed. Filters take one value or several:
    several are alternatives, but of ``capability`` all must be there. Raises ``Misconfigured`` for a URL that is none.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        token_path: File | None = None,
        *,
        ca_path: File | None = None,
        cert_path: File | None = None,
        key_path: File | None = None,
    ) -> None:
        if not isinstance(urls, Iterable):
            raise TypeError(f"a client needs a URL or several, not {type(urls).__name__}")
        trust = Trust(ca_path, cert_path, key_path)
        self._service = Service([urls] if isinstance(urls, str) else urls, token_path, trust)
        self._connections = self._connect()
        self._blocks = Blocks(self._service.urls)

    async def __aenter__(self) -> Self:
        self._blocks.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._blocks.end()
        finally:
            await self._connections.close()

    async def list(
        self,
        *,
        model: Wanted = EVERY,
        cluster_id: Wanted = EVERY,
        namespace: Wanted = EVERY,
        capability: Wanted = EVERY,
        region: Wanted = EVERY,
    ) -> Snapshot:
        """The pools as one server has them now, unmerged: mind ``complete``. ``follow`` is for those who ask again."""
        query = _query(model=model, cluster_id=cluster_id, namespace=namespace, capability=capability, region=region)
        self._blocks.check()
        answer = await self._connections.request(
            Request("GET", target(path_of("pools"), query)), deadline_secs=LIST_SECS
        )
        try:
            return read_pools(answer.body, answer.etag)
        except ValueError as error:
            raise Unavailable("the list of pools cannot be read: is it a discovery service?") from error

    def follow(
        self,
        *,
        model: Wanted = EVERY,
        cluster_id: Wanted = EVERY,
        namespace: Wanted = EVERY,
        capability: Wanted = EVERY,
        region: Wanted = EVERY,
        patience_secs: float = 10.0,
        quiet_secs: float = QUIET_SECS,
    ) -> Pools:
        """The pools, kept current within ``async with``; see ``Pools``.

        Entering waits for the first list, for ``patience_secs``. When the service has said nothing for ``quiet_secs``
        (0.1 at least), a small request asks whether the list is still so, whatever streams seem to say: no change
        stays unknown for much longer than that, however connections fail. Thousands of followers may ask more seldom.
        """
        query = _query(model=model, cluster_id=cluster_id, namespace=namespace, capability=capability, region=region)
        if not (0 <= patience_secs < float("inf") and 0.1 <= quiet_secs < float("inf")):
            raise ValueError("patience_secs must be a number from zero on, and quiet_secs one from 0.1 on")
        return Pools(self._connect(), query, patience_secs=patience_secs, quiet_secs=quiet_secs, blocks=self._blocks)

    def register(self, registration: Registration, *, keep_on_exit: bool = False) -> Heartbeat:
        """One pool, kept registered within ``async with`` and deregistered at its end; see ``Heartbeat``."""
        return Heartbeat(self._connect(), registration, keep_on_exit=keep_on_exit, blocks=self._blocks)

    async def deregister(self, key: PoolKey, instance_id: str | None = None) -> None:
        """Take a pool off every list at once; with ``instance_id`` only while that instance's registration stands.

        Fine when it is not there. End heartbeats of the pool first: the next one would register it anew.
        """
        self._blocks.check()
        await delete(self._connections, _key(key), instance_id)

    async def explain(self, keys: Iterable[PoolKey] = ()) -> Diagnosis:
        """Why these pools are or are not listed, as one server knows it now; without keys every pool that it knows."""
        self._blocks.check()
        bodies = []
        for query in diagnosis.queries([_key(key) for key in keys]):
            request = Request("GET", target(path_of("status"), query))
            bodies.append((await self._connections.request(request, deadline_secs=LIST_SECS)).body)
        return diagnosis.read(bodies)

    async def compare(self, keys: Iterable[PoolKey] = (), *, patience_secs: float = PATIENCE_SECS) -> Comparison:
        """Whether all replicas agree: each URL is asked, and of a name with several addresses each of these.

        Changes on their way have ``patience_secs`` to arrive. ``keys`` are pools that each shall explain. Raises
        ``Unavailable`` or ``Rejected`` where nobody answers.
        """
        from discovery.client.replicas import compared  # as below

        self._blocks.check()
        return await compared(self._service, tuple(_key(key) for key in keys), patience_secs)

    async def routers(self) -> RouterSnapshot:
        """The Global Routers as one server has them now."""
        self._blocks.check()
        answer = await self._connections.request(Request("GET", path_of("routers")), deadline_secs=LIST_SECS)
        try:
            return read_routers(answer.body, answer.etag)
        except ValueError as error:
            raise Unavailable("the list of routers cannot be read: is it a discovery service?") from error

    def _connect(self) -> "Connections":
        # aiohttp takes longer to import than all the rest: whoever only imports this library does not wait for it.
        from discovery.client.transport import Connections

        return Connections(self._service)


def _query(**filters: Wanted) -> Pairs:
    return [(name, value) for name, wanted in filters.items() for value in _values(name, wanted)]


def _values(name: str, wanted: object) -> list[str]:
    """An unfiltered list where a filter was meant is worse than an error."""
    if wanted is EVERY:
        return []
    if isinstance(wanted, bytes | Mapping) or not isinstance(wanted, Iterable):
        said = f"not {type(wanted).__name__}; without a filter, leave it out"
        raise TypeError(f"{name} is a text or several texts, {said}")
    values: list[str] = []
    for value in (wanted,) if isinstance(wanted, str) else wanted:
        if not isinstance(value, str):
            raise TypeError(f"{name} is a text or several texts, and holds {type(value).__name__}")
        if not value:
            raise ValueError(f"{name} holds an empty text, which no pool has; without a filter, leave it out")
        values.append(value)
    if not values:
        raise ValueError(f"{name} names nothing, which no pool has; without a filter, leave it out")
    return values


def _key(key: object) -> PoolKey:
    if not isinstance(key, tuple) or len(key) != 3 or not all(isinstance(part, str) for part in key):
        raise TypeError("a pool is named by PoolKey(cluster_id, namespace, dgd_name), three texts")
    if any(part in ("", ".", "..") for part in key):
        raise ValueError("no part of a pool's key is empty or made of dots alone")
    return PoolKey(*key)
