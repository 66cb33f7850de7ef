"""Why a pool is or is not listed: each cause has its line, and what was seen goes before what may have been missed."""

import json
from typing import Any

import pytest

from discovery.listing.evidence import Evidence
from discovery.listing.explain import Explanation, explanation, misnamed_local, only_ready, only_registered
from discovery.mcs.names import Names
from discovery.mcs.slices import Notice
from discovery.registrations import parse
from tests.listing.sides import alone, evidence, folded, frontend, key, relay
from tests.mcs.shapes import MCS_SERVICE, RELAY, Manifest, imported, manifest

CLUSTER = "check that cluster_id is the pool's MCS cluster name"
LEASE = "(none came, or its lease is over)"


def ask(found: Evidence, text: str, *, listed: bool = False, frontends: int = 0) -> Explanation:
    return explanation(found, key(text), listed=listed, frontends=frontends)


POOL = "east-1/llm/llama"

REGISTERED: dict[str, tuple[str, list[str], list[Manifest], dict[str, Any], str]] = {
    "under another cluster's name": (
        "cluster_id",
        [],
        [relay("us-east-1/llm/llama")],
        {},
        f"{CLUSTER}: llama-pool-relay in llm is imported from 'us-east-1', and the pool {POOL} registered as 'east-1'",
    ),
    "in several clusters, the nearest first": (
        "cluster_id",
        [],
        [relay("ap-south-2/llm/llama"), relay("us-east-1/llm/llama")],
        {},
        f"{CLUSTER}: llama-pool-relay in llm is imported from 'us-east-1' (and 'ap-south-2'), and the pool {POOL} "
        "registered as 'east-1'",
    ),
    "nothing of that cluster, one is near": (
        "cluster_id",
        [],
        [relay("us-east-1/llm/other"), relay("ap-south-2/llm/other")],
        {},
        f"{CLUSTER}: nothing is imported from 'east-1', the nearest is 'us-east-1'; the registered pool {POOL} is not "
        "listed",
    ),
    "nothing of that cluster, none is near": (
        "cluster_id",
        [],
        [relay("tokyo/llm/other"), relay("oslo/llm/other")],
        {},
        f"{CLUSTER} and that llama-pool-relay is exported there: nothing is imported from 'east-1', known are 'oslo', "
        f"'tokyo'; the registered pool {POOL} is not listed",
    ),
    "of the local cluster, under another name": (
        "local_cluster_id",
        [],
        [relay("home/llm/llama")],
        {"local_cluster_ids": ["home"]},
        f"check cluster_id: this cluster's MCS name is 'home', and its pool {POOL} registered as 'east-1'",
    ),
    "in another namespace": (
        "namespace",
        [],
        [relay("east-1/lmm/llama")],
        {},
        "check namespace: llama-pool-relay of 'east-1' is imported in 'lmm', and the pool east-1/llm/llama registered "
        "in 'llm'",
    ),
    "under another name": (
        "dgd_name",
        [],
        [relay("east-1/llm/lama")],
        {},
        "check dgd_name: 'east-1' exports lama-pool-relay in llm, which nobody registered, and not llama-pool-relay; "
        "the registered pool east-1/llm/llama is not listed",
    ),
    "relay not exported": (
        "not_exported",
        [],
        [frontend(POOL), relay("east-1/llm/qwen-32b")],
        {},
        "check that llama-pool-relay in llm is exported by 'east-1': others of that cluster are imported, it is not; "
        "the registered pool east-1/llm/llama is not listed",
    ),
    "relay not exported, its name is another cluster's registered pool": (
        "not_exported",
        ["west-1/llm/llama"],
        [relay("west-1/llm/llama"), relay("east-1/llm/qwen-32b")],
        {},
        "check that llama-pool-relay in llm is exported by 'east-1': others of that cluster are imported, it is not; "
        "the registered pool east-1/llm/llama is not listed",
    ),
    "relay Services end otherwise": (
        "suffix",
        [],
        [imported("s", "llama-relay", "east-1", endpoints=["10.0.0.1"]), frontend(POOL)],
        {},
        "check --relay-service-suffix: Services of pools are imported, but none ends in '-pool-relay', or "
        "llama-pool-relay is not exported; the registered pool east-1/llm/llama is not listed",
    ),
    "several ports": (
        "unusable",
        [],
        [relay(POOL, ports=[RELAY, {"name": "metrics", "port": 9090}])],
        {},
        "Service llm/llama-pool-relay of cluster east-1 has several TCP ports (metrics 9090, relay 5561): choose one "
        "with --relay-port-name: so the registered pool east-1/llm/llama is not listed",
    ),
    "no ready relay": (
        "unusable",
        [],
        [relay(POOL, endpoints=[{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}])],
        {"troubles": ["a: the API server does not answer"]},
        "Service llm/llama-pool-relay of cluster east-1 has no ready endpoint (1 of 1 are not ready or terminating): "
        "so the registered pool east-1/llm/llama is not listed",
    ),
    "slices refused": (
        "refused",
        [],
        [manifest("llama-pool-relay-x1y2z", {MCS_SERVICE: "llama-pool-relay"}, endpoints=["10.0.0.1"])],
        {},
        "slices of Service llm/llama-pool-relay do not say which cluster they come from, for example EndpointSlice "
        "llm/llama-pool-relay-x1y2z: the MCS implementation must set the label "
        "multicluster.kubernetes.io/source-cluster: so the registered pool east-1/llm/llama is not listed",
    ),
    "a watcher fails": (
        "watcher",
        [],
        [relay("us-east-1/llm/other")],
        {"troubles": ["east: the API server at 10.0.0.9 does not answer"]},
        "east: the API server at 10.0.0.9 does not answer: so its slices may be missing, and the registered pool "
        "east-1/llm/llama is not listed",
    ),
    "its namespace is not watched": (
        "namespace",
        [],
        [relay("east-1/prod/qwen")],
        {"namespaces": {"staging", "prod"}, "troubles": ["east: the API server at 10.0.0.9 does not answer"]},
        "check --kube-namespace: 'llm' is not watched, only 'prod', 'staging'; the registered pool east-1/llm/llama is "
        "not listed",
    ),
    "its namespace is watched": (
        "watcher",
        [],
        [],
        {"namespaces": {"llm"}, "troubles": ["east: the API server at 10.0.0.9 does not answer"]},
        "east: the API server at 10.0.0.9 does not answer: so its slices may be missing, and the registered pool "
        "east-1/llm/llama is not listed",
    ),
    "a watcher fails, but the import under another name was seen": (
        "cluster_id",
        [],
        [relay("us-east-1/llm/llama")],
        {"troubles": ["east: the API server at 10.0.0.9 does not answer"]},
        f"{CLUSTER}: llama-pool-relay in llm is imported from 'us-east-1', and the pool {POOL} registered as 'east-1'",
    ),
    "nothing is imported at all": (
        "not_exported",
        [],
        [],
        {"warnings": ["plane: watch a member cluster"]},
        "check that Services are exported and imported at all: none of any pool is; the registered pool "
        "east-1/llm/llama is not listed (plane: watch a member cluster)",
    ),
}


@pytest.mark.parametrize(("cause", "others", "manifests", "more", "text"), REGISTERED.values(), ids=REGISTERED.keys())
def test_a_registered_pool_that_is_not_listed(
    cause: str, others: list[str], manifests: list[Manifest], more: dict[str, Any], text: str
) -> None:
    found = evidence([POOL, *others], manifests, **more)
    explained = ask(found, POOL)
    assert (explained.text, explained.cause) == (text, cause)
    assert (explained.listed, explained.registered, explained.ready) == (False, True, False)
    assert only_registered(found, key(POOL)) == text, "the warning says the same"


READY: dict[str, tuple[str, list[str], dict[str, Any], str]] = {
    "nobody registers it": (
        "not_registered",
        ["east-1/llm/qwen"],
        {},
        f"check that the relays of llama register here: the pool {POOL} is Ready, and no registration of it lives "
        f"{LEASE}",
    ),
    "registered under another cluster's name": (
        "cluster_id",
        ["east/llm/llama"],
        {},
        f"{CLUSTER}: the pool {POOL} is Ready, and registered as 'east'",
    ),
    "of the local cluster, registered under another name": (
        "local_cluster_id",
        ["east/llm/llama"],
        {"local_cluster_ids": ["east-1"]},
        f"check cluster_id: this cluster's MCS name is 'east-1', and its pool {POOL} registered as 'east'",
    ),
    "registered in another namespace": (
        "namespace",
        ["east-1/default/llama"],
        {},
        f"check namespace: the pool {POOL} is Ready, and registered in 'default'",
    ),
    "registered under another name": (
        "dgd_name",
        ["east-1/llm/llama2"],
        {},
        f"check dgd_name: the pool {POOL} is Ready, and registered as 'llama2'",
    ),
    "the store fails": (
        "store",
        [],
        {"store_trouble": "the store does not answer"},
        f"the store does not answer: so registrations may be missing, and the pool {POOL}, which is Ready, has none",
    ),
    "the store fails, but it was seen under another name": (
        "cluster_id",
        ["east/llm/llama"],
        {"store_trouble": "the store does not answer"},
        f"{CLUSTER}: the pool {POOL} is Ready, and registered as 'east'",
    ),
}


@pytest.mark.parametrize(("cause", "registered", "more", "text"), READY.values(), ids=READY.keys())
def test_a_ready_pool_without_registration(cause: str, registered: list[str], more: dict[str, Any], text: str) -> None:
    found = evidence(registered, [relay(POOL)], **more)
    explained = ask(found, POOL)
    assert (explained.text, explained.cause) == (text, cause)
    assert (explained.registered, explained.ready) == (False, True)
    assert only_ready(found, key(POOL)) == text


def test_a_pool_of_the_same_name_that_is_listed_elsewhere_is_no_mistake() -> None:
    found = evidence(["west-1/llm/llama"], [relay(POOL), relay("west-1/llm/llama")])
    assert ask(found, POOL).cause == "not_registered"
    found = evidence([POOL, "home/llm/llama"], [relay("home/llm/llama")], local_cluster_ids=["home"])
    assert misnamed_local(found, key(POOL)) is None


UNKNOWN: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "never heard of": (
        "tokyo/x/y",
        "unknown",
        {},
        f"nobody registered the pool tokyo/x/y {LEASE}, and no Service of it is imported",
    ),
    "a typo in the namespace": (
        "east-1/lm/llama",
        "namespace",
        {},
        f"check namespace, did you mean {POOL}? nobody registered the pool east-1/lm/llama {LEASE}, and no Service of "
        "it is imported",
    ),
    "a typo in the cluster": (
        "east1/llm/llama",
        "cluster_id",
        {},
        f"check cluster_id, did you mean {POOL}? nobody registered the pool east1/llm/llama {LEASE}, and no Service of "
        "it is imported",
    ),
    "a typo in the name": (
        "east-1/llm/lama",
        "dgd_name",
        {},
        f"check dgd_name, did you mean {POOL}? nobody registered the pool east-1/llm/lama {LEASE}, and no Service of "
        "it is imported",
    ),
    "while the store fails": (
        "tokyo/x/y",
        "store",
        {"store_trouble": "the store does not answer", "troubles": ["a watcher fails"]},
        "the store does not answer: so registrations may be missing; nobody registered the pool tokyo/x/y "
        f"{LEASE}, and no Service of it is imported",
    ),
    "while a watcher fails": (
        "tokyo/x/y",
        "watcher",
        {"troubles": ["east: no answer"]},
        f"east: no answer: so its slices may be missing; nobody registered the pool tokyo/x/y {LEASE}, and no Service "
        "of it is imported",
    ),
    "not registered, and its port is wrong too": (
        "east-1/llm/gemma",
        "unusable",
        {},
        "Service llm/gemma-pool-relay of cluster east-1 has no ready endpoint (1 of 1 are not ready or terminating); "
        "and no registration of the pool east-1/llm/gemma lives",
    ),
    "not registered, and refused": (
        "east-1/llm/phi",
        "refused",
        {"refused": [Notice("no_service", "llm", "x-phi-pool-relay-abcde", "EndpointSlice names no Service")]},
        "EndpointSlice names no Service; and no registration of the pool east-1/llm/phi lives",
    ),
}


@pytest.mark.parametrize(("asked", "cause", "more", "text"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_pool_of_which_neither_side_knows(asked: str, cause: str, more: dict[str, Any], text: str) -> None:
    unready = [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}]
    slices = folded(relay("east-1/llm/gemma", endpoints=unready))
    said = parse(json.dumps(key(POOL)._asdict() | {"model": "m"}).encode())
    explained = ask(Evidence({key(POOL): said}, slices.services(), Names(), **more), asked)
    assert (explained.text, explained.cause) == (text, cause)


LISTED: dict[str, tuple[str, list[Manifest], dict[str, Any], str]] = {
    "frontends not exported": (
        "no_frontends",
        [],
        {},
        f"check that llama-frontend is exported: the pool {POOL} is listed without frontends",
    ),
    "frontends have another port": (
        "no_frontends",
        [frontend(POOL, ports=[{"name": "web", "port": 80}])],
        {},
        "Service llm/llama-frontend of cluster east-1 has slices without a TCP port named http (found: web 80): name "
        "the Service's port so, or choose another with --frontend-port-name: the pool east-1/llm/llama is listed "
        "without frontends",
    ),
    "frontends refused": (
        "refused",
        [manifest("llama-frontend-a", {MCS_SERVICE: "llama-frontend"}, endpoints=["10.0.0.2"])],
        {},
        "slices of Service llm/llama-frontend do not say which cluster they come from, for example EndpointSlice "
        "llm/llama-frontend-a: the MCS implementation must set the label multicluster.kubernetes.io/source-cluster: "
        "the pool east-1/llm/llama is listed without frontends",
    ),
    "no frontends of any pool": (
        "suffix",
        [relay("east-1/llm/qwen")],
        {},
        "check --frontend-service-suffix: Services of pools are imported, but none ends in '-frontend': the pool "
        "east-1/llm/llama is listed without frontends",
    ),
    "a watcher fails": (
        "watcher",
        [],
        {"troubles": ["east: no answer"]},
        "east: no answer: the pool east-1/llm/llama is listed without frontends",
    ),
}


@pytest.mark.parametrize(("cause", "manifests", "more", "text"), LISTED.values(), ids=LISTED.keys())
def test_a_pool_that_is_listed_without_frontends(
    cause: str, manifests: list[Manifest], more: dict[str, Any], text: str
) -> None:
    explained = ask(evidence([POOL], [relay(POOL), *manifests], **more), POOL, listed=True)
    assert (explained.text, explained.cause) == (text, cause)


def test_a_pool_that_is_listed_as_it_should_be_and_what_each_side_says_of_it() -> None:
    found = evidence([POOL, "west/llm/llama"], [relay(POOL), frontend(POOL, endpoints=["10.0.0.2", "10.0.0.3"])])
    explained = ask(found, POOL, listed=True, frontends=2)
    assert (explained.text, explained.cause) == (f"the pool {POOL} is listed with 2 frontends", "listed")
    assert explained.facts == found.facts(key(POOL))
    assert ask(found, POOL, listed=True, frontends=1).text == f"the pool {POOL} is listed with 1 frontend"


def test_a_pool_that_both_sides_know_while_no_list_is_published() -> None:
    found = evidence([POOL], [relay(POOL)], troubles=["east: the slices have not been listed yet"])
    explained = ask(found, POOL)
    assert explained.cause == "not_published"
    assert explained.text == (
        f"no list that has it is published yet, east: the slices have not been listed yet: {POOL} is not listed"
    )


# ---- addresses that come with the registrations


@pytest.mark.parametrize(
    ("asked", "listed", "frontends", "more", "cause", "text"),
    [
        ("a/n/p", True, 1, {}, "listed", "the pool a/n/p is listed with 1 frontend"),
        (
            "a/n/p",
            True,
            0,
            {},
            "no_frontends",
            "check that its relays register the frontends too: the pool a/n/p is listed without frontends",
        ),
        (
            "a/n/twin",
            True,
            1,
            {},
            "shared_relay",
            "check the relay http://10.0.0.2:1: it is registered by 'a/n/other' too, and one address is one pool's; "
            "the pool a/n/twin is listed",
        ),
        (
            "a/n/p",
            False,
            0,
            {"store_trouble": "settling"},
            "not_published",
            "no list that has it is published yet, settling: a/n/p is not listed",
        ),
        ("x/y/z", False, 0, {}, "unknown", f"nobody registered the pool x/y/z {LEASE}"),
        ("a/m/p", False, 0, {}, "unknown", f"nobody registered the pool a/m/p {LEASE}"),
        (
            "a/n/twim",
            False,
            0,
            {},
            "dgd_name",
            f"check dgd_name, did you mean a/n/twin? nobody registered the pool a/n/twim {LEASE}",
        ),
        (
            "x/y/z",
            False,
            0,
            {"store_trouble": "settling"},
            "store",
            f"settling: so registrations may be missing; nobody registered the pool x/y/z {LEASE}",
        ),
    ],
)
def test_where_addresses_come_with_the_registrations(
    asked: str, listed: bool, frontends: int, more: dict[str, Any], cause: str, text: str
) -> None:
    found = alone(
        ("a/n/p", ["http://10.0.0.1:1"]),
        ("a/n/twin", ["http://10.0.0.2:1"]),
        ("a/n/other", ["http://10.0.0.2:1"]),
        **more,
    )
    explained = ask(found, asked, listed=listed, frontends=frontends)
    assert (explained.text, explained.cause, explained.ready) == (text, cause, None)


# ---- words


@pytest.mark.parametrize("table", [REGISTERED, READY])
def test_every_line_is_one_and_names_the_pool(table: dict[str, tuple[Any, ...]]) -> None:
    for *_, text in table.values():
        assert POOL in text
        assert "\n" not in text
