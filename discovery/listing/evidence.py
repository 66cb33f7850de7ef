"""What both sides know of pools, indexed for questions about single ones.

Pure: made of registrations and of what the views hold, asked by ``explain``. Says what is known, what is refused, what
may have been missed and which names look alike; which cause is likely is not its business.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from discovery.mcs.names import Names, Role, Service
from discovery.mcs.slices import Notice, ServiceState
from discovery.model import PoolKey, Registration

COMPARISONS = 5000
"""Names that are compared by their looks for one round of questions: each costs some 50 µs of the event loop."""
NEAR = 0.6


class Evidence:
    """What both sides know. Made anew for each question or round of them.

    Without ``names`` there is one side only: addresses come with the registrations. ``troubles`` are why the views may
    be less than the truth, ``store_trouble`` why the registrations may be; ``warnings`` are what views cannot see,
    ``namespaces`` those that they see, all where none is given.
    """

    def __init__(
        self,
        registrations: Mapping[PoolKey, Registration],
        services: Iterable[ServiceState],
        names: Names | None,
        *,
        local_cluster_ids: Iterable[str] = (),
        namespaces: Iterable[str] = (),
        troubles: Sequence[str] = (),
        warnings: Sequence[str] = (),
        refused: Sequence[Notice] = (),
        store_trouble: str | None = None,
    ) -> None:
        self.registrations = registrations
        self.names = names
        self.local_cluster_ids = frozenset(local_cluster_ids)
        self.namespaces = sorted(namespaces)
        self.troubles = troubles
        self.store_trouble = store_trouble
        self._warnings = warnings
        self._refused = refused
        self.services = _by_service(services)
        self.relays = {state.key: state for state in self.services.values() if state.key and state.role == "relay"}
        self.frontends = {
            state.key: state for state in self.services.values() if state.key and state.role == "frontend"
        }
        self._comparisons = COMPARISONS

    # ---- indexes: made when they are needed, since of listed pools few are asked for, several times a minute

    @cached_property
    def clusters(self) -> list[str]:
        """The clusters that anything is imported from."""
        return sorted({service.cluster_id for service in self.services})

    @cached_property
    def imported_by_name(self) -> dict[str, list[PoolKey]]:
        """The pools whose relays are imported, by name."""
        return _by_name(self.relays)

    @cached_property
    def registered_by_name(self) -> dict[str, list[PoolKey]]:
        """The registered pools, by name."""
        return _by_name(self.registrations)

    @cached_property
    def registered_in(self) -> dict[tuple[str, str], list[str]]:
        """The names of registered pools, by cluster and namespace."""
        return _by_home(self.registrations)

    @cached_property
    def only_registered_in(self) -> dict[tuple[str, str], list[str]]:
        """The same of those whose relays are not imported."""
        return _by_home(key for key in self.registrations if key not in self.relays)

    @cached_property
    def only_imported_in(self) -> dict[tuple[str, str], list[str]]:
        """The names of pools that are imported and not registered, by cluster and namespace."""
        return _by_home(key for key in self.relays if key not in self.registrations)

    @cached_property
    def claims(self) -> dict[str, list[PoolKey]]:
        """The pools that register each relay's address, where addresses come that way."""
        return {} if self.names else _claims(self.registrations)

    # ---- what is known

    def pools(self) -> set[PoolKey]:
        """Every pool that any side knows; one that is scaled to zero and does not register is none."""
        imported = {key for key, state in self.relays.items() if state.fault != "no_endpoints"}
        return imported | self.registrations.keys()

    def is_ready(self, key: PoolKey) -> bool:
        """Whether a relay of the pool can be used."""
        state = self.relays.get(key)
        return state is not None and state.usable > 0

    def service(self, key: PoolKey, role: Role) -> Service:
        """The Service by which a pool must be imported."""
        return Service(key.cluster_id, key.namespace, key.dgd_name + self.suffix(role))

    def suffix(self, role: Role) -> str:
        """How the names of such Services end."""
        names = self.names or Names()
        return names.relay_suffix if role == "relay" else names.frontend_suffix

    # ---- what may be missing

    def refusal(self, service: Service) -> str | None:
        """Why slices of this Service are refused; of some not even the Service is known, only how they are called."""
        for notice in self._refused:
            if notice.namespace == service.namespace and (
                notice.service == service.name
                or (notice.cause == "no_service" and _is_within(service.name, notice.service))
            ):
                return notice.text
        return None

    def reasons(self) -> list[str]:
        """Why a side may be less than the truth, the store's reason first."""
        return [*([self.store_trouble] if self.store_trouble else []), *self.troubles]

    def hint(self) -> str:
        """What views cannot see, as an addition to a guess."""
        return f" ({self._warnings[0]})" if self._warnings else ""

    # ---- names that look alike

    def nearest(self, word: str, words: Sequence[str]) -> str | None:
        """What looks most like the word; None where nothing does, or where it would take too long to tell."""
        words = tuple(dict.fromkeys(words))
        if len(words) > self._comparisons:
            return None
        self._comparisons -= len(words)
        return next(iter(difflib.get_close_matches(word, words, 1, NEAR)), None)

    def nearest_first(self, word: str, words: Sequence[str]) -> str:
        """Words as a list, what looks most like the one word first."""
        near = self.nearest(word, words)
        others = [other for other in words if other != near]
        return repr(near) + (f" (and {some_of(others)})" if others else "") if near else some_of(words)

    # ---- what each side says

    def facts(self, key: PoolKey) -> tuple[str, ...]:
        """What each side says of the pool, one line each, without a judgement."""
        registration = self.registrations.get(key)
        said = "registration: none lives"
        if registration is not None:
            instance = f", instance {registration.instance_id}" if registration.instance_id else ""
            said = f"registration: lives, for the model {registration.model}{instance}"
        others = [str(other) for other in self.registered_by_name.get(key.dgd_name, ()) if other != key]
        also = f"; also registered: {some_of(others)}" if others else ""
        if self.names is None:
            relays = "" if registration is None else f", with {counted(len(registration.relays), 'relay')}"
            return (f"{said}{relays}{also}",)
        return (said + also, self._service_fact(key, "relay"), self._service_fact(key, "frontend"))

    def _service_fact(self, key: PoolKey, role: Role) -> str:
        service = self.service(key, role)
        state = self.services.get(service)
        begin = f"{role}s: Service {service.namespace}/{service.name} of {service.cluster_id}"
        if state is None:
            others = [other.cluster_id for other in self.imported_by_name.get(key.dgd_name, ()) if other != key]
            return f"{begin} is not imported" + (f", only from {some_of(others)}" if others and role == "relay" else "")
        return f"{begin} has {counted(state.slices, 'slice')} with {counted(state.usable, 'usable address')}"


def some_of(words: Iterable[str]) -> str:
    """The first three in order, and how many more there are."""
    shown = sorted(set(words))
    return ", ".join(map(repr, shown[:3])) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}es" if noun.endswith("s") else f"{number} {noun}s"


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
