"""What a cluster imports of many pools, and how that changes event by event: pure arithmetic and text.

Each pool has two slices of relays and three of frontends, with all that real ones carry besides. An event puts one
slice of one pool into its other state, so that the pool's addresses before and after always differ.
"""

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.bench.load import registration
from tests.mcs.shapes import HTTP, MCS_SERVICE, MCS_SOURCE, RELAY, Manifest, imported

RELAY_SLICES = 2
FRONTEND_SLICES = 3
FRONTENDS = 4  # in each slice
SLICES = RELAY_SLICES + FRONTEND_SLICES
_ADDRESSES = RELAY_SLICES + FRONTEND_SLICES * FRONTENDS + 1
_NOT_READY = {"ready": False, "serving": False, "terminating": True}
# By the place of a pool in the order: of ten pools six have a frontend that comes and goes, and so on.
_KINDS = ("frontend",) * 6 + ("relay",) * 2 + ("scale", "slice")
_MANAGED = {
    "manager": "controller",
    "operation": "Update",
    "apiVersion": "discovery.k8s.io/v1",
    "time": "2026-11-30T04:10:25Z",
    "fieldsType": "FieldsV1",
    "fieldsV1": {
        "f:addressType": {},
        "f:endpoints": {},
        "f:metadata": {
            "f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
            "f:labels": {".": {}, f"f:{MCS_SERVICE}": {}, f"f:{MCS_SOURCE}": {}},
        },
        "f:ports": {},
    },
}

Key = tuple[str, str, str]
Urls = frozenset[str]


class Event(NamedTuple):
    """One write: the call to the API server, whose pool it is, and all its addresses from then on."""

    call: str
    arguments: dict[str, Any]
    key: Key
    urls: Urls


class ImportedPools:
    """So many pools as one cluster sees them. Event ``n`` is a function of ``n`` alone."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.bodies = [registration(index) for index in range(count)]
        self._keys = [_key(body) for body in self.bodies]
        self._order = random.Random(count).sample(range(count), count)

    def slices(self) -> Iterator[Manifest]:
        """All slices as they are before the first event."""
        for index in range(self.count):
            yield from self._slices(index)

    def urls(self) -> dict[Key, Urls]:
        """The addresses of every pool before the first event."""
        return {key: urls_of(self._slices(index)) for index, key in enumerate(self._keys)}

    def event(self, number: int) -> Event:
        """The pools take turns; what one turn changes the next undoes."""
        turn, place = divmod(number, self.count)
        index, kind = self._order[place], _KINDS[place % len(_KINDS)]
        slices = self._slices(index)
        changed = _CHANGED[kind]
        if turn % 2 == 1:
            return Event("apply", {"manifest": slices[changed]}, self._keys[index], urls_of(slices))
        before = slices[changed]
        if kind == "slice":
            del slices[changed]
            arguments = {name: before["metadata"][name] for name in ("name", "namespace")}
            return Event("delete", arguments, self._keys[index], urls_of(slices))
        slices[changed] = after = copy.deepcopy(before)
        if kind == "scale":
            after["endpoints"].append(_endpoint(_ADDRESSES * index + _ADDRESSES - 1))
        else:
            after["endpoints"][0]["conditions"] = _NOT_READY
        return Event("apply", {"manifest": after}, self._keys[index], urls_of(slices))

    def _slices(self, index: int) -> list[Manifest]:
        first = _ADDRESSES * index
        relays = [self._slice(index, "pool-relay", slot, [first + slot], RELAY) for slot in range(RELAY_SLICES)]
        first += RELAY_SLICES
        starts = [first + slot * FRONTENDS for slot in range(FRONTEND_SLICES)]
        return relays + [
            self._slice(index, "frontend", slot, range(start, start + FRONTENDS), HTTP)
            for slot, start in enumerate(starts)
        ]

    def _slice(self, index: int, suffix: str, slot: int, addresses: Sequence[int], port: dict[str, object]) -> Manifest:
        cluster_id, namespace, dgd_name = self._keys[index]
        service = f"{dgd_name}-{suffix}"
        endpoints = [_endpoint(number) for number in addresses]
        name = f"imported-{service}-{cluster_id}-{slot}"
        made = imported(name, service, cluster_id, namespace=namespace, endpoints=endpoints, ports=[port])
        made["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-30T04:10:25Z"}
        made["metadata"]["managedFields"] = [_MANAGED]
        return made


_CHANGED = {
    "relay": RELAY_SLICES - 1,
    "frontend": RELAY_SLICES,
    "scale": RELAY_SLICES + 1,
    "slice": SLICES - 1,
}


def urls_of(slices: Sequence[Manifest]) -> Urls:
    """The addresses that these slices of one pool come to."""
    return frozenset(
        f"http://{endpoint['addresses'][0]}:{found['ports'][0]['port']}"
        for found in slices
        for endpoint in found["endpoints"]
        if endpoint["conditions"]["ready"]
    )


def _key(body: bytes) -> Key:
    said = json.loads(body)
    return said["cluster_id"], said["namespace"], said["dgd_name"]


def _endpoint(number: int) -> Manifest:
    address = f"10.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "name": f"pod-{number:06d}", "namespace": "production", "uid": f"uid-{number}"},
        "nodeName": f"node-{number % 500:03d}",
        "zone": f"zone-{number % 3}",
    }
