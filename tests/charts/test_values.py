"""What the chart refuses, with which words; and the chart as a part of another."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.cases import SENTINELS, TLS
from tests.charts.engine import CHART, Engine, Refused
from tests.charts.rendered import Chart, Object, as_rendered, objects_of


def refusal(chart: Chart, values: dict[str, Any] | str) -> str:
    with pytest.raises(Refused) as refused:
        chart.render(values)
    return str(refused.value)


# ---- typos and wrong types


def maps(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every map in the values whose keys the chart itself names."""
    if not isinstance(values, dict) or not values:
        return []
    return [path, *(inner for key, each in values.items() for inner in maps(each, (*path, key)))]


# Maps that go into objects as they are, with keys of Kubernetes or of the user: their own schema judges those.
FREE = {
    ("global",),
    ("httpRoute", "timeouts"),
    ("ingress", "annotations"),
    ("metrics", "dashboard", "labels"),
    ("podSecurityContext",),
    ("redis", "embedded", "podSecurityContext"),
    ("redis", "embedded", "securityContext"),
    ("securityContext",),
}
FREE_BELOW = {
    ("autoscaling", "behavior"),
    ("podSecurityContext",),
    ("redis", "embedded", "podSecurityContext"),
    ("redis", "embedded", "resources"),
    ("redis", "embedded", "securityContext"),
    ("resources",),
    ("securityContext",),
}


def named_maps() -> list[tuple[str, ...]]:
    (defaults,) = objects_of((CHART / "values.yaml").read_text())
    return [
        path
        for path in maps(defaults)
        if path not in FREE and not any(path[: len(free)] == free for free in FREE_BELOW)
    ]


def placed(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


@pytest.mark.parametrize("path", named_maps(), ids=".".join)
def test_a_typo_is_refused_with_its_name(chart: Chart, path: tuple[str, ...]) -> None:
    text = refusal(chart, placed((*path, "replicaCuont"), 1))
    assert "'replicaCuont'" in text
    assert f"'/{'/'.join(path)}'" in text or not path


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"replicaCount": "two"}, "replicaCount"),
        ({"replicaCount": 1.5}, "replicaCount"),
        ({"replicaCount": -1}, "replicaCount"),
        ({"poolDiscovery": "MCS"}, "poolDiscovery"),
        ({"registrationStorage": "etcd"}, "registrationStorage"),
        ({"image": {"digest": "latest"}}, "image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "image/pullPolicy"),
        ({"service": {"port": 0}}, "service/port"),
        ({"service": {"port": 65536}}, "service/port"),
        ({"service": {"type": "ExternalName"}}, "service/type"),
        ({"service": {"ipFamilies": ["IPv5"]}}, "service/ipFamilies"),
        ({"config": {"logLevel": "verbose"}}, "config/logLevel"),
        ({"config": {"maxBodyBytes": 1073741825}}, "config/maxBodyBytes"),
        ({"config": {"maxBodyBytes": 0}}, "config/maxBodyBytes"),
        ({"config": {"maxPools": 1.5}}, "config/maxPools"),
        ({"config": {"leaseDurationSecs": 86401}}, "config/leaseDurationSecs"),
        ({"config": {"leaseDurationSecs": 0}}, "config/leaseDurationSecs"),
        ({"config": {"storeTimeoutMs": 86400000}}, "config/storeTimeoutMs"),
        ({"config": {"rateLimit": True}}, "config/rateLimit"),
        ({"redis": {"prefix": "a b"}}, "redis/prefix"),
        ({"redis": "redis://redis"}, "redis"),
        ({"tls": {"enabled": "yes"}}, "tls/enabled"),
        ({"resources": {"limit": {}}}, "resources"),
        ({"extraEnv": {"A": "b"}}, "extraEnv"),
        ({"imagePullSecrets": "mirror"}, "imagePullSecrets"),
        ({"router": {"static": [{"id": "a", "uri": "http://a"}]}}, "router/static"),
    ],
)
def test_a_wrong_type_is_refused_with_its_name(chart: Chart, values: dict[str, Any], name: str) -> None:
    assert f"'/{name}" in refusal(chart, values)


# ---- what contradicts itself


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"registrationStorage": "memory"}, ["replicaCount=1", "registrationStorage=redis", "each replica"]),
        (
            {"registrationStorage": "memory", "replicaCount": 1, "autoscaling": {"enabled": True}},
            ["autoscaling.maxReplicas", "autoscaling.enabled=false"],
        ),
        ({"registrationStorage": "dynamodb"}, ["dynamodb.table"]),
        ({"dynamodb": {"table": "pools"}}, ["dynamodb.table", "registrationStorage dynamodb"]),
        (
            {"registrationStorage": "memory", "replicaCount": 1, "redis": {"url": "redis://redis"}},
            ["redis.url", "registrationStorage redis"],
        ),
        ({"redis": {"url": "http://redis"}}, ["redis.url", "redis://host:6379/0"]),
        ({"redis": {"embedded": {"enabled": False}}}, ["redis.url", "redis.embedded.enabled=true"]),
        ({"redis": {"url": "redis://redis", "embedded": {"enabled": True}}}, ["redis.embedded.enabled", "redis.url"]),
        ({"redis": {"existingSecret": "redis"}}, ["redis.existingSecret", "redis.url"]),
        ({"redis": {"url": "redis://redis", "existingSecret": "r", "caKey": "ca.crt"}}, ["redis.caKey", "rediss://"]),
        ({"redis": {"url": "rediss://redis", "existingSecret": "r", "certKey": "tls.crt"}}, ["redis.keyKey", "both"]),
        ({"redis": {"url": "rediss://redis", "caKey": "ca.crt"}}, ["redis.existingSecret"]),
        ({"redis": {"url": SENTINELS, "sentinel": {"user": "a"}}}, ["redis.sentinel.existingSecret"]),
        ({"redis": {"url": "redis://redis", "sentinel": {"existingSecret": "a"}}}, ["redis+sentinel://"]),
        ({"mcs": {"localClusterId": "a"}}, ["mcs.localClusterId", "poolDiscovery mcs or karmada"]),
        ({"karmada": {"kubeconfigSecret": "a"}}, ["karmada.kubeconfigSecret", "poolDiscovery mcs or karmada"]),
        ({"poolDiscovery": "karmada", "karmada": {"contexts": ["a"]}}, ["karmada.contexts", "kubeconfigSecret"]),
        (
            {"poolDiscovery": "mcs", "router": {"static": [{"id": "a", "url": "http://a:1"}]}},
            ["router.static", "poolDiscovery registrations"],
        ),
        ({"poolDiscovery": "mcs", "router": {"service": "a"}}, ["router.namespace", "router.service"]),
        (
            {"router": {"static": [{"id": "a", "url": "http://a:1"}, {"id": "a", "url": "http://b:1"}]}},
            ["router.static", "twice"],
        ),
        (
            {"poolDiscovery": "mcs", "mcs": {"relayServiceSuffix": "-a", "frontendServiceSuffix": "-b-a"}},
            ["mcs.relayServiceSuffix", "mcs.frontendServiceSuffix"],
        ),
        ({"config": {"leaseDurationSecs": 5}}, ["config.leaseDurationSecs", "config.heartbeatIntervalSecs"]),
        ({"config": {"maxPools": "10000001"}}, ["config.maxPools", "10000000"]),
        ({"tls": {"enabled": True}}, ["tls.existingSecret"]),
        ({"tls": {"existingSecret": "a"}}, ["tls.enabled=true"]),
        ({"tls": TLS | {"clientCaSecret": "a"}, "healthListen": {"enabled": False}}, ["healthListen.enabled=true"]),
        ({"healthListen": {"enabled": True, "port": 8080}}, ["healthListen.port", "listen.port"]),
        ({"ingress": {"enabled": True}}, ["ingress.hosts"]),
        ({"httpRoute": {"enabled": True}}, ["httpRoute.parentRefs"]),
        ({"service": {"ipFamilies": ["IPv6", "IPv4"]}}, ["service.ipFamilyPolicy"]),
        ({"service": {"nodePort": 30080}}, ["service.nodePort", "NodePort"]),
        ({"autoscaling": {"enabled": True, "minReplicas": 9}}, ["autoscaling.minReplicas", "autoscaling.maxReplicas"]),
        ({"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": 1}}, ["minAvailable", "maxUnavailable"]),
        ({"podDisruptionBudget": {"minAvailable": "100%"}}, ["podDisruptionBudget.minAvailable", "drained"]),
        ({"podDisruptionBudget": {"maxUnavailable": 0}}, ["podDisruptionBudget.maxUnavailable", "drained"]),
        ({"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}}, ["scraped twice"]),
        ({"fullnameOverride": "1st"}, ["fullnameOverride"]),
    ],
)
def test_a_contradiction_is_refused_with_what_to_do(chart: Chart, values: dict[str, Any], words: list[str]) -> None:
    text = refusal(chart, values)
    assert [word for word in words if word not in text] == [], text


def test_all_contradictions_are_said_together(chart: Chart) -> None:
    text = refusal(chart, {"registrationStorage": "memory", "tls": {"enabled": True}, "ingress": {"enabled": True}})
    assert text.count("\n- ") == 3


@pytest.mark.parametrize(
    "url", ["redis://:s3cret@redis", "redis://user:s3cret@redis:6379/0", "redis://r?password=s3cret"]
)
def test_a_password_in_the_url_of_redis_is_refused_and_never_repeated(chart: Chart, url: str) -> None:
    text = refusal(chart, {"redis": {"url": url}})
    assert "redis.existingSecret" in text
    assert "s3cret" not in text


# ---- values that are there and empty


def test_no_values_and_empty_values_are_the_same(chart: Chart) -> None:
    assert chart.render("").stable == chart.render("{}").stable
    empty = (
        "redis:\n  url:\n  existingSecret: ''\nconfig:\n  maxPools:\n  corsOrigin: ''\nextraEnv:\ncommonLabels: {}\n"
    )
    assert chart.render(empty).stable == chart.render("redis: {embedded: {}}").stable


def test_whole_maps_can_be_emptied(chart: Chart) -> None:
    """``null`` takes the default away; what is rendered has no key without a value."""
    values: dict[str, None] = dict.fromkeys(("resources", "podSecurityContext", "securityContext", "affinity"))
    container = chart.render(values).container
    assert "resources" not in container
    assert "securityContext" not in container


# ---- other versions, and other charts around this one


def test_a_new_version_of_the_chart_alone_keeps_the_pods(chart: Chart, engine: Engine, tmp_path: Path) -> None:
    """An upgrade without a change of what is in the pods restarts none."""
    folder = shutil.copytree(CHART, tmp_path / "discovery")
    text = (folder / "Chart.yaml").read_text()
    (folder / "Chart.yaml").write_text(re.sub(r"(?m)^version: .*$", "version: 99.0.0", text))
    values = "redis: {url: 'redis://redis'}"
    newer = as_rendered(engine.render(values, chart=folder))
    assert "discovery-99.0.0" in newer.text
    assert newer.deployment["spec"]["template"] == chart.render(values).deployment["spec"]["template"]


def parent_of(folder: Path, values: str) -> Path:
    """A chart that has this one as a dependency, as a copy in ``charts/``."""
    shutil.copytree(CHART, folder / "charts" / "discovery")
    dependency = {"name": "discovery", "version": "*", "condition": "discovery.enabled"}
    metadata = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(metadata))
    (folder / "values.yaml").write_text(values)
    return folder


def subchart(engine: Engine, folder: Path, values: str) -> list[Object]:
    rendered = as_rendered(engine.render("", chart=parent_of(folder, values), name="platform"))
    return list(rendered.objects)


def test_it_works_as_a_subchart(engine: Engine, tmp_path: Path) -> None:
    values = """
global: {imageRegistry: mirror.example.com, imagePullSecrets: [mirror], other: {of: the parent}}
discovery: {enabled: true, redis: {url: "redis://redis"}}
"""
    objects = subchart(engine, tmp_path / "platform", values)
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    assert deployment["metadata"]["name"] == "platform-discovery"
    pod = deployment["spec"]["template"]["spec"]
    assert re.fullmatch(r"mirror\.example\.com/discovery:[0-9.]+", pod["containers"][0]["image"])
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]


def test_it_can_be_switched_off_as_a_subchart(engine: Engine, tmp_path: Path) -> None:
    assert subchart(engine, tmp_path / "platform", "discovery: {enabled: false}") == []


def test_a_typo_is_refused_as_a_subchart_too(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="'replicaCuont'"):
        subchart(engine, tmp_path / "platform", "discovery: {replicaCuont: 2}")
