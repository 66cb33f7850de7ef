"""Items of the table: what a pool is stored as, and what an item that was read says. Pure.

A pool is one item of the partition ``POOL``. Beside the pools lies at most one more, the word that lists are not
complete for a while; no pool's sort key can begin as its does.
"""

import re
from typing import Any, NamedTuple

import msgspec

from discovery.errors import Fault, Rejected
from discovery.model import PoolKey

PARTITION = "POOL"
SETTLING = "#settling"
SWEPT_AFTER_SECS = 3600
MAX_SORT_KEY_BYTES = 1024
MAX_ITEM_BYTES = 400 * 1024
LATEST_MS = 1 << 53
MAX_LEASE_SECS = 86_400.0
"""A longer one is no flag's: whoever wrote it is not believed further."""

_escaped = re.compile(r"%(25|23)?")
_encode = msgspec.json.Encoder().encode


class _Text(msgspec.Struct):
    S: str


class _Number(msgspec.Struct):
    N: str


class _PoolItem(msgspec.Struct):
    sk: _Text
    registration: _Text
    lease_ends_ms: _Number
    lease_ms: _Number | None = None


class _SettlingItem(msgspec.Struct):
    reason: _Text
    until_ms: _Number
    known_until_ms: _Number | None = None
    lasts_ms: _Number | None = None


class _Key(msgspec.Struct):
    sk: _Text


class _Capacity(msgspec.Struct):
    CapacityUnits: float = 0.0


class _Page(msgspec.Struct):
    # Neither has a default: an answer that is none must not look like an empty table.
    Items: list[msgspec.Raw]
    Count: int
    LastEvaluatedKey: dict[str, Any] | None = None
    ConsumedCapacity: _Capacity | None = None


class _Written(msgspec.Struct):
    Attributes: msgspec.Raw = msgspec.Raw()
    ConsumedCapacity: _Capacity | None = None


_decode_pool = msgspec.json.Decoder(_PoolItem).decode
_decode_settling = msgspec.json.Decoder(_SettlingItem).decode
_decode_key = msgspec.json.Decoder(_Key).decode
_decode_page = msgspec.json.Decoder(_Page).decode
_decode_written = msgspec.json.Decoder(_Written).decode


class Item(NamedTuple):
    """A pool's item as it was read; ``lease_secs`` is None where it does not say how long a lease is."""

    key: PoolKey
    value: bytes
    lease_ends_ms: int
    lease_secs: float | None


class Word(NamedTuple):
    """Why lists are not complete, and until when by the table's clock.

    Whoever had read the table at ``known_until_ms`` lacks nothing; None: it concerns everyone. Whatever clock it was
    written by, it lasts no longer than ``lasts_ms``.
    """

    reason: str
    until_ms: int
    known_until_ms: int | None = None
    lasts_ms: int | None = None


class Page(NamedTuple):
    """One page of the partition. ``broken`` has, of each item that says nothing, its name and what is wrong with it."""

    items: list[Item]
    word: Word | None
    broken: list[tuple[str, str]]
    next_from: dict[str, Any] | None
    read_units: float


class Written(NamedTuple):
    """What a write answered: the item that was there before, where there was one that says something."""

    before: Item | None
    write_units: float


# ---- keys


def sort_key(key: PoolKey) -> str:
    """``<cluster_id>#<namespace>#<dgd_name>``, reversible."""
    return "#".join([part.replace("%", "%25").replace("#", "%23") for part in key])


def pool_key(text: str) -> PoolKey:
    """The inverse of ``sort_key``; ``ValueError`` with the reason where the text names no pool."""
    parts = text.split("#")
    if len(parts) != 3 or not all(parts):
        raise ValueError("its sort key is not <cluster_id>#<namespace>#<dgd_name>")
    if "%" in text:
        parts = [_escaped.sub(_unescape, part) for part in parts]
    return PoolKey(*parts)


def _unescape(found: "re.Match[str]") -> str:
    if found[1] is None:
        raise ValueError("its sort key has a % that is neither %25 nor %23")
    return "%" if found[1] == "25" else "#"


def check_key(key: PoolKey) -> str:
    """The sort key. Raises ``Rejected`` where the table takes no key that long."""
    text = sort_key(key)
    size = len(text.encode())
    if size > MAX_SORT_KEY_BYTES:
        parts = dict(zip(key._fields, text.split("#"), strict=True))
        longest = max(parts, key=lambda name: len(parts[name].encode()))
        message = f"makes a key of {size:,} bytes with the other two parts; DynamoDB takes {MAX_SORT_KEY_BYTES:,}"
        raise too_large(Fault(f"$.{longest}", message))
    return text


def too_large(fault: Fault) -> Rejected:
    """The error for a registration that the table can never hold."""
    return Rejected(422, "Too large for DynamoDB", "The registration can never be stored.", faults=(fault,))


# ---- written


def pool_item(
    key: PoolKey, value: bytes, instance_id: str | None, lease_ends_ms: int, lease_secs: float
) -> dict[str, Any]:
    """A pool's item. Raises ``Rejected`` where the table takes none that large."""
    ends_secs = lease_ends_ms // 1000
    item = {
        "pk": {"S": PARTITION},
        "sk": {"S": check_key(key)},
        "registration": {"S": value.decode()},
        "lease_ends_ms": {"N": str(lease_ends_ms)},
        "lease_ms": {"N": str(round(lease_secs * 1000))},
        "expires_at": {"N": str(ends_secs + SWEPT_AFTER_SECS)},
    }
    if instance_id is not None:
        item["instance_id"] = {"S": instance_id}
    size = sum(len(name) + len(text.encode()) for name, kind in item.items() for text in kind.values())
    if size > MAX_ITEM_BYTES:
        raise too_large(Fault("$", f"makes an item of {size:,} bytes; DynamoDB takes {MAX_ITEM_BYTES:,}"))
    return item


def pool_item_key(key: PoolKey) -> dict[str, Any] | None:
    """The key of a pool's item; None where the table takes no key that long, so that no such item is there."""
    text = sort_key(key)
    return None if len(text.encode()) > MAX_SORT_KEY_BYTES else {"pk": {"S": PARTITION}, "sk": {"S": text}}


def settling_item(word: Word) -> dict[str, Any]:
    """The item that tells every replica that lists are not complete."""
    item = {
        **settling_key(),
        "reason": {"S": word.reason},
        "until_ms": {"N": str(word.until_ms)},
        "expires_at": {"N": str(word.until_ms // 1000 + SWEPT_AFTER_SECS)},
    }
    more = {"known_until_ms": word.known_until_ms, "lasts_ms": word.lasts_ms}
    return item | {name: {"N": str(value)} for name, value in more.items() if value is not None}


def settling_key() -> dict[str, Any]:
    """The key of that item."""
    return {"pk": {"S": PARTITION}, "sk": {"S": SETTLING}}


# ---- read


def page(answer: bytes) -> Page:
    """One page of a query. ``ValueError`` where the answer is none: then nothing of it counts."""
    decoded = _decode_page(answer)
    if decoded.Count != len(decoded.Items):
        raise ValueError(f"it holds {len(decoded.Items)} items and says {decoded.Count}")
    items: list[Item] = []
    broken: list[tuple[str, str]] = []
    word = None
    for raw in decoded.Items:
        try:
            found = _item(raw)
        except ValueError as error:
            broken.append((_name(raw), str(error)))
            continue
        if isinstance(found, Item):
            items.append(found)
        else:
            word = found
    return Page(items, word, broken, decoded.LastEvaluatedKey, _units(decoded.ConsumedCapacity))


def written(answer: bytes) -> Written:
    """The answer to a write. ``ValueError`` where it is none."""
    decoded = _decode_written(answer)
    before = None
    if decoded.Attributes:
        try:
            found = _item(decoded.Attributes)
        except ValueError:
            found = None  # what was no registration was not there
        before = found if isinstance(found, Item) else None
    return Written(before, _units(decoded.ConsumedCapacity))


def _item(raw: msgspec.Raw) -> Item | Word:
    try:
        item = _decode_pool(raw)
    except msgspec.ValidationError:
        if _name(raw) != SETTLING:
            raise
        word = _decode_settling(raw)
        more = [None if number is None else _whole(number) for number in (word.known_until_ms, word.lasts_ms)]
        return Word(word.reason.S, _whole(word.until_ms), *more)
    lease_secs = None if item.lease_ms is None else min(_whole(item.lease_ms) / 1000, MAX_LEASE_SECS)
    return Item(pool_key(item.sk.S), item.registration.S.encode(), _whole(item.lease_ends_ms), lease_secs)


def _whole(number: _Number) -> int:
    """A time in milliseconds; DynamoDB writes large numbers as it likes."""
    try:
        value = int(number.N) if number.N.isdecimal() else int(float(number.N))
    except OverflowError:
        value = LATEST_MS
    if not -LATEST_MS < value < LATEST_MS:
        raise ValueError(f"{number.N[:40]} is no time in milliseconds")
    return value


def _name(raw: msgspec.Raw) -> str:
    try:
        return _decode_key(raw).sk.S
    except ValueError:
        return "without a sort key"


def _units(capacity: _Capacity | None) -> float:
    return 0.0 if capacity is None else capacity.CapacityUnits


def encode(value: object) -> bytes:
    """A request's body."""
    return _encode(value)
