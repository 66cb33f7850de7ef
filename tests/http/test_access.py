"""The limit of registrations per second and identity."""

from typing import Any

import pytest

from discovery.errors import Rejected
from discovery.http import access
from discovery.http.access import BURST_SECS, RateLimit
from tests.http.in_process import LEASE, Rig, fields


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def peer(address: str | None = "10.0.0.1") -> Any:
    return {"client": (address, 5000) if address else None}


def taken(limit: RateLimit, address: str | None = "10.0.0.1", tries: int = 10_000) -> int:
    """How many registrations in a row are let through."""
    for count in range(tries):
        try:
            limit.check(peer(address))
        except Rejected:
            return count
    return tries


def test_no_limit_lets_everything_through(clock: Clock) -> None:
    assert taken(RateLimit(0, clock)) == 10_000


def test_a_burst_is_let_through_and_then_the_rate(clock: Clock) -> None:
    limit = RateLimit(5, clock)
    assert taken(limit) == 5 * BURST_SECS
    clock.now += 1
    assert taken(limit) == 5
    clock.now += 0.2
    assert taken(limit) == 1
    clock.now += 3600
    assert taken(limit) == 5 * BURST_SECS, "a long silence saves up no more than one burst"


def test_a_rate_below_one_lets_single_registrations_through(clock: Clock) -> None:
    limit = RateLimit(0.05, clock)
    assert taken(limit) == 1
    clock.now += 19
    assert taken(limit) == 0
    clock.now += 1.01
    assert taken(limit) == 1


def test_tries_that_were_refused_cost_nothing(clock: Clock) -> None:
    limit = RateLimit(1, clock)
    taken(limit)
    for _ in range(100):
        assert taken(limit) == 0
    clock.now += 1
    assert taken(limit) == 1


def test_each_address_has_its_own_limit_whatever_its_port(clock: Clock) -> None:
    limit = RateLimit(1, clock)
    assert taken(limit, "10.0.0.1") == BURST_SECS
    assert taken(limit, "10.0.0.2") == BURST_SECS
    with pytest.raises(Rejected):
        limit.check({"client": ("10.0.0.1", 6000)})
    assert taken(limit, None) == BURST_SECS


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.4, 1, 3, 50])
def test_whoever_waits_as_told_is_let_through_and_is_not_told_to_wait_for_long(clock: Clock, rate: float) -> None:
    limit = RateLimit(rate, clock)
    taken(limit)
    for advance in (0.0, 0.7 / rate):
        clock.now += advance
        with pytest.raises(Rejected) as caught:
            limit.check(peer())
        assert caught.value.status == 429
        assert "--rate-limit" in caught.value.detail
        wait = int(dict(caught.value.headers)["retry-after"])
        assert 1 <= wait <= 1 / rate + 1
        clock.now += wait
        limit.check(peer())
        taken(limit)


def test_a_flood_of_addresses_costs_bounded_memory_and_those_who_come_often_are_remembered(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "REMEMBERED", 100)
    limit = RateLimit(1, clock)
    taken(limit, "often")
    for number in range(1_000):
        limit.check(peer(f"10.1.{number // 250}.{number % 250}"))
        if number % 50 == 0:
            assert taken(limit, "often") == 0
            assert taken(limit, f"10.1.{number // 250}.{number % 250}") == BURST_SECS - 1, "the newest counts too"
    assert len(limit._buckets) <= 100


# ---- pools of one cluster


def test_one_cluster_leaves_room_for_the_others_and_keeps_what_it_has() -> None:
    with Rig(max_pools_per_cluster=2) as rig:
        rig.start()
        assert [rig.post(fields(name)).status for name in ("p1", "p2", "p3")] == [200, 200, 429]
        refused = rig.post(fields("p3"))
        assert refused.problem()["detail"] == (
            "This service keeps at most 2 pools of one cluster (--max-pools-per-cluster)."
        )
        assert 20 <= int(refused.headers["retry-after"]) <= 40
        assert rig.post(fields("p1")).json()["created"] is False
        assert rig.post(fields("p2", model="another")).json()["created"] is False
        assert rig.post(fields("p3", cluster_id="c2")).status == 200
        assert rig.delete("/pools/c1/n1/p1").status == 204
        assert rig.post(fields("p3")).status == 200
        rig.pass_time(2 * LEASE)
        assert [rig.post(fields(name)).status for name in ("p4", "p5", "p6")] == [200, 200, 429]


def test_without_a_limit_of_clusters_only_that_of_all_pools_counts() -> None:
    with Rig(max_pools=3) as rig:
        rig.start()
        assert [rig.post(fields(f"p{number}")).status for number in range(4)] == [200, 200, 200, 507]
