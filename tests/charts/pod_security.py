"""Kubernetes' Pod Security Standard "restricted", as rules on a pod that is not there yet.

After the table of the standard, for Linux. What it forbids for "baseline" is
forbidden here too. A rule looks at every container: init containers and sidecars as well.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tests.charts.rendered import Object

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}


def containers_of(spec: Object) -> list[Object]:
    """All containers of a pod, those of its beginning included."""
    return [*spec.get("initContainers", ()), *spec["containers"], *spec.get("ephemeralContainers", ())]


def faults(template: Object) -> list[str]:
    """What "restricted" has against a pod; ``template`` has its metadata and spec."""
    spec = template["spec"]
    found = [*_of_pod(spec)]
    for each in containers_of(spec):
        found += [f"{each['name']}: {fault}" for fault in _of_container(each, spec)]
    return found


def _of_pod(spec: Object) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"{name} is on"
    for volume in spec.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"the volume {volume['name']} is of the kind {kinds}"
    context = spec.get("securityContext") or {}
    for sysctl in context.get("sysctls", ()):
        if sysctl["name"] not in SYSCTLS:
            yield f"the sysctl {sysctl['name']} is set"
    if context.get("runAsUser") == 0:
        yield "the pod runs as root"
    if context.get("seccompProfile", {}).get("type") == "Unconfined":
        yield "the pod has no seccomp profile"


def _of_container(container: Object, spec: Object) -> Iterator[str]:
    own, pod = container.get("securityContext") or {}, spec.get("securityContext") or {}
    capabilities = own.get("capabilities") or {}
    profile = (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
    rules: list[tuple[Callable[[], Any], str]] = [
        (lambda: own.get("privileged"), "is privileged"),
        (lambda: own.get("allowPrivilegeEscalation") is not False, "may escalate privileges"),
        (lambda: "ALL" not in capabilities.get("drop", ()), "does not drop all capabilities"),
        (lambda: set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}, "adds capabilities"),
        (lambda: own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True, "may run as root"),
        (lambda: own.get("runAsUser") == 0, "runs as root"),
        (lambda: profile not in ("RuntimeDefault", "Localhost"), "has no seccomp profile"),
        (lambda: own.get("procMount", "Default") != "Default", "sees more of /proc"),
        (lambda: any(port.get("hostPort") for port in container.get("ports", ())), "has a port of the host"),
    ]
    return (text for broken, text in rules if broken())
