"""What is read when somebody scrapes: each state of a replica in process, as its metrics show it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from discovery.exposition import Parts, show
from discovery.mcs.slices import SKIPPED
from discovery.metrics.readings import REASONS, REFUSED_SLICES
from discovery.model import Router
from tests.http.in_process import Rig, fields, pool
from tests.test_metrics import samples


def shown(rig: Rig, **parts: Any) -> Callable[[str], float | None]:
    """A question for one sample, given without the prefix."""
    settings = SimpleNamespace(
        lease_duration_secs=15, heartbeat_interval_secs=5, max_pools=100, max_streams=7, max_connections=9
    )
    server = SimpleNamespace(capacity=8, connections=3, in_flight=2, turned_away=5, dropped=4, failed_handshakes=6)
    given: dict[str, Any] = {
        "settings": settings,
        "store": rig.store,
        "replica": rig.replica,
        "lists": rig.lists,
        "pools": rig.pools,
        "routers": rig.routers,
        "streams": rig.streams,
        "server": server,
        "watchers": [],
        "tokens": None,
        "stage": lambda: rig.stage,
    }
    show(Parts(**(given | parts)), rig.counters)
    return lambda name: samples(rig.counters).get(f"discovery_{name}")


def test_a_replica_shows_what_it_is_and_its_limits() -> None:
    with Rig() as rig:
        ask = shown(rig)
        assert (ask("ready"), ask("draining")) == (1, 0)
        rig.stage = ("draining", "shutting down")
        assert (ask("ready"), ask("draining")) == (0, 1)
        assert (ask("lease_duration_seconds"), ask("heartbeat_interval_seconds")) == (15, 5)
        assert [ask(f"limit{{limit={limit}}}") for limit in ("pools", "streams", "connections")] == [100, 7, 8]
        assert [name for name in samples(rig.counters) if name.startswith("discovery_build_info{version=")]
        assert samples(rig.counters)["process_resident_memory_bytes"] > 0


def test_the_server_s_own_numbers_are_shown() -> None:
    with Rig() as rig:
        ask = shown(rig)
        assert (ask("http_connections"), ask("http_requests_in_flight")) == (3, 2)
        assert ask("http_connections_turned_away_total") == 5
        assert ask("slow_peers_dropped_total") == 4
        assert ask("tls_handshake_failures_total") == 6


def test_a_list_that_is_not_there_yet_is_not_shown_and_has_a_reason() -> None:
    with Rig() as rig:
        ask = shown(rig)
        assert (ask("complete"), ask("incomplete{reason=unread}"), ask("store_up")) == (0, 1, 0)
        assert ask("snapshot_age_seconds") is None
        assert ask("snapshot_fingerprint{list=pools}") is None
        assert ask("members_fingerprint") is None


def test_a_list_settles_then_is_complete_and_ages_when_nobody_confirms_it() -> None:
    with Rig().start() as rig:
        ask = shown(rig)
        rig.post(fields("p1"))
        rig.settle()
        assert (ask("complete"), ask("incomplete{reason=settling}")) == (0, 1)
        assert (ask("pools{state=listed}"), ask("registered_pools"), ask("store_revision")) == (1, 1, 1)
        rig.pass_time(14)
        rig.post(fields("p1"))
        rig.pass_time(2)
        assert (ask("complete"), ask("store_up")) == (1, 1)
        assert [ask(f"incomplete{{reason={reason}}}") for reason in REASONS] == [0] * len(REASONS)
        assert 0 <= (ask("snapshot_age_seconds") or 0.0) < 1


def test_what_the_list_says_moves_its_fingerprint_and_who_is_in_it_that_of_its_members() -> None:
    with Rig() as rig:
        ask = shown(rig)

        def fingerprints() -> tuple[float | None, float | None]:
            return ask("snapshot_fingerprint{list=pools}"), ask("members_fingerprint")

        rig.publish(pool("p1"), pool("p2"))
        both = fingerprints()
        assert both[0] == int(rig.pools.everything.token[:12], 16)
        assert (ask("snapshot_entries{list=pools}"), ask("snapshot_bytes{list=pools}")) == (
            2,
            rig.pools.everything.size,
        )
        members_changed = ask("members_changed_timestamp_seconds")
        rig.publish(pool("p2", model="other"))
        rig.settle()
        changed = fingerprints()
        assert changed[0] != both[0]
        assert changed[1] == both[1]
        assert ask("members_changed_timestamp_seconds") == members_changed
        assert (ask("snapshot_changed_timestamp_seconds{list=pools}") or 0) > (members_changed or 0)
        rig.publish(gone=["p1"])
        rig.settle()
        assert fingerprints()[1] != both[1]
        assert (ask("members_changed_timestamp_seconds") or 0) > (members_changed or 0)
        rig.publish(pool("p1"), pool("p2"))
        rig.settle()
        assert fingerprints() == both


def test_replicas_that_list_the_same_show_the_same_in_whatever_order_they_heard_of_it() -> None:
    seen = []
    for names in (["p1", "p2", "p3"], ["p3", "p1", "p2"]):
        with Rig() as rig:
            ask = shown(rig)
            for name in names:
                rig.publish(pool(name))
            seen.append((ask("snapshot_fingerprint{list=pools}"), ask("members_fingerprint")))
    assert seen[0] == seen[1]


def test_routers_have_a_list_of_their_own() -> None:
    with Rig() as rig:
        ask = shown(rig)
        rig.publish_routers(Router("r1", "http://10.0.0.1:9000"))
        assert ask("snapshot_entries{list=routers}") == 1
        assert ask("snapshot_entries{list=pools}") is None


def test_pools_are_counted_by_state() -> None:
    with Rig() as rig:
        lists = SimpleNamespace(
            one_sided_by_side=lambda: {"registered": 3, "ready": 4}, incomplete_view=lambda: None,
            shared_relay_addresses=2,
        )  # fmt: skip
        rig.replica._entries.overdue = {("c", "n", "d"): 0.0}  # type: ignore[dict-item]
        ask = shown(rig, lists=lists)
        rig.publish(pool("p1"), pool("p2", frontends=["http://10.0.0.1:8000"]))
        states = {"listed": 2, "registered_only": 3, "ready_only": 4, "without_frontends": 1, "held": 1}
        assert {state: ask(f"pools{{state={state}}}") for state in states} == states
        assert ask("shared_relay_addresses") == 2


def test_a_watcher_shows_whether_it_is_whole_and_what_it_cannot_use() -> None:
    slices = SimpleNamespace(service_count=3, skipped=lambda: dict.fromkeys(SKIPPED, 0) | {"fqdn": 2})
    reason: list[str | None] = [None]
    watcher = SimpleNamespace(name="east", slices=slices, incomplete=lambda: reason[0])
    with Rig() as rig:
        rig.start()
        rig.pass_time(16)
        lists = SimpleNamespace(
            one_sided_by_side=lambda: {"registered": 0, "ready": 0}, incomplete_view=lambda: reason[0],
            shared_relay_addresses=0,
        )  # fmt: skip
        ask = shown(rig, watchers=[watcher], lists=lists)
        assert (ask("watcher_up{watcher=east}"), ask("watcher_services{watcher=east}")) == (1, 3)
        assert ask("watcher_refused_slices{cause=fqdn}{watcher=east}") == 2
        assert ask("incomplete{reason=watcher}") == 0
        reason[0] = "east cannot be reached"
        assert (ask("watcher_up{watcher=east}"), ask("incomplete{reason=watcher}")) == (0, 1)


def test_open_streams_polls_and_readers_that_lag_are_shown() -> None:
    with Rig(max_streams=2) as rig:
        ask = shown(rig)
        rig.publish(pool("p1"))
        stream = rig.open("/pools/events")
        tag = rig.get("/pools").headers["etag"]
        poll = rig.open("/pools", {"if-none-match": tag, "prefer": "wait=30"})
        assert (ask("streams"), ask("long_polls")) == (1, 1)
        assert rig.get("/pools/events").status == 503
        assert ask("streams_refused_total") == 1
        stream.stop_reading()
        for number in range(1200):  # more steps than are remembered
            rig.publish(pool("p1", instance_id=str(number)))
            if number % 100 == 0:
                rig.pass_time(0.2)
        assert ask("streams_fell_behind_total") == 1
        for number in range(1100):
            rig.publish(pool("p1", instance_id=f"again {number}"))
            rig.pass_time(0.11)
        stream.read()
        rig.settle()
        assert ask("streams_resynced_total") == 1
        for exchange in (stream, poll):
            exchange.leave()
        rig.settle()
        assert (ask("streams"), ask("long_polls")) == (0, 0)


def test_a_file_of_tokens_that_is_broken_is_shown() -> None:
    file = SimpleNamespace(value={b"1": None, b"2": None}, is_broken=False, taken=3, refused=1)
    with Rig() as rig:
        assert shown(rig)("tokens") is None
    with Rig() as rig:
        ask = shown(rig, tokens=file)
        assert (ask("tokens"), ask("token_file_broken")) == (2, 0)
        assert ask("token_file_renewals_total{result=taken}") == 3
        file.is_broken = True
        assert ask("token_file_broken") == 1


def test_lags_are_measured_once_for_each_round_from_its_oldest_change() -> None:
    with Rig() as rig:
        published: list[float] = []
        delivered: list[float] = []
        rig.pools._on_published, rig.pools._on_delivered = published.append, delivered.append
        rig.publish(pool("p1"))
        rig.settle()
        assert published == [], "nobody waited for the first list"
        rig.publish(pool("p2"), pool("p3"))
        rig.settle()
        assert (published, delivered) == ([0], [0])
        rig.pass_time(1)
        rig.pools._next_flush = rig.loop.time() + 0.05
        rig.publish(pool("p4"))
        rig.pass_time(0.03)
        rig.publish(pool("p5"))
        rig.pass_time(0.1)
        assert published[1:] == [pytest.approx(0.05)]
        assert len(delivered) == 2


def test_the_words_for_slices_are_those_of_the_view() -> None:
    assert REFUSED_SLICES == SKIPPED
