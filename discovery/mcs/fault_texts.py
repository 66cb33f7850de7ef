"""Why a Service gives no usable endpoint, in one line for people: what is wrong, where, what to do.

Pure; shared by warnings and ``doctor``. Knows words alone, no state.
"""

from collections.abc import Iterable

from discovery.mcs.contents import TcpPort
from discovery.mcs.service import MAX_ENDPOINTS, Fault, FoldedService, Object


def fault_text(folded: FoldedService[Object], fault: Fault, port_name: str | None) -> str:
    """One line about the Service as it is now; ``port_name`` is the port that counts, if it has to have a name."""
    cluster_id, namespace, name = folded.service
    service = f"Service {namespace}/{name} of cluster {cluster_id}"
    reach, flag = folded.reach, f"--{folded.use.role}-port-name"
    match fault:
        case "several_ports":
            return f"{service} has several TCP ports ({_listed(reach.ports)}): choose one with {flag}"
        case "no_ports":
            return f"{service} has slices without TCP ports: give the Service {_wanted(port_name)}"
        case "no_named_port":
            return (
                f"{service} has slices without a TCP port named {port_name} (found: {_listed(reach.ports)}): "
                f"name the Service's port so, or choose another with {flag}"
            )
        case "no_port_number":
            return f"{service} has a slice whose port has no usable number: check the Service's targetPort"
        case "too_many_endpoints":
            return (
                f"{service} has {reach.endpoints:,} endpoints, of which the first {MAX_ENDPOINTS:,} are listed: "
                "divide it into several pools"
            )
        case "no_endpoints":
            return f"{service} has no endpoints: check that its pods run and that its selector matches them"
        case "not_ready":
            return (
                f"{service} has no ready endpoint ({reach.unready} of {reach.endpoints} are not ready or terminating)"
            )
        case "bad_address":
            return f"{service} has endpoints, but none with a usable IP address"
        case "fqdn":
            return f"{service} has host names instead of IP addresses, which are not supported"


def _wanted(port_name: str | None) -> str:
    return "a TCP port" if port_name is None else f"a TCP port named {port_name}"


def _listed(ports: Iterable[TcpPort]) -> str:
    return ", ".join(f"{port.name or 'unnamed'} {port.number or 'without number'}" for port in ports)
