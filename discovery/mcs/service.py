"""One Service of one source cluster: the URLs that follow from all its slices, and why there are none.

Pure; between ``contents`` and ``slices``. A function of the set of slices alone: which came first never matters, since
an address may be in several slices at once and nothing tells which of them is newer.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

from discovery.mcs.contents import Contents, TcpPort
from discovery.mcs.names import Service, Use
from discovery.model import Router

PortFault = Literal["several_ports", "no_ports", "no_named_port", "no_port_number", "too_many_endpoints"]
Fault = Literal[PortFault, "no_endpoints", "fqdn", "not_ready", "bad_address"]

PORT_FAULTS: tuple[PortFault, ...] = (
    "several_ports",
    "no_named_port",
    "no_port_number",
    "no_ports",
    "too_many_endpoints",
)
"""Faults that somebody must mend, the most telling first: those of ports, and the one of too many endpoints."""

MAX_ENDPOINTS = 10_000
"""Usable endpoints of one Service that are listed: more than any pool has pods, so that whoever may write slices cannot
make every reader's list as long as it pleases."""


class Share(NamedTuple):
    """What one slice brings to a Service; ``native``: kube itself made it for a Service of the watched cluster."""

    contents: Contents
    native: bool


class Reach(NamedTuple):
    """How a Service can be reached.

    ``urls`` are sorted; ``routers`` are the same endpoints by pod, only where routers were asked for. ``fault`` is why
    ``urls`` is empty, ``port_faults`` is what is wrong with ports of any slice; ``judged`` counts the slices that had
    endpoints and so say something about ports, ``portless`` those of them without the port that counts.
    """

    urls: tuple[str, ...] = ()
    routers: tuple[Router, ...] = ()
    fault: Fault | None = None
    port_faults: frozenset[PortFault] = frozenset()
    ports: tuple[TcpPort, ...] = ()
    judged: int = 0
    portless: int = 0
    endpoints: int = 0
    unready: int = 0


_Endpoint = tuple[str, int]
Object = TypeVar("Object", bound=Hashable)


class Change(NamedTuple):
    """What changed in a Service by new slices: ``faults`` of its ports are new ones, ``portless`` is a difference."""

    urls: bool
    routers: bool
    faults: tuple[PortFault, ...]
    portless: int


class FoldedService(Generic[Object]):
    """A Service's slices by object, what they came to when it was last settled, and what was already said about it."""

    __slots__ = ("_said", "reach", "service", "shares", "use")

    def __init__(self, service: Service, use: Use) -> None:
        self.service = service
        self.use = use
        self.shares: dict[Object, Share] = {}
        self.reach = Reach()
        self._said: frozenset[PortFault] = frozenset()

    def settle(self, port_name: str | None) -> Change:
        """Work out anew what the slices come to.

        Each fault of ports is new once, until it heals; a Service that is scaled to zero says nothing of its ports.
        """
        before = self.reach
        routers_of = self.service.cluster_id if self.use.role == "router" else None
        self.reach = now = reach(self.shares.values(), port_name, routers_of)
        faults = sorted(now.port_faults - self._said, key=PORT_FAULTS.index)
        if now.judged:
            self._said = now.port_faults
        return Change(
            urls=now.urls != before.urls,
            routers=now.routers != before.routers,
            faults=tuple(faults),
            portless=now.portless - before.portless,
        )


def reach(shares: Iterable[Share], port_name: str | None, routers_of: str | None = None) -> Reach:
    """What the slices come to; without ``port_name`` the Service's only TCP port counts, and of several none.

    ``routers_of`` is the source cluster where the Service is that of the Global Routers.

    Some implementations hand a cluster its own exports back, perhaps as one virtual address: what kube says of the
    Service itself goes before that, so that no pod is listed twice.
    """
    shares = tuple(shares)
    contents = [share.contents for share in shares if share.native] or [share.contents for share in shares]
    speaking = [one for one in contents if one.endpoints and not one.fqdn]
    several = port_name is None and _has_several_ports(speaking)
    found: tuple[dict[_Endpoint, bool], dict[_Endpoint, bool]] = ({}, {})
    faults: list[PortFault] = []
    for one in speaking:
        port = "several_ports" if several else _port(one.ports, port_name)
        if isinstance(port, TcpPort):
            _collect(found[0], one.ipv4, port)
            _collect(found[1], one.ipv6, port)
        else:
            faults.append(port)
    # One pod has an address of each family: the better known family alone, if any of it is usable.
    usable = found[0] or found[1]
    urls = {endpoint: _url(endpoint, https) for endpoint, https in usable.items()}
    portless = len(faults)
    if len(urls) > MAX_ENDPOINTS:
        urls = _first(urls)
        faults.append("too_many_endpoints")
    return Reach(
        urls=tuple(sorted(urls.values())),
        routers=() if routers_of is None else _routers(urls, speaking, routers_of),
        fault=None if usable else _fault(contents, speaking, faults),
        port_faults=frozenset(faults),
        ports=tuple(sorted({port for one in speaking for port in one.ports})),
        judged=len(speaking),
        portless=portless,
        endpoints=sum(one.endpoints for one in contents),
        unready=sum(one.unready for one in contents),
    )


def _has_several_ports(speaking: Iterable[Contents]) -> bool:
    """Whether the Service has more than one TCP port: numbers may differ from slice to slice, names do not."""
    names: set[str] = set()
    for one in speaking:
        if len(one.ports) > 1:
            return True
        names.update(port.name for port in one.ports)
    return len(names) > 1


def _port(ports: tuple[TcpPort, ...], port_name: str | None) -> TcpPort | PortFault:
    named = [port for port in ports if port_name is None or port.name == port_name]
    for port in named:
        if port.number:
            return port
    if named:
        return "no_port_number"
    return "no_named_port" if ports else "no_ports"


def _collect(found: dict[_Endpoint, bool], addresses: Iterable[str], port: TcpPort) -> None:
    """Note the endpoints; if copies of one differ in scheme it is https, whichever copy came first."""
    for address in addresses:
        endpoint = (address, port.number)
        found[endpoint] = port.https or found.get(endpoint, False)


def _first(urls: dict[_Endpoint, str]) -> dict[_Endpoint, str]:
    """As many as may be listed, the same on every replica."""
    return dict(sorted(urls.items(), key=lambda found: found[1])[:MAX_ENDPOINTS])


def _url(endpoint: _Endpoint, https: bool) -> str:
    address, number = endpoint
    host = f"[{address}]" if ":" in address else address
    return f"{'https' if https else 'http'}://{host}:{number}"


def _fault(contents: Iterable[Contents], speaking: Iterable[Contents], faults: list[PortFault]) -> Fault:
    if faults:  # it stays when pods become ready
        return min(faults, key=PORT_FAULTS.index)
    if not speaking:
        return "fqdn" if any(one.fqdn and one.endpoints for one in contents) else "no_endpoints"
    return "not_ready" if any(one.unready for one in speaking) else "bad_address"


def _routers(urls: dict[_Endpoint, str], speaking: Iterable[Contents], cluster_id: str) -> tuple[Router, ...]:
    """One router a pod; of two addresses of one pod the first in order, since nothing tells which is newer."""
    pods: dict[str, str] = {}
    for one in speaking:
        for address, pod in one.pods:
            pods[address] = min(pod, pods.get(address, pod))
    chosen: dict[str, str] = {}
    for (address, _), url in urls.items():
        router_id = f"{cluster_id}/{pods.get(address, address)}"
        chosen[router_id] = min(url, chosen.get(router_id, url))
    return tuple(Router(router_id, url) for router_id, url in sorted(chosen.items()))
