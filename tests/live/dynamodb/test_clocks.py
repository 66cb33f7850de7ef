"""Wall clocks that are wrong: of replicas, of their writers, of the table itself. Monotonic clocks are always true."""

import time

import pytest

from tests.live import verdict
from tests.live.conftest import Traffic
from tests.live.dynamodb import items
from tests.live.dynamodb.conftest import MakeProxy, MakeReplica, StartReplicas
from tests.live.dynamodb.replicas import await_agreed, await_listed, first_list
from tests.live.dynamodb_proxy import wants_true_clocks
from tests.live.dynamodb_server import Table
from tests.live.relay import Relay
from tests.live.router import Poller
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE = 3.0
AHEAD, BEHIND = "+1h", "-1h"


def test_replicas_an_hour_ahead_and_behind_list_the_same_pools_from_their_first_list_on(
    table: Table, make_replica: MakeReplica, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    proxy = make_proxy()
    # AWS refuses signatures of another time, whoever made them.
    proxy.let(wants_true_clocks())
    true = make_replica("true", through=proxy, lease=LEASE).start()
    table.put_item(items.item("c1/n1/ancient", lease=LEASE, lease_ends=time.time() - 3 * 3600))
    relays = [Relay(traffic, [true], f"c1/n1/of-true{number}") for number in range(3)]
    await_listed((true,), [relay.name for relay in relays])
    wrong = [make_replica(name, through=proxy, clock=clock, lease=LEASE).launch() for name, clock in _CLOCKS]
    for replica in wrong:
        listed = first_list(replica)
        assert listed.names == [relay.name for relay in relays], replica.name
        await_sign(lambda replica=replica: replica.pools().complete, 3, f"{replica.name} is complete")
    for replica in wrong:
        relays.append(Relay(traffic, [replica], f"c1/n1/of-{replica.name}"))
        silent = replica.register(f"c1/n1/silent-on-{replica.name}")
    everyone = [true, *wrong]
    names = [relay.name for relay in relays]
    await_listed(everyone, names, 3)
    for row in table.scan():
        key, ends = row["sk"]["S"], int(row["lease_ends_ms"]["N"]) / 1000
        assert key.endswith("ancient") or abs(ends - time.time() - LEASE) < 4, f"{key} ends {ends}, whoever wrote it"
    pollers = [Poller(traffic, [replica], every=0.05) for replica in everyone]
    late = make_replica("late", through=proxy, clock=BEHIND, lease=LEASE).launch()
    assert set(first_list(late).names) >= set(names), "also what clocks an hour ahead and behind have written last"
    for replica in everyone:
        gone = lambda r=replica: sorted(r.pools().names) == sorted(each.name for each in relays)  # noqa: E731
        await_sign(gone, silent + 2 * LEASE + 4 - time.monotonic(), f"the silent ones have left {replica.name}")
    await_agreed(everyone)
    for poller in pollers:
        polls = poller.stop()
        assert verdict.missing(polls, relays) == []
        for place, (name, _) in enumerate(_CLOCKS):
            first = verdict.first_absent(polls, f"c1/n1/silent-on-{name}", polls[0].replica, polls[0].sent)
            latest = silent + LEASE + 2
            assert first <= latest, f"{polls[0].replica} was {first - latest:.3f} s late with {place}"
    assert {relay_status for relay in relays for relay_status in relay.statuses()} == {200}


_CLOCKS = [("ahead", AHEAD), ("behind", BEHIND)]


def test_a_table_whose_clock_jumps_takes_no_pool_away_and_keeps_none(
    table: Table, start_replicas: StartReplicas, make_replica: MakeReplica, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    proxies = [make_proxy(), make_proxy()]
    a, b = start_replicas(lease=LEASE, own={"a": {"through": proxies[0]}, "b": {"through": proxies[1]}})
    relays = [Relay(traffic, [a, b], f"c1/n1/p{number}") for number in range(3)]
    await_listed((a, b), [relay.name for relay in relays])
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    proxies[0].clock_secs, proxies[1].clock_secs = 3600, -3600
    jumped = time.monotonic()
    # An end far ahead of every clock: first sight believes no more than a lease.
    table.put_item(items.item("c1/n1/endless", lease=LEASE, lease_ends=time.time() + 365 * 86_400))
    await_sign(lambda: time.monotonic() > jumped + LEASE + 2.5, LEASE + 4, "a lease and two reads", every=0.1)
    for replica in (a, b):
        assert sorted(replica.pools().names) == [relay.name for relay in relays]
        assert replica.pools().complete
    await_agreed((a, b))
    for poller in pollers:
        polls = poller.stop()
        assert verdict.missing(polls, relays) == []
        assert any("c1/n1/endless" in poll.names for poll in polls)
