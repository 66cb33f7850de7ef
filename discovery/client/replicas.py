"""Asks every replica of a deployment, each for itself and all at once, for what ``agreement`` judges.

A URL whose name has several addresses, as that of a headless Service, means the replica at each of them. What is
asked is small, `/status`; whole lists are read only where these do not agree by themselves.
"""

import asyncio
from collections.abc import Iterable, Sequence

from discovery.client import diagnosis
from discovery.client.agreement import Comparison, ReplicaState, Sights, faults, lists_agree, state, verdict
from discovery.client.diagnosis import Explanation
from discovery.client.places import RESOLVED_SECS, Place, places_of
from discovery.client.service import Request, Service, path_of, target
from discovery.client.snapshot import Snapshot, read_pools
from discovery.client.transport import Connections
from discovery.errors import DiscoveryError, Rejected, Unavailable
from discovery.model import PoolKey

STATUS_SECS = 5.0
LIST_SECS = 30.0
PAUSE_SECS = 0.3
LOOKS = 3
LOOK_PAUSE_SECS = 0.9
"""In two of them a replica that reads its table once a second has read it at least once."""


class _Replica:
    """One replica to ask, and what was heard of it."""

    def __init__(self, service: Service, target: Place) -> None:
        self.target = target
        self.heard: list[ReplicaState] = []
        self.error: DiscoveryError | None = None
        self._connections = Connections(service.only(target.url), address=target.address)
        self._list: Snapshot | None = None

    async def ask(self) -> None:
        """Its state now, or why there is none."""
        url, address, _ = self.target
        try:
            answer = await self._connections.request(Request("GET", path_of("status")), deadline_secs=STATUS_SECS)
            self.heard.append(state(url, address, answer.body))
        except (Rejected, Unavailable) as error:
            self.error = error
            self.heard.append(ReplicaState(url=url, address=address, no_answer=str(error)))

    async def look(self) -> Snapshot | None:
        """Its list now, which is not read again where its ETag is what it was."""
        known = self._list
        headers = {"If-None-Match": f'W/"{known.etag}"'} if known is not None else {}
        try:
            answer = await self._connections.request(Request("GET", path_of("pools"), headers), deadline_secs=LIST_SECS)
            if answer.status != 304 or known is None:
                self._list = read_pools(answer.body, answer.etag)
        except (Rejected, Unavailable, ValueError):
            return None
        return self._list

    async def explain(self, keys: Iterable[PoolKey]) -> tuple[Explanation, ...]:
        """Why these pools are or are not listed, as it knows it; nothing where it does not answer any more."""
        bodies = []
        try:
            for query in diagnosis.queries(keys):
                request = Request("GET", target(path_of("status"), query))
                bodies.append((await self._connections.request(request, deadline_secs=LIST_SECS)).body)
            return diagnosis.read(bodies).pools
        except Unavailable:
            return ()

    @property
    def name(self) -> str:
        """As it is called in what was heard of it."""
        return self.heard[-1].name

    async def close(self) -> None:
        """End its connections."""
        await self._connections.close()


async def compared(service: Service, keys: Sequence[PoolKey], patience_secs: float) -> Comparison:
    """Whether all replicas agree, and how each explains these pools; raises the first error where none answers."""
    targets = [each for url in service.urls for each in await _targets(url)]
    replicas = [_Replica(service, each) for each in targets]
    try:
        replicas = await _heard(replicas, patience_secs)
        histories = [replica.heard for replica in replicas]
        looks = None if lists_agree(histories) else await _looks(replicas)
        return verdict(histories, looks, await _explained(replicas, keys))
    finally:
        await asyncio.gather(*(replica.close() for replica in replicas))


async def _targets(url: str) -> list[Place]:
    try:
        async with asyncio.timeout(RESOLVED_SECS):
            found = await places_of(url)
    except (OSError, UnicodeError):  # TimeoutError is one too; whoever connects says what is wrong with the name
        return [Place(url, None, url)]
    return found if len(found) > 1 else [Place(url, None, url)]


async def _heard(replicas: list[_Replica], patience_secs: float) -> list[_Replica]:
    """Ask all until they agree or patience is over; those that are replicas at all."""
    patience_ends = asyncio.get_running_loop().time() + patience_secs
    await asyncio.gather(*(replica.ask() for replica in replicas))
    kept = await _without_unused_families(replicas)
    errors = [replica.error for replica in kept if replica.error is not None]
    if errors and len(errors) == len(kept):
        raise errors[0]
    while not _agree(kept) and asyncio.get_running_loop().time() < patience_ends:
        await asyncio.sleep(PAUSE_SECS)
        await asyncio.gather(*(replica.ask() for replica in kept))
    return kept


def _agree(replicas: Sequence[_Replica]) -> bool:
    histories = [replica.heard for replica in replicas]
    return lists_agree(histories) and not faults(histories)


async def _without_unused_families(replicas: Sequence[_Replica]) -> list[_Replica]:
    """Without the IPv6 addresses of a name whose replicas answer by IPv4 alone, or the other way round.

    ``localhost`` has both, and most listen on one of them.
    """
    answering = {_family(replica) for replica in replicas if replica.heard[-1].no_answer is None}
    urls = {url for url, _ in answering}
    kept = []
    for replica in replicas:
        if replica.target.address is None or _family(replica) in answering or replica.target.url not in urls:
            kept.append(replica)
        else:
            await replica.close()
    return kept


def _family(replica: _Replica) -> tuple[str, bool]:
    return replica.target.url, ":" in (replica.target.address or "")


def _answering(replicas: Iterable[_Replica]) -> list[_Replica]:
    """Those that answer, each once, however many URLs lead to it."""
    return list({each.heard[-1].replica_id: each for each in replicas if each.heard[-1].no_answer is None}.values())


async def _explained(replicas: Iterable[_Replica], keys: Sequence[PoolKey]) -> dict[str, tuple[Explanation, ...]]:
    asked = _answering(replicas) if keys else []
    answers = await asyncio.gather(*(replica.explain(keys) for replica in asked))
    return {replica.name: answer for replica, answer in zip(asked, answers, strict=True)}


async def _looks(replicas: Iterable[_Replica]) -> Sights | None:
    """The lists of all that answer, several times; None where fewer than two give one."""
    asked = _answering(replicas)
    looks = Sights()
    for number in range(LOOKS):
        if number:
            await asyncio.sleep(LOOK_PAUSE_SECS)
        lists = await asyncio.gather(*(replica.look() for replica in asked))
        found = {replica.name: each for replica, each in zip(asked, lists, strict=True) if each is not None}
        if len(found) < 2:
            return None
        looks.add(found)
        if not looks.may_differ:
            break
    return looks
