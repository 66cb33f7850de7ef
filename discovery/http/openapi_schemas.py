"""The schemas of the OpenAPI document: the structs of the domain, what answers wrap around them, and limits.

Types, defaults and what is required come from the structs; the limits of ``registrations`` and words for people are
laid over them here. Pure, used by ``openapi`` alone.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from discovery.listing.explain import Explanation
from discovery.model import Accepted, Listing, Registration, Router
from discovery.registration_rules import MAX_FRONTENDS, MAX_METADATA, MAX_RELAYS

Schema = dict[str, Any]

IDENTIFIER: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 253,
    "pattern": r"^(?!\.{1,2}$)(?!\s)(?!.*\s$)[^\u0000-\u001f\u007f-\u009f]+$",
}
URL: Schema = {"pattern": r"^(?!.*[\s\u0000-\u001f\u007f-\u009f])[Hh][Tt][Tt][Pp][Ss]?://[^/?#@]+([/?#].*)?$"}


class PoolList(msgspec.Struct, frozen=True):
    """All pools that match, sorted by pool key, as they are at one moment."""

    complete: Annotated[bool, Meta(description="Whether absent pools are gone (true) or may only be missing (false).")]
    pools: tuple[Listing, ...]


class RouterList(msgspec.Struct, frozen=True):
    """All Global Routers, sorted by id, as they are at one moment."""

    complete: Annotated[bool, Meta(description="Whether absent routers are gone (true) or may only be missing.")]
    routers: tuple[Router, ...]


class PoolKey(msgspec.Struct, frozen=True):
    """What identifies a pool everywhere."""

    cluster_id: str
    namespace: str
    dgd_name: str


class RouterKey(msgspec.Struct, frozen=True):
    """What identifies a Global Router."""

    id: str


class Completeness(msgspec.Struct, frozen=True):
    """The data of a `complete` event."""

    complete: bool


class TargetGroup(msgspec.Struct, frozen=True):
    """Targets that share their labels."""

    targets: Annotated[tuple[str, ...], Meta(min_length=1, description="Host and port of each.")]
    labels: Annotated[dict[str, str], Meta(description="What is known of each target, by names of labels.")]


class StoredRegistration(msgspec.Struct, frozen=True):
    """One registration as the store keeps it."""

    registration: Registration
    lease_left_secs: Annotated[
        float, Meta(ge=0, description="What the lease has left, as it was last confirmed; 0 while its end is checked.")
    ]


class RegistrationList(msgspec.Struct, frozen=True):
    """What this replica knows of the registrations alone, sorted by pool key."""

    complete: bool
    reason: Annotated[str | None, Meta(description="Why registrations may be missing; null where none are.")]
    registrations: tuple[StoredRegistration, ...]


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong in a body."""

    path: Annotated[str, Meta(description="Where, as a JSON path.", examples=["$.capacity[0].quantity"])]
    message: str


class Problem(msgspec.Struct, frozen=True):
    """An error (RFC 9457)."""

    title: Annotated[str, Meta(description="A short phrase, the same for all errors of this kind.")]
    status: Annotated[int, Meta(ge=400, le=599, description="The status of the answer once more.")]
    detail: Annotated[str, Meta(description="A sentence for the person who reads the log: what is wrong, what to do.")]
    errors: Annotated[tuple[Fault, ...] | UnsetType, Meta(description="Every fault of an invalid body.")] = UNSET
    request_id: Annotated[
        str | UnsetType,
        Meta(
            description="Of an error on the side of the service: what its log calls this request. As X-Request-Id or "
            "traceparent brought it, else made; the answer has it as X-Request-Id too."
        ),
    ] = UNSET


class Liveness(msgspec.Struct, frozen=True):
    """The event loop of the process turns."""

    status: Literal["alive"]


class Readiness(msgspec.Struct, frozen=True):
    """How far the replica is; only `ready` comes with 200."""

    stage: Literal["starting", "store", "watchers", "ready", "draining"]
    detail: Annotated[str, Meta(description="What it waits for; of a ready replica, what is wrong nevertheless.")]


class ModelSize(msgspec.Struct, frozen=True):
    """How many listed pools serve one model, and with how many frontends."""

    pools: int
    frontends: int


class Status(msgspec.Struct, frozen=True):
    """The state of this replica for people and for diagnosis; fields may be added, readers ignore unknown ones."""

    version: str
    replica_id: Annotated[str, Meta(description="A new one at each start.")]
    uptime_secs: float
    stage: Annotated[str, Meta(description="As in `/readyz`.")]
    detail: str
    complete: bool
    problems: Annotated[
        tuple[str, ...],
        Meta(description="What is wrong with this replica, one sentence each: as logs and `doctor` say it."),
    ]
    etag: Annotated[
        str | None,
        Meta(
            description="The ETag of the list of all pools, bare: equal on replicas that agree; null before the first."
        ),
    ]
    incomplete_because: Annotated[str | None, Meta(description="Why registrations may be missing.")]
    store: Annotated[dict[str, Any], Meta(description="Kind, address without secrets, and what is wrong with it.")]
    watchers: tuple[dict[str, Any], ...]
    one_sided_pools: tuple[dict[str, Any], ...]
    registrations: int
    pools: Annotated[int, Meta(description="How many pools are listed.")]
    models: Annotated[dict[str, ModelSize], Meta(description="By the name of the model.")]
    shared_relay_addresses: Annotated[int, Meta(description="Relay addresses that more than one pool claims.")]
    streams: Annotated[int, Meta(description="Event streams that are open.")]
    long_polls: Annotated[int, Meta(description="Long polls that wait.")]
    streams_fell_behind: Annotated[int, Meta(description="How often a subscriber read too slowly to get each event.")]
    connections: int
    requests_in_flight: int
    event_loop_lag_secs: float
    counters: Annotated[dict[str, float], Meta(description="The counters of `/metrics` under their short names.")]
    explained: Annotated[
        tuple[Explanation, ...] | UnsetType,
        Meta(description="Why the pools of `pool` are or are not listed; only where that was given."),
    ] = UNSET


_KEY: Schema = {
    "cluster_id": IDENTIFIER | {"description": "The cluster; in multi-cluster modes its name there."},
    "namespace": IDENTIFIER | {"description": "The Kubernetes namespace of the pool."},
    "dgd_name": IDENTIFIER | {"description": "The name of the DynamoGraphDeployment, which is the pool."},
}
_SAID: Schema = {
    **_KEY,
    "model": {"minLength": 1, "maxLength": 512, "description": "The model that every frontend of the pool serves."},
    "instance_id": {
        "description": "Names one rollout of the relays (not one pod): tells a restarted pool from the old one."
    },
    "metadata": {"maxProperties": MAX_METADATA, "description": "Whatever else readers should know."},
}
_RELAYS: Schema = {"maxItems": MAX_RELAYS, "items": URL}
_FRONTENDS: Schema = {"maxItems": MAX_FRONTENDS, "items": URL}
_SORTED: Schema = {"uniqueItems": True}
_IGNORED = "Ignored where the service takes addresses from multi-cluster services. Order and repeats do not matter."

# What the structs do not say: by schema and property. Limits of a list's entries lie under "items".
_LAID_OVER: dict[str, Schema] = {
    "Registration": {
        **_SAID,
        "relays": _RELAYS | {"description": f"http or https URLs of the relays, without user info. {_IGNORED}"},
        "frontends": _FRONTENDS
        | {"description": f"http or https URLs of the frontends, without user info. {_IGNORED}"},
        "capabilities": {"description": "What the pool can do. Order and repeats do not matter."},
        "capacity": {"description": "How big the pool is, with one entry per resource."},
    },
    "Listing": {
        **_SAID,
        "relays": _SORTED | {"items": URL, "description": "Where the relays answer; sorted."},
        "frontends": _SORTED | {"items": URL, "description": "Where requests may be sent; sorted, maybe empty."},
        "capabilities": _SORTED | {"description": "What the pool can do; sorted."},
        "capacity": {"description": "How big the pool is; sorted by resource, of which each is there once."},
    },
    "PoolKey": _KEY,
    "Capacity": {
        "resource": {"description": "For example `nvidia.com/gpu`."},
        "quantity": {"minimum": 0, "description": "A finite number."},
        "unit": {"description": "Lists leave it out where it was not given."},
    },
    "Location": {
        "latitude": {"minimum": -90, "maximum": 90},
        "longitude": {"minimum": -180, "maximum": 180},
    },
    "Explanation": {
        **_KEY,
        "listed": {"description": "Whether routers see it."},
        "registered": {"description": "Whether a registration of it lives."},
        "ready": {
            "description": "Whether a relay of it is known that can be used; null where addresses come with the "
            "registrations."
        },
        "frontends": {"description": "How many frontends are listed."},
        "cause": {"description": "The likely cause, in one word; others may be added."},
        "text": {"description": "The likely cause and what to do, in one line."},
        "facts": {"description": "What each side knows, one line each."},
        "lease_left_secs": {
            "minimum": 0,
            "description": "What the lease has left, as it was last confirmed; null where no registration lives.",
        },
    },
    "TargetGroup": {
        "targets": {"uniqueItems": True},
        "labels": {"propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}},
    },
    "Router": {"url": {"description": "Where the router answers."} | URL},
    "Accepted": {
        "lease_duration_secs": {
            "exclusiveMinimum": 0,
            "description": "How long the registration lives without another.",
        },
        "heartbeat_interval_secs": {"exclusiveMinimum": 0, "description": "When to register again."},
        "created": {"description": "Whether the pool was not registered before."},
    },
}
_DESCRIPTIONS = {
    "Registration": "What a relay says of its pool. Unknown fields are ignored.",
    "Explanation": "Why one pool is or is not listed, and what each side knows of it.",
    "Listing": (
        "One pool as routers see it. Lists and objects are always there; `instance_id` only where one was registered."
    ),
}


def schemas() -> dict[str, Schema]:
    """The component schemas by name."""
    structs = (Accepted, PoolList, RouterList, PoolKey, RouterKey, Completeness, RegistrationList, Problem)
    _, components = msgspec.json.schema_components(
        (*structs, TargetGroup, Liveness, Readiness, Status), ref_template="#/components/schemas/{name}"
    )
    for name, schema in components.items():
        components[name] = _plain(schema) | ({"description": _DESCRIPTIONS[name]} if name in _DESCRIPTIONS else {})
        for field, extra in _LAID_OVER.get(name, {}).items():
            _lay_over(components[name]["properties"][field], extra)
    # The struct makes every field explicit, but one that is unset leaves no trace in JSON.
    components["Listing"]["required"].remove("instance_id")
    components["TargetGroups"] = {
        "type": "array",
        "items": {"$ref": "#/components/schemas/TargetGroup"},
        "description": "The targets of the pools that match, in the order of pool keys.",
    }
    return dict(sorted(components.items()))


def _plain(schema: Any) -> Any:
    """The same with short types: an integer is a number, and a value or null is one type of two."""
    if isinstance(schema, list | tuple):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _plain(value) for name, value in schema.items()}
    if isinstance(text := schema.get("description"), str):
        schema["description"] = text.replace("``", "`")
    kinds = schema.get("anyOf", [])
    types = [kind["type"] for kind in kinds if set(kind) == {"type"}]
    if kinds and len(types) == len(kinds):
        if "number" in types and "integer" in types:
            types.remove("integer")
        del schema["anyOf"]
        schema = {"type": types[0] if len(types) == 1 else types} | schema
    return schema


def _lay_over(schema: Schema, extra: Schema) -> None:
    for name, value in extra.items():
        if isinstance(value, dict) and isinstance(schema.get(name), dict):
            _lay_over(schema[name], value)
        else:
            schema[name] = value
