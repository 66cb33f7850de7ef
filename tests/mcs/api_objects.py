"""What the fake API server holds: objects, their versions, and the events that a watch can still be given.

Behaves as etcd and the watch cache do together. Knows nothing of HTTP, connections or time.
"""

import base64
import copy
import json
import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

Object = dict[str, Any]
Selector = Callable[[dict[str, str]], bool]

CREATED = "2026-11-30T04:10:25Z"


class Resource(NamedTuple):
    """A kind of object, as the server serves it."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool = True


SLICES = Resource("discovery.k8s.io", ("v1",), "endpointslices", "EndpointSlice")
CLUSTER_PROPERTIES = Resource(
    "about.k8s.io", ("v1beta1", "v1alpha1"), "clusterproperties", "ClusterProperty", namespaced=False
)
CLUSTERS = Resource("cluster.karmada.io", ("v1alpha1",), "clusters", "Cluster", namespaced=False)
MULTI_CLUSTER_SERVICES = Resource("networking.karmada.io", ("v1alpha1",), "multiclusterservices", "MultiClusterService")


class Change(NamedTuple):
    """One write: the object before and after it, with the version of the write in both."""

    version: int
    resource: Resource
    before: Object | None
    after: Object | None


class Expired(Exception):
    """The version is too old to be served."""


class Objects:
    """All objects of a cluster, and what happened to them."""

    def __init__(self) -> None:
        self.version = 1
        self.expired_to = 0
        """Watches from this version on can be served; older ones cannot."""
        self.compacted_to = 0
        """Lists at this version or an older one cannot be served."""
        self._objects: dict[Resource, dict[tuple[str, str], Object]] = {}
        self._changes: list[Change] = []

    def apply(self, resource: Resource, manifest: Object) -> Change | None:
        """Create or replace; uid and creation time stay, or are made. None where nothing changes."""
        key = _key(manifest)
        before = self._objects.setdefault(resource, {}).get(key)
        after = copy.deepcopy(manifest)
        metadata = after["metadata"]
        known = before["metadata"] if before else {}
        metadata.setdefault("uid", known.get("uid") or str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", known.get("creationTimestamp") or CREATED)
        if before is not None and _unversioned(before) == _unversioned(after):
            return None
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self._objects[resource][key] = after
        return self._remember(resource, before, after)

    def delete(self, resource: Resource, namespace: str, name: str) -> Change:
        """Remove an object; ``KeyError`` where it is not there."""
        before = self._objects[resource].pop((namespace, name))
        self.version += 1
        return self._remember(resource, before, None)

    def all(self, resource: Resource, namespace: str | None, selected: Selector) -> list[Object]:
        """In the order of the store's keys, as they are now."""
        held = self._objects.get(resource, {})
        return [
            held[key]
            for key in sorted(held)
            if namespace in (None, key[0]) and selected(held[key]["metadata"].get("labels") or {})
        ]

    def at(self, resource: Resource, version: int, namespace: str | None, selected: Selector) -> list[Object]:
        """As they were at a version; ``Expired`` where that is compacted."""
        if version <= self.compacted_to:
            raise Expired
        held = dict(self._objects.get(resource, {}))
        for change in reversed([c for c in self._changes if c.version > version and c.resource == resource]):
            key = _key(change.after or change.before or {})
            if change.before is None:
                held.pop(key, None)
            else:
                held[key] = change.before
        then = Objects()
        then._objects = {resource: held}
        return then.all(resource, namespace, selected)

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """One object."""
        return self._objects.get(resource, {}).get((namespace, name))

    def since(self, resource: Resource, version: int) -> list[Change]:
        """What happened after a version; ``Expired`` where that is not known any more."""
        if version < self.expired_to:
            raise Expired
        return [change for change in self._changes if change.version > version and change.resource == resource]

    def expire(self, version: int | None = None) -> None:
        """Forget events: from now on watches can start at ``version`` (now) at the earliest."""
        self.expired_to = self.version if version is None else version

    def compact(self, version: int | None = None) -> None:
        """Forget old states: lists at ``version`` (the present one) and before cannot be served any more."""
        self.compacted_to = self.version if version is None else version

    def _remember(self, resource: Resource, before: Object | None, after: Object | None) -> Change:
        change = Change(self.version, resource, before, after)
        self._changes.append(change)
        return change


def event_of(change: Change, namespace: str | None, selected: Selector) -> tuple[str, Object] | None:
    """What a watch with this selection is told of a change: leaving the selection is a deletion, with what was."""

    def seen(found: Object | None) -> bool:
        return (
            found is not None
            and namespace in (None, found["metadata"].get("namespace", ""))
            and selected(found["metadata"].get("labels") or {})
        )

    was, is_now = seen(change.before), seen(change.after)
    if is_now and change.after is not None:
        return ("MODIFIED" if was else "ADDED"), change.after
    if was and change.before is not None:
        last = copy.deepcopy(change.before)
        last["metadata"]["resourceVersion"] = str(change.version)
        return "DELETED", last
    return None


def selector(text: str) -> Selector:
    """A label selector: ``=``, ``==``, ``!=``, ``in``, ``notin``, ``key`` and ``!key``; ``ValueError`` for others."""
    requirements = [_requirement(part.strip()) for part in re.split(r",(?![^(]*\))", text) if part.strip()]
    return lambda labels: all(requirement(labels) for requirement in requirements)


def _requirement(text: str) -> Selector:
    if found := re.fullmatch(r"([^\s=!,()]+) (in|notin) \(([^()]*)\)", text):
        key, wanted = found[1], {value.strip() for value in found[3].split(",")}
        if found[2] == "in":
            return lambda labels: labels.get(key) in wanted
        return lambda labels: labels.get(key) not in wanted
    if found := re.fullmatch(r"([^\s=!,()]+)\s*(==?|!=)\s*([^\s=!,()]*)", text):
        key, value, equal = found[1], found[3], found[2] != "!="
        return lambda labels: (labels.get(key) == value) is equal
    if found := re.fullmatch(r"(!?)([^\s=!,()]+)", text):
        key, absent = found[2], bool(found[1])
        return lambda labels: (key not in labels) is absent
    raise ValueError(f"unable to parse requirement: {text}")


def encode_continue(version: int, after: Object) -> str:
    """Where the next page begins, as the API server writes it."""
    metadata = after["metadata"]
    start = f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]
    token = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"/{start}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def decode_continue(token: str) -> tuple[int, tuple[str, str]]:
    """Version and last key of the page before; ``ValueError`` for what is no token."""
    said = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    namespace, _, name = said["start"].strip("/\0").rpartition("/")
    return int(said["rv"]), (namespace, name)


def _key(found: Object) -> tuple[str, str]:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def _unversioned(found: Object) -> Object:
    return {**found, "metadata": {**found["metadata"], "resourceVersion": ""}}
