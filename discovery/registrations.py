"""Registrations beyond types: what is refused and why, the canonical form, and the key's form in stores and paths.

Pure: bytes and structs in, structs and faults out. The fast path decodes straight into the struct; only when that or a
rule fails is the body looked at a second time, field by field, so that the sender hears of every fault at once.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, get_type_hints
from urllib.parse import quote, unquote

import msgspec

from discovery.errors import Fault, Rejected
from discovery.model import Capacity, Listing, Location, PoolKey, Registration

MAX_NESTING = 100
MAX_NUMBER_DIGITS = 4300
MAX_RELAYS = 64
MAX_FRONTENDS = 1024
MAX_METADATA = 64

_decode = msgspec.json.Decoder(Registration).decode
_encode = msgspec.json.Encoder().encode
_control_character = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_url = re.compile(
    r"https?://(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|[^\s\x00-\x20\x7f-\x9f/?#@:\[\]\\<>\"^`{|}%]+)"
    r"(?::(?P<port>[0-9]{1,5}))?(?:[/?#][^\s\x00-\x20\x7f-\x9f]*)?",
    re.IGNORECASE,
).fullmatch
_plain_part = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch
_long_number = re.compile(rb"[0-9]{%d}" % (MAX_NUMBER_DIGITS + 1)).search
_brackets_or_string = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL).finditer


def parse(body: bytes) -> Registration:
    """Turn the body of ``POST /pools`` into a registration in canonical form.

    Raises ``Rejected``: 400 where the body is not JSON in UTF-8 (too deep nesting and oversized numbers included), 422
    with every fault where it is JSON but not a registration.
    """
    try:
        _check_text(body)
        registration = _decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise _why(body) from None
    if next(_rule_faults(registration), None) is not None:
        raise _why(body)
    return canonical(registration)


def canonical(registration: Registration) -> Registration:
    """The one form that equal registrations share: sets sorted and without repeats, whole numbers as integers."""
    location = registration.location
    if location.latitude is not None or location.longitude is not None:
        location = Location(
            location.region, location.zone, _plain_number(location.latitude), _plain_number(location.longitude)
        )
    capacity = registration.capacity
    return Registration(
        registration.cluster_id,
        registration.namespace,
        registration.dgd_name,
        registration.model,
        _as_set(registration.relays),
        _as_set(registration.frontends),
        _as_set(registration.capabilities),
        tuple(sorted((Capacity(c.resource, _plain_number(c.quantity), c.unit) for c in capacity), key=_resource))
        if capacity
        else (),
        location,
        registration.instance_id,
        dict(sorted(registration.metadata.items())) if registration.metadata else {},
    )


def encode(registration: Registration) -> bytes:
    """The stored bytes of a canonical registration: known fields in order, defaults left out."""
    return _encode(registration)


def decode(stored: bytes) -> Registration:
    """A registration from stored or announced bytes; ``ValueError`` where they hold none (a foreign value)."""
    try:
        return parse(stored)
    except Rejected as error:
        raise ValueError("; ".join(f"{f.path}: {f.message}" for f in error.faults) or error.detail) from None


def listing(registration: Registration) -> Listing:
    """The pool as routers see it where addresses come from the registration itself."""
    return Listing(
        registration.cluster_id,
        registration.namespace,
        registration.dgd_name,
        registration.model,
        registration.relays,
        registration.frontends,
        registration.capabilities,
        registration.capacity,
        registration.location,
        msgspec.UNSET if registration.instance_id is None else registration.instance_id,
        registration.metadata,
    )


def key_path(key: PoolKey) -> str:
    """``cluster_id/namespace/dgd_name`` with each part percent-encoded where needed.

    Reversible; the form in keys and URLs.
    """
    return "/".join(part if _plain_part(part) else quote(part, safe="") for part in key)


def key_from_path(path: str) -> PoolKey:
    """The inverse of ``key_path``; ``ValueError`` with the reason where the path names no pool."""
    parts = path.split("/")
    if len(parts) != 3:
        raise ValueError("a pool is named by cluster_id/namespace/dgd_name")
    try:
        key = PoolKey(*(unquote(part, errors="strict") for part in parts))
    except UnicodeDecodeError:
        raise ValueError("the percent-encoded bytes are not UTF-8") from None
    for name, part in zip(PoolKey._fields, key, strict=True):
        if fault := _identifier_fault(part):
            raise ValueError(f"{name} {fault}")
    return key


# ---- canonical form


def _as_set(values: tuple[str, ...]) -> tuple[str, ...]:
    return values if len(values) < 2 else tuple(sorted(set(values)))


def _resource(capacity: Capacity) -> str:
    return capacity.resource


def _plain_number(number: Any) -> Any:
    if isinstance(number, float) and number.is_integer() and abs(number) <= 2**53:
        return int(number)
    return number


# ---- rules beyond types; what most heartbeats repeat is judged once and remembered


@lru_cache(maxsize=65_536)
def _identifier_fault(value: str) -> str | None:
    if not 1 <= len(value) <= 253:
        return f"must have 1 to 253 characters, has {len(value)}"
    if _control_character(value):
        return "must not contain control characters"
    if value[0].isspace() or value[-1].isspace():
        return "must not begin or end with white space"
    return "must not be '.' or '..'" if value in (".", "..") else None


@lru_cache(maxsize=65_536)
def _url_fault(value: str) -> str | None:
    match = _url(value)
    if match is None:
        authority = re.split(r"[/?#]", value.partition("://")[2], maxsplit=1)[0]
        if "@" in authority:
            return "must not carry a user name or a password"
        return "must be an http or https URL such as http://10.0.3.8:8000"
    if (port := match["port"]) and not 1 <= int(port) <= 65535:
        return "has a port outside 1 to 65535"
    if address := match["ipv6"]:
        try:
            IPv6Address(address)
        except ValueError:
            return "has a host in brackets that is no IPv6 address"
    return None


def _identifier_faults(value: str, path: str) -> Iterator[Fault]:
    if fault := _identifier_fault(value):
        yield Fault(path, fault)


def _model_faults(value: str, path: str) -> Iterator[Fault]:
    if not 1 <= len(value) <= 512:
        yield Fault(path, f"must have 1 to 512 characters, has {len(value)}")


def _urls_faults(limit: int) -> Callable[[tuple[str, ...], str], Iterator[Fault]]:
    def faults(values: tuple[str, ...], path: str) -> Iterator[Fault]:
        if len(values) > limit:
            yield Fault(path, f"must have at most {limit:,} entries, has {len(values):,}")
        for index, value in enumerate(values):
            if fault := _url_fault(value):
                yield Fault(f"{path}[{index}]", fault)

    return faults


def _capacity_faults(values: tuple[Capacity, ...], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value.resource in seen:
            yield Fault(f"{path}[{index}].resource", "is there twice: one entry per resource")
        seen.add(value.resource)
        if not _finite(value.quantity) or value.quantity < 0:
            yield Fault(f"{path}[{index}].quantity", "must be a finite number of at least 0")


def _location_faults(value: Location, path: str) -> Iterator[Fault]:
    for name, number, limit in (("latitude", value.latitude, 90), ("longitude", value.longitude, 180)):
        if number is not None and not (_finite(number) and -limit <= number <= limit):
            yield Fault(f"{path}.{name}", f"must be degrees from -{limit} to {limit}")


def _metadata_faults(value: dict[str, str], path: str) -> Iterator[Fault]:
    if len(value) > MAX_METADATA:
        yield Fault(path, f"must have at most {MAX_METADATA} entries, has {len(value)}")


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond a double
        return False


_RULES: dict[str, Callable[[Any, str], Iterator[Fault]]] = {
    "cluster_id": _identifier_faults,
    "namespace": _identifier_faults,
    "dgd_name": _identifier_faults,
    "model": _model_faults,
    "relays": _urls_faults(MAX_RELAYS),
    "frontends": _urls_faults(MAX_FRONTENDS),
    "capacity": _capacity_faults,
    "location": _location_faults,
    "metadata": _metadata_faults,
}


def _rule_faults(registration: Registration) -> Iterator[Fault]:
    for name, rule in _RULES.items():
        value = getattr(registration, name)
        if value or value == "":
            yield from rule(value, f"$.{name}")


# ---- the second look: every fault of a refused body

_TYPES = get_type_hints(Registration)
_REQUIRED = ("cluster_id", "namespace", "dgd_name", "model")
_ITEM_TYPES: dict[str, Any] = {"relays": str, "frontends": str, "capabilities": str, "capacity": Capacity}
_PART_TYPES = {Capacity: get_type_hints(Capacity), Location: get_type_hints(Location)}


def _check_text(body: bytes) -> None:
    """Raise ``ValueError`` for text that a lenient parser would take and others could not write out again."""
    if not body.isascii():
        body.decode()
    if body.count(b"[") + body.count(b"{") > MAX_NESTING and _nesting(body) > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels")
    if len(body) > MAX_NUMBER_DIGITS and _long_number(body):
        msgspec.json.decode(body)  # the digits may stand in a string, which is fine


def _nesting(body: bytes) -> int:
    depth = deepest = 0
    for token in _brackets_or_string(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


def _why(body: bytes) -> Rejected:
    """The error for a body that was refused: 400 if it is no JSON text, else 422 with all its faults."""
    try:
        _check_text(body)
        value = msgspec.json.decode(body)
    except RecursionError:
        return Rejected(400, "Not JSON", "The body is nested too deeply.")
    except UnicodeDecodeError:
        return Rejected(400, "Not JSON", "The body is not UTF-8.")
    except ValueError as error:
        return Rejected(400, "Not JSON", f"The body is not JSON: {str(error).split(' - at ')[0]}.")
    if not isinstance(value, dict):
        faults: tuple[Fault, ...] = (Fault("$", "must be an object"),)
    else:
        faults = tuple(_all_faults(value))
    detail = f"The registration has {len(faults)} fault{'s' if len(faults) != 1 else ''}."
    return Rejected(422, "Invalid registration", detail, faults=faults)


def _all_faults(value: dict[str, Any]) -> Iterator[Fault]:
    for name, kind in _TYPES.items():
        if name not in value:
            if name in _REQUIRED:
                yield Fault(f"$.{name}", "is required")
            continue
        faults = list(_type_faults(value[name], kind, f"$.{name}", _ITEM_TYPES.get(name)))
        if not faults and name in _RULES:
            faults = list(_RULES[name](msgspec.convert(value[name], kind), f"$.{name}"))
        yield from faults


def _type_faults(value: Any, kind: Any, path: str, item_kind: Any = None) -> Iterator[Fault]:
    """Every type fault in a field: of a list each item alone, of an object each part alone."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if item_kind is not None and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _type_faults(item, item_kind, f"{path}[{index}]")
        elif kind in _PART_TYPES and isinstance(value, dict):
            yield from _part_faults(value, kind, path)
        else:
            message, _, inner = str(error).partition(" - at `$")
            yield Fault(path + inner.rstrip("`"), _plain_words(message))


def _part_faults(value: dict[str, Any], kind: Any, path: str) -> Iterator[Fault]:
    for name, part_kind in _PART_TYPES[kind].items():
        if name in value:
            yield from _type_faults(value[name], part_kind, f"{path}.{name}")
        elif name in ("resource", "quantity"):
            yield Fault(f"{path}.{name}", "is required")


def _plain_words(message: str) -> str:
    return (message[0].lower() + message[1:]).replace("`", "")


def describe(faults: Iterable[Fault]) -> str:
    """All faults in one line, for a log or a terminal."""
    return "; ".join(f"{fault.path} {fault.message}" for fault in faults)
