"""Faults of charts that the field knows: F48 to F51; and what the rollout of a service with streams needs."""

import math
import re
from typing import Any

import pytest

from discovery.serve_settings import ServeSettings
from tests.charts.cases import CASES, DIGEST, LARGE
from tests.charts.consistency import faults, pods_selected, selects
from tests.charts.engine import CHART
from tests.charts.pod_security import containers_of
from tests.charts.rendered import Chart, objects_of, pods_of

SCIENTIFIC = re.compile(r"[0-9]e\+?[0-9]")

# ---- F48: large integers


def test_f48_large_integers_of_a_values_file_are_plain_digits(chart: Chart) -> None:
    rendered = chart.render(LARGE)
    assert SCIENTIFIC.findall(rendered.stable) == []
    variables = rendered.variables
    assert variables["DISCOVERY_MAX_BODY_BYTES"] == "1073741824"
    assert variables["DISCOVERY_MAX_HEADER_BYTES"] == "1048576"
    assert variables["DISCOVERY_MAX_POOLS"] == "10000000"


def numbers(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(values, dict):
        return [found for key, each in values.items() for found in numbers(each, (*path, key))]
    return [path] if isinstance(values, int) and not isinstance(values, bool) else []


@pytest.mark.parametrize("name", [path[0] for path in numbers(LARGE["config"])])
def test_f48_numbers_in_quotes_are_the_same_numbers(chart: Chart, name: str) -> None:
    others = {"heartbeatIntervalSecs": 5, "leaseDurationSecs": 86400}
    bare, quoted = (
        chart.render({"config": others | {name: kind(LARGE["config"][name])}}).variables for kind in (int, str)
    )
    assert bare == quoted


def test_f48_every_number_of_the_chart_is_plain_digits_or_out_of_range(chart: Chart) -> None:
    (defaults,) = objects_of((CHART / "values.yaml").read_text())
    paths = numbers(defaults)
    assert len(paths) > 10
    for path in paths:
        for number in (1048576, 86400000):
            value: Any = number
            for key in reversed(path):
                value = {key: value}
            if path[0] == "autoscaling":
                value["autoscaling"]["enabled"] = True
            if path[0] == "metrics":
                value["metrics"][path[1]]["enabled"] = True
            text = chart.outcome(value)
            if text.startswith("refused"):  # out of the range that the schema or the rules name
                assert path[-1] in text, path
                continue
            assert SCIENTIFIC.findall(text) == [], path
            assert str(number) in text, path


def test_f48_a_tag_of_digits_alone_stays_as_it_is(chart: Chart) -> None:
    assert chart.render("image: {tag: 20261130}").container["image"] == "discovery:20261130"


# ---- F49: the disruption budget


@pytest.mark.parametrize("values", [{"replicaCount": 1}, {"autoscaling": {"enabled": True, "minReplicas": 1}}])
def test_f49_one_replica_can_always_be_drained(chart: Chart, values: dict[str, Any]) -> None:
    assert chart.render(values).all("PodDisruptionBudget") == []


@pytest.mark.parametrize("replicas", [2, 3, 7])
def test_f49_of_several_replicas_exactly_one_may_go_at_a_time(chart: Chart, replicas: int) -> None:
    rendered = chart.render({"replicaCount": replicas})
    budget = rendered.one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    labels = rendered.deployment["spec"]["template"]["metadata"]["labels"]
    assert selects(budget["selector"], labels)
    assert pods_selected(budget["selector"], rendered) == [rendered.deployment["spec"]["template"]]


def test_f49_no_case_has_a_budget_that_lets_nobody_go(chart: Chart) -> None:
    for case, values in CASES.items():
        rendered = chart.render(values)
        for budget in rendered.all("PodDisruptionBudget"):
            scaler = rendered.all("HorizontalPodAutoscaler")
            fewest = scaler[0]["spec"]["minReplicas"] if scaler else rendered.deployment["spec"]["replicas"]
            assert amount(budget["spec"].get("minAvailable", 0), fewest) < fewest, case
            assert amount(budget["spec"].get("maxUnavailable", 1), fewest) > 0, case


def amount(given: int | str, of: int) -> int:
    return given if isinstance(given, int) else math.ceil(int(given.removesuffix("%")) * of / 100)


# ---- F50: probes


def test_f50_liveness_asks_the_process_alone_and_readiness_the_first_list(chart: Chart) -> None:
    wanted = {"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"}
    for case, values in CASES.items():
        container = chart.render(values).container
        assert {name: container[name]["httpGet"]["path"] for name in wanted} == wanted, case


def test_f50_a_slow_process_is_not_killed_at_its_start(chart: Chart) -> None:
    probe = chart.render().container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60
    liveness = chart.render().container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 30


@pytest.mark.parametrize(("case", "port", "scheme"), [("https", "http", "HTTPS"), ("health apart", "health", "HTTP")])
def test_f50_probes_ask_where_they_are_answered(chart: Chart, case: str, port: str, scheme: str) -> None:
    probe = chart.render(CASES[case]).container["readinessProbe"]["httpGet"]
    assert (probe["port"], probe["scheme"]) == (port, scheme)


def test_f50_probes_need_no_certificate(chart: Chart) -> None:
    """Where clients must show one, probes ask the port that wants none."""
    rendered = chart.render(CASES["https for known clients"])
    assert rendered.container["livenessProbe"]["httpGet"]["port"] == "health"
    assert rendered.variables["DISCOVERY_HEALTH_LISTEN"] == "0.0.0.0:8081"


# ---- F51: user ids and the root file system


def test_f51_no_user_is_fixed_for_the_service(chart: Chart) -> None:
    """A platform that gives each namespace its own range of ids refuses a fixed one; the image has its own."""
    for context in (chart.render().pod["securityContext"], chart.render().container["securityContext"]):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & {*context}


def test_f51_ids_can_be_removed_everywhere(chart: Chart) -> None:
    rendered = chart.render(CASES["openshift"])
    assert re.findall(r"runAsUser|runAsGroup|fsGroup", rendered.text) == []
    assert rendered.all("StatefulSet")


@pytest.mark.parametrize("case", ["nothing given", "redis by url", "mcs", "dynamodb"])
def test_f51_the_service_has_nowhere_to_write(chart: Chart, case: str) -> None:
    rendered = chart.render(CASES[case])
    assert rendered.container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not [volume for volume in rendered.pod.get("volumes", ()) if "secret" not in volume]


# ---- rollouts


def test_a_rollout_takes_no_replica_away_before_the_next_is_ready(chart: Chart) -> None:
    for case, values in CASES.items():
        strategy = chart.render(values).deployment["spec"]["strategy"]["rollingUpdate"]
        assert strategy["maxUnavailable"] == 0 < strategy["maxSurge"], case


@pytest.mark.parametrize(("drain", "grace"), [(None, None), (30, 120), (0, 0), (0.5, 0.25), (3600, 3600)])
def test_a_pod_has_the_time_that_it_takes_to_drain(chart: Chart, drain: float | None, grace: float | None) -> None:
    rendered = chart.render({"config": {"drainDelaySecs": drain, "shutdownGraceSecs": grace}})
    defaults = ServeSettings()
    needed = (defaults.drain_delay_secs if drain is None else drain) + (
        defaults.shutdown_grace_secs if grace is None else grace
    )
    assert needed + 1 <= rendered.pod["terminationGracePeriodSeconds"] <= needed + 30


def test_the_number_of_replicas_is_left_to_the_autoscaler(chart: Chart) -> None:
    assert "replicas" not in chart.render(CASES["autoscaling"]).deployment["spec"]
    assert chart.render().deployment["spec"]["replicas"] == 2


def test_variables_of_services_do_not_reach_the_pod(chart: Chart) -> None:
    """A Service called discovery would set ``DISCOVERY_PORT=tcp://…``."""
    assert [case for case, values in CASES.items() if chart.render(values).pod["enableServiceLinks"]] == []


# ---- rights


@pytest.mark.parametrize("case", ["nothing given", "memory", "routers by hand", "karmada", "mcs of other clusters"])
def test_who_watches_nothing_with_its_own_account_has_no_rights_and_no_token(chart: Chart, case: str) -> None:
    rendered = chart.render(CASES[case])
    assert rendered.pod["automountServiceAccountToken"] is False
    for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
        assert rendered.all(kind) == []


def test_who_watches_reads_endpoint_slices_and_writes_nothing(chart: Chart) -> None:
    rendered = chart.render(CASES["mcs"])
    assert rendered.pod["automountServiceAccountToken"] is True
    rules = [rule for each in rendered.all("ClusterRole") for rule in each["rules"]]
    assert {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]} in [
        rule | {"verbs": sorted(set(rule["verbs"]) - {"get"})} for rule in rules
    ]
    assert {verb for rule in rules for verb in rule["verbs"]} <= {"get", "list", "watch"}
    assert "*" not in {name for rule in rules for name in (*rule["apiGroups"], *rule["resources"])}


def test_roles_in_namespaces_take_the_place_of_the_cluster_role(chart: Chart) -> None:
    rendered = chart.render(CASES["mcs with roles"])
    assert rendered.all("ClusterRole") == rendered.all("ClusterRoleBinding") == []
    assert {each["metadata"]["namespace"] for each in rendered.all("Role")} == {"prod", "staging"}
    assert all(each["subjects"][0]["namespace"] == "prod" for each in rendered.all("RoleBinding"))
    assert rendered.variables["DISCOVERY_KUBE_NAMESPACE"] == "prod staging"


def test_the_namespaces_with_roles_are_those_that_are_watched(chart: Chart) -> None:
    """Its own by default, and that of the routers, which the program wants among them."""
    values = {"poolDiscovery": "karmada", "rbac": {"namespaced": True}}
    for more, expected in (
        ({}, ["prod"]),
        ({"router": {"namespace": "global", "service": "router"}}, ["prod", "global"]),
        ({"router": {"namespace": "prod", "service": "router"}}, ["prod"]),
    ):
        rendered = chart.render(values | more)
        assert [each["metadata"]["namespace"] for each in rendered.all("Role")] == expected
        assert rendered.variables["DISCOVERY_KUBE_NAMESPACE"] == " ".join(expected)
        assert ["karmada.io" in str(each["rules"]) for each in rendered.all("Role")] == [True] * len(expected)
    assert "DISCOVERY_KUBE_NAMESPACE" not in chart.render({"rbac": {"namespaced": True}}).variables
    assert "DISCOVERY_KUBE_NAMESPACE" not in chart.render(CASES["mcs"]).variables


# ---- addresses of one and of both families


@pytest.mark.parametrize(
    ("case", "host"),
    [("nothing given", "0.0.0.0"), ("ipv6 only", "[::]"), ("dual stack", "[::]")],
)
def test_pods_listen_where_the_service_leads(chart: Chart, case: str, host: str) -> None:
    rendered = chart.render(CASES[case])
    assert rendered.variables["DISCOVERY_LISTEN"] == f"{host}:8080"


# ---- streams through proxies


def test_an_ingress_neither_buffers_nor_cuts_streams(chart: Chart) -> None:
    annotations = chart.render(CASES["ingress for one host"]).one("Ingress")["metadata"]["annotations"]
    nginx = "nginx.ingress.kubernetes.io/"
    assert annotations[f"{nginx}proxy-buffering"] == "off"
    assert int(annotations[f"{nginx}proxy-read-timeout"]) >= 600


def test_a_route_does_not_cut_streams(chart: Chart) -> None:
    values = {"httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}
    (rule,) = chart.render(values).one("HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}


# ---- Redis


def test_a_redis_of_ones_own_brings_none(chart: Chart) -> None:
    assert chart.render(CASES["redis by url"]).all("StatefulSet") == []
    assert chart.render().one("StatefulSet")["spec"]["replicas"] == 1


def test_the_notes_warn_that_the_redis_of_the_chart_is_one_pod(chart: Chart) -> None:
    assert re.search(r"one pod|single", chart.render().notes)
    assert not re.search(r"one pod|trial", chart.render(CASES["redis by url"]).notes)


def test_passwords_stand_in_secrets_alone(chart: Chart) -> None:
    rendered = chart.render(CASES["own redis"])
    for each in rendered.objects:
        assert each["kind"] == "Secret" or "s3cret" not in str(each), each["kind"]
    assert "s3cret" not in rendered.notes


# ---- what goes for every object


def test_all_images_come_from_the_global_registry_with_its_secrets(chart: Chart) -> None:
    rendered = chart.render(CASES["images"])
    pods = [pods["spec"] for each in (*rendered.objects, *rendered.hooks) if (pods := pods_of(each))]
    assert len(pods) == 3, "the service, its Redis, and the test"
    for spec in pods:
        assert {each["name"] for each in spec["imagePullSecrets"]} == {"mirror", "of-the-team"}
        assert all(each["image"].startswith("mirror.example.com/") for each in containers_of(spec))


def test_a_digest_wins_over_a_tag(chart: Chart) -> None:
    image = {"image": {"tag": "1.2.3", "digest": DIGEST}}
    assert chart.render(image).container["image"] == f"discovery@{DIGEST}"


def test_every_object_has_the_common_labels_and_annotations(chart: Chart) -> None:
    rendered = chart.render(CASES["labels and annotations"])
    for each in (*rendered.objects, *rendered.hooks):
        assert each["metadata"]["labels"]["example.com/team"] == "routing", each["kind"]
        assert each["metadata"]["annotations"]["example.com/contact"] == "routing@example.com", each["kind"]
    selector = rendered.deployment["spec"]["selector"]["matchLabels"]
    assert selector == chart.render().deployment["spec"]["selector"]["matchLabels"], "what selects never changes"


def test_names_of_any_length_fit(chart: Chart) -> None:
    """The longest name of a release that Helm allows, and names that end in a hyphen where they are cut."""
    values = CASES["labels and annotations"]
    for name in ("r" * 53, "a-" * 26 + "b"):
        assert faults(chart.render(values, name=name)) == []
    for length in (45, 57, 62):
        assert faults(chart.render(values | {"fullnameOverride": "r" * length + "-x"})) == []
