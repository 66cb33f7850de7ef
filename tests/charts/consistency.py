"""Do rendered objects fit each other? What schemas cannot see: names that are referred to, selectors, ports, volumes.

An API server takes most of these faults without a word, and the Service then has no endpoints, or the pod never starts.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.charts.pod_security import containers_of
from tests.charts.rendered import Object, Rendered, pods_of

_label = re.compile(r"(?=.{0,63}\Z)(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?").fullmatch
_key = re.compile(r"(?:[a-z0-9][-a-z0-9.]*/)?(?=.{1,63}\Z)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?").fullmatch
_service = re.compile(r"(?=.{1,63}\Z)[a-z](?:[-a-z0-9]*[a-z0-9])?").fullmatch
_volume = re.compile(r"(?=.{1,63}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?").fullmatch
_port = re.compile(r"(?=.{1,15}\Z)(?=.*[a-z])[a-z0-9](?:-?[a-z0-9])*").fullmatch
_quantity = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[numkMGTPE]|[KMGTPE]i)?").fullmatch

CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding"}


def faults(rendered: Rendered) -> list[str]:
    """Everything that does not fit, in words."""
    found = [*_twice(rendered), *_left_over(rendered)]
    for each in (*rendered.objects, *rendered.hooks):
        of = f"{each['kind']}/{each['metadata']['name']}"
        found += [f"{of}: {fault}" for fault in (*_of_metadata(each), *_empty(each, ""))]
        if (template := pods_of(each)) is not None:
            found += [f"{of}: {fault}" for fault in _of_pods(each, template, rendered)]
    for each in rendered.objects:
        of = f"{each['kind']}/{each['metadata']['name']}"
        found += [f"{of}: {fault}" for fault in _of_reference(each, rendered)]
    return found


def _left_over(rendered: Rendered) -> Iterator[str]:
    """What Go's templates write where a value is missing or of another type than they wanted."""
    for text in ("<no value>", "<nil>", "%!", "map["):
        if text in rendered.text or text in rendered.notes:
            yield f"a template wrote {text}"


def _twice(rendered: Rendered) -> Iterator[str]:
    every = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in (*rendered.objects, *rendered.hooks)
    ]
    yield from (f"{name} is there {count} times" for name, count in Counter(every).items() if count > 1)


def _of_metadata(found: Object) -> Iterator[str]:
    metadata = found["metadata"]
    if found["kind"] in CLUSTER_WIDE and "namespace" in metadata:
        yield "is of no namespace, and names one"
    if len(metadata["name"]) > 63 or (found["kind"] == "Service" and not _service(metadata["name"])):
        yield f"its name is too long or no name of a Service: {metadata['name']}"
    for name, text in (metadata.get("labels") or {}).items():
        if not _key(name) or not _label(text):
            yield f"the label {name}: {text!r} is none"


def _empty(value: Any, path: str) -> Iterator[str]:
    """Places with nothing behind their key: what a template leaves over when a value is not given."""
    if value is None:
        yield f"{path} has no value"
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _empty(each, f"{path}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _empty(each, f"{path}.{number}")


# ---- pods


def _of_pods(owner: Object, template: Object, rendered: Rendered) -> Iterator[str]:
    spec = template["spec"]
    labels = template["metadata"].get("labels") or {}
    if owner is not template and "selector" in owner["spec"] and not selects(owner["spec"]["selector"], labels):
        yield "its selector does not match its pods"
    names = [volume["name"] for volume in spec.get("volumes", ())]
    yield from (f"the volume {name} is there twice" for name, count in Counter(names).items() if count > 1)
    yield from (f"{name} is no name of a volume" for name in names if not _volume(name))
    claims = [claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", ())]
    for container in containers_of(spec):
        yield from (f"{container['name']}: {fault}" for fault in _of_container(container, {*names, *claims}))
    account = spec.get("serviceAccountName")
    accounts = [each["metadata"]["name"] for each in rendered.all("ServiceAccount")]
    if account and account != "default" and accounts and account not in accounts:
        yield f"its account {account} is none of {accounts}"
    yield from _of_sources(spec, rendered)


def _of_container(container: Object, volumes: set[str]) -> Iterator[str]:
    mounts = container.get("volumeMounts", ())
    yield from (f"mounts {each['name']}, which is no volume" for each in mounts if each["name"] not in volumes)
    paths = Counter(each["mountPath"] for each in mounts)
    yield from (f"mounts two volumes at {path}" for path, count in paths.items() if count > 1)
    variables = Counter(each["name"] for each in container.get("env", ()))
    yield from (f"has the variable {name} twice" for name, count in variables.items() if count > 1)
    ports = [each["name"] for each in container.get("ports", ()) if "name" in each]
    yield from (f"{name} is no name of a port" for name in ports if not _port(name))
    numbers = Counter((each["containerPort"], each.get("protocol", "TCP")) for each in container.get("ports", ()))
    yield from (f"has the port {number} twice" for number, count in numbers.items() if count > 1)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        port = container.get(probe, {}).get("httpGet", {}).get("port")
        if isinstance(port, str) and port not in ports:
            yield f"{probe} asks the port {port}, which is none of {ports}"
    for kind, amounts in container.get("resources", {}).items():
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            if not _quantity(str(amount)):
                yield f"resources.{kind}.{name} is {amount!r}, which is no quantity"


def _of_sources(spec: Object, rendered: Rendered) -> Iterator[str]:
    """Keys that a pod takes of ConfigMaps and Secrets of this chart have to be there; others are the user's own."""
    for kind, name, keys in sources(spec):
        owned = [each for each in rendered.all(kind) if each["metadata"]["name"] == name]
        if not owned and kind == "ConfigMap":
            yield f"takes the ConfigMap {name}, which is none of this chart"
        there = {key for each in owned for part in ("data", "stringData", "binaryData") for key in each.get(part, ())}
        for key in keys if owned else ():
            if key not in there:
                yield f"takes {key} of the {kind} {name}, which has {sorted(there)}"


def sources(spec: Object) -> Iterator[tuple[str, str, list[str]]]:
    """``(kind, name, keys)`` of every ConfigMap and Secret that a pod takes variables or files from."""
    volumes = [*spec.get("volumes", ())]
    volumes += [part for each in volumes for part in each.get("projected", {}).get("sources", ())]
    for each in volumes:
        if "configMap" in each:
            yield "ConfigMap", each["configMap"]["name"], _keys(each["configMap"])
        if "secret" in each:
            name = each["secret"].get("secretName") or each["secret"].get("name")
            yield "Secret", name, _keys(each["secret"])
    for container in containers_of(spec):
        for each in container.get("envFrom", ()):
            for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if field in each:
                    yield kind, each[field]["name"], []
        for each in container.get("env", ()):
            for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                if field in each.get("valueFrom", {}):
                    yield kind, each["valueFrom"][field]["name"], [each["valueFrom"][field]["key"]]


def _keys(source: Object) -> list[str]:
    return [item["key"] for item in source.get("items", ())]


# ---- what refers to pods, Services and others


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Does a selector match these labels? One without conditions matches all."""
    wanted = selector.get("matchLabels", {}) if {*selector} <= {"matchLabels", "matchExpressions"} else selector
    return not selector.get("matchExpressions") and wanted.items() <= labels.items()


def pods_selected(selector: Object, rendered: Rendered) -> list[Object]:
    """The pods of Deployments and StatefulSets that a selector matches."""
    templates = [pods_of(each) for kind in ("Deployment", "StatefulSet") for each in rendered.all(kind)]
    return [each for each in templates if each and selects(selector, each["metadata"].get("labels") or {})]


def _of_reference(found: Object, rendered: Rendered) -> Iterator[str]:
    rule = _RULES.get(found["kind"])
    return iter(()) if rule is None else rule(found, rendered)


def _of_service(found: Object, rendered: Rendered) -> Iterator[str]:
    pods = pods_selected(found["spec"]["selector"], rendered)
    if len(pods) != 1:
        yield f"selects {len(pods)} kinds of pods"
    ports = {port.get("name") for pod in pods for each in pod["spec"]["containers"] for port in each.get("ports", ())}
    for port in found["spec"]["ports"]:
        target = port.get("targetPort")
        if isinstance(target, str) and target not in ports:
            yield f"leads to the port {target}, which is none of {sorted(ports)}"


def _of_selector(found: Object, rendered: Rendered) -> Iterator[str]:
    selector = found["spec"].get("podSelector", found["spec"].get("selector"))
    if len(pods_selected(selector, rendered)) != 1:
        yield f"selects {len(pods_selected(selector, rendered))} kinds of pods"


def _of_pod_monitor(found: Object, rendered: Rendered) -> Iterator[str]:
    yield from _of_selector(found, rendered)
    pods = pods_selected(found["spec"]["selector"], rendered)
    ports = {port.get("name") for pod in pods for each in pod["spec"]["containers"] for port in each.get("ports", ())}
    for endpoint in found["spec"]["podMetricsEndpoints"]:
        if endpoint["port"] not in ports:
            yield f"asks the port {endpoint['port']}, which is none of {sorted(ports)}"


def _of_service_monitor(found: Object, rendered: Rendered) -> Iterator[str]:
    services = [each for each in rendered.all("Service") if selects(found["spec"]["selector"], labels(each))]
    if len(services) != 1:
        yield f"selects {len(services)} Services"
    ports = {port.get("name") for each in services for port in each["spec"]["ports"]}
    for endpoint in found["spec"]["endpoints"]:
        if endpoint["port"] not in ports:
            yield f"asks the port {endpoint['port']}, which is none of {sorted(ports)}"


def labels(found: Object) -> dict[str, str]:
    """An object's labels."""
    return found["metadata"].get("labels") or {}


def _of_autoscaler(found: Object, rendered: Rendered) -> Iterator[str]:
    target = found["spec"]["scaleTargetRef"]
    if f"{target['kind']}/{target['name']}" not in rendered.names():
        yield f"scales {target}, which is not there"


def _of_binding(found: Object, rendered: Rendered) -> Iterator[str]:
    names = {*rendered.names()}
    role = f"{found['roleRef']['kind']}/{found['roleRef']['name']}"
    if role not in names:
        yield f"binds {role}, which is not there"
    for subject in found["subjects"]:
        if not subject.get("namespace"):
            yield "binds an account without its namespace"
        if rendered.all("ServiceAccount") and f"ServiceAccount/{subject['name']}" not in names:
            yield f"binds the account {subject['name']}, which is not there"


def _services_of_route(found: Object) -> Iterator[tuple[str, int | str | None]]:
    for rule in found["spec"].get("rules", ()):
        for each in rule.get("backendRefs", ()):
            yield each["name"], each["port"]
        for path in rule.get("http", {}).get("paths", ()):
            service = path["backend"]["service"]
            yield service["name"], service["port"].get("number", service["port"].get("name"))


def _of_route(found: Object, rendered: Rendered) -> Iterator[str]:
    there = {
        (each["metadata"]["name"], port[field])
        for each in rendered.all("Service")
        for port in each["spec"]["ports"]
        for field in ("name", "port")
        if field in port
    }
    yield from (f"leads to {each}, which is none of {there}" for each in _services_of_route(found) if each not in there)


def _of_export(found: Object, rendered: Rendered) -> Iterator[str]:
    if f"Service/{found['metadata']['name']}" not in rendered.names():
        yield "exports a Service that is not there"


_RULES = {
    "Service": _of_service,
    "PodDisruptionBudget": _of_selector,
    "NetworkPolicy": _of_selector,
    "PodMonitor": _of_pod_monitor,
    "ServiceMonitor": _of_service_monitor,
    "HorizontalPodAutoscaler": _of_autoscaler,
    "RoleBinding": _of_binding,
    "ClusterRoleBinding": _of_binding,
    "Ingress": _of_route,
    "HTTPRoute": _of_route,
    "ServiceExport": _of_export,
}
