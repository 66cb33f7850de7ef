"""The rights in Kubernetes that the documents grant are all that the service uses, seen in what it asks for."""

import re
from pathlib import Path
from typing import Any

import yaml

from discovery.mcs.names import Names
from discovery.mcs.origin import Rules
from tests.documents import read
from tests.mcs.api_objects import CLUSTERS, MULTI_CLUSTER_SERVICES, SLICES
from tests.mcs.api_server import ApiServer
from tests.mcs.test_watch import watch

DOCUMENT = "docs/clusters.md"


def manifests(words: str) -> list[dict[str, Any]]:
    """The YAML documents of all blocks behind that fence."""
    blocks = re.findall(rf"^```{words}\n(.*?)^```$", read(DOCUMENT), re.MULTILINE | re.DOTALL)
    return [found for block in blocks for found in yaml.safe_load_all(block)]


def granted(kind: str = "ClusterRole") -> set[tuple[str, str, str]]:
    """Group, resource and verb of each right in the documented ClusterRole, or Role."""
    (role,) = (found for found in manifests("yaml rbac") if found["kind"] == kind)
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(path: str, verb: str) -> tuple[str, str, str] | None:
    """What a request needs; None for what everybody may ask, such as which groups there are."""
    match = re.fullmatch(r"/apis/([^/]+)/[^/]+/(?:namespaces/[^/]+/)?([^/]+)(?:/[^/]+)?", path)
    return (match[1], match[2], verb) if match else None


def test_slices_may_be_read_and_nothing_be_written() -> None:
    rights = granted()
    assert {right for right in rights if right[0] == "discovery.k8s.io"} == {
        ("discovery.k8s.io", "endpointslices", verb) for verb in ("get", "list", "watch")
    }
    assert {verb for *_, verb in rights} <= {"get", "list", "watch"}


def test_a_role_gives_what_the_cluster_role_gives_but_for_what_lies_in_no_namespace() -> None:
    assert granted("Role") == granted() - {("about.k8s.io", "clusterproperties", "get")}


def test_both_services_of_a_pool_are_exported_each_way() -> None:
    names = Names()
    pool = "llama-70b"
    exported = [(found["kind"], found["metadata"]["name"]) for found in manifests("yaml")]
    for kind in ("ServiceExport", "MultiClusterService"):
        assert [name for which, name in exported if which == kind] == [
            pool + names.relay_suffix,
            pool + names.frontend_suffix,
        ]


async def test_a_watcher_asks_for_nothing_beyond_the_documented_rights(tmp_path: Path) -> None:
    asked: set[tuple[str, str, str]] = set()
    for mode in ("mcs", "karmada"):
        more = [CLUSTERS, MULTI_CLUSTER_SERVICES] if mode == "karmada" else []
        async with ApiServer(resources=[SLICES, *more]) as server, watch(server, tmp_path, Rules(mode)) as watched:
            await watched.whole()
            await watched.until(lambda server=server: any(request.verb == "watch" for request in server.requests))
            asked |= {right for request in server.requests if (right := used(request.path, request.verb))}
    assert asked <= granted()
    assert ("discovery.k8s.io", "endpointslices", "watch") in asked
    assert ("networking.karmada.io", "multiclusterservices", "list") in asked
