"""What both sides know, for tests: registrations and slices as they arrive, and the evidence made of them."""

import json
from collections.abc import Iterable
from typing import Any

from discovery.listing.evidence import Evidence
from discovery.mcs.names import Names
from discovery.mcs.origin import Rules
from discovery.mcs.slices import Slices
from discovery.model import PoolKey
from discovery.registrations import parse
from tests.mcs.shapes import HTTP, RELAY, Manifest, imported, slice_of


def key(text: str) -> PoolKey:
    return PoolKey(*text.split("/"))


def relay(text: str, **more: Any) -> Manifest:
    """The imported relay Service of a pool."""
    return _import(text, "-pool-relay", {"ports": [RELAY], "endpoints": ["10.0.0.1"]} | more)


def frontend(text: str, **more: Any) -> Manifest:
    """The imported frontend Service of a pool."""
    return _import(text, "-frontend", {"ports": [HTTP], "endpoints": ["10.0.0.2"]} | more)


def _import(text: str, suffix: str, more: dict[str, Any]) -> Manifest:
    cluster, namespace, name = text.split("/")
    return imported(f"{cluster}-{name}{suffix}", name + suffix, cluster, namespace=namespace, **more)


def folded(*manifests: Manifest) -> Slices:
    slices = Slices(Names(), Rules("mcs"))
    slices.relist(slice_of(found) for found in manifests)
    return slices


def evidence(registered: Iterable[str], manifests: Iterable[Manifest] = (), **more: Any) -> Evidence:
    """What both sides know, from registrations and slices as they arrive."""
    slices = folded(*manifests)
    said = [parse(json.dumps(key(text)._asdict() | {"model": "m"}).encode()) for text in registered]
    return Evidence({one.key: one for one in said}, slices.services(), Names(), refused=list(slices.refused()), **more)


def alone(*pools: tuple[str, list[str]], **more: Any) -> Evidence:
    """The same where addresses come with the registrations."""
    said = [
        parse(json.dumps(key(text)._asdict() | {"model": "m", "relays": relays}).encode()) for text, relays in pools
    ]
    return Evidence({one.key: one for one in said}, [], None, **more)
