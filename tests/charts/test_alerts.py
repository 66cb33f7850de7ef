"""The chart's alerts: each fires when it must, and none when all is well or soon well again.

Prometheus itself judges, by ``promtool``; what it is given is what it would scrape (``scraped``).
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.charts import promtool
from tests.charts.rendered import Chart
from tests.charts.scraped import MINUTES, POOLS, STEP, Scraped

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]  # promtool works through hours, on a machine that may be busy

VALUES: dict[str, Any] = {
    "replicaCount": 3,
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
ALL = 10 * 60
"""When something begins that goes on."""

Groups = list[dict[str, Any]]


def groups_of(chart: Chart, values: dict[str, Any] = VALUES) -> Groups:
    groups: Groups = chart.render(values).one("PrometheusRule")["spec"]["groups"]
    return groups


@pytest.fixture(scope="module")
def groups(chart: Chart) -> Groups:
    return groups_of(chart)


def alerts_of(groups: Groups) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


# ---- what fires


class Fires(NamedTuple):
    """An alert at a moment, for each of some labels with these words; at other moments it does not fire."""

    scraped: Scraped
    at: str
    labels: list[dict[str, str]]
    summary: list[str]
    before: str | None = None
    after: str | None = None


REPLICA = {"namespace": "prod", "job": "discovery", "pod": "a", "instance": "a:8080"}
DEPLOYMENT = {"namespace": "prod", "job": "discovery"}
EVERYWHERE = [REPLICA | {"pod": pod, "instance": f"{pod}:8080"} for pod in "abc"]
FORMER = dict.fromkeys("abc", (0, ALL))

FIRES: dict[str, Fires] = {
    "DiscoveryAbsent": Fires(
        Scraped(FORMER), "19m", [DEPLOYMENT], ["No replica of discovery answers Prometheus"], before="12m"
    ),
    "DiscoveryReplicasMissing": Fires(
        Scraped({"a": (0, 3000), "b": (0, 3000), "c": (0, ALL)}),
        "20m",
        [DEPLOYMENT],
        ["2 of 3 replicas are ready in prod"],
        before="14m",
    ),
    "DiscoveryReplicaNotReady": Fires(
        Scraped(dict.fromkeys("abcd", (0, 3000))).set("ready{}", 0, since=ALL, on="a"),
        "14m",
        [REPLICA],
        ["a runs and does not become ready"],
        before="12m30s",
    ),
    "DiscoveryRestarting": Fires(
        Scraped().restarted("a", 600, 900, 1200),
        "20m",
        [REPLICA],
        ["a was started 3 times anew within half an hour"],
        before="19m",
        after="51m",
    ),
    "DiscoveryNothingListed": Fires(
        Scraped().set('pools{state="listed"}', 0, since=ALL),
        "16m",
        [DEPLOYMENT],
        ["No replica in prod lists a single pool"],
        before="14m",
    ),
    "DiscoveryIncompleteForLong": Fires(
        Scraped().set("complete{}", 0, since=ALL, on="a").set('pools{state="listed"}', 0, since=ALL, on="a"),
        "16m",
        [REPLICA],
        ["a cannot say for 5m that its list is the whole truth"],
        before="14m",
    ),
    "DiscoveryMassLoss": Fires(
        Scraped().set("mass_loss_hold{}", 1, since=ALL, until=ALL + 60, on="a"),
        "10m30s",
        [DEPLOYMENT],
        ["Most pools of all clusters ended their leases at once"],
        before="9m30s",
        after="12m",
    ),
    "DiscoveryLeasesEndingInBulk": Fires(
        Scraped().set("leases_running_out{}", 15, since=ALL, on="b"),
        "13m",
        [DEPLOYMENT],
        ["15% of the leases are about to end, and stay so"],
        before="11m30s",
    ),
    "DiscoveryManyPoolsLost": Fires(
        Scraped()
        .set("leases_expired_total{}", 2, since=ALL, until=ALL + 30, on="b")
        .set("registered_pools{}", 40, since=ALL + 30, on="b"),
        "11m30s",
        [DEPLOYMENT],
        ["60% of the pools were lost within five minutes, by leases that ended"],
        before="9m30s",
        after="17m",
    ),
    "DiscoveryReplicasDisagree": Fires(
        Scraped()
        .set('snapshot_fingerprint{list="pools"}', 12, since=ALL, on="c")
        .set('snapshot_changed_timestamp_seconds{list="pools"}', ALL, since=ALL, on="c"),
        "14m30s",
        [DEPLOYMENT],
        ["Replicas in prod show different lists"],
        before="13m",
    ),
    "DiscoveryChangesLate": Fires(
        Scraped().slow("delivery_lag_seconds", 2.0, since=ALL),
        "30m",
        EVERYWHERE,
        [f"{pod} shows changes 2.2s late" for pod in "abc"],
        before="19m",
    ),
    "DiscoveryPoolsOneSided": Fires(
        Scraped().set('pools{state="registered_only"}', 4, since=ALL, on="b"),
        "26m",
        [DEPLOYMENT | {"state": "registered_only"}],
        ["4 pools are registered_only and therefore not listed"],
        before="24m",
    ),
    "DiscoveryRelaysDisagree": Fires(
        Scraped().set("alternating_registrations_total{}", 0.2, since=ALL, on="a"),
        "40m",
        [DEPLOYMENT],
        ["Relays of one pool register different things"],
        before="23m",
    ),
    "DiscoveryRegistrationsRefused": Fires(
        Scraped().set('registrations_refused_total{reason="invalid"}', 10, since=ALL),
        "30m",
        [DEPLOYMENT | {"reason": "invalid"}],
        ["60% of the registrations are refused: invalid"],
        before="14m",
    ),
    "DiscoveryStoreDown": Fires(
        Scraped().set("store_up{}", 0, since=ALL),
        "11m30s",
        EVERYWHERE,
        [f"The store of {pod} does not answer" for pod in "abc"],
        before="10m30s",
    ),
    "DiscoveryStoreUnsteady": Fires(
        Scraped().set("store_outages_total{}", 1 / 30, since=ALL, until=ALL + 150, on="a"),
        "20m",
        [REPLICA],
        ["a lost its store 5 times within half an hour"],
        before="11m",
        after="49m",
    ),
    "DiscoveryStoreSlow": Fires(
        Scraped().slow('store_call_seconds{call="put"}', 0.9, since=ALL),
        "30m",
        EVERYWHERE,
        [f"The store answers {pod} within 900ms, the slowest hundredth" for pod in "abc"],
        before="19m",
    ),
    "DiscoveryAnnouncementsRefused": Fires(
        Scraped().set("announcements_refused_total{}", 1, since=ALL, on="a"),
        "30m",
        [REPLICA],
        ["The store refuses announcements of a"],
        before="24m",
    ),
    "DiscoveryWatcherFailing": Fires(
        Scraped().set('watcher_up{watcher="east"}', 0, since=ALL, on="a"),
        "16m",
        [REPLICA | {"watcher": "east"}],
        ["a cannot watch east"],
        before="14m",
    ),
    "DiscoveryWatcherUnsteady": Fires(
        Scraped().set('watcher_failures_total{watcher="east", kind="unreachable"}', 1 / 60, since=ALL, on="a"),
        "40m",
        [REPLICA | {"watcher": "east"}],
        ["a failed 15 times within a quarter of an hour to watch east"],
        before="25m",
    ),
    "DiscoveryServerErrors": Fires(
        Scraped().set('http_requests_total{route="/pools", method="GET", status="5xx"}', 50, since=ALL),
        "30m",
        [DEPLOYMENT | {"route": "/pools"}],
        ["50% of the answers to GET /pools are errors of the service"],
        before="14m",
    ),
    "DiscoveryClientsDropped": Fires(
        Scraped().set("slow_peers_dropped_total{}", 0.1, since=ALL, on="a"),
        "30m",
        [DEPLOYMENT],
        ["60 clients were cut off within ten minutes because they took too little"],
        before="16m",
    ),
    "DiscoveryLimitNear": Fires(
        Scraped().set("streams{}", 9400, since=ALL, on="a"),
        "16m",
        [REPLICA | {"limit": "streams"}],
        ["a uses 95% of its streams"],
        before="14m",
    ),
    "DiscoveryEventLoopLag": Fires(
        Scraped().slow("event_loop_lag_seconds", 0.4, since=ALL),
        "30m",
        EVERYWHERE,
        [f"The event loop of {pod} comes 450ms late" for pod in "abc"],
        before="19m",
    ),
    "DiscoveryCertificateEndsSoon": Fires(
        Scraped().set("tls_certificate_expires_timestamp_seconds{}", 3 * 86_400 + 1200, on="a"),
        "20m",
        [REPLICA],
        ["The certificate of a ends in 3d 0h 0m 0s"],
        before="14m",
    ),
    "DiscoveryCertificateEnding": Fires(
        Scraped().set("tls_certificate_expires_timestamp_seconds{}", 3600, on="a"),
        "6m",
        [REPLICA],
        ["The certificate of a ends within a day"],
        before="4m",
    ),
    "DiscoveryRenewalRefused": Fires(
        Scraped().set("token_file_broken{}", 1, since=ALL, on="a"),
        "16m",
        [REPLICA],
        ["a refused a renewed certificate or file of tokens"],
        before="14m",
    ),
}


FURTHER = {
    "members that differ while capacities change all the time": (
        "DiscoveryReplicasDisagree",
        "14m30s",
        Scraped()
        .set('snapshot_changed_timestamp_seconds{list="pools"}', 1e9)
        .set("members_fingerprint{}", 23, since=ALL, on="c")
        .set("members_changed_timestamp_seconds{}", ALL, since=ALL, on="c"),
    ),
    "a mass loss between two scrapes": (
        "DiscoveryMassLoss",
        "11m",
        Scraped().set("mass_losses_total{}", 1 / 30, since=ALL, until=ALL + 30, on="b"),
    ),
    "changes that are published late": (
        "DiscoveryChangesLate",
        "30m",
        Scraped().slow("publish_lag_seconds", 4.0, since=ALL),
    ),
    "pools that are Ready alone": (
        "DiscoveryPoolsOneSided",
        "26m",
        Scraped().set('pools{state="ready_only"}', 1, since=ALL),
    ),
    "connections": ("DiscoveryLimitNear", "16m", Scraped().set("http_connections{}", 19_000, since=ALL)),
    "registrations": ("DiscoveryLimitNear", "16m", Scraped().set("registered_pools{}", 95_000, since=ALL)),
    "a certificate that is refused": (
        "DiscoveryRenewalRefused",
        "16m",
        Scraped().set("certificates_refused_total{}", 1 / 30, since=ALL, until=ALL + 30),
    ),
    "a store that refuses what it is told": (
        "DiscoveryRegistrationsRefused",
        "30m",
        Scraped().set('registrations_refused_total{reason="not_confirmed"}', 10, since=ALL),
    ),
}

# ---- what does not fire


def rolling_restart() -> Scraped:
    """Each of three replicas is replaced: its successor is there first, and needs a scrape or two to be ready."""
    lives = {"a": (0, 1260), "b": (0, 1380), "c": (0, 1500), "d": (1140, 3030), "e": (1260, 3030), "f": (1380, 3030)}
    scraped = Scraped(lives)
    for pod, (begin, end) in lives.items():
        if begin:
            scraped.set('snapshot_changed_timestamp_seconds{list="pools"}', begin + 60, on=pod)
            scraped.set("members_changed_timestamp_seconds{}", begin + 60, on=pod)
            for series in ("ready{}", "complete{}", 'pools{state="listed"}', "registered_pools{}"):
                scraped.set(series, 0, until=begin + 60, on=pod)
            scraped.set("members_fingerprint{}", 0, until=begin + 60, on=pod)
            scraped.set('snapshot_fingerprint{list="pools"}', 0, until=begin + 60, on=pod)
        else:
            scraped.set("ready{}", 0, since=end - 30, on=pod)
    return scraped


def short_blip() -> Scraped:
    """The store is away for half a minute, and everybody settles for a lease."""
    return (
        Scraped()
        .set("store_up{}", 0, since=ALL, until=ALL + 30)
        .set("complete{}", 0, since=ALL, until=ALL + 60)
        .set("store_outages_total{}", 1 / 30, since=ALL, until=ALL + 30)
        .set('registrations_refused_total{reason="not_confirmed"}', POOLS / 2 / 3, since=ALL, until=ALL + 30)
        .set('registrations_total{result="renewed"}', 0, since=ALL, until=ALL + 30)
        .set('watcher_failures_total{watcher="east", kind="silent"}', 0.1, since=ALL, until=ALL + 30)
        .set('watcher_up{watcher="east"}', 0, since=ALL, until=ALL + 30)
        .slow('store_call_seconds{call="put"}', 1.5, since=ALL, until=ALL + 60)
        .slow("event_loop_lag_seconds", 0.5, since=ALL, until=ALL + 60)
    )


def one_dead_cluster() -> Scraped:
    """A quarter of the pools ends; one replica shows it a scrape later than the others."""
    scraped = Scraped().set("leases_running_out{}", 25, since=ALL, until=ALL + 30)
    for pod, at in {"a": ALL + 30, "b": ALL + 30, "c": ALL + 60}.items():
        scraped.set('snapshot_fingerprint{list="pools"}', 12, since=at, on=pod)
        scraped.set('snapshot_changed_timestamp_seconds{list="pools"}', at, since=at, on=pod)
        scraped.set("members_fingerprint{}", 23, since=at, on=pod)
        scraped.set("members_changed_timestamp_seconds{}", at, since=at, on=pod)
        scraped.set('pools{state="listed"}', 75, since=at, on=pod)
        scraped.set("registered_pools{}", 75, since=at, on=pod)
        scraped.set("leases_expired_total{}", 25 / 30, since=at - 30, until=at, on=pod)
        scraped.set('pools{state="ready_only"}', 25, since=at, until=at + 600, on=pod)
    return scraped.set('registrations_total{result="renewed"}', 5, since=ALL)


def changes_all_the_time() -> Scraped:
    """Two hundred changes a second: no two replicas are scraped with the same list, and all of them are well."""
    scraped = Scraped().set('registrations_total{result="changed"}', 70)
    for number, pod in enumerate("abc"):
        for at in range(0, MINUTES * 60, 30):
            scraped.set('snapshot_fingerprint{list="pools"}', at + number, since=at, until=at + 30, on=pod)
            scraped.set('snapshot_changed_timestamp_seconds{list="pools"}', at, since=at, until=at + 30, on=pod)
    return scraped


def one_replica_that_does_not_claim_to_know() -> Scraped:
    """Cut off for four minutes, it shows an older list and says that it is not complete."""
    return (
        Scraped()
        .set("complete{}", 0, since=ALL, until=ALL + 240, on="c")
        .set('snapshot_fingerprint{list="pools"}', 12, since=ALL, until=ALL + 240, on="c")
        .set("members_fingerprint{}", 23, since=ALL, until=ALL + 240, on="c")
    )


QUIET: dict[str, Scraped] = {
    "nothing": Scraped(),
    "a rolling restart": rolling_restart(),
    "a short blip": short_blip(),
    "one dead cluster": one_dead_cluster(),
    "a replica that is incomplete for less than long": one_replica_that_does_not_claim_to_know(),
    "changes all the time": changes_all_the_time(),
}


# ---- judged


def unit(name: str, scraped: Scraped, until: str, **tests: Any) -> dict[str, Any]:
    series = scraped.series(minutes=int(until.partition("m")[0]) + 1)
    return {"name": name, "interval": f"{STEP}s", "input_series": series} | tests


def expected(rule: dict[str, Any], case: Fires) -> list[dict[str, Any]]:
    return [
        {
            "exp_labels": {"severity": rule["labels"]["severity"], **labels},
            "exp_annotations": rule["annotations"] | {"summary": summary},
        }
        for labels, summary in zip(case.labels, case.summary, strict=True)
    ]


def never(until: str, besides: str = "") -> dict[str, Any]:
    """At no time before that an alert fires; ``besides`` may."""
    expr = f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing", alertname!="{besides}"}}[2h]))'
    return {"expr": expr, "eval_time": until, "exp_samples": []}


def fires(rule: dict[str, Any], case: Fires) -> dict[str, Any]:
    """It fires when it must and not before; the others never do."""
    moments = [(moment, []) for moment in (case.before, case.after) if moment]
    judged = [(case.at, expected(rule, case)), *moments]
    return unit(
        rule["alert"],
        case.scraped,
        case.after or case.at,
        alert_rule_test=[{"alertname": rule["alert"], "eval_time": at, "exp_alerts": found} for at, found in judged],
        promql_expr_test=[never(case.after or case.at, rule["alert"])],
    )


def test_prometheus_takes_the_rules(groups: Groups, tmp_path: Path) -> None:
    found = promtool.check(groups, tmp_path)
    assert found.good, found.text
    assert f"SUCCESS: {len(alerts_of(groups))} rules found" in found.text


def test_every_alert_fires_when_it_must(groups: Groups, tmp_path: Path) -> None:
    alerts = alerts_of(groups)
    assert {*FIRES} == {*alerts}
    found = promtool.test(groups, [fires(alerts[name], case) for name, case in FIRES.items()], tmp_path)
    assert found.good, found.text


def test_alerts_fire_for_other_reasons_too(groups: Groups, tmp_path: Path) -> None:
    tests = []
    for name, (alert, at, scraped) in FURTHER.items():
        there = {
            "expr": f'count(count by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}}))',
            "eval_time": at,
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        tests.append(unit(name, scraped, at, promql_expr_test=[never(at, alert), there]))
    found = promtool.test(groups, tests, tmp_path)
    assert found.good, found.text


def test_nothing_fires_while_all_is_well_or_soon_well_again(groups: Groups, tmp_path: Path) -> None:
    tests = [unit(name, scraped, "40m", promql_expr_test=[never("40m")]) for name, scraped in QUIET.items()]
    found = promtool.test(groups, tests, tmp_path)
    assert found.good, found.text


def test_a_deployment_beside_this_one_wakes_nobody(chart: Chart, tmp_path: Path) -> None:
    """Alerts of one release look at its own series, however badly another one does."""
    other = {"nameOverride": "other", **VALUES}
    case = FIRES["DiscoveryNothingListed"]
    tests = [unit("beside", case.scraped, "20m", promql_expr_test=[never("20m", "DiscoveryAbsent")])]
    found = promtool.test(groups_of(chart, other), tests, tmp_path)
    assert found.good, found.text
