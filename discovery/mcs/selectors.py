"""Which label selectors find all imports of a cluster, and as little else as a selector can say. Pure.

A selector is a conjunction and cannot match the end of a name; so there are several, and the rest is for ``origin`` and
``names`` to leave out. No object matches two of them at the same time.
"""

from collections.abc import Iterable

from discovery.mcs.origin import (
    CILIUM_MESH,
    MANAGED_BY,
    MCS_SERVICE,
    NATIVE_WRITERS,
    OLD_LIGHTHOUSE_SERVICE,
    SERVICE_NAME,
    Rules,
)

KARMADA_ID = "work.karmada.io/permanent-id"
KARMADA_OLD_WORK = "work.karmada.io/name"


def selectors_for(rules: Rules) -> tuple[str, ...]:
    """One selector per source that is needed; the cluster's own Services only with ``local_cluster_id``."""
    imports = _karmada(rules.is_control_plane) if rules.mode == "karmada" else _multicluster()
    native = () if rules.local_cluster_id is None else (f"{_in(MANAGED_BY, NATIVE_WRITERS)},{SERVICE_NAME}",)
    return imports + native


def _multicluster() -> tuple[str, ...]:
    return (
        # A Service's own labels are copied to its native slices, so the writer has to be looked at as well.
        f"{MCS_SERVICE},{_not_in(MANAGED_BY, NATIVE_WRITERS)}",
        f"!{MCS_SERVICE},{MANAGED_BY}={CILIUM_MESH}",
        f"!{MCS_SERVICE},{OLD_LIGHTHOUSE_SERVICE},{_not_in(MANAGED_BY, {CILIUM_MESH, *NATIVE_WRITERS})}",
    )


def _karmada(is_control_plane: bool) -> tuple[str, ...]:
    foreign = _not_in(MANAGED_BY, NATIVE_WRITERS)
    if is_control_plane:  # nobody runs pods there: what is no import is next to nothing
        return (foreign,)
    # Services that Karmada brought carry its marks too, and with them their native slices.
    return (f"{KARMADA_ID},{foreign}", f"!{KARMADA_ID},{KARMADA_OLD_WORK},{foreign}")


def _in(key: str, values: Iterable[str]) -> str:
    return f"{key} in ({','.join(sorted(values))})"


def _not_in(key: str, values: Iterable[str]) -> str:
    return f"{key} notin ({','.join(sorted(values))})"
