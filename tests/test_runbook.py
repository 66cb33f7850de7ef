"""The runbook: a section for every alert, and commands, names and values that are those of program and chart."""

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from discovery import settings
from discovery.http import openapi
from discovery.metrics import Counters
from discovery.metrics.readings import REASONS
from tests.charts.engine import CHART, Engine
from tests.charts.rendered import Chart
from tests.documents import Block, read, rows, steps
from tests.test_docs import anchors, section

TEXT = read("docs/runbook.md")
RELEASE = {"name": "discovery", "namespace": "discovery"}
READERS: dict[str, Callable[[list[str], dict[str, str]], object]] = {
    "doctor": settings.read_doctor,
    "pools": settings.read_pools,
    "register": settings.read_register,
}
EVERYTHING: dict[str, Any] = {
    "metrics": {"prometheusRule": {"enabled": True}},
    "networkPolicy": {"enabled": True},
    "ingress": {"enabled": True, "hosts": [{"host": "discovery.example.com"}]},
}


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    engine = Engine()
    yield Chart(engine)
    engine.close()


@pytest.fixture(scope="module")
def alerts(chart: Chart) -> list[dict[str, Any]]:
    groups = chart.render(EVERYTHING, **RELEASE).one("PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def lines(word: str) -> list[list[str]]:
    """The words of each command in the blocks that are marked with a word."""
    blocks = [step for step in steps(TEXT) if isinstance(step, Block) and step.words == ("sh", word)]
    return [shlex.split(line) for block in blocks for line in block.text.splitlines()]


def in_code() -> list[str]:
    return re.findall(r"`([^`\n]+)`", TEXT)


# ---- sections


def test_every_alert_has_a_section_and_every_section_is_an_alerts(alerts: list[dict[str, Any]]) -> None:
    named = re.findall(r"^### (Discovery\w+)$", TEXT, re.MULTILINE)
    assert sorted(named) == sorted(alert["alert"] for alert in alerts)
    assert len({*named}) == len(named)


def test_every_alert_leads_to_its_section(alerts: list[dict[str, Any]]) -> None:
    for alert in alerts:
        path, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert path == "docs/runbook.md"
        assert anchor == alert["alert"].lower()
        assert anchor in anchors(TEXT)


def test_every_section_says_what_it_means_how_to_look_and_what_to_do(alerts: list[dict[str, Any]]) -> None:
    for alert in alerts:
        text = section(TEXT, alert["alert"])
        assert text.startswith("\n\n**Means:** "), alert["alert"]
        assert "**Look" in text, alert["alert"]
        assert "**Do:** " in text or "**Look and do:** " in text, alert["alert"]


def test_every_reason_is_explained() -> None:
    (table,) = [
        text for text in re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE) if text.startswith("| reason | what it means")
    ]
    assert {row[0].strip("`") for row in rows(table)} == {*REASONS}


def test_every_reason_of_a_refusal_is_explained() -> None:
    table = section(TEXT, "DiscoveryRegistrationsRefused").split("\n\n")[3]
    named = [reason for row in rows(table) for reason in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(Counters().registrations_refused.labels["reason"])


# ---- commands


def test_blocks_say_what_runs_them() -> None:
    assert TEXT.count("```") == 2 * sum(isinstance(step, Block) for step in steps(TEXT)), (
        "an indented block is not read"
    )
    kinds = {step.words for step in steps(TEXT) if isinstance(step, Block)}
    assert kinds <= {("sh", word) for word in ("kubectl", "http", "discovery", "redis", "helm")}


def test_the_programs_commands_are_read_by_the_program() -> None:
    inline = [shlex.split(code.replace("CLUSTER/", "c/")) for code in in_code() if code.startswith("discovery ")]
    commands = lines("discovery") + [words for words in inline if words[1] in READERS]
    assert len(commands) > 10
    for program, command, *words in commands:
        assert program == "discovery"
        READERS[command](words, {})


def test_urls_are_paths_of_the_service() -> None:
    paths = {*openapi.document()["paths"], "/"}
    asked = [word for words in lines("http") for word in words if word.startswith("http")]
    assert len(asked) > 10
    for url in asked:
        assert re.sub(r"^http://127\.0\.0\.1:808[01]", "", url) in paths, url


def test_what_helm_sets_is_taken_by_the_chart(chart: Chart) -> None:
    commands = lines("helm")
    assert commands
    for command in commands:
        given = [command[index + 1] for index, word in enumerate(command) if word == "--set"]
        assert given
        for text in given:
            values = chart.engine.ask("set_values", text=text)
            assert chart.render(values).text != chart.render().text


# Of others: the objects that people make, or that other programs bring.
OTHERS = {"certificates.cert-manager.io", "serviceimports", "secrets", "events", "endpointslices", "pods", "pod/POD"}


def test_kubectl_asks_for_objects_that_the_chart_makes(chart: Chart) -> None:
    done = chart.render(EVERYTHING, **RELEASE)
    known = {name.lower() for name in done.names()}
    kinds = {name.partition("/")[0] for name in known}
    for words in lines("kubectl"):
        assert words[0] == "kubectl"
        asked = [word for word in words[1:] if re.fullmatch(r"[a-z]+/[\w-]+", word)]
        assert {word for word in asked if word not in OTHERS} <= known, words
        if "get" in words:
            kind = words[words.index("get") + 1]
            assert kind in OTHERS or {*kind.split(",")} <= kinds, words


def test_kubectl_selects_pods_of_the_chart(chart: Chart) -> None:
    labels = chart.render(EVERYTHING, **RELEASE).deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [words[words.index("-l") + 1] for words in lines("kubectl") if "-l" in words]
    ours = [selector for selector in selectors if selector.startswith("app.kubernetes.io/")]
    assert ours
    for selector in ours:
        assert dict(pair.split("=") for pair in selector.split(",")).items() <= labels.items()
    assert {*selectors} - {*ours} == {
        "kubernetes.io/service-name=discovery",
        "multicluster.kubernetes.io/service-name=llama-70b-pool-relay",
    }


# ---- names


def test_metrics_that_are_named_exist() -> None:
    named = {name for code in in_code() for name in re.findall(r"discovery_[a-z_]+", code)}
    assert len(named) > 8
    assert named <= {metric.title for metric in Counters()}


def test_values_that_are_named_are_the_charts() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    roots = "|".join(defaults)
    named = {code.partition("=")[0] for code in in_code() if re.match(rf"(?:{roots})\.[a-zA-Z.]+(?:=|$)", code)}
    assert len(named) > 8
    for name in named:
        place: Any = defaults
        for key in name.split("."):
            if name.startswith("resources."):
                break  # below it everything is Kubernetes' own
            assert key in place, name
            place = place[key]


def test_flags_that_are_named_exist() -> None:
    known = {flag.name for command in ("serve", "pools", "register", "doctor") for flag in settings.flags(command)}
    named = {code.split("=")[0] for code in in_code() if re.fullmatch(r"--[a-z-]+(?:=\S+)?", code)}
    assert len(named) > 5
    assert named <= known
