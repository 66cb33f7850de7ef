"""As much of a Kubernetes API server as Helm needs to install, upgrade, roll back and uninstall: objects, by path.

Objects are kept as they were applied; nothing runs. It refuses what a real server refuses where an upgrade could fail:
a change of fields that may never change, and what the schemas of its version do not allow. Helm applies on the server's
side (PATCH with ``apply-patch``); with one field manager, and there is no other here, that makes an object what was
applied.
"""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.charts import schemas
from tests.charts.rendered import Object

# apiVersion → kind → (plural, namespaced)
KINDS: dict[str, dict[str, tuple[str, bool]]] = {
    "v1": {
        "ConfigMap": ("configmaps", True),
        "Namespace": ("namespaces", False),
        "PersistentVolumeClaim": ("persistentvolumeclaims", True),
        "Pod": ("pods", True),
        "Secret": ("secrets", True),
        "Service": ("services", True),
        "ServiceAccount": ("serviceaccounts", True),
    },
    "apps/v1": {"Deployment": ("deployments", True), "StatefulSet": ("statefulsets", True)},
    "autoscaling/v2": {"HorizontalPodAutoscaler": ("horizontalpodautoscalers", True)},
    "batch/v1": {"Job": ("jobs", True)},
    "networking.k8s.io/v1": {"Ingress": ("ingresses", True), "NetworkPolicy": ("networkpolicies", True)},
    "policy/v1": {"PodDisruptionBudget": ("poddisruptionbudgets", True)},
    "rbac.authorization.k8s.io/v1": {
        "ClusterRole": ("clusterroles", False),
        "ClusterRoleBinding": ("clusterrolebindings", False),
        "Role": ("roles", True),
        "RoleBinding": ("rolebindings", True),
    },
    "multicluster.x-k8s.io/v1alpha1": {"ServiceExport": ("serviceexports", True)},
    "monitoring.coreos.com/v1": {
        "ServiceMonitor": ("servicemonitors", True),
        "PrometheusRule": ("prometheusrules", True),
    },
}


def _without(value: Any, *names: str) -> Any:
    return {name: each for name, each in (value or {}).items() if name not in names}


# What may never change, by kind: the part of the object that has to stay equal.
MUTABLE_OF_STATEFUL_SETS = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
IMMUTABLE: dict[str, Callable[[Object], Any]] = {
    "Deployment": lambda found: found["spec"]["selector"],
    "StatefulSet": lambda found: _without(found["spec"], *MUTABLE_OF_STATEFUL_SETS),
    "Job": lambda found: [found["spec"].get("selector"), found["spec"]["template"]],
    "RoleBinding": lambda found: found["roleRef"],
    "ClusterRoleBinding": lambda found: found["roleRef"],
    "PersistentVolumeClaim": lambda found: _without(found["spec"], "resources", "volumeAttributesClassName"),
    "Secret": lambda found: found.get("type", "Opaque"),
}


def forbidden_changes(old: Object, new: Object) -> list[str]:
    """What an API server would refuse to change from one object to the next of the same name."""
    part = IMMUTABLE.get(old["kind"])
    if part is None or part(old) == part(new):
        return []
    return [f"{old['kind']} {old['metadata']['name']}: a field that may not change was {part(old)}, is {part(new)}"]


class Cluster:
    """The server, in a thread. ``objects`` has everything by path, ``requests`` what came: ``(method, path)``."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.objects: dict[str, Object] = {}
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self._count = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Cluster":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def kubeconfig(self, folder: Path) -> str:
        """A kubeconfig that leads here."""
        cluster = {"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
        context = {"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}
        user: Object = {"name": "nobody", "user": {}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "fake"}
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config | {"clusters": [cluster], "contexts": [context], "users": [user]}))
        return str(path)

    def names(self) -> set[str]:
        """``Deployment/discovery`` and so on, of everything that is there but Helm's own records."""
        every = [each for each in self.objects.values() if each.get("type") != "helm.sh/release.v1"]
        return {f"{each['kind']}/{each['metadata']['name']}" for each in every}

    def get(self, kind: str, name: str) -> Object:
        """One object."""
        found = [each for each in self.objects.values() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        assert len(found) == 1, f"{kind}/{name} is not among {sorted(self.names())}"
        return found[0]

    # ---- what the handler calls, with the lock held

    def put(self, path: str, new: Object) -> tuple[int, Object]:
        """Make or replace an object; 422 where a real server would refuse it."""
        old = self.objects.get(path)
        plain = new | {"metadata": _without(new["metadata"], "managedFields", "resourceVersion", "uid", "generation")}
        is_record = new.get("type") == "helm.sh/release.v1"
        faults = [] if is_record else schemas.faults(plain, self.version)
        faults += forbidden_changes(old, new) if old else []
        if faults:
            return 422, _status(422, "Invalid", f"{new['kind']} {new['metadata']['name']} is invalid: {faults}")
        self._count += 1
        kept = old["metadata"]["uid"] if old else str(uuid.uuid4())
        metadata = new["metadata"] | {"uid": kept, "resourceVersion": str(self._count)}
        self.objects[path] = new | {"metadata": metadata}
        return (200 if old else 201), self.objects[path]

    def children(self, path: str, selector: str) -> list[Object]:
        """The objects of a collection whose labels a selector of equalities matches."""
        wanted = dict(part.split("=", 1) for part in selector.replace("==", "=").split(",") if part)
        found = [each for name, each in self.objects.items() if name.rpartition("/")[0] == path]
        return [each for each in found if wanted.items() <= (each["metadata"].get("labels") or {}).items()]


def _status(code: int, reason: str, message: str) -> Object:
    status = "Success" if code < 300 else "Failure"
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": status,
        "reason": reason,
        "message": message,
        "code": code,
    }


def _resources(api_version: str) -> Object:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    every = [
        {"name": plural, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": verbs}
        for kind, (plural, namespaced) in KINDS[api_version].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": every}


def _openapi(api_version: str) -> Object:
    """Says of every kind that the server itself looks at its fields; Helm then leaves that to it."""
    group, _, version = api_version.rpartition("/")
    paths = {}
    for kind, (plural, _namespaced) in KINDS[api_version].items():
        named = {"group": group, "version": version, "kind": kind}
        parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
        operation = {"parameters": parameters, "x-kubernetes-group-version-kind": named, "responses": {}}
        paths[f"{_root(api_version)}/{plural}/{{name}}"] = {"patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "fake", "version": "v1"}, "paths": paths}


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _openapi_index() -> Object:
    roots = [_root(api_version).strip("/") for api_version in KINDS]
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}


def _groups() -> Object:
    found = []
    for api_version in KINDS:
        group, _, version = api_version.rpartition("/")
        if group:
            named = {"groupVersion": api_version, "version": version}
            found.append({"name": group, "versions": [named], "preferredVersion": named})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A head and a body in two packets would wait for each other's acknowledgement, 40 ms each time.
    wbufsize = -1
    cluster: Cluster

    def log_message(self, *_: Any) -> None:
        """Nothing: what came is in ``requests``."""

    def do_GET(self) -> None:
        path, query = self._asked()
        known = self._discovery(path)
        if known is not None:
            return self._answer(200, known)
        if path in self.cluster.objects:
            return self._answer(200, self.cluster.objects[path])
        kind = _kind_of(path.rpartition("/")[2])
        if kind is None:
            return self._answer(404, _status(404, "NotFound", f"{path} not found"))
        items = self.cluster.children(path, query.get("labelSelector", [""])[0])
        version = next(version for version, kinds in KINDS.items() if kind in kinds)
        return self._answer(200, {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": items})

    def do_POST(self) -> None:
        path, query = self._asked()
        new = self._body()
        own = f"{path}/{new['metadata']['name']}"
        if own in self.cluster.objects:
            return self._answer(409, _status(409, "AlreadyExists", f"{own} already exists"))
        return self._store(own, new, query)

    def do_PUT(self) -> None:
        path, query = self._asked()
        self._store(path, self._body(), query)

    def do_PATCH(self) -> None:
        path, query = self._asked()
        if "apply-patch" not in self.headers["Content-Type"]:
            return self._answer(
                415, _status(415, "UnsupportedMediaType", "only applying on the server's side is known")
            )
        return self._store(path, self._body(), query)

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        self._body()
        with self.cluster.lock:
            gone = self.cluster.objects.pop(path, None)
        if gone is None:
            return self._answer(404, _status(404, "NotFound", f"{path} not found"))
        return self._answer(200, _status(200, "", ""))

    def _store(self, path: str, new: Object, query: dict[str, list[str]]) -> None:
        with self.cluster.lock:
            if "dryRun" in query:
                return self._answer(200, new)
            return self._answer(*self.cluster.put(path, new))

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        url = urlsplit(self.path)
        self.cluster.requests.append((self.command, self.path))
        return url.path, parse_qs(url.query)

    def _discovery(self, path: str) -> Object | None:
        if path == "/version":
            major, minor = self.cluster.version.split(".")
            return {"major": major, "minor": minor, "gitVersion": f"v{self.cluster.version}.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return _groups()
        if path == "/openapi/v3":
            return _openapi_index()
        api_version = path.removeprefix("/openapi/v3").removeprefix("/apis/").removeprefix("/api/")
        if path.startswith("/openapi/v3") and api_version in KINDS:
            return _openapi(api_version)
        return _resources(api_version) if path.startswith("/api") and api_version in KINDS else None

    def _body(self) -> Any:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return yaml.safe_load(data) if data else {}

    def _answer(self, status: int, value: Object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _kind_of(plural: str) -> str | None:
    every: Iterator[tuple[str, tuple[str, bool]]] = (each for kinds in KINDS.values() for each in kinds.items())
    return next((kind for kind, (name, _) in every if name == plural), None)
