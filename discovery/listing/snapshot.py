"""Listings as ready bytes: one fragment per listing, the body they join to, its ETag, and the event frames.

Pure, and the only place that knows what the published bytes look like. Each listing is encoded and hashed once, when it
changes; a body is a join of fragments; an ETag is a sum of their hashes, so that it costs one addition per change and
is equal on every replica whatever order things happened in.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar
from zlib import crc32

import msgspec

from discovery.model import Listing, Router

Entry = TypeVar("Entry", Listing, Router)
Key = tuple[str, ...]

_encode = msgspec.json.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into
_scratch = bytearray()
_DIGEST_BYTES = 32
_DIGEST_RANGE = 1 << (8 * _DIGEST_BYTES)
PIECE_BYTES = 65_536


class Fragment(Generic[Entry]):
    """One listing with its bytes: its sort key, the JSON of the listing and of its key, and the hash as a number."""

    __slots__ = ("body", "digest", "entry", "key")

    def __init__(self, key: Key, entry: Entry) -> None:
        self.key = key
        self.entry: Entry = entry
        _encode_into(entry, _scratch)
        self.body = bytes(_scratch)  # what an encoder gives out itself keeps up to half as much again behind its end
        self.digest = int.from_bytes(blake2b(self.body, digest_size=_DIGEST_BYTES).digest(), "big")

    @property
    def token(self) -> str:
        """The bare ETag of this listing alone."""
        return f"{self.digest >> (8 * _DIGEST_BYTES - 128):032x}"


def pool_fragment(listing: Listing) -> Fragment[Listing]:
    """The bytes of one pool."""
    return Fragment(listing.key, listing)


def router_fragment(router: Router) -> Fragment[Router]:
    """The bytes of one router."""
    return Fragment((router.id,), router)


class Filter(msgspec.Struct, frozen=True):
    """Which pools a reader asked for.

    Values of one field are alternatives, except capabilities, which all must be there. An empty field asks for nothing
    in particular; the empty filter matches every listing.
    """

    model: frozenset[str] = frozenset()
    cluster_id: frozenset[str] = frozenset()
    namespace: frozenset[str] = frozenset()
    capability: frozenset[str] = frozenset()
    region: frozenset[str] = frozenset()

    def matches(self, listing: Listing) -> bool:
        """Whether a reader with this filter sees the pool."""
        return (
            (not self.model or listing.model in self.model)
            and (not self.cluster_id or listing.cluster_id in self.cluster_id)
            and (not self.namespace or listing.namespace in self.namespace)
            and (not self.region or listing.location.region in self.region)
            and (not self.capability or self.capability.issubset(listing.capabilities))
        )


EVERYTHING = Filter()


def seen_alike(old: object, new: object) -> bool:
    """Whether every filter sees both listings of one key or neither: what filters look at is the same."""
    if not isinstance(old, Listing) or not isinstance(new, Listing):
        return False
    return (old.model, old.location.region, old.capabilities) == (new.model, new.location.region, new.capabilities)


def digest_sum(total: int, removed: int, added: int) -> int:
    """The running sum after one listing was replaced; zero stands for no listing."""
    return (total - removed + added) % _DIGEST_RANGE


def token(total: int, complete: bool) -> str:
    """The bare ETag of a list: from its content and ``complete`` alone."""
    content = total.to_bytes(_DIGEST_BYTES, "big") + (b"\1" if complete else b"\0")
    return blake2b(content, digest_size=16).hexdigest()


def key_number(key: Key) -> int:
    """A number for a key, of which sums tell whether two replicas list the same keys."""
    return crc32("\0".join(key).encode())


def joined(listings: Iterable[bytes]) -> bytes:
    """A part of a list: each listing with a comma behind it."""
    return b",".join([*listings, b""])


def body(collection: str, complete: bool, listings: Iterable[bytes]) -> bytes:
    """The JSON of a whole list, for example ``{"complete":true,"pools":[…]}``."""
    part = joined(listings)
    return b"".join(body_pieces(collection, complete, [part] if part else []))


def body_pieces(collection: str, complete: bool, parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same JSON, as long as it is made of such parts: a piece for each of them."""
    held = b""
    before = _opening(collection, complete)
    for part in parts:
        if held:
            yield held
        held, before = before + part if before else part, b""
    yield held[:-1] + b"]}" if held else before + b"]}"


def body_parts(collection: str, complete: bool, fragments: Iterable[Fragment[Entry]]) -> list[bytes]:
    """The same JSON as the very bytes of its listings and what stands between them: nothing of it is a copy."""
    parts: list[bytes] = [_opening(collection, complete)]
    for fragment in fragments:
        parts += (fragment.body, b",")
    if len(parts) > 1:
        parts.pop()
    return [*parts, b"]}"]


def in_batches(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Put together when they are taken, some at a time."""
    batch: list[bytes] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    if batch:
        yield b"".join(batch)


def _opening(collection: str, complete: bool) -> bytes:
    return b'{"complete":%s,"%s":[' % (b"true" if complete else b"false", collection.encode())


def put_frame(fragment: Fragment[Entry]) -> bytes:
    """The event of a listing that appeared or changed."""
    return b"event: put\ndata: %b\n" % fragment.body


def delete_frame(key: Key) -> bytes:
    """The event of a listing that left; its data is the key as an object."""
    if len(key) == 3:
        return b'event: delete\ndata: {"cluster_id":%b,"namespace":%b,"dgd_name":%b}\n' % tuple(map(_encode, key))
    return b'event: delete\ndata: {"id":%b}\n' % _encode(key[0])


def complete_frame(complete: bool) -> bytes:
    """The event of a change in completeness."""
    return b'event: complete\ndata: {"complete":%s}\n' % (b"true" if complete else b"false")


def join_frames(frames: Sequence[bytes], last_id: str) -> bytes:
    """The events of one published snapshot.

    Only the last carries an id, so that a cut in between resumes from before.
    """
    return b"\n".join(frames) + b"id: %b\n\n" % last_id.encode()
