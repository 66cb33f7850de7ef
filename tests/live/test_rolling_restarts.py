"""A rollout: three replicas behind a balancer are restarted one after the other, and no reader and no writer fails."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

from tests.live.balancer import Balancer
from tests.live.conftest import MakeReplica
from tests.live.heartbeats import heartbeats
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

POOLS = 60
STREAMS = 500
BEAT_SECS = 0.5


@pytest.fixture
def replicas(debian_redis: RedisServer, make_replica: MakeReplica) -> list[Replica]:
    """Three that know all of one store; they drain for as long as the balancer and every relay need to notice."""
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    settings = {"redis_url": debian_redis.url, "lease": 10.0, "heartbeat": 3.0}
    flags = ("--drain-delay-secs", "3", "--shutdown-grace-secs", "10")
    started = [make_replica(name, flags=flags, **settings).launch() for name in "abc"]
    for replica in started:
        await_sign(lambda replica=replica: replica.says("/readyz", 200), 20, f"{replica.name} is ready")
    return started


@pytest.fixture
def balancer(replicas: list[Replica]) -> Iterator[Balancer]:
    """What clients see of them."""
    standing = Balancer(replicas)
    try:
        await_sign(lambda: len(standing.ready) == len(replicas), 10, "all are ready")
        yield standing
    finally:
        standing.close()


def restart(replica: Replica, balancer: Balancer) -> None:
    """As a rollout does: the next one is not touched before this one is ready again."""
    replica.terminate()
    assert replica.exit_code(15) == 0, replica.log
    replica.start()
    await_sign(lambda: replica in balancer.ready, 10, f"{replica.name} takes part again")


def most_within(moments: Iterable[float], secs: float) -> int:
    """The most of these moments that lie in one slot of that length."""
    return max(Counter(int(moment / secs) for moment in moments).values())


def test_in_a_rolling_restart_no_post_and_no_get_fails_and_streams_come_back_spread(
    replicas: list[Replica], balancer: Balancer, traffic: Traffic
) -> None:
    streams: list[Subscriber] = []
    with heartbeats(balancer.port, POOLS, interval=BEAT_SECS) as pools:
        pools.registered()
        streams = [Subscriber(traffic, [balancer], patience=None) for _ in range(STREAMS)]
        await_sign(lambda: all(stream.connected for stream in streams), 30, "all streams")
        pollers = [Poller(traffic, [balancer], every=0.05, conditional=conditional) for conditional in (True, False)]
        for replica in replicas:
            restart(replica, balancer)
        await_sign(lambda: all(stream.connected for stream in streams), 15, "all streams are back")
        polls = [poll for poller in pollers for poll in poller.stop()]
        report = pools.report()
    print(report, Counter(poll.status for poll in polls))

    assert set(report["statuses"]) == {"200"}, "no POST fails"
    assert {poll.status for poll in polls} == {200, 304}, "no GET fails"
    assert all(len(poll.names) == POOLS for poll in polls if poll.status == 200), "no list lacks a pool"
    assert [stream.faults for stream in streams] == [[]] * STREAMS
    assert all(stream.named("delete") == [] for stream in streams), "no pool expires"
    assert all(visit.status == 200 for stream in streams for visit in stream.visits), "no stream is refused"
    assert all(visit.clean for stream in streams for visit in stream.breaks), "every end is a regular one"
    for replica in replicas:
        assert "Traceback" not in replica.log
    assert_spread(streams)


def assert_spread(streams: Sequence[Subscriber]) -> None:
    """Of those that one replica let go together, never many come back together."""
    came_back = [
        (before.ended or 0.0, after.begun, stream.retries[2 * place + 1] / 1000)
        for stream in streams
        for place, (before, after) in enumerate(zip(stream.visits, stream.visits[1:], strict=False))
    ]
    assert len(came_back) >= STREAMS, "three restarts let every stream go at least once"
    pauses = [asked for _, _, asked in came_back]
    assert max(pauses) - min(pauses) >= sum(pauses) / len(pauses) / 2, "they were asked to come back together"
    groups: dict[int, list[tuple[float, float]]] = {}
    for ended, begun, asked in came_back:
        groups.setdefault(round(ended / 2), []).append((ended + asked, begun))
    for group in groups.values():
        # A busy machine lets many come at once that were asked to come one by one: what counts is what was asked for.
        due, real = (most_within(moments, 0.1) for moments in zip(*group, strict=True))
        print(f"{len(group)} came back, at most {due} were to come in 100 ms, and {real} did")
        assert due <= max(20, len(group) / 4)
