"""EndpointSlices as structs with only the fields that are read here, as lenient as real servers are.

Pure data. Lists and their parts may be ``null`` or absent; a whole object that fits no struct is skipped by whoever
decodes it, alone. Source: ``discovery.k8s.io/v1``.
"""

from typing import NamedTuple

import msgspec


class SliceName(NamedTuple):
    """Which object it is: a name may come back with another uid."""

    namespace: str
    name: str


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Names and marks of an object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Conditions(msgspec.Struct, frozen=True):
    """What is known of an endpoint; a missing condition takes Kubernetes' default."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    @property
    def usable(self) -> bool:
        """Whether traffic may be sent there."""
        return self.ready is not False and self.serving is not False and self.terminating is not True


class TargetReference(msgspec.Struct, frozen=True):
    """The object behind an endpoint, a pod as a rule; it speaks of the source cluster and may be invented."""

    kind: str | None = None
    name: str | None = None


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint; of its addresses only the first means anything."""

    addresses: tuple[str, ...] | None = None
    conditions: Conditions | None = None
    node_name: str | None = None
    target_ref: TargetReference | None = None


class Port(msgspec.Struct, frozen=True, rename="camel"):
    """One port; without a name it is the unnamed port, without a number it is not usable."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    app_protocol: str | None = None


class EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    """One slice. Endpoints and ports stay raw, so that a broken one costs itself and not the slice."""

    metadata: Metadata
    address_type: str = ""
    endpoints: tuple[msgspec.Raw, ...] | None = None
    ports: tuple[msgspec.Raw, ...] | None = None

    @property
    def name(self) -> SliceName:
        """Which object it is."""
        return SliceName(self.metadata.namespace, self.metadata.name)


decode_slice = msgspec.json.Decoder(EndpointSlice).decode
"""One object of a list or a watch event; ``msgspec.MsgspecError`` where it is no EndpointSlice."""

decode_endpoint = msgspec.json.Decoder(Endpoint).decode
"""One endpoint of a slice; ``msgspec.MsgspecError`` costs that endpoint alone."""

decode_port = msgspec.json.Decoder(Port).decode
"""One port of a slice; ``msgspec.MsgspecError`` costs that port alone."""
