"""The table is away for a while: what relays, pollers and subscribers of two replicas then see, and one that starts."""

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.live import verdict
from tests.live.dynamodb import items
from tests.live.dynamodb.conftest import MakeProxy, MakeReplica, StartReplicas
from tests.live.dynamodb.replicas import TableReplica, await_agreed, await_listed, first_list
from tests.live.dynamodb_proxy import DynamoDBProxy, denies, fails, silent
from tests.live.dynamodb_server import Table
from tests.live.relay import Relay, many
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

LEASE = 3.0
POOLS = [f"c{number % 3}/n1/p{number}" for number in range(9)]
DEADLINE_SECS = 1.5
BACK_SECS = 3.0
BUSY_SECS = 2.0
"""What a busy machine may add."""
HOW: dict[str, Callable[[DynamoDBProxy], None]] = {
    "refused": lambda proxy: proxy.refuse(),
    "silent": lambda proxy: proxy.let(silent()),
    "failing": lambda proxy: proxy.let(fails(503, "ServiceUnavailable", "try again")),
}


class Outage(NamedTuple):
    """When the table went away and came back, by the monotonic clock."""

    away: float
    back: float


class Observed:
    """Two replicas under traffic, each with its own way to the table."""

    def __init__(
        self, replicas: list[TableReplica], proxies: list[DynamoDBProxy], traffic: Traffic, heartbeat: float
    ) -> None:
        self.ready = time.monotonic()
        self.replicas = replicas
        self.proxies = proxies
        self.relays = many(traffic, replicas, POOLS, interval=heartbeat)
        await_listed(replicas, POOLS)
        self.pollers = [Poller(traffic, [replica]) for replica in replicas]
        self.streams = [Subscriber(traffic, [replica]) for replica in replicas]
        await_sign(lambda: all(stream.connected for stream in self.streams), 5, "both streams")

    def outage(self, how: str, secs: float, before_the_end: Callable[[], object]) -> Outage:
        """Take the table away from all for so long, and from the first of them a little longer."""
        first, second = self.replicas
        # Clocks of tables have whole seconds: who began to read within two of them before an outage is not sure either.
        await_sign(lambda: time.monotonic() > self.ready + 2.5, 3, "all have read for a while", every=0.05)
        HOW[how](self.proxies[0])
        await_sign(lambda: not first.pools().complete, 5, "the one without the table is not sure")
        alone = time.monotonic()
        hold_for(1, lambda: first.lists(*POOLS) and second.pools().complete, "it keeps all, and the other is sure")
        assert first.get("/readyz").status == 200, "it goes on serving what it has"
        HOW[how](self.proxies[1])
        away = time.monotonic()
        kept = lambda: all(replica.lists(*POOLS) for replica in self.replicas)  # noqa: E731
        hold_for(secs - (away - alone) - 1.2, kept, "all keep all pools", every=0.2)
        before_the_end()
        hold_for(1.2, kept, "all keep all pools", every=0.2)
        back = time.monotonic()
        for proxy in self.proxies:
            proxy.heal()
        return Outage(away, back)

    def await_back(self, outage: Outage) -> None:
        """Registrations are taken and travel, and soon."""
        taken = lambda: all(relay.beats[-1].status == 200 for relay in self.relays)  # noqa: E731
        await_sign(taken, outage.back + BACK_SECS + BUSY_SECS - time.monotonic(), "every relay was answered 200")
        first, second = self.replicas
        first.register("c9/n1/news")
        second.register("c9/n1/more-news")
        within = outage.back + BACK_SECS + BUSY_SECS - time.monotonic()
        await_listed((first, second), [*POOLS, "c9/n1/news", "c9/n1/more-news"], within)
        for replica in self.replicas:
            within = outage.back + BACK_SECS + BUSY_SECS - time.monotonic()
            await_sign(lambda r=replica: r.pools().complete, within, f"{replica.name} is sure again")
        for name in ("c9/n1/news", "c9/n1/more-news"):
            assert first.delete(name).status == 204

    def judge(self, *outages: Outage) -> None:
        """The verdict on all that was written down."""
        for poller, stream in zip(self.pollers, self.streams, strict=True):
            polls = poller.stop()
            assert verdict.missing(polls, self.relays) == []
            assert {poll.status for poll in polls} == {200}
            assert stream.faults == []
            assert len(stream.visits) == 1
            assert [told for name in POOLS for told in stream.told_of(name)] == []
            for outage in outages:
                unsure = [poll for poll in polls if outage.away + 3.5 < poll.sent and poll.answered < outage.back]
                assert unsure
                assert not any(poll.complete for poll in unsure)
                delayed = verdict.slowest_read(polls, *outage)
                self.judge_refusals(outage, delayed)

    def judge_refusals(self, outage: Outage, delayed: float) -> None:
        """A heartbeat that was refused says when to come again, on another connection, and was not kept waiting."""
        beats = [beat for relay in self.relays for beat in relay.beats]
        refused = [beat for beat in beats if outage.away < beat.sent and beat.answered < outage.back]
        assert len(refused) >= len(POOLS)
        assert {beat.status for beat in refused} == {503}
        assert {beat.retry_after for beat in refused} <= {"1", "2"}
        assert all(beat.closes for beat in refused)
        assert max(beat.answered - beat.sent for beat in refused) < DEADLINE_SECS + 0.5 + delayed
        assert all(beat.status in (200, 503) for beat in beats)


ObserveTwo = Callable[[float, float], Observed]


@pytest.fixture
def observe_two(start_replicas: StartReplicas, make_proxy: MakeProxy, traffic: Traffic) -> ObserveTwo:
    """Two replicas at work with this lease and heartbeat, each with a proxy of its own."""

    def observe(lease: float, heartbeat: float) -> Observed:
        proxies = [make_proxy(), make_proxy()]
        own = {name: {"through": proxy} for name, proxy in zip("ab", proxies, strict=True)}
        replicas = start_replicas(lease=lease, heartbeat=heartbeat, own=own)
        return Observed(replicas, proxies, traffic, heartbeat)

    return observe


def test_while_the_table_is_away_lists_stay_and_everything_is_back_at_once(
    observe_two: ObserveTwo, make_replica: MakeReplica, traffic: Traffic
) -> None:
    # The lease is longer than what everything has to be back, so that nothing can wait for its end.
    _through(observe_two(6.5, 1.5), "refused", 9, make_replica, traffic)


@pytest.mark.soak
@pytest.mark.parametrize("how", HOW)
def test_a_minute_without_the_table_costs_no_pool_its_place(
    observe_two: ObserveTwo, make_replica: MakeReplica, traffic: Traffic, how: str
) -> None:
    _through(observe_two(15.0, 5.0), how, 60, make_replica, traffic)


def _through(observed: Observed, how: str, secs: float, make_replica: MakeReplica, traffic: Traffic) -> None:
    # They find ends of leases that are long over, and relays that have not called again yet.
    lease, heartbeat = observed.replicas[0].lease, observed.replicas[0].heartbeat
    settings = {"lease": lease, "heartbeat": heartbeat, "through": observed.proxies[0]}
    newcomers = [make_replica(name, **settings) for name in "cd"]
    outage = observed.outage(how, secs, before_the_end=newcomers[0].launch)
    newcomers[1].launch()
    watching = [Poller(traffic, [replica], every=0.01) for replica in newcomers]
    observed.await_back(outage)
    for replica in newcomers:
        first_list(replica)
    await_agreed([*observed.replicas, *newcomers], lease + 3)
    for poller in watching:
        complete = [poll for poll in poller.stop() if poll.complete]
        assert complete
        assert all(poll.names >= set(POOLS) for poll in complete), "complete, and a living pool is missing"
    observed.judge(outage)


@pytest.mark.soak
def test_a_replica_that_starts_right_after_an_outage_never_calls_less_than_all_complete(
    table: Table, start_replicas: StartReplicas, make_replica: MakeReplica, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    """All replicas were restarted during the outage: nobody is left who has seen the pools alive."""
    proxy = make_proxy()
    (a,) = start_replicas("a", through=proxy, lease=LEASE)
    relays = many(traffic, [a], POOLS)
    await_listed((a,), POOLS)
    proxy.refuse()
    away = time.monotonic()
    a.kill()
    a.launch()
    await_sign(lambda: a.says("/healthz", 200), 10, "alive")
    assert a.get("/readyz").status == 503
    assert a.get("/pools").status == 503
    await_sign(lambda: time.monotonic() > away + LEASE + 1.5, LEASE + 3, "all leases are over", every=0.1)
    assert a.get("/pools").status == 503
    poller = Poller(traffic, [a], every=0.01)
    proxy.accept()
    back = time.monotonic()
    await_sign(lambda: a.says("/pools", 200), 3, "a list")
    await_listed((a,), POOLS, back + BACK_SECS - time.monotonic() + 1.5)
    await_sign(lambda: a.pools().complete, LEASE + 3, "complete")
    complete = [poll for poll in poller.stop() if poll.complete]
    assert all(poll.names >= set(POOLS) for poll in complete), "complete, and a living pool is missing"
    for relay in relays:
        assert set(relay.statuses()) <= {200, 503, 0}


@pytest.mark.soak
def test_a_replica_that_starts_while_nothing_can_be_written_does_not_call_what_it_finds_complete(
    start_replicas: StartReplicas, make_replica: MakeReplica, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    proxy = make_proxy()
    (a,) = start_replicas("a", through=proxy, lease=2.0, heartbeat=0.6)
    relays = many(traffic, [a], POOLS[:3], interval=0.6)
    names = [relay.name for relay in relays]
    await_listed((a,), names)
    proxy.let(denies("PutItem"), "PutItem")
    denied = time.monotonic()
    hold_for(3, lambda: a.lists(*names), "a keeps them, since they cannot renew", every=0.2)
    c = make_replica("c", through=proxy, lease=2.0, heartbeat=0.6).launch()
    first_list(c)
    also = many(traffic, [c], names, interval=0.6)
    poller = Poller(traffic, [a, c])
    hold_for(4.5, lambda: a.lists(*names), "a keeps them", every=0.2)
    proxy.heal()
    healed = time.monotonic()
    await_listed((a, c), names, 4)
    await_agreed((a, c), 6)
    polls = poller.stop()
    assert verdict.missing(polls, [*relays, *also], only_complete=True) == []
    unsure = [poll for poll in polls if poll.replica == "c" and denied < poll.sent and poll.answered < healed]
    assert unsure
    assert not any(poll.complete for poll in unsure if not poll.names >= set(names))


def test_a_replica_that_was_stopped_for_longer_than_a_lease_does_not_speak_of_the_past(
    table: Table, start_replicas: StartReplicas, traffic: Traffic
) -> None:
    a, b = start_replicas(lease=LEASE)
    a.register("c1/n1/dead")
    staying = Relay(traffic, [a], "c1/n1/staying")
    await_listed((a, b), ["c1/n1/dead", staying.name])
    stream = Subscriber(traffic, [b])
    await_sign(lambda: stream.connected, 5, "the stream of b")
    b.freeze()
    frozen = time.monotonic()
    table.put_item(items.item("c1/n1/came-and-went", lease=LEASE, lease_ends=time.time() + 0.2))
    await_sign(lambda: not a.lists("c1/n1/dead"), LEASE + 4, "a dropped it")
    born = Relay(traffic, [a], "c1/n1/born")
    # Longer than two reads of which the second takes what is new for just written.
    await_sign(lambda: time.monotonic() > frozen + 6, 7, "a long time", every=0.1)
    with b.connect() as first:
        # The first request is already waiting in the socket when the process goes on.
        first.sendall(b"GET /pools HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
        b.thaw()
        answer = b""
        while received := first.recv(65536):
            answer += received
    poller = Poller(traffic, [b], every=0.01)
    assert b" 503 " in answer.split(b"\r\n")[0] or b'"complete":false' in answer.replace(b" ", b""), answer
    await_sign(lambda: b.lists(born.name), 3, "the news")
    await_sign(lambda: not b.lists("c1/n1/dead"), LEASE + 3, "the dead one has left")
    await_agreed((a, b), 3)
    polls = poller.stop()
    assert verdict.missing(polls, [staying]) == []
    assert all(born.name in poll.names for poll in polls if poll.complete)
    assert not any("c1/n1/came-and-went" in poll.names for poll in polls), "nobody saw it alive"
    assert stream.faults == []
    assert stream.told_of(staying.name) == []
