"""What one slice holds, decoded once: addresses that may be used, TCP ports, and how much had to be skipped.

Pure; between ``endpoint_slice`` and ``service``. Keeps only what a Service's URLs follow from, since thousands of
these stay in memory. Knows nothing of suffixes and port names. A broken endpoint or port costs itself alone.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, TypeVar

import msgspec

from discovery.mcs.endpoint_slice import Endpoint, EndpointSlice, Port, decode_endpoint, decode_port

LONGEST_ADDRESS = 64
REMEMBERED = 65_536

Part = TypeVar("Part", Endpoint, Port)


class TcpPort(NamedTuple):
    """One TCP port; the unnamed one has the name ``""``, one without a usable number the number 0."""

    name: str
    number: int
    https: bool


class Contents(NamedTuple):
    """One slice. Addresses are of usable endpoints alone, canonical, sorted; ``pods`` names their pods, where asked."""

    ports: tuple[TcpPort, ...] = ()
    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    pods: tuple[tuple[str, str], ...] = ()
    endpoints: int = 0
    unready: int = 0
    bad_addresses: int = 0
    bad_ports: int = 0
    fqdn: bool = False


def contents_of(found: EndpointSlice, with_pods: bool = False) -> Contents:
    """What the slice holds; one of names instead of addresses holds nothing that can be listed."""
    raw_endpoints = found.endpoints or ()
    if found.address_type == "FQDN":
        return Contents(endpoints=len(raw_endpoints), fqdn=True)
    ports = list(_decoded(found.ports or (), decode_port))
    families: dict[int, set[str]] = {4: set(), 6: set()}
    pods: dict[str, str] = {}
    unready = bad = 0
    for endpoint in _decoded(raw_endpoints, decode_endpoint):
        # The type of the slice is not asked: some writers mix both families in one.
        parsed = _first_address(endpoint)
        if endpoint is None or parsed is None:
            bad += 1
        elif endpoint.conditions is not None and not endpoint.conditions.usable:
            unready += 1
        else:
            version, address = parsed
            families[version].add(address)
            if with_pods and (pod := _pod(endpoint)):
                pods[address] = min(pod, pods.get(address, pod))
    return Contents(
        ports=tuple(sorted(_tcp_port(port) for port in ports if port is None or (port.protocol or "TCP") == "TCP")),
        ipv4=tuple(sorted(families[4])),
        ipv6=tuple(sorted(families[6])),
        pods=tuple(sorted(pods.items())),
        endpoints=len(raw_endpoints),
        unready=unready,
        bad_addresses=bad,
        bad_ports=ports.count(None),
    )


def _decoded(raws: Iterable[msgspec.Raw], decode: Callable[[msgspec.Raw], Part]) -> Iterator[Part | None]:
    for raw in raws:
        try:
            yield decode(raw)
        except msgspec.MsgspecError:
            yield None


def _first_address(endpoint: Endpoint | None) -> tuple[int, str] | None:
    if endpoint is None or not endpoint.addresses or len(endpoint.addresses[0]) > LONGEST_ADDRESS:
        return None
    return parsed_address(endpoint.addresses[0])


@lru_cache(maxsize=REMEMBERED)
def parsed_address(text: str) -> tuple[int, str] | None:
    """Family and canonical spelling; None for what is no address of an endpoint.

    An IPv4 address in IPv6's clothes is the IPv4 address: else one endpoint would be two.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.is_unspecified or address.is_multicast or "%" in text:
        return None
    return address.version, str(address)


def _pod(endpoint: Endpoint) -> str:
    target = endpoint.target_ref
    return target.name or "" if target is not None and target.kind == "Pod" else ""


def _tcp_port(port: Port | None) -> TcpPort:
    """The port; a broken one is a port without a number, so that the other of two never looks like the only one."""
    if port is None:
        return TcpPort("", 0, False)
    number = port.port if port.port is not None and 1 <= port.port <= 65535 else 0
    return TcpPort(port.name or "", number, (port.app_protocol or "").lower() == "https")
