"""What a registration may hold beyond its types, and every fault of one that breaks a rule or a type.

Pure. ``rule_faults`` judges decoded registrations, on every heartbeat; ``all_faults`` looks at the plain JSON value of
a refused body, part by part, so that one wrong type hides no other fault. Both share the rules of single values.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from ipaddress import IPv6Address
from typing import Any

import msgspec

from discovery.errors import Fault
from discovery.model import Capacity, Location, Number, Registration

Look = Callable[[Any, str], Iterator[Fault]]

MAX_RELAYS = 64
MAX_FRONTENDS = 1024
MAX_METADATA = 64

_encode = msgspec.json.Encoder().encode
_control_character = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_not_plain = re.compile(r"[^A-Za-z0-9_.~/-]").search
_plain_urls = re.compile(
    r"(?:https?://[A-Za-z0-9.-]++(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4})(?![0-9]))?+(?:\n(?!\Z)|\Z))++"
).fullmatch
_url = re.compile(
    r"[hH][tT][tT][pP][sS]?://(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|[^\s\x00-\x20\x7f-\x9f/?#@:\[\]\\<>\"^`{|}%]+)"
    r"(?::(?P<port>[0-9]{1,5}))?(?:[/?#][^\s\x00-\x20\x7f-\x9f]*)?",
).fullmatch


# ---- what is plainly sound, as nearly every registration is; to all else the rules below are put


def is_plainly_sound(registration: Registration) -> bool:
    """True only where ``rule_faults`` finds nothing; false where that has to be looked at more closely."""
    parts = (registration.cluster_id, registration.namespace, registration.dgd_name)
    location = registration.location
    return (
        is_plain_key(parts, "/".join(parts))
        and 1 <= len(registration.model) <= 512
        and len(registration.relays) <= MAX_RELAYS
        and len(registration.frontends) <= MAX_FRONTENDS
        and len(registration.metadata) <= MAX_METADATA
        and _are_plain_urls(registration.relays + registration.frontends)
        and _is_plain_capacity(registration.capacity)
        and (location.latitude is None or -90 <= location.latitude <= 90)
        and (location.longitude is None or -180 <= location.longitude <= 180)
    )


def is_plain_key(parts: Sequence[str], path: str) -> bool:
    """Whether three parts of a key, also given as a path, are beyond doubt."""
    if len(path) > 253 or "" in parts or "." in parts or ".." in parts:
        return False
    return _not_plain(path) is None and path.count("/") == 2


def _are_plain_urls(urls: tuple[str, ...]) -> bool:
    text = "\n".join(urls)
    return not urls or (text.count("\n") == len(urls) - 1 and _plain_urls(text) is not None)


def _is_plain_capacity(capacity: tuple[Capacity, ...]) -> bool:
    if any(not 0 <= value.quantity <= 1e300 for value in capacity):
        return False
    return len(capacity) < 2 or len({value.resource for value in capacity}) == len(capacity)


# ---- rules beyond types


def identifier_fault(value: str) -> str | None:
    """What is wrong with a part of a pool key; None where it is sound."""
    if not 1 <= len(value) <= 253:
        return f"must have 1 to 253 characters, has {len(value)}"
    return _character_fault(value)


def _character_fault(value: str) -> str | None:
    if _control_character(value):
        return "must not contain control characters"
    if value[0].isspace() or value[-1].isspace():
        return "must not begin or end with white space"
    return "must not be '.' or '..'" if value in (".", "..") else None


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
    if fault := identifier_fault(value):
        yield Fault(path, fault)


def _model_faults(value: str, path: str) -> Iterator[Fault]:
    if not 1 <= len(value) <= 512:
        yield Fault(path, f"must have 1 to 512 characters, has {len(value)}")


def _count_faults(limit: int) -> Look:
    def faults(values: Sized, path: str) -> Iterator[Fault]:
        if len(values) > limit:
            yield Fault(path, f"must have at most {limit:,} entries, has {len(values):,}")

    return faults


def _url_faults(value: str, path: str) -> Iterator[Fault]:
    if fault := _url_fault(value):
        yield Fault(path, fault)


def _urls_faults(limit: int) -> Look:
    too_many = _count_faults(limit)

    def faults(values: tuple[str, ...], path: str) -> Iterator[Fault]:
        yield from too_many(values, path)
        for index, value in enumerate(values):
            if fault := _url_fault(value):
                yield Fault(f"{path}[{index}]", fault)

    return faults


def _capacity_faults(values: tuple[Capacity, ...], path: str) -> Iterator[Fault]:
    yield from _repeat_faults([value.resource for value in values], path)
    for index, value in enumerate(values):
        yield from _quantity_faults(value.quantity, f"{path}[{index}].quantity")


def _repeat_faults(resources: Iterable[str | None], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, resource in enumerate(resources):
        if resource in seen:
            yield Fault(f"{path}[{index}].resource", "is there twice: one entry per resource")
        elif resource is not None:
            seen.add(resource)


def _quantity_faults(value: Number, path: str) -> Iterator[Fault]:
    if not _finite(value) or value < 0:
        yield Fault(path, "must be a finite number of at least 0")


def _degree_faults(limit: int) -> Look:
    def faults(value: Number, path: str) -> Iterator[Fault]:
        if not (_finite(value) and -limit <= value <= limit):
            yield Fault(path, f"must be degrees from -{limit} to {limit}")

    return faults


_latitude_faults = _degree_faults(90)
_longitude_faults = _degree_faults(180)


def _location_faults(value: Location, path: str) -> Iterator[Fault]:
    if value.latitude is not None:
        yield from _latitude_faults(value.latitude, f"{path}.latitude")
    if value.longitude is not None:
        yield from _longitude_faults(value.longitude, f"{path}.longitude")


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond a double
        return False


_RULES: dict[str, Look] = {
    "cluster_id": _identifier_faults,
    "namespace": _identifier_faults,
    "dgd_name": _identifier_faults,
    "model": _model_faults,
    "relays": _urls_faults(MAX_RELAYS),
    "frontends": _urls_faults(MAX_FRONTENDS),
    "capacity": _capacity_faults,
    "location": _location_faults,
    "metadata": _count_faults(MAX_METADATA),
}


def rule_faults(registration: Registration) -> Iterator[Fault]:
    """The rules that a registration of the right types breaks."""
    for name, rule in _RULES.items():
        value = getattr(registration, name)
        if value or value == "":
            yield from rule(value, f"$.{name}")


# ---- the second look: every fault of a refused body

_REQUIRED = ("cluster_id", "namespace", "dgd_name", "model")


def all_faults(value: dict[str, Any]) -> Iterator[Fault]:
    """Every fault of a JSON object that should be a registration, wrong types and broken rules alike."""
    return _look_at_parts(_LOOKS, _REQUIRED)(value, "$")


def _expected(wanted: str, value: Any, path: str) -> Fault:
    return Fault(path, f"must be {wanted}, not {_WORDS[type(value)]}")


def _look_at_text(rule: Look | None = None) -> Look:
    def look(value: Any, path: str) -> Iterator[Fault]:
        if not isinstance(value, str):
            yield _expected("a string", value, path)
        elif rule is not None:
            yield from rule(value, path)

    return look


def _look_at_number(rule: Look) -> Look:
    def look(value: Any, path: str) -> Iterator[Fault]:
        if type(value) not in (int, float):  # a bool is an int to Python
            yield _expected("a number", value, path)
        else:
            yield from rule(value, path)

    return look


def _unless_null(look: Look) -> Look:
    return lambda value, path: iter(()) if value is None else look(value, path)


def _look_at_entries(look: Look, rule: Look | None = None) -> Look:
    """A list: each entry alone, then a rule about all of them together."""

    def look_at_list(value: Any, path: str) -> Iterator[Fault]:
        if not isinstance(value, list):
            yield _expected("a list", value, path)
            return
        if rule is not None:
            yield from rule(value, path)
        for index, entry in enumerate(value):
            yield from look(entry, f"{path}[{index}]")

    return look_at_list


def _look_at_parts(looks: dict[str, Look], required: tuple[str, ...] = ()) -> Look:
    """An object with known parts; others are ignored."""

    def look_at_object(value: Any, path: str) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield _expected("an object", value, path)
            return
        for name, look in looks.items():
            if name in value:
                yield from look(value[name], f"{path}.{name}")
            elif name in required:
                yield Fault(f"{path}.{name}", "is required")

    return look_at_object


def _look_at_metadata(value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield _expected("an object", value, path)
        return
    yield from _count_faults(MAX_METADATA)(value, path)
    for name, entry in value.items():
        if not isinstance(entry, str):
            yield _expected("a string", entry, f"{path}[{_encode(name).decode()}]")


def _repeated_resources(value: list[Any], path: str) -> Iterator[Fault]:
    resources = [entry.get("resource") if isinstance(entry, dict) else None for entry in value]
    yield from _repeat_faults([name if isinstance(name, str) else None for name in resources], path)


_WORDS = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
_WORDS[type(None)] = "null"
_LOOKS: dict[str, Look] = {
    "cluster_id": _look_at_text(_identifier_faults),
    "namespace": _look_at_text(_identifier_faults),
    "dgd_name": _look_at_text(_identifier_faults),
    "model": _look_at_text(_model_faults),
    "relays": _look_at_entries(_look_at_text(_url_faults), _count_faults(MAX_RELAYS)),
    "frontends": _look_at_entries(_look_at_text(_url_faults), _count_faults(MAX_FRONTENDS)),
    "capabilities": _look_at_entries(_look_at_text()),
    "capacity": _look_at_entries(
        _look_at_parts(
            {
                "resource": _look_at_text(),
                "quantity": _look_at_number(_quantity_faults),
                "unit": _unless_null(_look_at_text()),
            },
            required=("resource", "quantity"),
        ),
        _repeated_resources,
    ),
    "location": _look_at_parts(
        {
            "region": _unless_null(_look_at_text()),
            "zone": _unless_null(_look_at_text()),
            "latitude": _unless_null(_look_at_number(_latitude_faults)),
            "longitude": _unless_null(_look_at_number(_longitude_faults)),
        }
    ),
    "instance_id": _unless_null(_look_at_text()),
    "metadata": _look_at_metadata,
}
