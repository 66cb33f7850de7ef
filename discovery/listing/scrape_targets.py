"""Listings as Prometheus takes them: groups of targets for its HTTP service discovery.

Pure, beside ``snapshot``, which knows the bytes of lists. Prometheus refuses a whole answer for one label with a bad
name, and shows what it has until the next one: so names are made here, out of whatever a registration holds, and each
pool costs no more bytes than it is worth.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from discovery.model import Listing

FRONTEND, RELAY = "frontend", "relay"
ROLES = (FRONTEND, RELAY)
MOST_REPEATED_BYTES = 256 << 10
"""How much of a pool's labels its groups may repeat: a pool has as many groups as its URLs have different paths."""

_METADATA = "__meta_discovery_metadata_"
_PORTS = {"http": 80, "https": 443}
_parts_of = re.compile(r"(https?)://(\[[^\]]+\]|[^/?#:]+)(?::([0-9]+))?(/[^?#]*)?(?:[?#]|\Z)", re.IGNORECASE).match
_is_label_name = re.compile(r"[A-Za-z0-9_]+").fullmatch
_not_in_label_names = re.compile(r"[^A-Za-z0-9_]")
_encode = msgspec.json.Encoder().encode


class Place(NamedTuple):
    """Where a URL leads beside its address: what all targets of a group share."""

    scheme: str
    path: str


def target_groups(listing: Listing, roles: Iterable[str] = ROLES) -> bytes:
    """The groups of one pool as JSON, with commas between them: every URL is a target. Empty where it has no URL."""
    places = [(role, *found) for role in roles for found in _by_place(_urls(listing, role))]
    shared = _label_bytes(_labels(listing))
    if len(shared) * len(places) > MOST_REPEATED_BYTES:
        shared = _label_bytes(_key_labels(listing))
    return b",".join(
        b'{"targets":%b,"labels":{%b,%b}}' % (_encode(addresses), shared, _label_bytes(_place_labels(role, place)))
        for role, place, addresses in places
    )


def body(groups: Iterable[bytes]) -> bytes:
    """The JSON of a whole answer, out of the groups of each pool."""
    return b"[%b]" % b",".join(filter(None, groups))


# ---- targets


def _urls(listing: Listing, role: str) -> tuple[str, ...]:
    return listing.frontends if role == FRONTEND else listing.relays


def _by_place(urls: Iterable[str]) -> Iterator[tuple[Place, list[str]]]:
    """The addresses of each place, each once and with its port: a port that is not said may be taken for another."""
    found: dict[Place, dict[str, None]] = {}
    for url in urls:
        if parts := _parts_of(url):
            scheme, host, port, path = parts.groups()
            scheme = scheme.lower()
            address = f"{host}:{int(port) if port else _PORTS[scheme]}"
            # Prometheus encodes paths itself.
            place = Place(scheme, unquote(path or "").rstrip("/"))
            found.setdefault(place, {})[address] = None
    return ((place, list(addresses)) for place, addresses in found.items())


# ---- labels


def _labels(listing: Listing) -> dict[str, str]:
    """All that is said of a pool, in the order in which people read it; a label that is empty is none."""
    labels = _key_labels(listing) | {
        "model": listing.model,
        "region": listing.location.region or "",
        "zone": listing.location.zone or "",
        "__meta_discovery_instance_id": listing.instance_id if isinstance(listing.instance_id, str) else "",
        "__meta_discovery_capabilities": f",{','.join(listing.capabilities)}," if listing.capabilities else "",
        **_metadata_labels(listing.metadata),
    }
    return {name: value for name, value in labels.items() if value}


def _key_labels(listing: Listing) -> dict[str, str]:
    return {"cluster_id": listing.cluster_id, "namespace": listing.namespace, "dgd_name": listing.dgd_name}


def _metadata_labels(metadata: dict[str, str]) -> dict[str, str]:
    """Of several names that become one label, the one that is a label name already counts, else the first of them."""
    labels: dict[str, str] = {}
    for name in sorted(metadata, key=lambda name: (_is_label_name(name) is None, name)):
        labels.setdefault(_METADATA + _not_in_label_names.sub("_", name), metadata[name])
    return labels


def _place_labels(role: str, place: Place) -> dict[str, str]:
    labels = {"role": role, "__scheme__": place.scheme}
    if place.path:
        labels |= {"__metrics_path__": f"{place.path}/metrics", "__meta_discovery_path": place.path}
    return labels


def _label_bytes(labels: dict[str, str]) -> bytes:
    return _encode(labels)[1:-1]
