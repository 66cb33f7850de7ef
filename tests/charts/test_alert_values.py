"""What people change of the chart's alerts: whose series they look at, which there are, and what each says beside."""

from typing import Any

import pytest

from tests.charts.engine import Refused
from tests.charts.rendered import Chart


def rules(chart: Chart, *, others: dict[str, Any] | None = None, **values: Any) -> dict[str, dict[str, Any]]:
    """The chart's alerts by name."""
    given = {"metrics": {"prometheusRule": {"enabled": True, **values}, **(others or {})}}
    groups = chart.render(given).one("PrometheusRule")["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@pytest.mark.parametrize(
    ("others", "selector"),
    [
        ({}, 'namespace="prod"'),
        ({"serviceMonitor": {"enabled": True}}, 'namespace="prod", job="discovery"'),
        # The operator names the job of a PodMonitor after the monitor, that of a ServiceMonitor after the Service.
        ({"podMonitor": {"enabled": True}}, 'namespace="prod", job="prod/discovery"'),
        ({"podMonitor": {"enabled": True, "namespace": "mon"}}, 'namespace="prod", job="mon/discovery"'),
    ],
)
def test_alerts_look_at_what_the_charts_own_monitor_scrapes(
    chart: Chart, others: dict[str, Any], selector: str
) -> None:
    found = rules(chart, others=others)
    assert found["DiscoveryStoreDown"]["expr"] == f"discovery_store_up{{{selector}}} == 0"
    assert all(f"{{{selector}" in rule["expr"] for rule in found.values())


def test_the_health_port_is_scraped_through_a_service_of_its_own(chart: Chart) -> None:
    values = {
        "healthListen": {"enabled": True},
        "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    }
    done = chart.render(values)
    (service,) = [each for each in done.all("Service") if each["metadata"]["name"].endswith("-metrics")]
    assert f'job="{service["metadata"]["name"]}"' in done.one("PrometheusRule")["spec"]["groups"][0]["rules"][0]["expr"]


def test_a_selector_of_ones_own_wins(chart: Chart) -> None:
    found = rules(chart, others={"serviceMonitor": {"enabled": True}}, selector='app="discovery"')
    assert found["DiscoveryStoreDown"]["expr"] == 'discovery_store_up{app="discovery"} == 0'


def test_several_clusters_behind_one_prometheus_are_told_apart(chart: Chart) -> None:
    found = rules(chart, groupBy=["cluster", "namespace", "job"])
    assert "max by (cluster, namespace, job) (discovery_pools" in found["DiscoveryNothingListed"]["expr"]


def test_alerts_are_left_out_by_name(chart: Chart) -> None:
    every, without = rules(chart), rules(chart, disabled=["DiscoveryStoreSlow", "DiscoveryAbsent"])
    assert {*every} - {*without} == {"DiscoveryStoreSlow", "DiscoveryAbsent"}


def test_a_group_without_alerts_is_no_group(chart: Chart) -> None:
    watchers = ["DiscoveryWatcherFailing", "DiscoveryWatcherUnsteady"]
    done = chart.render({"metrics": {"prometheusRule": {"enabled": True, "disabled": watchers}}})
    names = [group["name"] for group in done.one("PrometheusRule")["spec"]["groups"]]
    assert "discovery.lists" in names
    assert "discovery.watchers" not in names


def test_the_name_of_no_alert_is_refused(chart: Chart) -> None:
    with pytest.raises(Refused, match="disabled names no alert of this chart: DiscoveryStoreSlwo"):
        rules(chart, disabled=["DiscoveryStoreSlow", "DiscoveryStoreSlwo"])


def test_labels_of_ones_own_win(chart: Chart) -> None:
    (labels,) = {tuple(rule["labels"].items()) for rule in rules(chart, alertLabels={"severity": "page"}).values()}
    assert labels == (("severity", "page"),)


def test_the_runbook_is_where_the_values_say(chart: Chart) -> None:
    found = rules(chart, runbookUrl="https://example.com/runbook")
    assert found["DiscoveryAbsent"]["annotations"]["runbook_url"] == "https://example.com/runbook#discoveryabsent"


def test_the_replicas_that_must_be_ready_are_those_that_there_always_are(chart: Chart) -> None:
    values = {
        "autoscaling": {"enabled": True, "minReplicas": 4},
        "metrics": {"prometheusRule": {"enabled": True}},
    }
    groups = chart.render(values).one("PrometheusRule")["spec"]["groups"]
    (missing,) = [rule for group in groups for rule in group["rules"] if rule["alert"] == "DiscoveryReplicasMissing"]
    assert missing["expr"].endswith(" < 4")


@pytest.mark.parametrize(
    "thresholds",
    [{"storeDownFor": "soon"}, {"storeDownFor": 60}, {"limitShare": 90}, {"lagSecs": "1s"}, {"storeDown": "1m"}],
)
def test_a_threshold_of_another_kind_is_refused_by_name(chart: Chart, thresholds: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=next(iter(thresholds))):
        rules(chart, thresholds=thresholds)


def test_every_word_of_the_rules_is_filled_in(chart: Chart) -> None:
    assert not [name for name, rule in rules(chart).items() if "__" in str(rule)]
