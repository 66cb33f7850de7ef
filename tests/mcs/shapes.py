"""EndpointSlices as implementations write them: builders, and one example of every shape that is known.

Values are those of ``discovery.k8s.io/v1`` JSON, so that nulls and missing keys reach the code as servers send them.
"""

import json
from collections.abc import Mapping
from typing import Any

from discovery.mcs.endpoint_slice import EndpointSlice, decode_slice

MCS_SERVICE = "multicluster.kubernetes.io/service-name"
MCS_SOURCE = "multicluster.kubernetes.io/source-cluster"
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"

ANY_MCS = "mcs.example.com"
LIGHTHOUSE = "lighthouse-agent.submariner.io"
CILIUM_MESH = "endpointslice-mesh-controller.cilium.io"
CILIUM_LOCAL = "endpointslice-local-mcsapi-controller.cilium.io"
AWS = "aws-cloud-map-mcs-controller-for-k8s"
KARMADA_DISPATCH = "endpointslice-dispatch-controller.karmada.io"
KARMADA_IMPORT = "endpointslice-controller.karmada.io"
KUBE = "endpointslice-controller.k8s.io"
KUBE_MIRROR = "endpointslicemirroring-controller.k8s.io"

READY = {"ready": True, "serving": True, "terminating": False}
HTTP = {"name": "http", "port": 8000, "protocol": "TCP"}
RELAY = {"name": "relay", "port": 5561, "protocol": "TCP"}

Manifest = dict[str, Any]


def manifest(
    name: str,
    labels: Mapping[str, str] | None = None,
    *,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "llm",
    uid: str | None = None,
    family: str = "IPv4",
    endpoints: Any = (),
    ports: Any = (HTTP,),
) -> Manifest:
    """One object; ``endpoints`` and ``ports`` as in JSON, an address alone standing for a ready endpoint."""
    metadata: Manifest = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}" if uid is None else uid}
    if labels is not None:
        metadata["labels"] = dict(labels)
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if isinstance(endpoints, (list, tuple)):
        endpoints = [ready(one) if isinstance(one, str) else one for one in endpoints]
    return {"metadata": metadata, "addressType": family, "endpoints": endpoints, "ports": ports}


def ready(address: str, **more: Any) -> Manifest:
    """A ready endpoint."""
    return {"addresses": [address], "conditions": READY, **more}


def imported(name: str, service: str, cluster: str, writer: str = ANY_MCS, **more: Any) -> Manifest:
    """A slice by the standard: both labels."""
    labels = {MCS_SERVICE: service, MCS_SOURCE: cluster, MANAGED_BY: writer, **more.pop("marks", {})}
    return manifest(name, labels, **more)


def slice_of(found: Manifest) -> EndpointSlice:
    """The object as the watcher decodes it."""
    return decode_slice(json.dumps(found).encode())


STANDARD = imported(
    "imported-llama-70b-pool-relay-q8d4z",
    "llama-70b-pool-relay",
    "east-1",
    endpoints=[ready("10.20.0.7", targetRef={"kind": "Pod", "name": "relay-0"}, nodeName="e-node-3", zone="east-1a")],
    ports=[{**RELAY, "appProtocol": "http"}],
)
IPV6_LONG = imported(
    "llama-70b-frontend-v6-r2m9k",
    "llama-70b-frontend",
    "north-2",
    family="IPv6",
    endpoints=[{"addresses": ["fd00:20:0:0:0:0:0:9"], "conditions": {"ready": True}}],
)
TWIN_4 = imported(
    "mixtral-frontend-4a",
    "mixtral-frontend",
    "east-1.prod",
    endpoints=[ready("10.21.4.2", targetRef={"kind": "Pod", "name": "fe-1"})],
    ports=[{"name": "http", "port": 8000}],
)
TWIN_6 = imported(
    "mixtral-frontend-6a",
    "mixtral-frontend",
    "east-1.prod",
    family="IPv6",
    endpoints=[ready("fd21::4:2", targetRef={"kind": "Pod", "name": "fe-1"})],
    ports=[{"name": "http", "port": 8000}],
)
LIGHTHOUSE_CLUSTER_IP = imported(
    "llama-70b-frontend-7hbq2",
    "llama-70b-frontend",
    "east-1",
    LIGHTHOUSE,
    marks={
        "lighthouse.submariner.io/sourceNamespace": "llm",
        "lighthouse.submariner.io/is-headless": "false",
    },
    annotations={"lighthouse.submariner.io/globalnet-enabled": "false"},
    endpoints=[{"addresses": ["172.30.14.8"], "conditions": {"ready": True}}],
    ports=[{**HTTP, "port": 80}],
)
CILIUM_REMOTE = imported(
    "derived-a3acu3vo72-east-1-p4w6n",
    "llama-70b-pool-relay",
    "east-1",
    CILIUM_MESH,
    marks={SERVICE_NAME: "derived-a3acu3vo72"},
    endpoints=[
        ready("10.40.2.9", targetRef={"kind": "Pod", "name": "fake-pod-10.40.2.9"}, nodeName="east-1", zone="east-1")
    ],
    ports=[RELAY],
)
AWS_FROZEN = imported(
    "imported-ultuetgj2b-m5s8t",
    "llama-70b-pool-relay",
    "east-1",
    AWS,
    marks={SERVICE_NAME: "imported-ultuetgj2b"},
    endpoints=[
        {
            "addresses": ["10.50.1.4"],
            "conditions": {"ready": True},
            "targetRef": {"kind": "Service", "name": "imported-ultuetgj2b"},
        },
        {"addresses": ["10.50.1.5"], "conditions": {"ready": False}},
    ],
    ports=[RELAY],
)
CONDITIONS = imported(
    "qwen-pool-relay-9c2rf",
    "qwen-pool-relay",
    "west-1",
    endpoints=[
        {"addresses": ["10.60.0.1"], "conditions": {"ready": True, "serving": True, "terminating": False}},
        {"addresses": ["10.60.0.2"], "conditions": {"ready": False, "serving": False, "terminating": False}},
        {"addresses": ["10.60.0.3"], "conditions": {"ready": False, "serving": True, "terminating": True}},
        {"addresses": ["10.60.0.4"], "conditions": {"ready": True, "serving": False, "terminating": True}},
        {"addresses": ["10.60.0.5"], "conditions": {}},
    ],
    ports=[{"name": "relay", "port": 5561}],
)
NO_SOURCE = manifest(
    "imported-llama-70b-frontend-d8v3j",
    {MCS_SERVICE: "llama-70b-frontend", MANAGED_BY: ANY_MCS, SERVICE_NAME: "derived-bcjlm50vuj"},
    endpoints=[{"addresses": ["10.70.0.3"], "conditions": {"ready": True}}],
)
UNNAMED_PORT = imported(
    "llama-8b-frontend-z6t1c",
    "llama-8b-frontend",
    "south-3",
    endpoints=[{"addresses": ["10.80.0.6"], "conditions": {"ready": None}}],
    ports=[{"port": 8000}],
)
OVERLAP_OLD = imported(
    "gemma-frontend-aa111",
    "gemma-frontend",
    "east-1",
    endpoints=[
        {"addresses": ["10.90.0.1"], "conditions": {"ready": True}},
        {"addresses": ["10.90.0.2"], "conditions": {"ready": False, "serving": False}},
    ],
)
OVERLAP_NEW = imported(
    "gemma-frontend-bb222",
    "gemma-frontend",
    "east-1",
    endpoints=[
        {"addresses": ["10.90.0.2"], "conditions": {"ready": True, "serving": True}},
        {"addresses": ["10.90.0.3"], "conditions": {"ready": True}},
    ],
)
SCALED_TO_ZERO = imported("phi-frontend-h2w7s", "phi-frontend", "east-1", endpoints=None, ports=None)

KARMADA_CONTROL_PLANE = manifest(
    "imported-east-1-llama-70b-pool-relay-x7k2p",
    {
        SERVICE_NAME: "derived-llama-70b-pool-relay",
        "work.karmada.io/permanent-id": "5f0c2a1e",
        MANAGED_BY: KARMADA_IMPORT,
    },
    annotations={
        "work.karmada.io/namespace": "karmada-es-east-1",
        "work.karmada.io/name": "llama-70b-pool-relay-x7k2p-6c9f8d7b5",
    },
    endpoints=[ready("10.30.0.5", nodeName="e-node-1")],
    ports=[RELAY],
)
KARMADA_DISPATCHED = manifest(
    "east-1-llama-70b-pool-relay-x7k2p",
    {
        SERVICE_NAME: "llama-70b-pool-relay",
        MANAGED_BY: KARMADA_DISPATCH,
        "karmada.io/managed": "true",
        "work.karmada.io/permanent-id": "0b7e6c3a",
    },
    annotations={
        "endpointslice.karmada.io/provision-cluster": "east-1",
        "work.karmada.io/namespace": "karmada-es-west-1",
        "resourcetemplate.karmada.io/uid": "",
    },
    endpoints=[ready("10.30.0.5", nodeName="e-node-1")],
    ports=[RELAY],
)
KARMADA_MEMBER = manifest(
    "imported-east-1-llama-70b-frontend-k3n8v",
    {
        SERVICE_NAME: "derived-llama-70b-frontend",
        MANAGED_BY: KARMADA_IMPORT,
        "karmada.io/managed": "true",
        "work.karmada.io/permanent-id": "7a1d9c54",
        "resourcebinding.karmada.io/permanent-id": "c2e8b7f0",
    },
    annotations={
        "work.karmada.io/namespace": "karmada-es-west-1",
        "resourcetemplate.karmada.io/uid": "11f6a9de",
    },
    endpoints=[ready("10.30.0.8")],
)

STANDARD_SHAPES = (
    STANDARD,
    IPV6_LONG,
    TWIN_4,
    TWIN_6,
    LIGHTHOUSE_CLUSTER_IP,
    CILIUM_REMOTE,
    AWS_FROZEN,
    CONDITIONS,
    NO_SOURCE,
    UNNAMED_PORT,
    OVERLAP_OLD,
    OVERLAP_NEW,
    SCALED_TO_ZERO,
)
KARMADA_SHAPES = (KARMADA_CONTROL_PLANE, KARMADA_DISPATCHED, KARMADA_MEMBER)
