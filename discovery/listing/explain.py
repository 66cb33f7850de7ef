"""Why a pool is or is not listed: the likely cause first, then what to do, in one line.

Pure: what each side knows comes in, a line goes out. For warnings, for ``/status`` and for ``discovery doctor``.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from discovery.mcs.names import Names, Role, Service
from discovery.mcs.slices import ServiceState
from discovery.model import PoolKey, Registration


class Explanation(msgspec.Struct, frozen=True):
    """What is known of one pool: ``listed`` says whether routers see it, ``text`` begins with the likely cause."""

    cluster_id: str
    namespace: str
    dgd_name: str
    listed: bool
    registered: bool
    ready: bool
    text: str


class Evidence:
    """What both sides know, indexed for questions about single pools. Made anew for each question or round of them."""

    def __init__(
        self,
        registrations: Mapping[PoolKey, Registration],
        services: Iterable[ServiceState],
        names: Names | None,
        *,
        local_cluster_ids: Iterable[str] = (),
        troubles: Sequence[str] = (),
        refused: Sequence[str] = (),
    ) -> None:
        self._registrations = registrations
        self._relay_suffix = names.relay_suffix if names else ""
        self._frontend_suffix = names.frontend_suffix if names else ""
        self._services: dict[Service, ServiceState] = {state.service: state for state in services}
        self._troubles = troubles
        self._refused = refused
        self._local = frozenset(local_cluster_ids)
        self._clusters_of: dict[tuple[str, str], list[str]] = {}
        for service, state in self._services.items():
            if state.role == "relay":
                self._clusters_of.setdefault((service.namespace, service.name), []).append(service.cluster_id)
        self._registered_as: dict[tuple[str, str], list[str]] = {}
        for key in registrations:
            self._registered_as.setdefault((key.namespace, key.dgd_name), []).append(key.cluster_id)

    def only_registered(self, key: PoolKey) -> str:
        """Why a registered pool has no relay that can be used."""
        relay = self._service(key, "relay")
        state = self._services.get(relay)
        if state is not None:
            return f"{state.text or 'no endpoint of it can be used'}: so the registered pool {key} is not listed"
        elsewhere = self._clusters_of.get((relay.namespace, relay.name), [])
        if elsewhere:
            return (
                f"check that cluster_id is the pool's MCS cluster name: {relay.name} in {relay.namespace} is imported "
                f"from {_some(elsewhere)}, and the pool {key} registered as {key.cluster_id!r}"
            )
        return self._nothing_imported(key, relay)

    def only_ready(self, key: PoolKey) -> str:
        """Why a pool with usable relays has no registration."""
        others = [
            cluster for cluster in self._registered_as.get((key.namespace, key.dgd_name), []) if cluster != key[0]
        ]
        if others:
            return (
                f"check that cluster_id is the pool's MCS cluster name: {key.dgd_name} in {key.namespace} is Ready in "
                f"{key.cluster_id!r}, and registered as {_some(others)}"
            )
        return (
            f"check that the relays of {key.dgd_name} register here: the pool {key} is Ready, and no registration of "
            "it lives (none came, or its lease is over)"
        )

    def misnamed_local(self, key: PoolKey) -> str | None:
        """The line for a pool of the local cluster that registered under another name; None for all others."""
        for local in self._local:
            if key.cluster_id != local and local in self._clusters_of.get(
                (key.namespace, key.dgd_name + self._relay_suffix), []
            ):
                return (
                    f"check cluster_id: this cluster's MCS name is {local!r}, and its pool {key.dgd_name} in "
                    f"{key.namespace} registered as {key.cluster_id!r}"
                )
        return None

    def explain(self, key: PoolKey, *, listed: bool, frontends: int) -> Explanation:
        """All that is known of one pool."""
        state = self._services.get(self._service(key, "relay"))
        is_ready = state is not None and state.usable > 0
        is_registered = key in self._registrations
        return Explanation(
            *key, listed, is_registered, is_ready, self._text(key, listed, frontends, is_registered, is_ready)
        )

    def _text(self, key: PoolKey, listed: bool, frontends: int, is_registered: bool, is_ready: bool) -> str:
        if listed and frontends:
            return f"the pool {key} is listed with {frontends} frontend{'s' if frontends != 1 else ''}"
        if listed:
            return self._without_frontends(key)
        if is_registered:
            return self.misnamed_local(key) or self.only_registered(key)
        if is_ready:
            return self.only_ready(key)
        return self._unknown(key)

    def _without_frontends(self, key: PoolKey) -> str:
        state = self._services.get(self._service(key, "frontend"))
        cause = (
            state.text
            if state is not None and state.text
            else f"check that {self._service(key, 'frontend').name} is exported"
        )
        return f"{cause}: the pool {key} is listed without frontends"

    def _unknown(self, key: PoolKey) -> str:
        known = {*self._registrations, *(state.key for state in self._services.values() if state.key is not None)}
        near = difflib.get_close_matches(str(key), [str(other) for other in known], 1, 0.8)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"{hint}nobody registered the pool {key}, and no Service of it is imported{self._trouble()}"

    def _nothing_imported(self, key: PoolKey, relay: Service) -> str:
        clusters = sorted({service.cluster_id for service in self._services})
        if clusters and key.cluster_id not in clusters:
            near = difflib.get_close_matches(key.cluster_id, clusters, 1, 0.6)
            hint = f", the nearest is {near[0]!r}" if near else f", known are {_some(clusters)}"
            return (
                "check that cluster_id is the pool's MCS cluster name: nothing is imported from "
                f"{key.cluster_id!r}{hint}: the registered pool {key} is not listed{self._trouble()}"
            )
        refused = next((text for text in self._refused if relay.name in text), None)
        if refused is not None:
            return f"{refused}: so the registered pool {key} is not listed"
        return (
            f"check that cluster_id is the pool's MCS cluster name and that {relay.name} in {relay.namespace} is "
            f"exported by {key.cluster_id!r}: the registered pool {key} is not listed{self._trouble()}"
        )

    def _service(self, key: PoolKey, role: Role) -> Service:
        suffix = self._relay_suffix if role == "relay" else self._frontend_suffix
        return Service(key.cluster_id, key.namespace, key.dgd_name + suffix)

    def _trouble(self) -> str:
        return f" ({self._troubles[0]})" if self._troubles else ""


def _some(words: Iterable[str]) -> str:
    shown = sorted(set(words))
    return ", ".join(map(repr, shown[:3])) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
