"""The ingress in front of two replicas fails for the relays of all clusters, and one cluster dies by itself."""

import time
from collections.abc import Iterator

import pytest

from tests.live import verdict
from tests.live.conftest import MakeReplica, StartPair
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay, many
from tests.live.replica import Replica
from tests.live.router import Poller
from tests.live.signs import await_sign, free_port, hold_for
from tests.live.tcp_proxy import TcpProxy
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

LEASE, HEARTBEAT, HOLD = 1.8, 0.6, 4.5
SLACK = 1.0
NORTH = [f"north/n1/p{number}" for number in range(4)]
EAST = [f"east/n1/p{number}" for number in range(4)]
WEST = [f"west/n1/p{number}" for number in range(3)]


class Ingress:
    """What relays take for one replica. When it fails, what is open is cut, and whoever comes anew is refused."""

    def __init__(self, replica: Replica) -> None:
        self.name = replica.name
        self._proxy = TcpProxy(replica.port)
        self._nobody = free_port()
        self._failing = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._nobody if self._failing else self._proxy.port}"

    def fail(self) -> None:
        self._failing = True
        self._proxy.cut()

    def heal(self) -> None:
        self._failing = False

    def close(self) -> None:
        self._proxy.close()


@pytest.fixture
def behind(
    debian_redis: RedisServer, start_pair: StartPair, traffic: Traffic
) -> Iterator[tuple[list[Replica], list[Ingress], dict[str, Relay]]]:
    """Two replicas, an ingress before each, and relays of three clusters that go through them."""
    flags = ("--mass-loss-hold-secs", f"{HOLD:g}")
    replicas = [*start_pair(debian_redis, lease=LEASE, heartbeat=HEARTBEAT, flags=flags)]
    ingresses = [Ingress(replica) for replica in replicas]
    relays = many(traffic, ingresses, [*NORTH, *EAST, *WEST], interval=HEARTBEAT * 0.9)  # type: ignore[arg-type]
    yield replicas, ingresses, {relay.name: relay for relay in relays}
    for relay in relays:
        relay.stop()
    for ingress in ingresses:
        ingress.close()


def test_a_dead_cluster_leaves_and_all_that_a_failing_ingress_cuts_off_stay_for_the_hold(
    behind: tuple[list[Replica], list[Ingress], dict[str, Relay]],
    debian_redis: RedisServer,
    make_replica: MakeReplica,
    traffic: Traffic,
) -> None:
    replicas, ingresses, relays = behind
    a, b = replicas
    await_sign(lambda: all(replica.lists(*relays) for replica in replicas), 5, "all pools on both")
    begun = time.monotonic()
    pollers = [Poller(traffic, [replica]) for replica in replicas]
    await_sign(lambda: time.monotonic() > begun + 3 * LEASE + 0.2, 4 * LEASE, "all have lived for three leases")

    # One cluster dies: no mass loss, its pools leave at the ends of their leases.
    for name in NORTH:
        relays[name].stop()
    due = max(relays[name].last_accepted.answered for name in NORTH) + LEASE + SLACK
    living = sorted(EAST + WEST)
    within = max(0.0, due - time.monotonic()) + 0.3
    await_sign(lambda: all(replica.pools().names == living for replica in replicas), within, "the dead cluster left")
    assert all(replica.pools().complete and replica.counter("mass_losses") == 0 for replica in replicas)

    # The ingress fails for all: nothing leaves, and every list says that it is not complete.
    for ingress in ingresses:
        ingress.fail()
    await_sign(lambda: all(r.counter("mass_losses") == 1 for r in replicas), LEASE + SLACK, "both hold")
    assert not any(replica.pools().complete for replica in replicas)
    c = make_replica("c", redis_url=debian_redis.url, lease=LEASE, heartbeat=HEARTBEAT).launch()
    relays["west/n1/p2"].stop()
    relays["east/n1/p3"].stop()
    assert a.delete("east/n1/p3").status == 204
    stay = sorted({*living} - {"east/n1/p3"})
    await_sign(lambda: b.pools().names == stay, SLACK, "a deregistration acts in a hold too")
    await_sign(lambda: c.says("/readyz", 200), 20, "c is ready")
    assert not c.pools().complete or a.pools().complete, "a replica that starts in a hold is not sure either"

    # It is well again: who is back stays, who is not leaves one lease after half are back, or after the hold's time.
    for ingress in ingresses:
        ingress.heal()
    back = sorted({*stay} - {"west/n1/p2"})
    await_sign(lambda: all(r.pools().names == back for r in (a, b, c)), HOLD + 2 * SLACK, "the dead one left")
    await_sign(lambda: all(r.pools().complete for r in (a, b, c)), 2 + SLACK, "complete again")
    assert verdict.same_bytes(a.pools(), b.pools(), c.pools())
    for poller in pollers:
        polls = poller.stop()
        assert verdict.missing(polls, [relays[name] for name in back]) == []
        assert verdict.dead(polls, [relays[name] for name in NORTH], LEASE) == []

    # It fails again and stays away: after its time the hold is over for good.
    for ingress in ingresses:
        ingress.fail()
    await_sign(lambda: all(r.counter("mass_losses") == 2 for r in replicas), LEASE + SLACK, "both hold again")
    hold_for(HOLD - LEASE, lambda: all(r.pools().names == back for r in replicas), "nothing leaves", every=0.1)
    await_sign(lambda: all(r.pools().names == [] for r in (a, b, c)), LEASE + 2 * SLACK, "all have left")
    await_sign(lambda: all(r.pools().complete for r in (a, b, c)), 2 + SLACK, "complete, and empty")
    for replica in replicas:
        assert replica.counter("mass_losses") == 2
        assert replica.log.count("check the ingress in front of the service") == 2, "one line as each hold begins"
        assert replica.log.count("the mass loss is over after") == 2, "and one as it ends"
