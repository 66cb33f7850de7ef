"""Every flag of ``discovery serve`` can be set through the chart, and arrives as it was given."""

import re

import pytest

from discovery import serve_settings, settings
from discovery.flags import declared
from tests.charts.cases import CASES, LARGE
from tests.charts.engine import CHART
from tests.charts.rendered import Chart, objects_of

FLAGS = {flag.field: flag for flag in declared(serve_settings.ServeSettings)}


def camel_case(field: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), field)


def test_the_cases_set_every_flag(chart: Chart) -> None:
    rendered = {name for values in CASES.values() for name in chart.render(values).variables}
    known = {flag.variable for flag in settings.flags("serve")}
    assert {name for name in rendered if name.startswith("DISCOVERY_")} == known


def test_the_values_of_config_are_flags_by_their_names() -> None:
    (defaults,) = objects_of((CHART / "values.yaml").read_text())
    assert {*defaults["config"]} <= {camel_case(field) for field in FLAGS}


@pytest.mark.parametrize("field", [field for field in FLAGS if camel_case(field) in LARGE["config"]])
def test_a_value_of_config_arrives_as_it_was_given(chart: Chart, field: str) -> None:
    text = chart.render(LARGE).variables[FLAGS[field].variable]
    assert FLAGS[field].kind.read(text) == LARGE["config"][camel_case(field)]


def test_the_program_keeps_its_own_defaults(chart: Chart) -> None:
    """Without values the chart says where to listen, what the store is and how to log, and leaves the rest."""
    given = chart.render().variables
    assert {name for name in given if name.startswith("DISCOVERY_")} == {
        "DISCOVERY_LISTEN",
        "DISCOVERY_LOG_FORMAT",
        "DISCOVERY_POOL_DISCOVERY",
        "DISCOVERY_REDIS_PASSWORD_PATH",
        "DISCOVERY_REDIS_URL",
        "DISCOVERY_REGISTRATION_STORAGE",
    }


def test_secrets_are_files_and_never_variables(chart: Chart) -> None:
    for name, values in CASES.items():
        container = chart.render(values).container
        assert not [each for each in container.get("env", ()) if "secretKeyRef" in each.get("valueFrom", {})], name
        assert not [each for each in container.get("envFrom", ()) if "secretRef" in each], name


def test_a_change_of_settings_makes_new_pods(chart: Chart) -> None:
    """A ConfigMap alone starts nothing anew: the pods carry its checksum."""
    old, new = (chart.render({"config": {"maxPools": number}}).deployment["spec"]["template"] for number in (5, 6))
    assert old["metadata"]["annotations"] != new["metadata"]["annotations"]
    assert old == chart.render({"config": {"maxPools": 5}}, revision=7).deployment["spec"]["template"]
