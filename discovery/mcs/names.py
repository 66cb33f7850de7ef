"""Which Services count, what for, and which of their ports.

Pure; between ``origin``, which finds a Service's name, and ``slices``, which folds those that count.
"""

from typing import Literal, NamedTuple

import msgspec

from discovery.model import PoolKey

Role = Literal["relay", "frontend", "router"]


class Service(NamedTuple):
    """One Service of one source cluster; equal names in other clusters and namespaces are others."""

    cluster_id: str
    namespace: str
    name: str


class Use(NamedTuple):
    """What a Service is for, and the pool that it belongs to; routers belong to none."""

    role: Role
    key: PoolKey | None


class RouterService(msgspec.Struct, frozen=True):
    """The Service of the Global Routers; without ``port_name`` its only TCP port counts."""

    namespace: str
    service: str
    port_name: str | None = None


class Names(msgspec.Struct, frozen=True):
    """How Services of pools are called; without ``relay_port_name`` the relay Service's only TCP port counts."""

    relay_suffix: str = "-pool-relay"
    frontend_suffix: str = "-frontend"
    relay_port_name: str | None = None
    frontend_port_name: str = "http"
    router: RouterService | None = None

    def role(self, namespace: str, service: str) -> Role | None:
        """What the Service is for; None for others. A name that is only the suffix is no pool's."""
        if self.router is not None and (namespace, service) == (self.router.namespace, self.router.service):
            return "router"
        if service.endswith(self.relay_suffix) and service != self.relay_suffix:
            return "relay"
        if service.endswith(self.frontend_suffix) and service != self.frontend_suffix:
            return "frontend"
        return None

    def use(self, service: Service) -> Use | None:
        """What the Service is for, and whose; None for others."""
        role = self.role(service.namespace, service.name)
        if role is None:
            return None
        if role == "router":
            return Use(role, None)
        suffix = self.relay_suffix if role == "relay" else self.frontend_suffix
        return Use(role, PoolKey(service.cluster_id, service.namespace, service.name.removesuffix(suffix)))

    def port_name(self, role: Role) -> str | None:
        """The port that counts; None where it is the only TCP port."""
        if role == "router":
            return self.router.port_name if self.router is not None else None
        return self.relay_port_name if role == "relay" else self.frontend_port_name
