"""The Grafana dashboard: whole, laid out without gaps that hide anything, and about metrics that there are."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.charts import promtool
from tests.charts.engine import Engine
from tests.charts.promql import faults, labels_of, parsed
from tests.charts.rendered import Chart

Panel = dict[str, Any]
WIDTH = 24
TYPES = {"row", "stat", "timeseries", "state-timeline"}
UNITS = {"short", "s", "bytes", "ops", "reqps", "percentunit"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

_values = re.compile(r"label_values\((?P<selector>[a-z_]+(?:\{[^}]*\})?), (?P<label>[a-z]+)\)")


@pytest.fixture(scope="module")
def dashboard(engine: Engine) -> Any:
    done = Chart(engine).render({"metrics": {"dashboard": {"enabled": True}}})
    return json.loads(done.one("ConfigMap", "dashboard")["data"]["discovery.json"])


@pytest.fixture(scope="module")
def panels(dashboard: Any) -> list[Panel]:
    found: list[Panel] = dashboard["panels"]
    assert not any(panel.get("panels") for panel in found), "a row that is closed would hide its panels"
    return found


def graphs(panels: list[Panel]) -> list[Panel]:
    return [panel for panel in panels if panel["type"] != "row"]


def test_it_says_what_grafana_needs(dashboard: Any, panels: list[Panel]) -> None:
    assert {"title", "uid", "schemaVersion", "version", "templating", "panels", "time", "refresh"} <= dashboard.keys()
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["type"] for panel in panels} == TYPES
    for panel in graphs(panels):
        assert panel["datasource"] == SOURCE, panel["title"]
        assert panel["fieldConfig"]["defaults"].get("unit", "short") in UNITS, panel["title"]
        targets = panel["targets"]
        assert targets, panel["title"]
        assert len({target["refId"] for target in targets}) == len(targets)
        assert all(target["datasource"] == SOURCE for target in targets), panel["title"]


def test_panels_lie_side_by_side_below_their_rows(panels: list[Panel]) -> None:
    assert panels[0]["type"] == "row"
    areas = {panel["title"]: panel["gridPos"] for panel in panels}
    assert len(areas) == len(panels), "two panels have one title"
    for title, area in areas.items():
        assert 0 <= area["x"] < area["x"] + area["w"] <= WIDTH, title
    for (title, one), (other, two) in combinations(areas.items(), 2):
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        below = one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
        assert beside or below, f"{title} lies on {other}"
    assert [area["y"] for area in areas.values()] == sorted(area["y"] for area in areas.values())


def test_several_deployments_are_told_apart(dashboard: Any, panels: list[Panel]) -> None:
    source, *variables = dashboard["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    assert [variable["name"] for variable in variables] == ["namespace", "job", "pod"]
    for variable in variables:
        found = _values.fullmatch(variable["query"]["query"])
        assert found is not None, variable["query"]
        assert found["label"] == variable["name"]
        selector = found["selector"] if "{" in found["selector"] else f"{found['selector']}{{}}"
        assert faults(selector) == []
        assert variable["definition"] == variable["query"]["query"]
        assert variable["datasource"] == SOURCE
        assert variable["multi"]
    chosen = {name: f"${name}" for name in ("namespace", "job", "pod")}
    for panel in graphs(panels):
        for target in panel["targets"]:
            for selector in parsed(target["expr"]).selectors:
                assert chosen.items() <= selector.matchers.items(), (panel["title"], selector.name)


def test_panels_ask_for_what_the_program_shows(panels: list[Panel]) -> None:
    asked = {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in graphs(panels) for target in panel["targets"]
    }
    assert len(asked) > 60
    assert {name: wrong for name, expr in asked.items() if (wrong := faults(expr))} == {}


def test_legends_name_labels_that_results_have(panels: list[Panel]) -> None:
    for panel in graphs(panels):
        for target in panel["targets"]:
            expression = parsed(target["expr"])
            kept = expression.labels or set().union(*(labels_of(each.name) for each in expression.selectors))
            if not expression.labels and re.match(r"(?:sum|max|min|count)\(", target["expr"]):
                kept = set()
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= kept, (panel["title"], target["legendFormat"])
            assert target["legendFormat"], panel["title"]


def test_every_metric_of_the_program_is_on_it(panels: list[Panel]) -> None:
    """But for those that are there to compute with."""
    from discovery.metrics import Counters

    shown = {
        selector.name
        for panel in graphs(panels)
        for target in panel["targets"]
        for selector in parsed(target["expr"]).selectors
    }
    missing = {metric.title for metric in Counters()} - {re.sub("_bucket$", "", name) for name in shown}
    assert missing == {
        "discovery_draining",
        "discovery_lease_duration_seconds",
        "discovery_lease_near_misses_total",
        "discovery_mass_losses_total",
        "discovery_members_changed_timestamp_seconds",
        "discovery_snapshot_fingerprint",
        "discovery_certificates_refused_total",
        "discovery_token_file_renewals_total",
    }


def test_prometheus_takes_every_query(panels: list[Panel], tmp_path: Path) -> None:
    queries = [target["expr"] for panel in graphs(panels) for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$[a-z]+", ".*", expr.replace("$__rate_interval", "5m"))}
        for number, expr in enumerate(queries)
    ]
    found = promtool.check([{"name": "dashboard", "rules": rules}], tmp_path)
    assert found.good, found.text
