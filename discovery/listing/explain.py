"""Why a pool is or is not listed: the likely cause first, then what to do, in one line.

Pure: judges the evidence of both sides. For warnings, for ``/status`` and for ``discovery doctor``. What was seen goes
before what may have been missed, and that before guesses: an import of the same Service under another cluster's name
says more than a watcher that fails, and this more than a name that looks alike. Knows not where evidence comes from.
"""

from typing import Literal, NamedTuple

import msgspec

from discovery.listing.evidence import Evidence, counted, some_of
from discovery.mcs.names import Role, Service
from discovery.model import PoolKey

Cause = Literal[
    "listed",
    "shared_relay",
    "no_frontends",
    "not_published",
    "cluster_id",
    "local_cluster_id",
    "namespace",
    "dgd_name",
    "not_exported",
    "suffix",
    "unusable",
    "refused",
    "watcher",
    "store",
    "not_registered",
    "unknown",
]

Part = Literal["cluster_id", "namespace", "dgd_name"]
PARTS: tuple[Part, ...] = ("cluster_id", "namespace", "dgd_name")

CLUSTER_ID = "check that cluster_id is the pool's MCS cluster name"


class Explanation(msgspec.Struct, frozen=True):
    """What is known of one pool: ``text`` begins with the likely ``cause``, ``facts`` is what each side says.

    ``ready`` is whether a relay is known that can be used; None where addresses come with the registrations.
    ``lease_left_secs`` is as last confirmed, None where no registration lives.
    """

    cluster_id: str
    namespace: str
    dgd_name: str
    listed: bool
    registered: bool
    ready: bool | None
    frontends: int
    cause: Cause
    text: str
    facts: tuple[str, ...]
    lease_left_secs: float | None = None


class Finding(NamedTuple):
    """The likely cause, as a fixed word and as a line for people."""

    cause: Cause
    text: str


# ---- questions


def explanation(
    evidence: Evidence, key: PoolKey, *, listed: bool, frontends: int, lease_left_secs: float | None = None
) -> Explanation:
    """All that is known of one pool."""
    is_registered = key in evidence.registrations
    is_ready = evidence.is_ready(key) if evidence.names else None
    found = _finding(evidence, key, listed, frontends, is_registered, is_ready)
    return Explanation(*key, listed, is_registered, is_ready, frontends, *found, evidence.facts(key), lease_left_secs)


def only_registered(evidence: Evidence, key: PoolKey) -> str:
    """Why a registered pool has no relay that can be used."""
    return _only_registered(evidence, key).text


def only_ready(evidence: Evidence, key: PoolKey) -> str:
    """Why a pool with usable relays has no registration."""
    return _only_ready(evidence, key).text


def misnamed_local(evidence: Evidence, key: PoolKey) -> str | None:
    """The line for a pool of the local cluster that registered under another name; None for all others."""
    for local in sorted(evidence.local_cluster_ids - {key.cluster_id}):
        at_home = key._replace(cluster_id=local)
        if at_home in evidence.relays and at_home not in evidence.registrations:
            return (
                f"check cluster_id: this cluster's MCS name is {local!r}, and its pool {key} registered as "
                f"{key.cluster_id!r}"
            )
    return None


def _finding(
    evidence: Evidence, key: PoolKey, listed: bool, frontends: int, is_registered: bool, is_ready: bool | None
) -> Finding:
    if listed:
        return _listed(evidence, key, frontends)
    if is_registered and is_ready is not False:
        reason = next(iter(evidence.reasons()), "ask again in a moment")
        return Finding("not_published", f"no list that has it is published yet, {reason}: {key} is not listed")
    if is_registered:
        return _only_registered(evidence, key)
    return _only_ready(evidence, key) if is_ready else _unknown(evidence, key)


# ---- listed


def _listed(evidence: Evidence, key: PoolKey, frontends: int) -> Finding:
    for relay in evidence.registrations[key].relays if key in evidence.registrations else ():
        if others := [str(other) for other in evidence.claims.get(relay, ()) if other != key]:
            return Finding(
                "shared_relay",
                f"check the relay {relay}: it is registered by {some_of(others)} too, and one address is one pool's; "
                f"the pool {key} is listed",
            )
    if frontends:
        return Finding("listed", f"the pool {key} is listed with {counted(frontends, 'frontend')}")
    return _without_frontends(evidence, key)


def _without_frontends(evidence: Evidence, key: PoolKey) -> Finding:
    outcome = f"the pool {key} is listed without frontends"
    if evidence.names is None:
        return Finding("no_frontends", f"check that its relays register the frontends too: {outcome}")
    frontend = evidence.service(key, "frontend")
    state = evidence.frontends.get(key)
    if state is not None and state.text:
        return Finding("no_frontends", f"{state.text}: {outcome}")
    if refusal := evidence.refusal(frontend):
        return Finding("refused", f"{refusal}: {outcome}")
    if evidence.troubles:
        return Finding("watcher", f"{evidence.troubles[0]}: {outcome}")
    if not evidence.frontends and len(evidence.relays) > 1:
        return Finding("suffix", f"{_no_suffix(evidence, 'frontend')}: {outcome}")
    return Finding("no_frontends", f"check that {frontend.name} is exported: {outcome}{evidence.hint()}")


# ---- registered, without a relay that can be used


def _only_registered(evidence: Evidence, key: PoolKey) -> Finding:
    outcome = f"the registered pool {key} is not listed"
    relay = evidence.service(key, "relay")
    if misnamed := misnamed_local(evidence, key):
        return Finding("local_cluster_id", misnamed)
    if (state := evidence.relays.get(key)) is not None:
        return Finding("unusable", f"{state.text or 'no endpoint of it can be used'}: so {outcome}")
    if refusal := evidence.refusal(relay):
        return Finding("refused", f"{refusal}: so {outcome}")
    if found := _imported_elsewhere(evidence, key, relay):
        return found
    if evidence.namespaces and key.namespace not in evidence.namespaces:
        return Finding(
            "namespace",
            f"check --kube-namespace: {key.namespace!r} is not watched, only {some_of(evidence.namespaces)}; {outcome}",
        )
    if evidence.troubles:
        return Finding("watcher", f"{evidence.troubles[0]}: so its slices may be missing, and {outcome}")
    return _not_imported(evidence, key, relay, outcome)


def _imported_elsewhere(evidence: Evidence, key: PoolKey, relay: Service) -> Finding | None:
    """The same Service under a key that nobody registered: very likely this pool, with one part mistaken."""
    alone = [other for other in evidence.imported_by_name.get(key.dgd_name, ()) if other not in evidence.registrations]
    if clusters := [other.cluster_id for other in alone if other.namespace == key.namespace]:
        return Finding(
            "cluster_id",
            f"{CLUSTER_ID}: {relay.name} in {key.namespace} is imported from "
            f"{evidence.nearest_first(key.cluster_id, clusters)}, and the pool {key} registered as {key.cluster_id!r}",
        )
    if namespaces := [other.namespace for other in alone if other.cluster_id == key.cluster_id]:
        return Finding(
            "namespace",
            f"check namespace: {relay.name} of {key.cluster_id!r} is imported in "
            f"{evidence.nearest_first(key.namespace, namespaces)}, and the pool {key} registered in {key.namespace!r}",
        )
    return None


def _not_imported(evidence: Evidence, key: PoolKey, relay: Service, outcome: str) -> Finding:
    if not evidence.services:
        return Finding(
            "not_exported",
            f"check that Services are exported and imported at all: none of any pool is; {outcome}{evidence.hint()}",
        )
    if key.cluster_id not in evidence.clusters:
        near = evidence.nearest(key.cluster_id, evidence.clusters)
        known = f"the nearest is {near!r}" if near else f"known are {some_of(evidence.clusters)}"
        return Finding(
            "cluster_id",
            f"{CLUSTER_ID}{'' if near else f' and that {relay.name} is exported there'}: nothing is imported from "
            f"{key.cluster_id!r}, {known}; {outcome}{evidence.hint()}",
        )
    if near := evidence.nearest(key.dgd_name, evidence.only_imported_in.get(key[:2], ())):
        return Finding(
            "dgd_name",
            f"check dgd_name: {key.cluster_id!r} exports {near}{evidence.suffix('relay')} in {key.namespace}, which "
            f"nobody registered, and not {relay.name}; {outcome}",
        )
    if not evidence.relays:
        return Finding("suffix", f"{_no_suffix(evidence, 'relay')}, or {relay.name} is not exported; {outcome}")
    return Finding(
        "not_exported",
        f"check that {relay.name} in {key.namespace} is exported by {key.cluster_id!r}: others of that cluster are "
        f"imported, it is not; {outcome}{evidence.hint()}",
    )


# ---- ready, without a registration


def _only_ready(evidence: Evidence, key: PoolKey) -> Finding:
    alone = [other for other in evidence.registered_by_name.get(key.dgd_name, ()) if not evidence.is_ready(other)]
    if clusters := [other.cluster_id for other in alone if other.namespace == key.namespace]:
        registered = evidence.nearest_first(key.cluster_id, clusters)
        if key.cluster_id in evidence.local_cluster_ids:
            return Finding(
                "local_cluster_id",
                f"check cluster_id: this cluster's MCS name is {key.cluster_id!r}, and its pool {key} registered "
                f"as {registered}",
            )
        return Finding(
            "cluster_id",
            f"{CLUSTER_ID}: the pool {key} is Ready, and registered as {registered}",
        )
    if namespaces := [other.namespace for other in alone if other.cluster_id == key.cluster_id]:
        registered = evidence.nearest_first(key.namespace, namespaces)
        return Finding("namespace", f"check namespace: the pool {key} is Ready, and registered in {registered}")
    if near := evidence.nearest(key.dgd_name, evidence.only_registered_in.get(key[:2], ())):
        return Finding("dgd_name", f"check dgd_name: the pool {key} is Ready, and registered as {near!r}")
    if evidence.store_trouble:
        return Finding(
            "store",
            f"{evidence.store_trouble}: so registrations may be missing, and the pool {key}, which is Ready, has none",
        )
    return Finding(
        "not_registered",
        f"check that the relays of {key.dgd_name} register here: the pool {key} is Ready, and no registration of "
        "it lives (none came, or its lease is over)",
    )


# ---- neither


def _unknown(evidence: Evidence, key: PoolKey) -> Finding:
    if (state := evidence.relays.get(key)) is not None:
        return Finding("unusable", f"{state.text}; and no registration of the pool {key} lives")
    if evidence.names and (refusal := evidence.refusal(evidence.service(key, "relay"))):
        return Finding("refused", f"{refusal}; and no registration of the pool {key} lives")
    nobody = f"nobody registered the pool {key} (none came, or its lease is over)"
    outcome = f"{nobody}, and no Service of it is imported" if evidence.names else nobody
    if meant := _meant(evidence, key):
        part, other = meant
        return Finding(part, f"check {part}, did you mean {other}? {outcome}")
    if evidence.store_trouble:
        return Finding("store", f"{evidence.store_trouble}: so registrations may be missing; {outcome}")
    if evidence.troubles:
        return Finding("watcher", f"{evidence.troubles[0]}: so its slices may be missing; {outcome}")
    return Finding("unknown", outcome)


def _meant(evidence: Evidence, key: PoolKey) -> tuple[Part, PoolKey] | None:
    """The pool that was likely meant, and the part that differs: it looks alike, and the other two are the same."""
    named = [*evidence.imported_by_name.get(key.dgd_name, ()), *evidence.registered_by_name.get(key.dgd_name, ())]
    homes = [*evidence.only_imported_in.get(key[:2], ()), *evidence.registered_in.get(key[:2], ())]
    candidates: dict[Part, list[str]] = {
        "cluster_id": [other.cluster_id for other in named if other.namespace == key.namespace],
        "namespace": [other.namespace for other in named if other.cluster_id == key.cluster_id],
        "dgd_name": homes,
    }
    for part in PARTS:
        if near := evidence.nearest(getattr(key, part), candidates[part]):
            return part, key._replace(**{part: near})
    return None


def _no_suffix(evidence: Evidence, role: Role) -> str:
    return f"check --{role}-service-suffix: Services of pools are imported, but none ends in {evidence.suffix(role)!r}"
