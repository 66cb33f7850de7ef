"""Why a pool is or is not listed: the likely cause first, then what to do, in one line.

Pure: what each side knows comes in, a line goes out. For warnings, for ``/status`` and for ``discovery doctor``. What
was seen goes before what may have been missed, and that before guesses: an import of the same Service under another
cluster's name says more than a watcher that fails, and this more than a name that looks alike.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from discovery.mcs.names import Names, Role, Service
from discovery.mcs.slices import Notice, ServiceState
from discovery.model import PoolKey, Registration

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

COMPARISONS = 5000
"""Names that are compared by their looks for one round of questions: each costs some 50 µs of the event loop."""
NEAR = 0.6

CLUSTER_ID = "check that cluster_id is the pool's MCS cluster name"


class Explanation(msgspec.Struct, frozen=True):
    """What is known of one pool: ``text`` begins with the likely ``cause``, ``facts`` is what each side says.

    ``ready`` is whether a relay is known that can be used; None where addresses come with the registrations.
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


class Finding(NamedTuple):
    """The likely cause, as a fixed word and as a line for people."""

    cause: Cause
    text: str


class Evidence:
    """What both sides know, indexed for questions about single pools. Made anew for each question or round of them.

    Without ``names`` there is one side only: addresses come with the registrations. ``troubles`` are why the views may
    be less than the truth, ``store_trouble`` why the registrations may be; ``warnings`` are what views cannot see.
    """

    def __init__(
        self,
        registrations: Mapping[PoolKey, Registration],
        services: Iterable[ServiceState],
        names: Names | None,
        *,
        local_cluster_ids: Iterable[str] = (),
        troubles: Sequence[str] = (),
        warnings: Sequence[str] = (),
        refused: Sequence[Notice] = (),
        store_trouble: str | None = None,
    ) -> None:
        self._registrations = registrations
        self._names = names
        self._troubles = troubles
        self._warnings = warnings
        self._refused = refused
        self._store_trouble = store_trouble
        self._local = frozenset(local_cluster_ids)
        self._services = _by_service(services)
        self._relays = {state.key: state for state in self._services.values() if state.key and state.role == "relay"}
        self._frontends = {
            state.key: state for state in self._services.values() if state.key and state.role == "frontend"
        }
        self._clusters = sorted({service.cluster_id for service in self._services})
        self._imported = _by_name(self._relays)
        self._registered = _by_name(registrations)
        self._only_imported_in = _by_home(key for key in self._relays if key not in registrations)
        self._only_registered_in = _by_home(key for key in registrations if key not in self._relays)
        self._registered_in = _by_home(registrations)
        self._comparisons = COMPARISONS
        self._claims = {} if names else _claims(registrations)

    # ---- questions

    def pools(self) -> set[PoolKey]:
        """Every pool that any side knows; one that is scaled to zero and does not register is none."""
        imported = {key for key, state in self._relays.items() if state.fault != "no_endpoints"}
        return imported | self._registrations.keys()

    def only_registered(self, key: PoolKey) -> str:
        """Why a registered pool has no relay that can be used."""
        return self._only_registered(key).text

    def only_ready(self, key: PoolKey) -> str:
        """Why a pool with usable relays has no registration."""
        return self._only_ready(key).text

    def misnamed_local(self, key: PoolKey) -> str | None:
        """The line for a pool of the local cluster that registered under another name; None for all others."""
        for local in sorted(self._local - {key.cluster_id}):
            at_home = key._replace(cluster_id=local)
            if at_home in self._relays and at_home not in self._registrations:
                return (
                    f"check cluster_id: this cluster's MCS name is {local!r}, and its pool {key} registered as "
                    f"{key.cluster_id!r}"
                )
        return None

    def explain(self, key: PoolKey, *, listed: bool, frontends: int) -> Explanation:
        """All that is known of one pool."""
        is_registered = key in self._registrations
        is_ready = self._is_ready(key) if self._names else None
        found = self._finding(key, listed, frontends, is_registered, is_ready)
        return Explanation(*key, listed, is_registered, is_ready, frontends, *found, self._facts(key))

    def _finding(
        self, key: PoolKey, listed: bool, frontends: int, is_registered: bool, is_ready: bool | None
    ) -> Finding:
        if listed:
            return self._listed(key, frontends)
        if is_registered and is_ready is not False:
            reason = next(iter(self._reasons()), "ask again in a moment")
            return Finding("not_published", f"no list that has it is published yet, {reason}: {key} is not listed")
        if is_registered:
            return self._only_registered(key)
        return self._only_ready(key) if is_ready else self._unknown(key)

    # ---- listed

    def _listed(self, key: PoolKey, frontends: int) -> Finding:
        for relay in self._registrations[key].relays if key in self._registrations else ():
            if others := [str(other) for other in self._claims.get(relay, ()) if other != key]:
                return Finding(
                    "shared_relay",
                    f"check the relay {relay}: it is registered by {_some(others)} too, and one address is one pool's; "
                    f"the pool {key} is listed",
                )
        if frontends:
            return Finding("listed", f"the pool {key} is listed with {_count(frontends, 'frontend')}")
        return self._without_frontends(key)

    def _without_frontends(self, key: PoolKey) -> Finding:
        outcome = f"the pool {key} is listed without frontends"
        if self._names is None:
            return Finding("no_frontends", f"check that its relays register the frontends too: {outcome}")
        frontend = self._service(key, "frontend")
        state = self._frontends.get(key)
        if state is not None and state.text:
            return Finding("no_frontends", f"{state.text}: {outcome}")
        if refusal := self._refusal(frontend):
            return Finding("refused", f"{refusal}: {outcome}")
        if self._troubles:
            return Finding("watcher", f"{self._troubles[0]}: {outcome}")
        if not self._frontends and len(self._relays) > 1:
            return Finding("suffix", f"{self._no_suffix('frontend')}: {outcome}")
        return Finding("no_frontends", f"check that {frontend.name} is exported: {outcome}{self._hint()}")

    # ---- registered, without a relay that can be used

    def _only_registered(self, key: PoolKey) -> Finding:
        outcome = f"the registered pool {key} is not listed"
        relay = self._service(key, "relay")
        if misnamed := self.misnamed_local(key):
            return Finding("local_cluster_id", misnamed)
        if (state := self._relays.get(key)) is not None:
            return Finding("unusable", f"{state.text or 'no endpoint of it can be used'}: so {outcome}")
        if refusal := self._refusal(relay):
            return Finding("refused", f"{refusal}: so {outcome}")
        if found := self._imported_elsewhere(key, relay):
            return found
        if self._troubles:
            return Finding("watcher", f"{self._troubles[0]}: so its slices may be missing, and {outcome}")
        return self._not_imported(key, relay, outcome)

    def _imported_elsewhere(self, key: PoolKey, relay: Service) -> Finding | None:
        """The same Service under a key that nobody registered: very likely this pool, with one part mistaken."""
        alone = [other for other in self._imported.get(key.dgd_name, ()) if other not in self._registrations]
        if clusters := [other.cluster_id for other in alone if other.namespace == key.namespace]:
            return Finding(
                "cluster_id",
                f"{CLUSTER_ID}: {relay.name} in {key.namespace} is imported from "
                f"{self._nearest_first(key.cluster_id, clusters)}, and the pool {key} registered as {key.cluster_id!r}",
            )
        if namespaces := [other.namespace for other in alone if other.cluster_id == key.cluster_id]:
            return Finding(
                "namespace",
                f"check namespace: {relay.name} of {key.cluster_id!r} is imported in "
                f"{self._nearest_first(key.namespace, namespaces)}, and the pool {key} registered in {key.namespace!r}",
            )
        return None

    def _not_imported(self, key: PoolKey, relay: Service, outcome: str) -> Finding:
        if not self._services:
            return Finding(
                "not_exported",
                f"check that Services are exported and imported at all: none of any pool is; {outcome}{self._hint()}",
            )
        if key.cluster_id not in self._clusters:
            near = self._nearest(key.cluster_id, self._clusters)
            known = f"the nearest is {near!r}" if near else f"known are {_some(self._clusters)}"
            return Finding(
                "cluster_id",
                f"{CLUSTER_ID}{'' if near else f' and that {relay.name} is exported there'}: nothing is imported from "
                f"{key.cluster_id!r}, {known}; {outcome}{self._hint()}",
            )
        if near := self._nearest(key.dgd_name, self._only_imported_in.get(key[:2], ())):
            return Finding(
                "dgd_name",
                f"check dgd_name: {key.cluster_id!r} exports {near}{self._suffix('relay')} in {key.namespace}, which "
                f"nobody registered, and not {relay.name}; {outcome}",
            )
        if not self._relays:
            return Finding("suffix", f"{self._no_suffix('relay')}, or {relay.name} is not exported; {outcome}")
        return Finding(
            "not_exported",
            f"check that {relay.name} in {key.namespace} is exported by {key.cluster_id!r}: others of that cluster are "
            f"imported, it is not; {outcome}{self._hint()}",
        )

    # ---- ready, without a registration

    def _only_ready(self, key: PoolKey) -> Finding:
        alone = [other for other in self._registered.get(key.dgd_name, ()) if not self._is_ready(other)]
        if clusters := [other.cluster_id for other in alone if other.namespace == key.namespace]:
            registered = self._nearest_first(key.cluster_id, clusters)
            if key.cluster_id in self._local:
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
            registered = self._nearest_first(key.namespace, namespaces)
            return Finding("namespace", f"check namespace: the pool {key} is Ready, and registered in {registered}")
        if near := self._nearest(key.dgd_name, self._only_registered_in.get(key[:2], ())):
            return Finding("dgd_name", f"check dgd_name: the pool {key} is Ready, and registered as {near!r}")
        if self._store_trouble:
            return Finding(
                "store",
                f"{self._store_trouble}: so registrations may be missing, and the pool {key}, which is Ready, has none",
            )
        return Finding(
            "not_registered",
            f"check that the relays of {key.dgd_name} register here: the pool {key} is Ready, and no registration of "
            "it lives (none came, or its lease is over)",
        )

    # ---- neither

    def _unknown(self, key: PoolKey) -> Finding:
        if (state := self._relays.get(key)) is not None:
            return Finding("unusable", f"{state.text}; and no registration of the pool {key} lives")
        if self._names and (refusal := self._refusal(self._service(key, "relay"))):
            return Finding("refused", f"{refusal}; and no registration of the pool {key} lives")
        nobody = f"nobody registered the pool {key} (none came, or its lease is over)"
        outcome = f"{nobody}, and no Service of it is imported" if self._names else nobody
        if meant := self._meant(key):
            part, other = meant
            return Finding(part, f"check {part}, did you mean {other}? {outcome}")
        if self._store_trouble:
            return Finding("store", f"{self._store_trouble}: so registrations may be missing; {outcome}")
        if self._troubles:
            return Finding("watcher", f"{self._troubles[0]}: so its slices may be missing; {outcome}")
        return Finding("unknown", outcome)

    def _meant(self, key: PoolKey) -> tuple[Part, PoolKey] | None:
        """The pool that was likely meant, and the part that differs: it looks alike, and the other two are the same."""
        named = [*self._imported.get(key.dgd_name, ()), *self._registered.get(key.dgd_name, ())]
        homes = [*self._only_imported_in.get(key[:2], ()), *self._registered_in.get(key[:2], ())]
        candidates: dict[Part, list[str]] = {
            "cluster_id": [other.cluster_id for other in named if other.namespace == key.namespace],
            "namespace": [other.namespace for other in named if other.cluster_id == key.cluster_id],
            "dgd_name": homes,
        }
        for part in PARTS:
            if near := self._nearest(getattr(key, part), candidates[part]):
                return part, key._replace(**{part: near})
        return None

    def _nearest(self, word: str, words: Sequence[str]) -> str | None:
        """What looks most like the word; None where nothing does, or where it would take too long to tell."""
        words = tuple(dict.fromkeys(words))
        if len(words) > self._comparisons:
            return None
        self._comparisons -= len(words)
        return next(iter(difflib.get_close_matches(word, words, 1, NEAR)), None)

    def _nearest_first(self, word: str, words: Sequence[str]) -> str:
        near = self._nearest(word, words)
        others = [other for other in words if other != near]
        return repr(near) + (f" (and {_some(others)})" if others else "") if near else _some(words)

    # ---- what each side says

    def _facts(self, key: PoolKey) -> tuple[str, ...]:
        registration = self._registrations.get(key)
        said = "registration: none lives"
        if registration is not None:
            instance = f", instance {registration.instance_id}" if registration.instance_id else ""
            said = f"registration: lives, for the model {registration.model}{instance}"
        others = [str(other) for other in self._registered.get(key.dgd_name, ()) if other != key]
        also = f"; also registered: {_some(others)}" if others else ""
        if self._names is None:
            relays = "" if registration is None else f", with {_count(len(registration.relays), 'relay')}"
            return (f"{said}{relays}{also}",)
        return (said + also, self._service_fact(key, "relay"), self._service_fact(key, "frontend"))

    def _service_fact(self, key: PoolKey, role: Role) -> str:
        service = self._service(key, role)
        state = self._services.get(service)
        begin = f"{role}s: Service {service.namespace}/{service.name} of {service.cluster_id}"
        if state is None:
            others = [other.cluster_id for other in self._imported.get(key.dgd_name, ()) if other != key]
            return f"{begin} is not imported" + (f", only from {_some(others)}" if others and role == "relay" else "")
        return f"{begin} has {_count(state.slices, 'slice')} with {_count(state.usable, 'usable address')}"

    def _service(self, key: PoolKey, role: Role) -> Service:
        return Service(key.cluster_id, key.namespace, key.dgd_name + self._suffix(role))

    def _suffix(self, role: Role) -> str:
        names = self._names or Names()
        return names.relay_suffix if role == "relay" else names.frontend_suffix

    def _no_suffix(self, role: Role) -> str:
        return f"check --{role}-service-suffix: Services of pools are imported, but none ends in {self._suffix(role)!r}"

    def _is_ready(self, key: PoolKey) -> bool:
        state = self._relays.get(key)
        return state is not None and state.usable > 0

    def _refusal(self, service: Service) -> str | None:
        """Why slices of this Service are refused; of some not even the Service is known, only how they are called."""
        for notice in self._refused:
            if notice.namespace == service.namespace and (
                notice.service == service.name
                or (notice.cause == "no_service" and _is_within(service.name, notice.service))
            ):
                return notice.text
        return None

    def _reasons(self) -> list[str]:
        return [*([self._store_trouble] if self._store_trouble else []), *self._troubles]

    def _hint(self) -> str:
        return f" ({self._warnings[0]})" if self._warnings else ""


def _by_service(states: Iterable[ServiceState]) -> dict[Service, ServiceState]:
    """Each Service once: where several watchers see it, as the one with the most usable addresses does."""
    found: dict[Service, ServiceState] = {}
    for state in states:
        known = found.get(state.service)
        if known is None or state.usable > known.usable:
            found[state.service] = state
    return found


def _by_name(keys: Iterable[PoolKey]) -> dict[str, list[PoolKey]]:
    found: dict[str, list[PoolKey]] = {}
    for key in keys:
        found.setdefault(key.dgd_name, []).append(key)
    return found


def _by_home(keys: Iterable[PoolKey]) -> dict[tuple[str, str], list[str]]:
    """The names of pools by cluster and namespace."""
    found: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        found.setdefault((key.cluster_id, key.namespace), []).append(key.dgd_name)
    return found


def _claims(registrations: Mapping[PoolKey, Registration]) -> dict[str, list[PoolKey]]:
    """The pools that register each relay's address."""
    found: dict[str, list[PoolKey]] = {}
    for key, registration in registrations.items():
        for relay in registration.relays:
            found.setdefault(relay, []).append(key)
    return found


def _is_within(name: str, words: str) -> bool:
    """Whether a slice's name is made of a Service's: ``<service>-…``, or with something before that."""
    return f"-{name}-" in f"-{words}-"


def _some(words: Iterable[str]) -> str:
    shown = sorted(set(words))
    return ", ".join(map(repr, shown[:3])) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}es" if noun.endswith("s") else f"{number} {noun}s"
