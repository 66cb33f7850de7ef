"""Fold of slices and their events into usable addresses per pool key, and the routers' addresses.

Pure: no I/O, no time, no logging; the watcher feeds it and logs what it returns. What is known is always what a fresh
list of the same objects would give, whatever the order and number of events. An event costs as much as the slices of
the Services that it touches, however many others there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from discovery.mcs.contents import contents_of
from discovery.mcs.endpoint_slice import EndpointSlice, SliceName
from discovery.mcs.fault_texts import fault_text
from discovery.mcs.names import Names, Role, Service, Use
from discovery.mcs.origin import Refused, Rules, origin_of
from discovery.mcs.service import Fault, FoldedService, Share
from discovery.model import PoolKey, Router

SKIPPED = ("no_source_cluster", "unreadable_name", "no_service", "fqdn", "bad_address", "bad_port", "no_port")
"""Words under which ``Slices.skipped`` counts what cannot be used: slices, but for addresses and ports."""


class Endpoints(NamedTuple):
    """The URLs of one pool's usable endpoints, sorted."""

    relays: tuple[str, ...]
    frontends: tuple[str, ...]


class ServiceState(NamedTuple):
    """What is known of a Service: how many URLs, and why there are none, in a fixed word and one line for people."""

    service: Service
    role: Role
    key: PoolKey | None
    slices: int
    usable: int
    fault: Fault | None
    text: str


class Notice(NamedTuple):
    """Something that people must mend: a fixed word, whose it is, and one line that says what to do."""

    cause: str
    namespace: str
    service: str
    text: str


class Touched(NamedTuple):
    """What an event changed: pools whose addresses are others now, whether the routers are, and what is newly wrong."""

    keys: frozenset[PoolKey] = frozenset()
    routers: bool = False
    warnings: tuple[Notice, ...] = ()


class _RefusedService(NamedTuple):
    namespace: str
    name: str


class _Object(NamedTuple):
    """One object as one selector sees it."""

    selector: str
    name: SliceName


class _Served(NamedTuple):
    """One object as remembered: its uid, whose it is, and what it brings there."""

    uid: str
    home: Service
    use: Use
    share: Share


class _Rejected(NamedTuple):
    """One refused object as remembered."""

    uid: str
    home: _RefusedService
    refused: Refused


_Known = _Served | _Rejected
_Home = Service | _RefusedService

Reading = _Known | None
"""What one object brings, or that it brings nothing; for ``Slices`` alone."""


class Slices:
    """All slices of one cluster that matter, by Service.

    They may come through several selectors. Lists and events of one are in order among themselves alone: an object that
    leaves one selector for another may be told gone after it was told there, so each selector's word is kept apart.
    """

    def __init__(self, names: Names, rules: Rules) -> None:
        self._names = names
        self._rules = rules
        self._known: dict[_Object, _Known] = {}
        self._services: dict[Service, FoldedService[_Object]] = {}
        self._refused: dict[_RefusedService, dict[_Object, Refused]] = {}
        self._said_refused: set[_RefusedService] = set()
        self._skipped: Counter[str] = Counter()

    # ---- what happened

    def relist(self, items: Iterable[EndpointSlice], selector: str = "") -> Touched:
        """All objects that the selector finds: others that it found are gone. The last of equal names counts."""
        return self.replace({item.name: self.read(item) for item in items}, selector)

    def replace(self, readings: Mapping[SliceName, Reading], selector: str = "") -> Touched:
        """A relist whose objects were read before, in however many parts: that is most of its work."""
        found = {_Object(selector, name): known for name, known in readings.items()}
        gone = [known for known in self._known if known.selector == selector and known not in found]
        homes: set[_Home] = set()
        for there in gone:
            self._place(there, None, homes)
        for there, known in found.items():
            self._place(there, known, homes)
        return self._settle(homes)

    def apply(self, item: EndpointSlice, selector: str = "") -> Touched:
        """An object as it is now, known before or not; it may have left its Service for another or for none."""
        homes: set[_Home] = set()
        self._place(_Object(selector, item.name), self.read(item), homes)
        return self._settle(homes)

    def remove(self, name: SliceName, uid: str, selector: str = "") -> Touched:
        """An object is gone; one that came back under its name with another uid stays."""
        there = _Object(selector, name)
        known = self._known.get(there)
        if known is None or (uid and known.uid and uid != known.uid):
            return Touched()
        homes: set[_Home] = set()
        self._place(there, None, homes)
        return self._settle(homes)

    # ---- what is known

    def endpoints(self, key: PoolKey) -> Endpoints | None:
        """The pool's addresses; None where neither a relay nor a frontend can be used."""
        relays = self._urls(key, key.dgd_name + self._names.relay_suffix)
        frontends = self._urls(key, key.dgd_name + self._names.frontend_suffix)
        return Endpoints(relays, frontends) if relays or frontends else None

    def pool_keys(self) -> frozenset[PoolKey]:
        """All pools that have endpoints."""
        return frozenset(
            folded.use.key for folded in self._services.values() if folded.use.key is not None and folded.reach.urls
        )

    def routers(self) -> tuple[Router, ...]:
        """The Global Routers, by id: source cluster and pod, or address where the pod is not known."""
        found = (router for folded in self._services.values() for router in folded.reach.routers)
        return tuple(sorted(found, key=lambda router: router.id))

    @property
    def service_count(self) -> int:
        """How many Services of pools and routers there are."""
        return len(self._services)

    def services(self) -> Iterator[ServiceState]:
        """Every Service of pools and routers, also those without any usable endpoint.

        Each as it is when it is asked for: things may change while somebody takes them step by step.
        """
        for service, folded in list(self._services.items()):
            fault = folded.reach.fault
            text = self._notice(folded, fault).text if fault else ""
            yield ServiceState(service, *folded.use, len(folded.shares), len(folded.reach.urls), fault, text)

    def __len__(self) -> int:
        return len(self._services)

    def source_clusters(self) -> set[str]:
        """The clusters that anything is imported from."""
        return {service.cluster_id for service in self._services}

    def unusable(self) -> list[str]:
        """Why Services have no endpoint that can be used, one line each."""
        faults = ((folded, folded.reach.fault) for folded in self._services.values())
        return [self._notice(folded, fault).text for folded, fault in faults if fault]

    def refused(self) -> Iterator[Notice]:
        """Every Service of which slices are refused, once."""
        for service, refusals in self._refused.items():
            yield _refusal(service, refusals)

    def skipped(self) -> dict[str, int]:
        """How much of what is there now cannot be used, by the words of ``SKIPPED``."""
        return {cause: self._skipped[cause] for cause in SKIPPED}

    # ---- the fold

    def read(self, item: EndpointSlice) -> Reading:
        """What the object brings, whatever else is known: nothing changes by that."""
        origin = origin_of(item, self._rules)
        if isinstance(origin, Refused):
            return self._rejected(item, origin)
        if origin is None:
            return None
        home = Service(origin.cluster_id, origin.namespace, origin.service)
        use = self._names.use(home)
        if use is None:
            return None
        contents = contents_of(item, with_pods=use.role == "router")
        return _Served(item.metadata.uid, home, use, Share(contents, origin.native))

    def _rejected(self, item: EndpointSlice, refused: Refused) -> _Rejected | None:
        if refused.service and self._names.role(refused.namespace, refused.service) is None:
            return None  # wherever it comes from, it is of no interest
        home = _RefusedService(refused.namespace, refused.service or item.metadata.name)
        return _Rejected(item.metadata.uid, home, refused)

    def _place(self, there: _Object, known: _Known | None, homes: set[_Home]) -> None:
        """Put the object in its place, and note whose slices have changed by that."""
        before = self._known.pop(there, None)
        if known is not None:
            self._known[there] = known
        if before is not None and known is not None and before[1:] == known[1:]:
            return
        if before is not None:
            self._take(there, before)
            homes.add(before.home)
        if known is not None:
            self._give(there, known)
            homes.add(known.home)

    def _take(self, there: _Object, known: _Known) -> None:
        self._count(known, -1)
        if isinstance(known, _Served):
            del self._services[known.home].shares[there]
        else:
            del self._refused[known.home][there]

    def _give(self, there: _Object, known: _Known) -> None:
        self._count(known, +1)
        if isinstance(known, _Rejected):
            self._refused.setdefault(known.home, {})[there] = known.refused
            return
        if known.home not in self._services:
            self._services[known.home] = FoldedService(known.home, known.use)
        self._services[known.home].shares[there] = known.share

    def _settle(self, homes: Iterable[_Home]) -> Touched:
        """Work out anew what these Services come to."""
        keys: set[PoolKey] = set()
        routers = False
        warnings: list[Notice] = []
        for home in homes:
            if isinstance(home, _RefusedService):
                warnings += self._settle_refused(home)
                continue
            folded = self._services[home]
            change = folded.settle(self._names.port_name(folded.use.role))
            if change.urls and folded.use.key is not None:
                keys.add(folded.use.key)
            routers = routers or change.routers
            self._skipped["no_port"] += change.portless
            warnings += [self._notice(folded, fault) for fault in change.faults]
            if not folded.shares:
                del self._services[home]
        return Touched(frozenset(keys), routers, tuple(sorted(warnings)))

    def _settle_refused(self, service: _RefusedService) -> list[Notice]:
        refusals = self._refused[service]
        if not refusals:
            del self._refused[service]
            self._said_refused.discard(service)
            return []
        if service in self._said_refused:
            return []
        self._said_refused.add(service)
        return [_refusal(service, refusals)]

    def _count(self, known: _Known, step: int) -> None:
        if isinstance(known, _Rejected):
            self._skipped[known.refused.cause] += step
            return
        contents = known.share.contents
        self._skipped["fqdn"] += step * contents.fqdn
        self._skipped["bad_address"] += step * contents.bad_addresses
        self._skipped["bad_port"] += step * contents.bad_ports

    def _urls(self, key: PoolKey, service: str) -> tuple[str, ...]:
        folded = self._services.get(Service(key.cluster_id, key.namespace, service))
        return folded.reach.urls if folded is not None and folded.use.key == key else ()

    def _notice(self, folded: FoldedService[_Object], fault: Fault) -> Notice:
        text = fault_text(folded, fault, self._names.port_name(folded.use.role))
        return Notice(fault, folded.service.namespace, folded.service.name, text)


def _refusal(service: _RefusedService, refusals: dict[_Object, Refused]) -> Notice:
    """The refusal to name: the same one in whatever order the slices came."""
    refused = refusals[min(refusals)]
    return Notice(refused.cause, service.namespace, service.name, refused.text)
