"""Under 200 relays, 20 streams and a poll of each replica every 10 ms: what fails, and that nothing flaps.

The tests without the mark ``soak`` are the short form, which ``scripts/test`` runs. Those with it have each fault
alone; ``scripts/soak`` has them in random order.
"""

import random
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.live.faults import faults, group_faults, network_faults, server_faults
from tests.live.faults.fault import Fault
from tests.live.faults.oracle import lost_writes
from tests.live.faults.places import Place, Standalone, WithCluster, WithSentinels
from tests.live.faults.stage import Stage
from tests.live.faults.writers import Writers, listed, unsettle
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

CHANCE = random.Random(7)


def suffer(place: Place, directory: Path, happening: Iterable[Fault], lease: float = 3.0) -> None:
    """All these faults under one load; each has its line in what pytest shows of a failure."""
    with Stage(place, directory, seed=7, lease=lease) as stage:
        verdicts = []
        for fault in happening:
            verdict = stage.suffer(fault)
            print(verdict, *verdict.broken, sep="\n  ")
            if verdict.void:  # once more, on a machine that goes on
                verdict = stage.suffer(fault)
                print(verdict, *verdict.broken, sep="\n  ")
            verdicts.append(verdict)
    assert [str(broken) for verdict in verdicts for broken in verdict.broken] == []


def test_killed_frozen_flushed_and_cut_off_from_a_server_no_pool_is_missing_from_any_list(tmp_path: Path) -> None:
    happening = [
        server_faults.killed(CHANCE, 1.0),
        server_faults.flushed(CHANCE),
        server_faults.frozen(CHANCE, 2.5),
        network_faults.clients_killed(CHANCE, "pubsub normal"),
        network_faults.half_open(CHANCE, "b"),
    ]
    suffer(Standalone("redis", tmp_path / "servers"), tmp_path, happening)


def test_through_sentinel_failovers_no_pool_is_missing_from_any_list(tmp_path: Path) -> None:
    happening = [group_faults.sentinel_failover(CHANCE), group_faults.sentinel_master_killed(CHANCE)]
    suffer(WithSentinels("valkey", tmp_path / "servers"), tmp_path, happening)


def test_ten_thousand_writes_through_a_flaky_network_and_none_that_was_accepted_is_lost(tmp_path: Path) -> None:
    place = Standalone("redis", tmp_path / "servers")
    traffic = Traffic()
    flags = ("--store-timeout-ms", "250", "--mass-loss-hold-secs", "0")
    replicas = [place.replica(tmp_path, name, lease=120, heartbeat=10, flags=flags) for name in "ab"]
    try:
        place.start()
        for replica in replicas:
            replica.start()
        unsettling = [traffic.spawn(unsettle(place.proxies[name], random.Random(name))) for name in "ab"]
        writers = Writers(replicas, pools=500, writes=10_000)
        traffic.call(writers.run(), within=120)
        for each in unsettling:
            each.cancel()
        accepted = [beat for beat in writers.beats if beat.status == 200]
        assert len(writers.beats) == 10_000
        print(f"{len(accepted)} of them were accepted")
        assert lost_writes(place.stored(), writers.lives) == []
        assert 1_000 < len(accepted) < 9_900, "the network has to be flaky, and not away"
        assert {beat.status for beat in writers.beats} == {200, 503}
        for replica in replicas:
            await_sign(lambda replica=replica: listed(replica) == place.stored(), 5, f"{replica.name} lists the store")
    finally:
        traffic.close()
        for replica in replicas:
            replica.close()
        place.close()


# ---- each fault alone: scripts/test tests/live/faults -k evicting


def alone(name: str) -> random.Random:
    """The same parameters each time."""
    return random.Random(zlib.crc32(name.encode()))


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted({**faults.STANDALONE, **faults.VALKEY_ONLY}))
def test_alone_with_one_server(name: str, tmp_path: Path) -> None:
    draws = {**faults.STANDALONE, **faults.VALKEY_ONLY}
    suffer(Standalone("valkey", tmp_path / "servers"), tmp_path, [draws[name](alone(name))])


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(faults.STANDALONE))
def test_alone_with_debians_redis(name: str, tmp_path: Path) -> None:
    suffer(Standalone("redis", tmp_path / "servers"), tmp_path, [faults.STANDALONE[name](alone(name))])


@pytest.mark.soak
def test_alone_frozen_for_thirty_seconds(tmp_path: Path) -> None:
    suffer(Standalone("redis", tmp_path / "servers"), tmp_path, [server_faults.frozen(CHANCE, 30)])


@pytest.mark.soak
@pytest.mark.parametrize("quiet", [False, True])
def test_alone_a_planned_failover(quiet: bool, tmp_path: Path) -> None:
    happening = [group_faults.sentinel_failover(CHANCE, quiet)] * 2
    suffer(WithSentinels("redis", tmp_path / "servers"), tmp_path, happening, lease=2.0)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(faults.SENTINEL))
def test_alone_with_sentinels(name: str, tmp_path: Path) -> None:
    suffer(WithSentinels("redis", tmp_path / "servers"), tmp_path, [faults.SENTINEL[name](alone(name))])


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(faults.CLUSTER))
def test_alone_with_a_cluster(name: str, tmp_path: Path) -> None:
    suffer(WithCluster("valkey", tmp_path / "servers"), tmp_path, [faults.CLUSTER[name](alone(name))])
