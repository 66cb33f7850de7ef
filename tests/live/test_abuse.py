"""Thousands of clients that hold connections and mean no good, beside pools that only want to stay registered.

The short form has a tenth of everything and short deadlines; the whole one, marked ``soak``, has the deadlines that
``discovery serve`` has by itself: ``scripts/test tests/live/test_abuse.py`` runs both.
"""

from collections.abc import Iterator

import msgspec
import pytest

from tests.live.conftest import MakeReplica
from tests.live.crowd import Crowd, crowd
from tests.live.heartbeats import Heartbeats, heartbeats
from tests.live.replica import Replica
from tests.live.router import Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

MIB = 1024 * 1024


class Siege(msgspec.Struct, frozen=True):
    """How many of each kind stand around how many pools, for how long, and what that may cost."""

    pools: int
    idle: int
    dripping: int
    not_reading: int
    slow_bodies: int
    lease: float
    interval: float
    secs: float
    grows_by: int
    keeps: int
    flags: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """All that hold a connection."""
        return self.idle + self.dripping + self.not_reading + self.slow_bodies


SHORT = Siege(
    pools=200,
    idle=1_500,
    dripping=200,
    not_reading=50,
    slow_bodies=50,
    lease=6,
    interval=2,
    secs=7,
    grows_by=60 * MIB,
    keeps=30 * MIB,
    flags=("--request-timeout-secs", "2", "--write-stall-timeout-secs", "3"),
)
WHOLE = Siege(
    pools=1_000,
    idle=15_000,
    dripping=2_000,
    not_reading=500,
    slow_bodies=500,
    lease=15,
    interval=5,
    secs=36,
    grows_by=300 * MIB,
    keeps=80 * MIB,
)


@pytest.fixture
def besieged(request: pytest.FixtureRequest, make_replica: MakeReplica) -> Iterator[tuple[Siege, Replica, Heartbeats]]:
    """A replica with its pools registered, before anybody has come."""
    siege: Siege = request.param
    replica = make_replica("besieged", lease=siege.lease, heartbeat=siege.interval, flags=siege.flags).start()
    with heartbeats(replica.port, siege.pools, interval=siege.interval) as pools:
        pools.registered()
        yield siege, replica, pools


def stand(siege: Siege, replica: Replica, standing: Crowd) -> tuple[dict[str, dict[str, int]], int]:
    """Let the crowd stand for its time while others are served; gives how it was treated, and the most memory seen.

    Whoever does not read cannot tell that it was cut off: the service's own count of connections does.
    """
    memory = [replica.rss]

    def others_are_served() -> bool:
        memory.append(replica.rss)
        return replica.get("/readyz").status == 200 and replica.get("/pools").status == 200

    standing.stands()
    hold_for(siege.secs, others_are_served, "others are served", every=0.25)
    left = siege.pools + siege.clients - siege.not_reading + 2  # the router's stream, and who asks here
    assert replica.get("/status").json["connections"] <= left, "whoever does not read is cut off"
    return standing.leaves(), max(memory)


@pytest.mark.parametrize(
    "besieged", [SHORT, pytest.param(WHOLE, marks=pytest.mark.soak)], ids=["short", "whole"], indirect=True
)
def test_idle_dripping_deaf_and_slow_clients_by_the_thousand_cost_no_pool_its_lease(
    besieged: tuple[Siege, Replica, Heartbeats], traffic: Traffic
) -> None:
    siege, replica, pools = besieged
    router = Subscriber(traffic, [replica])
    await_sign(lambda: router.connected and len(router.state) == siege.pools, 10, "all pools on a stream")
    before, descriptors = replica.rss, replica.descriptors
    with crowd(
        replica.port,
        idle=siege.idle,
        dripping=siege.dripping,
        not_reading=siege.not_reading,
        slow_bodies=siege.slow_bodies,
    ) as standing:
        treated, most = stand(siege, replica, standing)
    await_sign(lambda: replica.descriptors <= descriptors + 5, 10, "every connection is given back")
    await_sign(
        lambda: replica.rss - before < siege.keeps, 15, f"memory comes back from {(most - before) / MIB:.0f} MiB"
    )
    status = replica.get("/status").json
    report = pools.report()
    print(treated, report, f"{before / MIB:.0f}, {most / MIB:.0f}, {replica.rss / MIB:.0f} MiB", sep="\n")

    assert set(report["statuses"]) == {"200"}, "every heartbeat is accepted"
    assert report["connections"] == siege.pools, "no relay was cut off"
    assert router.named("delete") == [], "no pool expires"
    assert (len(router.visits), router.faults) == (1, [])
    assert status["pools"] == siege.pools
    assert status["requests_in_flight"] <= 2, "this request and the router's stream"
    assert most - before < siege.grows_by
    for kind, size in (("dripping", siege.dripping), ("slow bodies", siege.slow_bodies)):
        assert treated[kind]["408"] >= size, "whoever trickles is refused at the deadline"
        assert set(treated[kind]) <= {"connections", "408", "closed", "cut"}
    assert treated["idle"] == {"connections": siege.idle, "200": siege.idle}, "an idle connection is kept for a while"
    assert "Traceback" not in replica.log
    if siege is WHOLE:
        assert report["p99_ms"] < 500
