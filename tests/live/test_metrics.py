"""What a scrape shows of real replicas on Redis while things happen to them; Prometheus' own tool finds no fault."""

import json
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live.conftest import StartPair
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay
from tests.live.replica import Replica
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

LEASE = 3.0


def scrape(replica: Replica) -> bytes:
    answer = replica.get("/metrics")
    assert answer.status == 200
    return answer.body


def shown(replica: Replica, name: str, **labels: str) -> float:
    """One sample; a name without labels is the sum over all that have it."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(scrape(replica).decode())
        for sample in family.samples
        if sample.name == f"discovery_{name}" and labels.items() <= sample.labels.items()
    )


def test_metrics_tell_what_happens_to_pools_and_to_the_store(
    debian_redis: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(debian_redis, lease=LEASE, heartbeat=1)
    relays = [Relay(traffic, [a], f"c{number}/n1/p1") for number in (1, 2)]
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.lists("c1/n1/p1", "c2/n1/p1"), 5, f"{replica.name} lists both")
    _judged_by_prometheus(a)
    _agree(a, b)
    _renewals_and_changes_are_counted(a, relays[0])
    _a_lease_that_runs_out_is_seen_before_its_end_and_counted_at_it(debian_redis, b)
    _an_outage_is_seen(debian_redis, a)
    for relay in relays:
        relay.stop()


def _judged_by_prometheus(replica: Replica) -> None:
    text = scrape(replica)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=20, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def _agree(a: Replica, b: Replica) -> None:
    def fingerprints(replica: Replica) -> tuple[float, ...]:
        return (
            shown(replica, "snapshot_fingerprint", list="pools"),
            shown(replica, "members_fingerprint"),
            shown(replica, "store_revision"),
        )

    await_sign(lambda: fingerprints(a) == fingerprints(b), 5, "both show the same")
    assert shown(a, "snapshot_fingerprint", list="pools") > 0
    for replica in (a, b):
        assert shown(replica, "pools", state="listed") == shown(replica, "registered_pools") == 2
        assert shown(replica, "complete") == shown(replica, "ready") == shown(replica, "store_up") == 1
        assert shown(replica, "snapshot_age_seconds") < 2
        await_sign(lambda replica=replica: shown(replica, "http_requests_in_flight") == 0, 5, "nothing is in flight")
    assert shown(a, "registrations_total", result="created") == 2
    assert shown(b, "registrations_total") == 0
    assert shown(b, "publish_lag_seconds_count") > 0
    assert shown(b, "delivery_lag_seconds_count") > 0
    assert shown(a, "event_loop_lag_seconds_count") > 0
    assert shown(a, "store_call_seconds_count", call="put") == shown(a, "store_calls_total", call="put") > 0
    await_sign(lambda: shown(b, "store_calls_total", call="check") > 0, 5, "the store was checked")


def _renewals_and_changes_are_counted(replica: Replica, relay: Relay) -> None:
    renewed = shown(replica, "registrations_total", result="renewed")
    answered = shown(replica, "http_requests_total", route="/pools", method="POST", status="2xx")
    relay.change(model="another")
    await_sign(lambda: shown(replica, "registrations_total", result="changed") == 1, 5, "a change is counted")
    await_sign(lambda: shown(replica, "registrations_total", result="renewed") > renewed, 5, "renewals are counted")
    assert shown(replica, "http_requests_total", route="/pools", method="POST", status="2xx") > answered
    assert replica.post("{").status == 400
    assert shown(replica, "registrations_refused_total", reason="not_json") == 1
    assert shown(replica, "http_requests_total", route="/pools", method="POST", status="4xx") == 1
    assert shown(replica, "http_request_seconds_count", route="/pools", method="POST") > 0


def _a_lease_that_runs_out_is_seen_before_its_end_and_counted_at_it(server: RedisServer, replica: Replica) -> None:
    value = json.dumps({"cluster_id": "c9", "namespace": "n1", "dgd_name": "late", "model": "m"}, separators=(",", ":"))

    def renewed_late() -> bool:
        server.cli("SET", "{discovery}:pool:c9/n1/late", value, "PX", round(LEASE * 250))
        return shown(replica, "leases_running_out") == 1

    await_sign(renewed_late, 2 * LEASE, "a lease that runs out is seen")
    assert shown(replica, "lease_near_misses_total") > 0
    await_sign(lambda: shown(replica, "leases_expired_total") == 1, 2 * LEASE, "its end is counted")
    await_sign(lambda: shown(replica, "leases_running_out") == 0, 2 * LEASE, "no other lease runs out")


def _an_outage_is_seen(server: RedisServer, replica: Replica) -> None:
    failed = shown(replica, "store_errors_total")
    server.kill()
    await_sign(lambda: shown(replica, "store_up") == 0, 10, "the store is down")
    await_sign(lambda: shown(replica, "incomplete", reason="unconfirmed") == 1, 10, "the list is not confirmed")
    assert shown(replica, "complete") == 0
    assert shown(replica, "ready") == 1, "the last list is served"
    assert shown(replica, "store_outages_total") == 1
    await_sign(lambda: shown(replica, "store_errors_total", call="put") > 0, 10, "writes that failed are counted")
    assert shown(replica, "store_errors_total", kind="source") > failed
    assert shown(replica, "registrations_refused_total", reason="not_confirmed") > 0
    await_sign(lambda: shown(replica, "snapshot_age_seconds") > 2, 5, "the list ages")
    server.restart()
    await_sign(lambda: shown(replica, "store_up") == 1, 10, "the store is up again")
    await_sign(lambda: shown(replica, "relists_total") > 0, 10, "everything was read again")
    assert shown(replica, "incomplete", reason="settling") + shown(replica, "incomplete", reason="data_loss") == 1
