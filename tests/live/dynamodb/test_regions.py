"""One global table in two regions, played by two tables and a copier that is late, reorders, and loses for a while."""

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.live import verdict
from tests.live.dynamodb.conftest import MakeProxy, MakeReplica
from tests.live.dynamodb.copier import Copier, Region
from tests.live.dynamodb.replicas import TableReplica, await_agreed, await_listed
from tests.live.dynamodb_server import DynamoDBServer
from tests.live.relay import Relay
from tests.live.router import Poller
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

LEASE = 5.0
ARRIVED_SECS = 4.0
"""A heartbeat, the copier's longest way, and a read."""


class Regions(NamedTuple):
    """A replica in each region, and what is between them."""

    east: TableReplica
    west: TableReplica
    copier: Copier


@pytest.fixture
def regions(dynamodb_server: DynamoDBServer, make_proxy: MakeProxy, make_replica: MakeReplica) -> Iterator[Regions]:
    """Two regions, complete and empty."""
    with contextlib.ExitStack() as stack:
        both = [Region(dynamodb_server.table(name), make_proxy()) for name in ("eu-west-1", "us-east-1")]
        for region in both:
            stack.callback(region.table.close)
            stack.callback(region.table.delete)
        copier = stack.enter_context(contextlib.closing(Copier(*both)))
        started = [
            make_replica(name, table=region.table, through=region.proxy, lease=LEASE).launch()
            for name, region in zip(("east", "west"), both, strict=True)
        ]
        stack.callback(lambda: [replica.close() for replica in started])
        for replica in started:
            await_sign(lambda r=replica: r.says("/readyz", 200) and r.pools().complete, 20, f"{replica.name} is ready")
        yield Regions(*started, copier)


def test_what_is_said_in_one_region_is_heard_in_the_other_and_stays_said(regions: Regions, traffic: Traffic) -> None:
    east, west, copier = regions
    of_east = [Relay(traffic, [east], f"east/n1/p{number}") for number in range(3)]
    of_west = [Relay(traffic, [west], f"west/n1/p{number}") for number in range(3)]
    names = [relay.name for relay in (*of_east, *of_west)]
    await_listed((east, west), names, ARRIVED_SECS)
    pollers = [Poller(traffic, [replica], every=0.05) for replica in (east, west)]

    # Their registration may arrive after their end: an older write never undoes a newer one.
    short_lived = [f"east/n1/short{number}" for number in range(5)]
    for name in short_lived:
        east.register(name)
        assert east.delete(name).status == 204
    leaving = of_east.pop()
    leaving.deregister(east)
    left = time.monotonic()
    assert not east.lists(leaving.name)
    await_sign(lambda: not west.lists(leaving.name), ARRIVED_SECS, "what says goodbye in one leaves the other")

    # One pool whose relays call in both regions: the last of them is right, everywhere.
    for replica, model in ((east, "first"), (west, "second"), (east, "third"), (west, "last")):
        replica.register("both/n1/p", model=model)
    await_sign(
        lambda: {replica.pools().pools["both/n1/p"]["model"] for replica in (east, west)} == {"last"},
        ARRIVED_SECS,
        "both say what was said last",
    )

    copier.losing = True
    losing = time.monotonic()
    for replica, gone, kept in ((east, of_west, of_east), (west, of_east, of_west)):
        at_home = {relay.name for relay in kept}
        await_sign(
            lambda r=replica, g=gone: not any(r.lists(relay.name) for relay in g),
            LEASE + 6,
            f"what {replica.name} hears nothing of has left it",
        )
        assert time.monotonic() > losing + LEASE / 2
        assert set(replica.pools().names) >= at_home
        assert replica.pools().complete
    assert copier.lost > 10
    copier.losing = False
    remaining = [relay.name for relay in (*of_east, *of_west)]
    await_listed((east, west), remaining, ARRIVED_SECS)
    assert time.monotonic() > left + LEASE + 2, "long enough to come back from somebody's memory"
    await_sign(lambda: sorted(east.pools().names) == sorted(remaining), LEASE + 4, "and nothing else, in the east")
    await_agreed((east, west), LEASE + 4)
    for poller, home in zip(pollers, (of_east, of_west), strict=True):
        polls = poller.stop()
        assert verdict.missing(polls, home) == []
        assert all(poll.complete for poll in polls if poll.answered > left)
        goodbye = verdict.first_absent(polls, leaving.name, polls[0].replica, left)
        assert not any(leaving.name in poll.names for poll in polls if poll.sent > goodbye)
        late = [poll for poll in polls if poll.sent > left + ARRIVED_SECS]
        assert not any(poll.names & set(short_lived) for poll in late)
    assert copier.overtaken > 0, "nothing was out of order"
