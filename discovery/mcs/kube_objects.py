"""What lists and watches of EndpointSlices carry, as structs, and what the feed makes of it. Pure data.

Objects stay raw until each is decoded alone, so that one that cannot be read costs itself.
"""

from typing import NamedTuple

import msgspec

from discovery.mcs.endpoint_slice import EndpointSlice, SliceName
from discovery.mcs.kube_answers import Status


class Listed(NamedTuple):
    """All slices at one version, ``position``.

    ``skipped`` counts objects that were no EndpointSlice; ``heard_at`` is the loop's time.
    """

    slices: tuple[EndpointSlice, ...]
    position: str
    skipped: int
    heard_at: float


class Applied(NamedTuple):
    """A slice appeared or changed; it may also be one that is known already, unchanged."""

    slice: EndpointSlice


class Removed(NamedTuple):
    """A slice is gone: deleted, no longer selected, or no longer readable."""

    name: SliceName
    uid: str


class Heard(NamedTuple):
    """The watch is open, and nothing more happened until ``at`` (loop time)."""

    at: float


class Failing(NamedTuple):
    """The watch is interrupted, and tried again from where it was. Any other event ends that.

    ``kind`` is a short fixed word for counters, ``reason`` is for people.
    """

    kind: str
    reason: str


Event = Applied | Removed | Heard | Failing


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of a list as a whole: its version, and where its next page begins."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class RawList(msgspec.Struct, frozen=True):
    """One page. Without ``items`` it is none; ``null`` is an empty one."""

    kind: str
    metadata: ListMetadata
    items: tuple[msgspec.Raw, ...] | None


class RawEvent(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class MarkMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Which object, at which version."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Mark(msgspec.Struct, frozen=True):
    """All that a bookmark, a deletion or an unreadable slice has to tell."""

    metadata: MarkMetadata


decode_list = msgspec.json.Decoder(RawList).decode
decode_event = msgspec.json.Decoder(RawEvent).decode
decode_mark = msgspec.json.Decoder(Mark).decode
decode_status = msgspec.json.Decoder(Status).decode
