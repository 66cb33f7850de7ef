"""The reader of PromQL, and the chart's alerts as it reads them; the dashboard has a module of its own."""

import pytest

from tests.charts.promql import faults
from tests.charts.rendered import Chart
from tests.charts.scraped import COUNTERS, GAUGES, TIMES
from tests.charts.test_alerts import groups_of


def alert_expressions(chart: Chart) -> dict[str, str]:
    return {rule["alert"]: rule["expr"] for group in groups_of(chart) for rule in group["rules"]}


def test_alerts_ask_for_what_the_program_shows(chart: Chart) -> None:
    found = alert_expressions(chart)
    assert len(found) > 20
    assert {name: wrong for name, expr in found.items() if (wrong := faults(expr))} == {}


def test_alerts_are_tried_with_series_that_the_program_shows() -> None:
    selected = [series.replace("{}", '{job="a"}') for series in (*GAUGES, *COUNTERS)]
    selected += [name.replace("{", "_bucket{") if "{" in name else f'{name}_bucket{{le="1"}}' for name in TIMES]
    assert [wrong for series in selected for wrong in faults(f"discovery_{series}")] == []


def test_what_is_wrong_is_noticed() -> None:
    assert faults('discovery_store_upp{job="a"} == 0') == ["no metric discovery_store_upp"]
    assert faults('discovery_store_up{watcher="a"} == 0') == ["discovery_store_up has no label watcher"]
    assert faults('discovery_pools{state="lsited"}') == ["discovery_pools has no state=lsited"]
    assert faults('sum by (state) (discovery_store_up{job="a"})') == ["no label state"]
    assert faults('rate(discovery_http_request_seconds_bucket{le="1", route="/pools"}[5m])') == []
    for unread in ("discovery_store_up == 0", 'summ(discovery_store_up{job="a"})', "{a=1}", "sum(discovery_pools{a})"):
        with pytest.raises(AssertionError):
            faults(unread)
