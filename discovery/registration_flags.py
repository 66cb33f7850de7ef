"""The flags that say what ``discovery register`` registers, and the registration they make together with a file.

Used by ``settings`` alone. It gives a registration with the right types; whether a registry takes it is checked by
``registrations``, which stands above and speaks in JSON paths.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from discovery.errors import Misconfigured
from discovery.flags import Flag, Group, Number, Text
from discovery.model import Capacity, Location, Registration

POOL = Group("The pool")
MAX_FILE_BYTES = 1 << 20
REQUIRED = ("cluster_id", "namespace", "dgd_name", "model")

_quantity = Number("a finite number", 0, 1.7976931348623157e308)


def _parse_capacity(text: str) -> Capacity:
    resource, equals, amount = text.partition("=")
    quantity, colon, unit = amount.partition(":")
    if not equals or not resource or (colon and not unit):
        raise ValueError("must be resource=quantity or resource=quantity:unit, such as nvidia.com/gpu=16")
    try:
        return Capacity(resource, _quantity.read(quantity), unit or None)
    except ValueError:
        raise ValueError("must have a finite number of at least 0 as quantity, such as nvidia.com/gpu=16") from None


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError("must be key=value")
    return name, value


WORD = Text("TEXT")
URL = Text("URL")


class RegistrationFlags(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each flag; a flag replaces the field of the file, a repeated flag the whole list."""

    file: Annotated[
        str | None,
        Flag(
            POOL,
            Text("PATH"),
            "JSON file with the registration as POST /pools takes it; each flag below replaces its field.",
        ),
    ] = None
    cluster_id: Annotated[
        str | None, Flag(POOL, WORD, "Cluster of the pool; with MCS its MCS cluster name.", default="required")
    ] = None
    namespace: Annotated[str | None, Flag(POOL, WORD, "Namespace of the pool.", default="required")] = None
    dgd_name: Annotated[
        str | None, Flag(POOL, WORD, "Name of the pool's DynamoGraphDeployment.", default="required")
    ] = None
    model: Annotated[str | None, Flag(POOL, WORD, "The model that it serves.", default="required")] = None
    relay: Annotated[
        tuple[str, ...], Flag(POOL, URL, "URL of a relay; repeat it for each.", many=True, secret=True)
    ] = ()
    frontend: Annotated[
        tuple[str, ...], Flag(POOL, URL, "URL of a frontend; repeat it for each.", many=True, secret=True)
    ] = ()
    capability: Annotated[
        tuple[str, ...], Flag(POOL, WORD, "What the pool can do, such as chat; repeat it for each.", many=True)
    ] = ()
    capacity: Annotated[
        tuple[Capacity, ...],
        Flag(
            POOL,
            Text("RESOURCE=QUANTITY[:UNIT]", _parse_capacity),
            "How much of a resource it has: nvidia.com/gpu=16, or with a unit tokens=1000:1/s; repeat it for each.",
            many=True,
        ),
    ] = ()
    region: Annotated[str | None, Flag(POOL, WORD, "Region where it runs.")] = None
    zone: Annotated[str | None, Flag(POOL, WORD, "Zone where it runs.")] = None
    latitude: Annotated[
        int | float | None,
        Flag(POOL, Number("degrees", -90, 90, metavar="DEGREES"), "Where it runs: degrees, south is below 0."),
    ] = None
    longitude: Annotated[
        int | float | None,
        Flag(POOL, Number("degrees", -180, 180, metavar="DEGREES"), "Where it runs: degrees, west is below 0."),
    ] = None
    instance_id: Annotated[
        str | None, Flag(POOL, WORD, "Names the rollout of the pool, so that routers can tell it from the one before.")
    ] = None
    metadata: Annotated[
        tuple[tuple[str, str], ...],
        Flag(
            POOL,
            Text("KEY=VALUE", _parse_pair),
            "Anything else that routers should see; repeat it for each key.",
            many=True,
            secret=True,
        ),
    ] = ()


_FIELDS = {"relay": "relays", "frontend": "frontends", "capability": "capabilities"}


def registration(read: Mapping[str, Any]) -> tuple[Registration, tuple[str, ...]]:
    """The registration that file and flags make, and a warning for each field of the file that no registration has."""
    body = _from_file(read["file"]) if "file" in read else {}
    strange = [name for name in body if name not in Registration.__struct_fields__]
    body = _merged(body, read)
    missing = [name for name in REQUIRED if name not in body]
    if missing:
        named = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise Misconfigured(f"register needs {named}, as a flag or in --file")
    try:
        built = msgspec.convert(body, Registration)
    except msgspec.ValidationError as error:  # the flags have the right types, so it is the file
        raise Misconfigured(f"--file holds no registration: {str(error).replace('`', '')}") from None
    return built, tuple(f"the field {name!r} of --file is unknown and ignored" for name in strange)


def _merged(body: dict[str, Any], read: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in read.items() if name != "file"}
    place = {name: given.pop(name) for name in Location.__struct_fields__ if name in given}
    merged = body | {_FIELDS.get(name, name): value for name, value in given.items()}
    if place:
        location = body.get("location", {})
        merged["location"] = (location if isinstance(location, dict) else {}) | place
    if "capacity" in given:
        merged["capacity"] = msgspec.to_builtins(given["capacity"])
    if "metadata" in given:
        merged["metadata"] = _pairs(given["metadata"])
    return merged


def _pairs(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise Misconfigured(f"--metadata has the key {name!r} twice")
        found[name] = value
    return found


def _from_file(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Misconfigured(f"--file cannot be read: {path!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise Misconfigured(f"--file {path!r} is larger than a registration can be ({MAX_FILE_BYTES} bytes)")
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Misconfigured(f"--file {path!r} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Misconfigured(f"--file {path!r} must hold one JSON object")
    return body
