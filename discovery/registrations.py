"""Registrations as bytes: what is refused and why, the canonical form, and the key's form in stores and paths.

Pure: bytes and structs in, structs and faults out. The fast path decodes straight into the struct; only when that or a
rule fails is the body looked at a second time, field by field, so that the sender hears of every fault at once.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import lt
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec

from discovery.errors import Fault, Rejected
from discovery.model import NOWHERE, Capacity, Listing, Location, PoolKey, Registration
from discovery.registration_rules import all_faults, identifier_fault, is_plain_key, is_plainly_sound, rule_faults

MAX_NESTING = 100
MAX_NUMBER_DIGITS = 4300
REMEMBERED_BYTES = 32 << 20
REMEMBERED_SECS = 60.0
"""Whoever says the same less often costs little: that it is read anew each time does not matter."""

SHARED_VALUES = 4096
SHARED_SIZE = 256
"""Longer ones are left alone, so that nobody can fill much memory with values that are said once."""

Value = TypeVar("Value", str, tuple[str, ...], Location)
_shared_values: dict[Any, Any] = {}
_known = _shared_values.get
_decode = msgspec.json.Decoder(Registration).decode
_encode_into = msgspec.json.Encoder().encode_into
_scratch = bytearray()
_not_plain = re.compile(r"[^A-Za-z0-9_.~/-]").search
_plain_part = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch
# Both take a body in one pass whatever it holds: only the first digit of a number can begin a match, and a string that
# nobody closes reaches to the end, or each of its quotes would be tried as the beginning of another.
_long_number = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_NUMBER_DIGITS + 1)).search
_brackets_or_string = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL).finditer


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
    if not is_plainly_sound(registration) and next(rule_faults(registration), None) is not None:
        raise _why(body)
    return canonical(registration)


class Heartbeat(NamedTuple):
    """A registration on its way to the store: the pool, its canonical bytes, and what they say where it is at hand."""

    key: PoolKey
    value: bytes
    registration: Registration | None = None


class Heartbeats:
    """Reads bodies of ``POST /pools``; one that was read before, as nearly every heartbeat was, is recognised.

    It remembers the last ``remembered`` to twice as many bodies, by their digests, and of each what the store needs;
    fewer where they are long, since a sender may say something else, as long as is allowed, each time; and none that
    was not heard for two minutes, since most that is said no more is said by nobody again.
    """

    def __init__(
        self, remembered: int, clock: Callable[[], float], *, remembered_bytes: int = REMEMBERED_BYTES
    ) -> None:
        self._remembered = remembered
        self._remembered_bytes = remembered_bytes
        self._clock = clock
        self._recent_since = clock()
        self._recent: dict[bytes, Heartbeat] = {}
        self._recent_bytes = 0
        self._earlier: dict[bytes, Heartbeat] = {}

    def read(self, body: bytes) -> Heartbeat:
        """What the body says. Raises ``Rejected`` as ``parse`` does."""
        digest = blake2b(body, digest_size=16).digest()
        known = self._recent.get(digest)
        if known is None:
            known = self._earlier.get(digest)
            if known is None:
                registration = parse(body)
                known = Heartbeat(registration.key, encode(registration))
                self._remember(digest, known)
                return Heartbeat(known.key, known.value, registration)
            self._remember(digest, known)
        return known

    def _remember(self, digest: bytes, heartbeat: Heartbeat) -> None:
        now = self._clock()
        is_full = len(self._recent) >= self._remembered or self._recent_bytes >= self._remembered_bytes
        if is_full or now - self._recent_since >= REMEMBERED_SECS:
            self._earlier, self._recent, self._recent_bytes, self._recent_since = self._recent, {}, 0, now
        self._recent[digest] = heartbeat
        self._recent_bytes += len(heartbeat.value)


def canonical(registration: Registration) -> Registration:
    """The one form that equal registrations share: sets sorted and without repeats, whole numbers as integers."""
    location = NOWHERE if registration.location == NOWHERE else registration.location
    if location.latitude is not None or location.longitude is not None:
        location = Location(
            location.region, location.zone, _plain_number(location.latitude), _plain_number(location.longitude)
        )
    return Registration(
        _shared(registration.cluster_id),
        _shared(registration.namespace),
        registration.dgd_name,
        _shared(registration.model),
        _as_set(registration.relays),
        _as_set(registration.frontends),
        _shared_set(_as_set(registration.capabilities)),
        _plain_capacity(registration.capacity),
        location if location is NOWHERE else _shared_location(location),
        registration.instance_id,
        dict(sorted(registration.metadata.items())) if registration.metadata else {},
    )


def encode(registration: Registration) -> bytes:
    """The stored bytes of a canonical registration: known fields in order, defaults left out."""
    _encode_into(registration, _scratch)
    return bytes(_scratch)  # what an encoder gives out itself keeps up to half as much again behind its end


def decode(stored: bytes) -> Registration:
    """A registration from stored or announced bytes; ``ValueError`` where they hold none (a foreign value)."""
    try:
        return parse(stored)
    except Rejected as error:
        raise ValueError("; ".join(f"{f.path}: {f.message}" for f in error.faults) or error.detail) from None


def decode_own(value: bytes) -> Registration:
    """A registration from bytes that ``encode`` made in this process: nothing is judged again."""
    return _decode(value)


def listing(
    registration: Registration, relays: tuple[str, ...] | None = None, frontends: tuple[str, ...] | None = None
) -> Listing:
    """The pool as routers see it; its addresses are the registration's own where none are given."""
    return Listing(
        registration.cluster_id,
        registration.namespace,
        registration.dgd_name,
        registration.model,
        registration.relays if relays is None else relays,
        registration.frontends if frontends is None else frontends,
        registration.capabilities,
        registration.capacity,
        registration.location,
        msgspec.UNSET if registration.instance_id is None else registration.instance_id,
        registration.metadata,
    )


@lru_cache(maxsize=16_384)
def key_path(key: PoolKey) -> str:
    """``cluster_id/namespace/dgd_name`` with each part percent-encoded where needed.

    Reversible; the form in keys and URLs.
    """
    path = "/".join(key)
    if path.count("/") == 2 and not _not_plain(path):  # as nearly every one
        return path
    return "/".join([part if _plain_part(part) else quote(part, safe="") for part in key])


def key_paths(keys: Sequence[PoolKey]) -> list[str]:
    """``key_path`` of each key; of many plain ones, as nearly all are, with one look at all of them."""
    paths = ["/".join(key) for key in keys]
    together = "".join(paths)
    if together.count("/") == 2 * len(paths) and not _not_plain(together):
        return paths
    return [key_path(key) for key in keys]


def key_from_path(path: str) -> PoolKey:
    """The inverse of ``key_path``; ``ValueError`` with the reason where the path names no pool."""
    parts = path.split("/")
    if len(parts) == 3 and is_plain_key(parts, path):
        return PoolKey(_shared(parts[0]), _shared(parts[1]), parts[2])  # as nearly every one: nothing to decode
    if len(parts) != 3:
        raise ValueError("a pool is named by cluster_id/namespace/dgd_name")
    try:
        key = PoolKey(*(unquote(part, errors="strict") for part in parts))
    except UnicodeDecodeError:
        raise ValueError("the percent-encoded bytes are not UTF-8") from None
    for name, part in zip(PoolKey._fields, key, strict=True):
        if fault := identifier_fault(part):
            raise ValueError(f"{name} {fault}")
    return key


# ---- canonical form


# Thousands of pools say the same few words: what is known already is there once.


def _shared(text: str) -> str:
    return _known(text) or _remember(text, len(text))


def _shared_set(texts: tuple[str, ...]) -> tuple[str, ...]:
    return _known(texts) or _remember(texts, sum(map(len, texts)))


def _shared_location(location: Location) -> Location:
    return _known(location) or _remember(location, len(location.region or "") + len(location.zone or ""))


def _remember(value: Value, size: int) -> Value:
    if size > SHARED_SIZE:
        return value
    if len(_shared_values) >= SHARED_VALUES:
        _shared_values.clear()
    return cast("Value", _shared_values.setdefault(value, value))


def _as_set(values: tuple[str, ...]) -> tuple[str, ...]:
    return values if len(values) < 2 or all(map(lt, values, values[1:])) else tuple(sorted(set(values)))


def _plain_capacity(capacity: tuple[Capacity, ...]) -> tuple[Capacity, ...]:
    plain = [Capacity(_shared(c.resource), _plain_number(c.quantity), c.unit and _shared(c.unit)) for c in capacity]
    return tuple(sorted(plain, key=_resource))


def _resource(capacity: Capacity) -> str:
    return capacity.resource


def _plain_number(number: Any) -> Any:
    """Whole numbers as integers up to what a double holds exactly, beyond it as doubles: equal values, equal bytes."""
    if isinstance(number, float) and number.is_integer() and abs(number) <= 2**53:
        return int(number)
    return float(number) if isinstance(number, int) and abs(number) > 2**53 else number


# ---- text that is refused


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
        faults = tuple(all_faults(value))
    detail = f"The registration has {len(faults)} fault{'s' if len(faults) != 1 else ''}."
    return Rejected(422, "Invalid registration", detail, faults=faults)


def describe(faults: Iterable[Fault]) -> str:
    """All faults in one line, for a log or a terminal."""
    return "; ".join(f"{fault.path} {fault.message}" for fault in faults)
