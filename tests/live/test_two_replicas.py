"""Two replicas on one server: what routers that poll and routers that stream see, in quiet and through faults.

The leases here are short; each fault keeps its relation to them: longer than a lease, or shorter.
"""

import itertools
import json
import statistics
import time

import pytest

from tests.live import verdict
from tests.live.conftest import MakeReplica, StartPair
from tests.live.redis_server import RedisServer
from tests.live.relay import Relay, many
from tests.live.replica import Replica
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE = 3.0
POOLS = [f"c{number % 3}/n1/p{number}" for number in range(12)]


def await_all_listed(replicas: tuple[Replica, ...], names: list[str], within: float = 5) -> None:
    """Wait until each of the replicas lists all these pools."""
    for replica in replicas:
        await_sign(lambda replica=replica: replica.lists(*names), within, f"all pools on {replica.name}")


def await_equal_bytes(replicas: tuple[Replica, ...], within: float) -> None:
    """Wait until all replicas give the same bytes and the same tag."""
    await_sign(lambda: verdict.same_bytes(*(each.pools() for each in replicas)), within, "equal bytes and ETag")


def await_agreement(subscriber: Subscriber, replica: Replica, within: float = 2) -> None:
    """Wait until what a subscriber assembled is what GET says."""
    await_sign(lambda: subscriber.agrees_with(replica.pools().json), within, "the stream agrees with GET")
    assert subscriber.faults == []


def test_a_registration_reaches_the_other_replica_at_once_and_as_one_put(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    stream = Subscriber(traffic, [b])
    await_sign(lambda: stream.connected, 5, "the stream of b")
    delays = []
    for name in POOLS:
        sent = a.register(name)
        assert a.lists(name)
        await_sign(lambda name=name: b.lists(name), 2, f"{name} on b", every=0.002)
        delays.append(time.monotonic() - sent)
        await_sign(lambda name=name: stream.told_of(name), 2, f"{name} on the stream of b")
        # A new change comes after quiet, as pools do; what follows within milliseconds may be gathered.
        hold_for(0.15, lambda name=name: len(stream.told_of(name)) == 1, f"{name} is one put")
    # What delays announcements delays all of them; a busy machine delays some.
    assert statistics.quantiles(delays, n=4)[0] < 0.05, delays
    assert [event.name for event in stream.events] == ["snapshot"] + ["put"] * len(POOLS)
    assert verdict.same_bytes(a.pools(), b.pools())
    await_agreement(stream, b)


def test_renewals_change_nothing_for_a_poller_that_alternates(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    relays = many(traffic, [a, b], POOLS[:5], interval=0.1)
    await_all_listed((a, b), POOLS[:5])
    await_equal_bytes((a, b), 2)
    for stream, replica in zip(streams, (a, b), strict=True):
        await_agreement(stream, replica)  # streams are told in rounds, after GET
    begun = time.monotonic()
    poller = Poller(traffic, [a, b], every=0.02, conditional=True)

    def renewals() -> int:
        return sum(beat.sent > begun for relay in relays for beat in relay.accepted)

    await_sign(lambda: renewals() >= 100 and len(poller.polls) >= 100, 15, "100 renewals and as many polls")
    polls = poller.stop()
    assert [poll.status for poll in polls] == [200] + [304] * (len(polls) - 1)
    assert {poll.replica for poll in polls} == {"a", "b"}
    assert all(poll.etag == polls[0].etag and poll.body == b"" for poll in polls[1:])
    for stream in streams:
        assert [event for event in stream.events if event.at > begun] == []


def test_the_keys_are_readable_and_hold_the_lease(redis_server: RedisServer, start_pair: StartPair) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    fields = {"model": "meta-llama/Llama-3.1-70B-Instruct", "capabilities": ["tools", "chat", "tools"]}
    fields |= {"relays": ["http://10.0.3.7:5561"], "metadata": {"team": "search"}}
    a.register("us-east-1/prod/llama-70b", **fields)
    key = "{discovery}:pool:us-east-1/prod/llama-70b"
    stored = json.loads(redis_server.cli("GET", key))
    assert list(stored.items()) == [
        ("cluster_id", "us-east-1"),
        ("namespace", "prod"),
        ("dgd_name", "llama-70b"),
        ("model", "meta-llama/Llama-3.1-70B-Instruct"),
        ("relays", ["http://10.0.3.7:5561"]),
        ("capabilities", ["chat", "tools"]),
        ("metadata", {"team": "search"}),
    ]
    assert LEASE * 1000 - 1000 < redis_server.cli("PTTL", key) <= LEASE * 1000

    revision = int(redis_server.cli("GET", "{discovery}:revision"))
    await_sign(lambda: redis_server.cli("PTTL", key) < LEASE * 1000 - 500, 2, "half a second of the lease is over")
    b.register("us-east-1/prod/llama-70b", **fields)
    assert redis_server.cli("PTTL", key) > LEASE * 1000 - 300
    assert int(redis_server.cli("GET", "{discovery}:revision")) == revision
    b.register("us-east-1/prod/llama-70b", **{**fields, "model": "other"})
    assert int(redis_server.cli("GET", "{discovery}:revision")) == revision + 1

    odd = "us east/a%2Fb/ünï:{x}"
    a.register(odd)
    others = [key for key in redis_server.cli("KEYS", "{discovery}:pool:*") if "llama" not in key]
    assert len(others) == 1
    assert others[0].count("/") == 2
    assert " " not in others[0]
    await_all_listed((a, b), [odd])


def test_a_key_deleted_by_hand_leaves_when_its_lease_would_have_ended(
    redis_server: RedisServer, start_pair: StartPair
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    for name in POOLS[:2]:
        a.register(name)
    await_all_listed((a, b), POOLS[:2])
    answered = time.monotonic()
    assert redis_server.cli("DEL", "{discovery}:pool:c0/n1/p0") == 1
    for replica in (a, b):
        within = answered + LEASE + 1 - time.monotonic()
        await_sign(lambda replica=replica: not replica.lists("c0/n1/p0"), within, f"p0 has left {replica.name}")


def test_a_silent_pool_leaves_everywhere_after_one_lease_and_never_earlier(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    silent = Relay(traffic, [a, b], "c1/n1/silent", interval=0.9)
    staying = Relay(traffic, [b, a], "c1/n1/staying", interval=0.9)
    await_all_listed((a, b), [silent.name, staying.name])
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    await_sign(lambda: len(silent.accepted) >= 6, 10, "six heartbeats, three on each replica")
    silent.stop()
    last = silent.last_accepted
    for stream in streams:
        await_sign(lambda stream=stream: stream.told_of(silent.name), LEASE + 3, "a delete on the stream")
    earliest, latest = last.sent + LEASE, last.answered + LEASE + 1
    for poller, stream in zip(pollers, streams, strict=True):
        name = poller.polls[0].replica
        await_sign(lambda poller=poller: silent.name not in poller.polls[-1].names, 2, f"gone from {name}")
        gone = next(poll for poll in poller.stop() if silent.name not in poll.names)
        assert earliest <= gone.answered, f"{name} dropped it {earliest - gone.answered:.3f} s too early"
        assert gone.sent <= latest, f"{name} dropped it {gone.sent - latest:.3f} s too late"
        (told,) = stream.told_of(silent.name)
        assert told.name == "delete"
        assert earliest <= told.at <= latest
        assert verdict.missing(poller.polls, [staying]) == []
        assert stream.told_of(staying.name) == []
        assert all(poll.complete for poll in poller.polls)
        assert stream.faults == []


def test_a_pool_that_says_goodbye_leaves_every_list_at_once(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    stream = Subscriber(traffic, [b])
    await_sign(lambda: stream.connected, 5, "the stream of b")
    relay = Relay(traffic, [a, b], "c1/n1/p1")
    await_all_listed((a, b), [relay.name])
    await_sign(lambda: stream.told_of(relay.name), 2, "a put")
    relay.deregister(a)
    assert not a.lists(relay.name)
    await_sign(lambda: stream.told_of(relay.name)[-1].name == "delete", 1, "a delete on the other replica")
    assert not b.lists(relay.name)
    assert b.get("/pools/c1/n1/p1").status == 404
    assert b.delete(relay.name).status == 204


def test_a_waiting_get_is_answered_by_a_registration_on_the_other_replica(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=20, heartbeat=5)
    etag = b.pools().headers["etag"]

    async def wait(secs: int) -> tuple[int, float, bytes]:
        begun = time.monotonic()
        headers = {"If-None-Match": etag, "Prefer": f"wait={secs}"}
        async with traffic.session.get(f"{b.url}/pools", headers=headers) as answer:
            return answer.status, time.monotonic() - begun, await answer.read()

    status, secs, body = traffic.call(wait(1))
    assert (status, body) == (304, b"")
    assert 0.9 <= secs < 2
    answers = []

    async def record() -> None:
        answers.append(await wait(20))

    traffic.spawn(record())
    await_sign(lambda: b.get("/status").json, 2, "b turns")
    a.register("c1/n1/p1")
    (answer,) = await_sign(lambda: answers, 2, "the waiting GET is answered")
    assert answer[0] == 200
    assert b"p1" in answer[2]


def test_a_killed_replica_is_missed_by_nobody_and_is_whole_at_once_when_it_returns(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    relays = many(traffic, [a, b], POOLS, interval=0.8)
    await_all_listed((a, b), POOLS)
    poller, stream = Poller(traffic, [a]), Subscriber(traffic, [a])
    await_sign(lambda: stream.connected, 2, "the stream of a")
    b.kill()
    hold_for(LEASE + 1, lambda: a.lists(*POOLS), "a goes on with all pools")
    b.launch()
    first = await_sign(lambda: b.says("/pools", 200) and b.pools(), 20, "the first list of b")
    assert first.complete
    assert set(first.names) == set(POOLS)
    await_equal_bytes((a, b), 2)
    assert verdict.missing(poller.stop(), relays) == []
    assert all(poll.complete for poll in poller.polls)
    assert [event.name for event in stream.events] == ["snapshot"]
    assert stream.breaks == []


def test_no_list_is_complete_while_the_settling_key_exists(redis_server: RedisServer, start_pair: StartPair) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    a.register("c1/n1/p1")
    redis_server.cli("SET", "{discovery}:settling", "by hand", "PX", 2500)
    for replica in (a, b):
        await_sign(lambda replica=replica: not replica.pools().complete, 2, f"{replica.name} is settling")
        assert "settling" in replica.get("/readyz").body.decode().lower() or replica.get("/readyz").status == 200
    for replica in (a, b):
        await_sign(lambda replica=replica: replica.pools().complete, 4, f"{replica.name} is complete again")
        assert redis_server.cli("EXISTS", "{discovery}:settling") == 0


def test_an_outage_longer_than_a_lease_empties_no_list_though_the_server_returns_empty(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    relays = many(traffic, [a, b], POOLS)
    await_all_listed((a, b), POOLS)
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    await_sign(lambda: all(stream.connected for stream in streams), 2, "both streams")
    away = time.monotonic()
    redis_server.kill()
    hold_for(LEASE * 2.5, lambda: a.lists(*POOLS) and b.lists(*POOLS), "both replicas keep all pools")
    back = time.monotonic()
    redis_server.restart()
    answering = time.monotonic()
    for replica in (a, b):
        within = answering + LEASE + 2 - time.monotonic()
        await_sign(lambda replica=replica: replica.pools().complete, within, f"{replica.name} is complete again")
    await_equal_bytes((a, b), 2)
    for stream, replica in zip(streams, (a, b), strict=True):
        await_agreement(stream, replica)
        assert len(stream.visits) == 1
        assert stream.named("delete") == []
        assert [event.data["complete"] for event in stream.named("complete", since=away)] == [False, True]
    for poller in pollers:
        assert verdict.missing(poller.stop(), relays) == []
        unsure = [poll for poll in poller.polls if away + 3 < poll.sent and poll.answered < back + LEASE]
        assert unsure
        assert not any(poll.complete for poll in unsure)
    # A heartbeat that was refused while the server was away says when to come again, on another connection.
    refused = [beat for relay in relays for beat in relay.beats if away < beat.sent and beat.answered < back]
    assert refused
    assert {beat.status for beat in refused} == {503}
    assert {beat.retry_after for beat in refused} <= {"1", "2"}
    assert all(beat.closes for beat in refused)
    delayed = max(verdict.slowest_read(poller.polls, away, back) for poller in pollers)
    assert delayed < 1
    assert max(beat.answered - beat.sent for beat in refused) < 2 + delayed
    assert all(beat.status in (200, 503) for relay in relays for beat in relay.beats)


def test_a_cut_subscription_loses_no_pool_and_no_news(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    relays = many(traffic, [a, b], POOLS)
    await_all_listed((a, b), POOLS)
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    await_sign(lambda: all(stream.connected for stream in streams), 2, "both streams")
    assert redis_server.client_kill("pubsub") == 2
    cut = time.monotonic()
    a.register("c9/n1/news-of-a", instance_id="1")
    b.register("c9/n1/news-of-b", instance_id="1")
    for replica in (a, b):
        within = cut + 2 - time.monotonic()
        await_sign(lambda r=replica: r.lists("c9/n1/news-of-a", "c9/n1/news-of-b"), within, f"news on {replica.name}")
    await_all_listed((a, b), POOLS, cut + 2 - time.monotonic())
    await_equal_bytes((a, b), LEASE + 2)
    for poller, stream, replica in zip(pollers, streams, (a, b), strict=True):
        assert verdict.missing(poller.stop(), relays) == []
        await_agreement(stream, replica)
        assert len(stream.visits) == 1
        assert all(not stream.told_of(name) for name in POOLS)


@pytest.mark.parametrize("secs", [2.2, 7.0], ids=["shorter-than-a-lease", "longer-than-two-leases"])
def test_a_frozen_server_costs_no_living_pool_its_place(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic, secs: float
) -> None:
    a, b = start_pair(redis_server, lease=LEASE)
    relays = many(traffic, [a, b], POOLS)
    await_all_listed((a, b), POOLS)
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    await_sign(lambda: all(stream.connected for stream in streams), 2, "both streams")
    frozen = time.monotonic()
    redis_server.freeze_for(secs)
    thawed = time.monotonic()
    for replica in (a, b):
        await_sign(lambda r=replica: r.post(_news()).status == 200, 2, f"{replica.name} takes registrations again")
    await_all_listed((a, b), [*POOLS, "c9/n1/news"], thawed + 2 - time.monotonic())
    await_sign(
        lambda: a.pools().complete and b.pools().complete and verdict.same_bytes(a.pools(), b.pools()),
        thawed + LEASE + 2 - time.monotonic(),
        "equal bytes and ETag, complete, one lease + 2 s after the thaw",
    )
    for poller, stream, replica in zip(pollers, streams, (a, b), strict=True):
        assert verdict.missing(poller.stop(), relays) == []
        await_agreement(stream, replica)
        assert len(stream.visits) == 1
        assert all(not stream.told_of(name) for name in POOLS)
    waiting = [beat for relay in relays for beat in relay.beats if frozen < beat.sent < thawed]
    assert waiting
    delayed = max(verdict.slowest_read(poller.polls, frozen, thawed) for poller in pollers)
    assert delayed < 1
    assert max(beat.answered - beat.sent for beat in waiting) < 2 + delayed


def _news() -> dict[str, object]:
    return {"cluster_id": "c9", "namespace": "n1", "dgd_name": "news", "model": "m"}


def test_a_replica_started_after_a_flush_is_as_unsure_as_the_others(
    redis_server: RedisServer, start_pair: StartPair, make_replica: MakeReplica, traffic: Traffic
) -> None:
    lease = 5.0
    a, b = start_pair(redis_server, lease=lease)
    relays = many(traffic, [a, b], POOLS)
    await_all_listed((a, b), POOLS)
    pollers = {replica.name: Poller(traffic, [replica]) for replica in (a, b)}
    flushed = time.monotonic()
    redis_server.flush()
    await_sign(lambda: not a.pools().complete and not b.pools().complete, 2, "a and b noticed")
    assert redis_server.cli("PTTL", "{discovery}:settling") > 0
    c = make_replica("c", redis_url=redis_server.url, lease=lease).launch()
    first = await_sign(lambda: c.says("/pools", 200) and c.pools(), 10, "the first list of c")
    assert time.monotonic() < flushed + lease, "the machine is too slow for this test to mean something"
    assert not first.complete
    pollers["c"] = Poller(traffic, [c])
    for replica in (a, b, c):
        within = flushed + lease + 2 - time.monotonic()
        await_sign(lambda replica=replica: replica.pools().complete, within, f"{replica.name} is complete again")
    await_equal_bytes((a, b, c), 2)
    certain = {}
    for name, poller in pollers.items():
        polls = poller.stop()
        certain[name] = verdict.first_complete(polls, name, flushed + 2)
        assert certain[name] >= flushed + lease, f"{name} was sure {flushed + lease - certain[name]:.3f} s too early"
        assert verdict.missing(polls, relays, only_complete=name == "c") == []
    assert max(certain.values()) - min(certain.values()) < 1.5, certain


def test_a_replica_told_to_stop_ends_a_hundred_streams_and_loses_no_registration(
    redis_server: RedisServer, start_pair: StartPair, traffic: Traffic
) -> None:
    a, b = start_pair(redis_server, lease=10, heartbeat=2)
    streams = [Subscriber(traffic, [a], comes_back=False) for _ in range(100)]
    await_sign(lambda: all(stream.connected for stream in streams), 10, "100 streams")
    numbers = itertools.count()
    accepted: list[str] = []
    told = 0.0
    while not told or time.monotonic() < told + a.drain_delay * 2:
        name = f"c1/n1/p{next(numbers)}"
        try:
            if a.post({**_news(), "cluster_id": "c1", "dgd_name": name.split("/")[2]}, timeout=3).status == 200:
                accepted.append(name)
        except OSError:
            if told:
                break
            raise
        if len(accepted) == 50 and not told:
            a.terminate()
            told = time.monotonic()
    assert a.exit_code(told + a.drain_delay + 2 - time.monotonic()) == 0, a.log
    await_sign(lambda: all(stream.actor.done() for stream in streams), 2, "all streams ended")
    assert all(stream.visits[0].clean and stream.faults == [] for stream in streams)
    last_words = {stream.retries[-1] for stream in streams if len(stream.retries) >= 2}
    assert all(len(stream.retries) >= 2 for stream in streams), "each stream is told when to come back"
    assert len(last_words) > 20, "and not all at the same moment"
    await_all_listed((b,), accepted, 2)
    assert len(accepted) >= 50
    assert "Traceback" not in a.log
