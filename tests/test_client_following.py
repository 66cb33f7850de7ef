"""Following through what breaks streams, hides outages and brings old news, on virtual time."""

import asyncio
import json
import logging
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from discovery.client import Pools
from discovery.client.answers import Answer, NoAnswer
from discovery.client.dissent import Dissent
from discovery.errors import DiscoveryError, Misconfigured, Rejected, Unavailable
from tests.fake_service import frame, listing
from tests.reach_model import Model, no_stream
from tests.virtual_time import VirtualTimeLoop

CURRENT_SECS = 2.0
"""Within so long a list is what the service says, whatever has happened before."""
REFUSED = NoAnswer("cannot connect to http://model: Connection refused", reached=False)


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    random.seed(7)
    made = VirtualTimeLoop()
    yield made
    made.shut()


def shown(pools: Pools) -> list[str]:
    return [found.dgd_name for found in pools.snapshot.pools]


def steps(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "stream.step"]
    return [line.partition("followed by ")[2].partition(" now")[0] for line in lines]


def follow(loop: VirtualTimeLoop, course: Any, **model: Any) -> None:
    """Run a course of events, given the model and the pools that follow it."""

    async def run() -> None:
        service = Model()
        service.names = {"a": "m", "b": "m"}
        for name, value in model.items():
            setattr(service, name, value)
        async with Pools(service, (), patience_secs=10) as pools:
            await course(service, pools)
        assert len(asyncio.all_tasks()) == 1
        assert not any(stream.open for stream in service.streams)

    loop.run(run())


# ---- ways that are broken


@pytest.mark.parametrize(
    ("broken", "within_secs"),
    [
        pytest.param({"streams_are_mute": True}, 12.0, id="a proxy buffers streams"),
        pytest.param({"stream_failure": Rejected(404, "no", "no")}, 1.0, id="a proxy does not know the path"),
        pytest.param({"stream_failure": no_stream()}, 1.0, id="a proxy answers with a page"),
        pytest.param({"stream_failure": Unavailable("answered 502")}, 8.0, id="a proxy cannot carry streams"),
        pytest.param({"streams_live_secs": 2.0}, 14.0, id="a proxy cuts streams after a moment"),
    ],
)
def test_where_streams_are_broken_long_polls_tell_of_changes_at_once(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture, broken: dict[str, Any], within_secs: float
) -> None:
    caplog.set_level(logging.INFO)
    entered_at = loop.time()

    async def course(service: Model, pools: Pools) -> None:
        assert loop.time() - entered_at < 0.6
        assert shown(pools) == ["a", "b"]
        while pools.step == "stream":
            await asyncio.sleep(0.1)
            assert loop.time() - entered_at < within_secs
        assert steps(caplog) == ["long polls"]
        while not service.asked_for("wait"):
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        for name in "cde":
            service.put(name)
            await asyncio.wait_for(pools.changed(), 0.1)
            assert name in shown(pools)
            await asyncio.sleep(2)
        assert pools.trouble is None
        # And once streams come through again they are used again.
        for name in broken:
            setattr(service, name, None if name != "streams_are_mute" else False)
        await asyncio.sleep(60)
        assert pools.step == "stream"
        service.drop("a")
        await asyncio.wait_for(pools.changed(), 0.1)
        assert steps(caplog) == ["long polls", "a stream"]

    follow(loop, course, **broken)


def test_broken_streams_are_tried_again_ever_more_seldom(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(5)
        before = len(service.asked_for("stream"))
        await asyncio.sleep(1200)
        assert 4 <= len(service.asked_for("stream")) - before <= 9
        assert pools.step == "long poll"

    follow(loop, course, stream_failure=no_stream())


def test_where_waiting_is_not_possible_either_looks_alone_keep_it_current(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(10)
        assert pools.step == "poll"
        assert steps(caplog) == ["long polls", "polls"]
        before = len(service.asked)
        for number in range(20):
            service.put(f"p{number}")
            await asyncio.wait_for(pools.changed(), CURRENT_SECS)
            assert f"p{number}" in shown(pools)
        await asyncio.sleep(600)
        assert len(service.asked) - before < 700
        assert steps(caplog) == ["long polls", "polls"]

    follow(loop, course, stream_failure=no_stream(), strips_prefer=True)


def test_long_polls_that_are_cut_become_shorter_ones(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(60)
        assert pools.step == "long poll"
        waits = [headers["Prefer"] for _, kind, headers in service.asked if kind == "wait"]
        assert waits[0] == "wait=20"
        assert waits[-1] == "wait=4"
        assert pools.trouble is None

    follow(loop, course, stream_failure=no_stream(), waits_live_secs=6.0)


def test_an_outage_is_no_fault_of_streams(loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def course(service: Model, pools: Pools) -> None:
        for failure in (REFUSED, Unavailable("http://model answered 503"), Rejected(401, "no", "no")):
            service.plain_failure = service.stream_failure = failure
            service.streams[-1].cut()
            await asyncio.sleep(30)
            service.plain_failure = service.stream_failure = None
            await asyncio.sleep(20)
        assert (pools.step, steps(caplog)) == ("stream", [])

    follow(loop, course)


def test_a_rolling_restart_leaves_the_stream_in_use(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        for _ in range(5):
            await asyncio.sleep(15)
            service.restart()
        await asyncio.sleep(3)
        assert pools.step == "stream"
        assert len(service.streams) == 6
        headers = [headers for _, kind, headers in service.asked if kind == "stream"]
        assert headers[-1] == {"Last-Event-ID": service.token}
        assert pools.snapshot.etag == service.token

    follow(loop, course)


# ---- current within two seconds


@pytest.mark.parametrize("seed", range(5))
def test_after_an_outage_of_any_length_the_list_is_current_at_once(loop: VirtualTimeLoop, seed: int) -> None:
    random.seed(seed)

    async def course(service: Model, pools: Pools) -> None:
        for number, secs in enumerate((0.3, 2.0, 7.1, 33.3, 400.0)):
            service.plain_failure = service.stream_failure = REFUSED
            service.streams[-1].cut()
            await asyncio.sleep(secs)
            service.names[f"p{number}"] = "m"
            service.plain_failure = service.stream_failure = None
            await asyncio.sleep(CURRENT_SECS)
            assert f"p{number}" in shown(pools)
            assert (pools.trouble, pools.snapshot.complete) == (None, True)
            await asyncio.sleep(20)

    follow(loop, course)


@pytest.mark.parametrize("secs", [0.7, 2.0, 4.4, 9.9, 33.3])
def test_requests_that_hang_do_not_hold_up_those_after_them(loop: VirtualTimeLoop, secs: float) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.plain_hangs = True
        for stream in service.streams:
            stream.frozen = True
        service.streams_are_mute = True
        await asyncio.sleep(secs)
        service.names["c"] = "m"
        service.plain_hangs = service.streams_are_mute = False
        await asyncio.sleep(CURRENT_SECS)
        assert shown(pools) == ["a", "b", "c"]
        assert len(service.asked_for("look")) < 2 + 2 * (secs + CURRENT_SECS)

    follow(loop, course)


def test_a_stream_that_is_half_open_hides_nothing(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(12)
        service.streams[0].frozen = True
        for name in "cdefgh":
            service.put(name)
            await asyncio.sleep(CURRENT_SECS)
            assert name in shown(pools)
            assert pools.snapshot.age < CURRENT_SECS
            await asyncio.sleep(11)
        assert len(service.streams) == 2

    follow(loop, course)


def test_a_stream_that_thaws_brings_no_old_news(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        stream = service.streams[0]
        stream.frozen = True
        service.put("old")
        service.drop("a")
        service.drop("old")
        service.put("a", "m2")
        await asyncio.sleep(CURRENT_SECS)
        before = pools.version
        stream.thaw()
        await asyncio.sleep(5)
        assert [(pool.dgd_name, pool.model) for pool in pools.snapshot.pools] == [("a", "m2"), ("b", "m")]
        assert pools.version == before

    follow(loop, course)


def test_an_event_that_is_not_known_leaves_the_list_without_a_name(loop: VirtualTimeLoop) -> None:
    """Its id would name a list that was not understood, and resuming from there would lose it for good."""

    async def course(service: Model, pools: Pools) -> None:
        service.names["c"] = "m"
        service.streams[0].send(frame("message", listing("c"), service.token))
        await asyncio.sleep(0.1)
        assert (shown(pools), pools.snapshot.etag) == (["a", "b"], None)
        service.put("d")
        await asyncio.sleep(0.1)
        assert (shown(pools), pools.snapshot.etag) == (["a", "b", "d"], None)
        await asyncio.sleep(CURRENT_SECS)
        assert (shown(pools), pools.snapshot.etag) == (["a", "b", "c", "d"], service.token)

    follow(loop, course)


def test_an_answer_from_before_an_event_is_not_taken(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(2)
        service.plain_takes_secs = 0.8
        for stream in service.streams:
            stream.send(b":\n\n")
        looked = len(service.asked_for("look"))
        service.names["ghost"] = "m"  # in the next answer, and gone before it arrives
        while len(service.asked_for("look")) == looked:
            await asyncio.sleep(0.01)
        service.drop("ghost")
        service.drop("b")
        for _ in range(300):
            await asyncio.sleep(0.01)
            assert shown(pools) == ["a"]

    follow(loop, course)


@pytest.mark.parametrize("name", ["", 'a"b', "a, b", "\u00e9", "a\tb", "x" * 300])
def test_a_name_that_cannot_be_sent_back_is_none(loop: VirtualTimeLoop, name: str) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.streams[0].send(frame("put", listing("a", model="m2"), name))
        await asyncio.sleep(0.1)
        assert pools.snapshot.etag is None
        assert pools.snapshot.pools_for("m2")
        service.streams[0].cut()
        await asyncio.sleep(CURRENT_SECS)
        assert (pools.snapshot.etag, pools.trouble) == (service.token, None)
        sent = {value for _, _, headers in service.asked for value in headers.values()}
        assert sent <= {service.token, f'W/"{service.token}"'}

    follow(loop, course)


def test_an_error_that_nobody_foresaw_costs_one_attempt(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.plain_failure = service.stream_failure = ZeroDivisionError("of a library")  # type: ignore[assignment]
        service.streams[0].cut()
        await asyncio.sleep(20)
        assert pools.trouble == "asking for the pools failed: of a library"
        service.plain_failure, service.stream_failure = None, no_stream()
        await asyncio.sleep(10)
        assert (pools.trouble, pools.step) == (None, "long poll")
        service.plain_failure = ZeroDivisionError("of a library")  # type: ignore[assignment]
        service.put("c")
        await asyncio.sleep(20)
        service.plain_failure = service.stream_failure = None
        await asyncio.sleep(CURRENT_SECS)
        assert shown(pools) == ["a", "b", "c"]
        await asyncio.sleep(300)
        assert pools.step == "stream"
        assert "not foreseen" in caplog.text

    follow(loop, course)


def test_a_stream_that_is_a_moment_later_than_a_look_is_kept(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        for name in "cdefg":
            await asyncio.sleep(3)
            looked = len(service.asked_for("look"))
            service.names[name] = "m"
            while len(service.asked_for("look")) == looked:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            service.streams[0].send(frame("put", listing(name), service.token))
            await asyncio.sleep(0.01)
            assert name in shown(pools)
        assert len(service.streams) == 1

    follow(loop, course)


def test_an_answer_that_was_overtaken_by_a_later_one_is_not_taken(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(3)
        looked = len(service.asked_for("look"))
        service.plain_takes_secs = 1.5
        service.names["ghost"] = "m"
        while len(service.asked_for("look")) == looked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        del service.names["ghost"]
        service.plain_takes_secs = 0.0
        for _ in range(300):
            await asyncio.sleep(0.01)
            assert shown(pools) == ["a", "b"]

    follow(loop, course, stream_failure=no_stream(), strips_prefer=True)


def test_a_replica_that_lacks_pools_changes_nothing_while_others_tell_otherwise(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(3)
        version = pools.version
        service.lagging = b'{"complete":false,"pools":[]}'
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert (shown(pools), pools.snapshot.complete, pools.trouble) == (["a", "b"], True, None)
        assert (pools.version, len(service.streams)) == (version, 1)
        named = [headers.get("If-None-Match", "") for _, kind, headers in service.asked if kind == "look"]
        again = named.count(f'W/"{service.token}", W/"lagging"')
        assert again > len(named) / 2  # so that it is not sent again and again

    follow(loop, course)


def test_a_complete_list_of_a_replica_that_lags_changes_nothing_while_others_tell_otherwise(
    loop: VirtualTimeLoop,
) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(3)
        service.lagging = service.body().encode()
        service.drop("a")
        service.put("c")
        await asyncio.sleep(0.1)
        version = pools.version
        for _ in range(200):
            await asyncio.sleep(0.1)
            assert shown(pools) == ["b", "c"]
        assert (pools.version, len(service.streams)) == (version, 1)

    follow(loop, course)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("complete", [True, False])
def test_replicas_that_differ_for_long_make_no_pools_come_and_go(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture, complete: bool, seed: int
) -> None:
    """Each new connection leads to one of two that never agree."""
    random.seed(seed)

    async def course(service: Model, pools: Pools) -> None:
        others = json.dumps({"complete": complete, "pools": [listing("a"), listing("x")]}).encode()
        service.balanced = [None, Answer(200, "theirs", others)]
        await asyncio.sleep(60)
        version, streams = pools.version, len(service.streams)
        await asyncio.sleep(1200)
        assert pools.version - version <= 8
        assert len(service.streams) - streams <= 8
        assert pools.step == "stream"
        said = [record for record in caplog.records if getattr(record, "event", "") == "stream.dissent"]
        assert len(said) <= 2

    follow(loop, course)


def test_a_list_that_was_overruled_often_needs_more_opinions_and_is_left_aside_for_longer() -> None:
    dissent, now = Dissent(), 0.0
    opinions, asides, said = [], [], []
    for _ in range(12):
        opinions.append(dissent.opinions("theirs"))
        said.append(dissent.overrule("theirs", now))
        begun_at = now
        while dissent.aside(now):
            now += 1.0
        asides.append(now - begun_at)
    assert opinions == [1, 2, 3, *[4] * 9]
    assert asides == [2, 4, 8, 16, 32, 64, 128, 256, *[300] * 4]
    assert said.count(True) == 1
    assert dissent.opinions("another") == dissent.opinions(None) == 1
    dissent.aside(now + 700.0)
    assert dissent.opinions("theirs") == 1
    for number in range(100):
        dissent.overrule(f"list {number}", now)
    assert len(dissent.aside(now)) <= 8


def test_an_answer_of_which_nobody_knows_what_it_means_is_not_asked_for_again_at_once(loop: VirtualTimeLoop) -> None:
    """304, without a name, to a request that named two lists: a proxy has taken the ETag out."""

    async def course(service: Model, pools: Pools) -> None:
        service.lagging = b'{"complete":false,"pools":[]}'
        await asyncio.sleep(10)
        service.answer = Answer(304, None, b"")
        looks = len(service.asked_for("look"))
        await asyncio.sleep(20)
        assert len(service.asked_for("look")) - looks <= 42
        assert shown(pools) == ["a", "b"]

    follow(loop, course)


def test_a_replica_that_never_agrees_is_told_of_once(loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.lagging = b'{"complete":true,"pools":[]}'
        await asyncio.sleep(300)
        assert (shown(pools), len(service.streams)) == (["a", "b"], 1)
        said = [record.getMessage() for record in caplog.records]
        assert said == ["replicas give different lists of pools: ask discovery doctor --all-replicas"]

    follow(loop, course)


def test_a_pool_that_was_deleted_does_not_come_back_from_a_replica_that_lags(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.drop("a")
        service.names["a"] = "m"  # as the next replica has it, which does not know yet
        service.restart()
        for _ in range(15):
            await asyncio.sleep(0.1)
            assert shown(pools) == ["b"]
        assert len(service.streams) == 2
        assert pools.snapshot.etag is None
        service.drop("a")
        await asyncio.sleep(0.1)
        assert (shown(pools), pools.snapshot.etag) == (["b"], service.token)

    follow(loop, course)


def test_what_was_told_is_not_undone_by_incomplete_lists_one_after_the_other(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.put("b", "m2")
        service.drop("a")
        await asyncio.sleep(0.01)
        service.stream_failure, service.complete, service.names = REFUSED, False, {"a": "m", "b": "m"}
        service.streams[0].send(frame("snapshot", json.loads(service.body()), service.token))
        await asyncio.sleep(0.1)
        assert [(pool.dgd_name, pool.model) for pool in pools.snapshot.pools] == [("b", "m2")]
        service.names = {"c": "m"}
        service.streams[0].send(frame("snapshot", json.loads(service.body()), service.token))
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert [(pool.dgd_name, pool.model) for pool in pools.snapshot.pools] == [("b", "m2"), ("c", "m")]
            assert (pools.snapshot.complete, pools.snapshot.etag) == (False, None)

    follow(loop, course)


def test_a_deleted_pool_that_only_a_lagging_list_had_is_not_merged_later(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.say_complete(False)
        service.drop("a")
        await asyncio.sleep(0.01)
        service.stream_failure, service.names = REFUSED, {"a": "m", "b": "m"}
        service.streams[0].cut()
        await asyncio.sleep(1.3)
        assert len(service.asked_for("look")) == 1
        service.names = {"b": "m"}
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert shown(pools) == ["b"]

    follow(loop, course)


def test_a_stream_that_tells_now_and_then_is_not_looked_after(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        for number in range(40):
            service.put(f"p{number}")
            await asyncio.sleep(1.28)
        assert service.asked_for("look") == []

    follow(loop, course)


def test_connections_that_are_not_made_keep_no_new_attempt_away(loop: VirtualTimeLoop) -> None:
    """Each is given up after a while; the one after it is not put off by that."""

    async def course(service: Model, pools: Pools) -> None:
        service.plain_hangs = service.streams_are_mute = True
        service.plain_hangs_secs = 3.0
        service.streams[0].cut()
        await asyncio.sleep(20)
        looks = service.asked_for("look")
        assert max(later - earlier for earlier, later in pairwise(looks)) <= 1.5

    follow(loop, course)


def test_a_pool_that_one_list_lacked_is_back_with_the_next(loop: VirtualTimeLoop) -> None:
    """Absence from a list is one replica's opinion; only who deletes a pool by an event knows."""

    async def course(service: Model, pools: Pools) -> None:
        service.names = {"b": "m"}
        service.restart()
        while shown(pools) != ["b"]:
            await asyncio.sleep(0.1)
        service.names = {"a": "m", "b": "m"}
        service.streams[-1].send(frame("snapshot", json.loads(service.body()), service.token))
        await asyncio.sleep(0.01)
        assert (shown(pools), pools.snapshot.complete) == (["a", "b"], True)

    follow(loop, course)


def test_what_was_told_is_not_undone_by_a_list_from_before(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.put("b", "m2")
        service.put("b", "m3")
        service.drop("a")
        service.names = {"a": "m", "b": "m"}
        service.plain_failure = REFUSED
        service.restart()
        for _ in range(40):  # as long as nobody was asked since
            await asyncio.sleep(0.1)
            assert [(pool.dgd_name, pool.model) for pool in pools.snapshot.pools] == [("b", "m3")]
        assert (pools.snapshot.etag, pools.snapshot.complete) == (None, False)
        assert pools.snapshot.pools_for("m") == ()
        assert pools.snapshot.pools is pools.snapshot.pools
        service.plain_failure = None
        await asyncio.sleep(CURRENT_SECS)
        assert [(pool.dgd_name, pool.model) for pool in pools.snapshot.pools] == [("a", "m"), ("b", "m")]
        assert pools.snapshot.etag == service.token

    follow(loop, course)


def test_a_pool_that_is_back_in_truth_is_shown_soon(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.drop("a")
        await asyncio.sleep(0.1)
        service.put("a")  # who says so knows
        await asyncio.sleep(0.01)
        assert shown(pools) == ["a", "b"]
        service.drop("a")
        service.names["a"] = "m2"
        service.restart()
        await asyncio.sleep(CURRENT_SECS)
        assert [pool.model for pool in pools.snapshot.pools] == ["m2", "m"]
        service.drop("a")
        service.put("c")
        service.names["a"] = "m2"
        service.restart()
        await asyncio.sleep(1.5)
        assert shown(pools) == ["b", "c"]
        before = pools.version
        await asyncio.sleep(0.5)
        assert (shown(pools), pools.snapshot.etag) == (["a", "b", "c"], service.token)
        assert pools.version > before

    follow(loop, course)


def test_where_all_say_that_pools_may_be_missing_it_is_believed(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        for _ in range(3):
            service.streams[-1].frozen = True
            service.say_complete(False)
            await asyncio.sleep(CURRENT_SECS)
            assert (shown(pools), pools.snapshot.complete) == (["a", "b"], False)
            service.streams[-1].frozen = True
            service.say_complete(True)
            await asyncio.sleep(CURRENT_SECS)
            assert (pools.snapshot.complete, pools.snapshot.etag) == (True, service.token)

    follow(loop, course)


def test_what_is_left_of_dead_connections_is_not_asked_again(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(10)
        assert service.renewed == 0
        service.plain_hangs = True
        await asyncio.sleep(3)
        assert service.renewed >= 1

    follow(loop, course)


def test_polled_lists_follow_the_same_rules(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.complete, service.names = False, {"c": "m"}
        await asyncio.sleep(CURRENT_SECS)
        assert (shown(pools), pools.snapshot.complete, pools.snapshot.etag) == (["a", "b", "c"], False, None)
        service.names = {"b": "m", "c": "m2"}
        await asyncio.sleep(CURRENT_SECS)
        assert shown(pools) == ["a", "b", "c"]
        assert [pool.dgd_name for pool in pools.snapshot.pools_for("m2")] == ["c"]
        service.complete = True
        await asyncio.sleep(CURRENT_SECS)
        assert (shown(pools), pools.snapshot.etag) == (["b", "c"], service.token)
        service.complete, service.names = False, {}
        await asyncio.sleep(290)
        assert shown(pools) == ["b", "c"]
        await asyncio.sleep(15)
        assert (shown(pools), pools.snapshot.complete) == ([], False)  # given, and unseen for five minutes

    follow(loop, course, stream_failure=no_stream())


# ---- outages


def test_an_outage_keeps_the_pools_and_says_that_some_may_be_missing(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def course(service: Model, pools: Pools) -> None:
        await asyncio.sleep(1)
        token = pools.snapshot.etag
        assert token == service.token
        service.plain_failure = service.stream_failure = REFUSED
        service.streams[0].cut()
        await asyncio.sleep(3)
        assert (pools.trouble, pools.snapshot.complete) == (str(REFUSED), True)
        assert await asyncio.wait_for(pools.changed(), 4)
        await asyncio.sleep(600)
        assert (shown(pools), pools.snapshot.complete, pools.snapshot.etag) == (["a", "b"], False, None)
        assert 600 < pools.snapshot.age < 610
        service.plain_failure = service.stream_failure = None
        assert await asyncio.wait_for(pools.changed(), CURRENT_SECS)
        assert (shown(pools), pools.snapshot.complete, pools.snapshot.etag) == (["a", "b"], True, token)
        events = [getattr(record, "event", "") for record in caplog.records]
        assert events == ["stream.lost", "stream.regained"]

    follow(loop, course)


def test_time_without_any_answer_gives_no_pool_up(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.names, service.complete = {"b": "m"}, False
        await asyncio.sleep(CURRENT_SECS)
        service.plain_failure = REFUSED
        await asyncio.sleep(900)
        service.plain_failure = None
        await asyncio.sleep(280)
        assert shown(pools) == ["a", "b"]
        await asyncio.sleep(30)
        assert shown(pools) == ["b"]

    follow(loop, course, stream_failure=no_stream())


def test_an_outage_is_asked_about_once_a_second_and_not_more(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.plain_failure = service.stream_failure = REFUSED
        service.streams[0].cut()
        await asyncio.sleep(10)
        before = len(service.asked)
        await asyncio.sleep(600)
        assert 400 < len(service.asked) - before < 900
        looks = service.asked_for("look")[-300:]
        gaps = [later - earlier for earlier, later in pairwise(looks)]
        assert min(gaps) >= 0.5
        assert max(gaps) <= 1.5
        assert max(gaps) - min(gaps) > 0.3

    follow(loop, course)


@pytest.mark.parametrize(("asked_secs", "most"), [(2, 57), (5, 25), (60, 25)])
def test_a_service_that_asks_for_more_time_is_given_it_up_to_five_seconds(
    loop: VirtualTimeLoop, asked_secs: int, most: int
) -> None:
    async def course(service: Model, pools: Pools) -> None:
        failure = Unavailable("http://model answered 503", retry_after_secs=asked_secs)
        service.plain_failure = service.stream_failure = failure
        service.streams[0].cut()
        await asyncio.sleep(65)
        looks = len(service.asked_for("look"))
        await asyncio.sleep(100)
        assert 15 <= len(service.asked_for("look")) - looks <= most
        service.names["c"] = "m"
        service.plain_failure = None
        await asyncio.sleep(6.5)
        assert shown(pools) == ["a", "b", "c"]

    follow(loop, course)


def test_who_asks_seldom_is_current_as_soon_after_an_outage(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        service = Model()
        async with Pools(service, (), patience_secs=10, quiet_secs=60.0) as pools:
            service.plain_failure = service.stream_failure = REFUSED
            service.streams[0].cut()
            await asyncio.sleep(100)
            service.names["c"] = "m"
            service.plain_failure = service.stream_failure = None
            await asyncio.sleep(CURRENT_SECS)
            assert shown(pools) == ["c"]

    loop.run(run())


def test_a_quiet_service_is_looked_at_as_often_as_was_asked_for(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        service = Model()
        async with Pools(service, (), patience_secs=10, quiet_secs=10.0) as pools:
            for _ in range(1000):
                await asyncio.sleep(0.1)
                assert (pools.snapshot.complete, pools.trouble) == (True, None)
            assert 5 <= len(service.asked_for("look")) <= 14
            assert len(service.streams) == 1

    loop.run(run())


# ---- answers that are none


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(200, "x", b"<html>welcome</html>"), id="a page"),
        pytest.param(Answer(200, "x", b""), id="nothing"),
        pytest.param(Answer(200, "x", b'{"complete":true,"pools":[{"cluster_id":"c1"'), id="cut off"),
        pytest.param(Answer(200, "x", b"[]"), id="another list"),
        pytest.param(Answer(200, "x", b"{}"), id="another object"),
        pytest.param(Answer(200, "x", b'{"complete":true,"pools":null}'), id="null"),
        pytest.param(Answer(204, None, b""), id="no content"),
        pytest.param(Answer(304, "of another filter", b""), id="not modified, of what we do not have"),
    ],
)
def test_no_list_is_taken_for_an_empty_one(loop: VirtualTimeLoop, answer: Answer) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.answer, service.stream_failure = answer, REFUSED
        service.streams[0].cut()
        await asyncio.sleep(20)
        assert (shown(pools), pools.snapshot.complete) == (["a", "b"], False)
        assert pools.trouble
        service.answer = service.stream_failure = None
        await asyncio.sleep(CURRENT_SECS)
        assert (shown(pools), pools.snapshot.complete, pools.trouble) == (["a", "b"], True, None)

    follow(loop, course)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(200, "x", b"<html>welcome</html>"), id="a page"),
        pytest.param(Answer(304, None, b""), id="not modified, before there is a list"),
        pytest.param(Answer(304, "x", b""), id="not modified, with a tag"),
    ],
)
def test_no_list_begins_a_block(loop: VirtualTimeLoop, answer: Answer) -> None:
    async def run() -> None:
        service = Model()
        service.answer, service.stream_failure = answer, REFUSED
        started = loop.time()
        with pytest.raises(Unavailable):
            async with Pools(service, (), patience_secs=5):
                raise AssertionError("the block must not run")
        assert 5 <= loop.time() - started < 7
        assert len(asyncio.all_tasks()) == 1

    loop.run(run())


@pytest.mark.parametrize("failure", [Rejected(403, "no", "no"), Misconfigured("the token file cannot be read")])
def test_a_refusal_of_everything_ends_the_entering_at_once(loop: VirtualTimeLoop, failure: DiscoveryError) -> None:
    async def run() -> None:
        service = Model()
        service.plain_failure = service.stream_failure = failure
        with pytest.raises(type(failure)):
            async with Pools(service, (), patience_secs=60):
                raise AssertionError("the block must not run")
        assert loop.time() < 1001

    loop.run(run())


def test_a_service_that_takes_requests_and_says_nothing_ends_the_entering_in_time(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        service = Model()
        service.plain_hangs = service.streams_are_mute = True
        with pytest.raises(NoAnswer):
            async with Pools(service, (), patience_secs=5):
                raise AssertionError("the block must not run")
        assert loop.time() < 1008
        assert len(asyncio.all_tasks()) == 1

    loop.run(run())


def test_a_slow_service_is_waited_for(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        service = Model()
        service.stream_failure, service.plain_takes_secs = REFUSED, 8.0
        async with Pools(service, (), patience_secs=20) as pools:
            assert pools.snapshot.complete

    loop.run(run())


def test_a_list_without_a_name_is_compared_by_what_it_holds(loop: VirtualTimeLoop) -> None:
    async def course(service: Model, pools: Pools) -> None:
        service.answer = Answer(200, None, service.body().encode())
        version = pools.version
        await asyncio.sleep(10)
        assert (pools.version, len(service.streams), pools.snapshot.age < 2) == (version, 1, True)
        service.names["c"] = "m"
        service.answer = Answer(200, None, service.body().encode())
        await asyncio.sleep(CURRENT_SECS)
        assert shown(pools) == ["a", "b", "c"]
        assert pools.snapshot.etag in (None, service.token)

    follow(loop, course)


def test_a_big_list_that_comes_slowly_by_a_stream_is_waited_for(loop: VirtualTimeLoop) -> None:
    async def run() -> None:
        service = Model()
        service.streams_are_mute = True  # what it says by itself never comes

        async def trickle() -> None:
            while not service.streams:
                await asyncio.sleep(0.1)
            stream = service.streams[0]
            whole = frame("snapshot", {"complete": True, "pools": [listing(f"p{n:03}") for n in range(100)]}, "x")
            stream.frozen = False
            for start in range(0, len(whole), len(whole) // 12):
                stream.send(whole[start : start + len(whole) // 12])
                await asyncio.sleep(0.4)

        trickling = asyncio.create_task(trickle())
        async with Pools(service, (), patience_secs=20) as pools:
            assert len(pools.snapshot.pools) == 100
            assert service.asked_for("look") == []
        await trickling

    loop.run(run())
