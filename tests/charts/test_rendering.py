"""Every case of the table renders to what a cluster takes, what fits together, and what the program accepts."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from discovery import settings
from tests.charts import consistency, pod_security, schemas
from tests.charts.cases import CASES
from tests.charts.engine import CHART, Engine
from tests.charts.program import AnySecret, program_of
from tests.charts.rendered import Chart, objects_of, pods_of

every_case = pytest.mark.parametrize("case", CASES)


def supported() -> list[str]:
    """The oldest version of Kubernetes that the chart wants, and the newest one with schemas."""
    (metadata,) = objects_of((CHART / "Chart.yaml").read_text())
    oldest = metadata["kubeVersion"].removeprefix(">=").removesuffix(".0-0")
    assert oldest in schemas.versions(), f"kubeVersion is {metadata['kubeVersion']}"
    return [oldest, schemas.versions()[-1]]


def test_lint_finds_nothing_to_warn_about(engine: Engine) -> None:
    for values in ("", "replicaCount: 1\nregistrationStorage: memory\n"):
        assert [found for found in engine.lint(values) if found["severity"] > 1] == []


@every_case
def test_objects_are_what_a_cluster_takes(chart: Chart, case: str) -> None:
    rendered = chart.render(CASES[case])
    found = {
        f"Kubernetes {version}, {each['kind']}/{each['metadata']['name']}": faults
        for version in supported()
        for each in (*rendered.objects, *rendered.hooks)
        if (faults := schemas.faults(each, version))
    }
    assert found == {}


@every_case
def test_objects_fit_each_other(chart: Chart, case: str) -> None:
    assert consistency.faults(chart.render(CASES[case])) == []


@every_case
def test_pods_pass_the_restricted_standard(chart: Chart, case: str) -> None:
    rendered = chart.render(CASES[case])
    templates = [pods for each in (*rendered.objects, *rendered.hooks) if (pods := pods_of(each))]
    assert len(templates) >= 1
    assert list(chain(*(pod_security.faults(each) for each in templates))) == []
    for container in chain(*(pod_security.containers_of(each["spec"]) for each in templates)):
        if container["name"] != "sidecar":
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


@every_case
def test_the_program_accepts_what_is_rendered(chart: Chart, case: str, tmp_path: Path) -> None:
    """Words, variables and files as the container has them."""
    program = program_of(chart.render(CASES[case]), tmp_path, AnySecret())
    assert program.words[:2] == ["discovery", "serve"]
    warnings = settings.read_serve(program.words[2:], program.variables).warnings
    assert not [each for each in warnings if "unknown" in each], warnings


def test_the_standard_refuses_what_it_should() -> None:
    """The rules themselves, on a pod that breaks every one of them."""
    container = {
        "name": "a",
        "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}, "procMount": "Unmasked"},
        "ports": [{"containerPort": 80, "hostPort": 80}],
    }
    spec: dict[str, Any] = {"hostNetwork": True, "containers": [container]}
    spec["volumes"] = [{"name": "v", "hostPath": {"path": "/"}}]
    found = pod_security.faults({"metadata": {}, "spec": spec | {"securityContext": {"runAsUser": 0}}})
    for words in ("hostNetwork", "volume v", "as root", "privileged", "escalate", "drop", "adds", "seccomp", "/proc"):
        assert any(words in fault for fault in found), words
    assert any("port of the host" in fault for fault in found)


# ---- the table holds every value


# Maps that are one value: what is in them is Kubernetes' own, and goes into objects as it is.
WHOLE = {
    ("autoscaling", "behavior"),
    ("ingress", "annotations"),
    ("metrics", "dashboard", "labels"),
    ("podSecurityContext",),
    ("redis", "embedded", "podSecurityContext"),
    ("redis", "embedded", "resources"),
    ("redis", "embedded", "securityContext"),
    ("resources",),
    ("securityContext",),
}


def leaves(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every value that is no map, or an empty or whole one."""
    if isinstance(values, dict) and values and path not in WHOLE:
        return list(chain(*(leaves(each, (*path, key)) for key, each in values.items())))
    return [path]


def at(values: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


def without(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The same values but one."""
    first, *rest = path
    if rest:
        return values | {first: without(values[first], tuple(rest))}
    return {key: each for key, each in values.items() if key != first}


def sets(values: Any, path: tuple[str, ...]) -> bool:
    """Whether values say something at a path, or about everything above it."""
    for key in path:
        if not isinstance(values, dict):
            return True
        if key not in values:
            return False
        values = values[key]
    return True


# A parent chart reads the first: test_values has the chart as a part of another. The second is what happens anyway, or
# refused: test_values has that too.
READ_ELSEWHERE = {("enabled",), ("redis", "embedded", "enabled")}


(DEFAULTS,) = objects_of((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_value_of_the_chart_changes_what_is_rendered(chart: Chart, name: str) -> None:
    """A value that no case sets is not tried; one that can be left out of every case without a difference is dead."""
    idle = []
    for path in leaves({name: DEFAULTS[name]}):
        cases = [values for values in CASES.values() if sets(values, path)]
        assert cases, f"no case sets {'.'.join(path)}"
        known = [values for values in cases if at_or_above(values, path)]
        if path not in READ_ELSEWHERE and not any(differs(chart, values, path) for values in known):
            idle.append(".".join(path))
    assert idle == []


def at_or_above(values: dict[str, Any], path: tuple[str, ...]) -> tuple[str, ...]:
    """The longest part of a path at which values say something."""
    for length in range(len(path), 0, -1):
        if sets(values, path[:length]):
            try:
                at(values, path[:length])
            except (KeyError, TypeError):
                continue
            return path[:length]
    return ()


def differs(chart: Chart, values: dict[str, Any], path: tuple[str, ...]) -> bool:
    return chart.outcome(values) != chart.outcome(without(values, at_or_above(values, path)))


def test_every_switch_is_turned_both_ways(chart: Chart) -> None:
    switches = [path for path in leaves(DEFAULTS) if isinstance(at(DEFAULTS, path), bool)]
    assert len(switches) > 15
    for path in switches:
        given = [at(values, path) for values in CASES.values() if at_or_above(values, path) == path]
        assert (not at(DEFAULTS, path)) in given, ".".join(path)
