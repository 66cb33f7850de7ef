"""Server-sent events and long polls, client by client: frames, resuming, slowness, caps and the end."""

import gc
import json
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from discovery.listing import journal, snapshot
from discovery.model import Router
from tests.http.in_process import Assembled, Event, Exchange, Rig, pool

EVENTS = "/pools/events"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        rig.publish(pool("p1"), pool("p2"))
        rig.settle()
        yield rig


def resume(rig: Rig, token: str | None, target: str = EVENTS) -> Exchange:
    return rig.open(target, {"last-event-id": token or ""})


def told(stream: Exchange) -> list[str]:
    """The events so far, each as its name and the pool it is about."""
    return [f"{event.name} {event.data.get('dgd_name', event.data.get('complete'))}" for event in stream.events()]


def etag(rig: Rig, target: str = "/pools") -> str:
    return rig.get(target).headers["etag"].removeprefix('W/"').removesuffix('"')


# ---- frames


def test_a_stream_begins_with_retry_and_the_whole_list(rig: Rig) -> None:
    stream = rig.open(EVENTS)
    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-cache"
    assert stream.headers["x-accel-buffering"] == "no"
    assert "content-length" not in stream.headers
    first, second = stream.blocks()
    assert list(first) == ["retry"]
    assert 1000 <= int(first["retry"]) <= 3000
    assert (second["event"], json.loads(second["data"])) == ("snapshot", rig.get("/pools").json())
    assert second["id"] == etag(rig)
    assert not stream.ended


def test_each_kind_of_change_is_an_event(rig: Rig) -> None:
    stream = rig.open(EVENTS)
    rig.publish(pool("p3", model="new"))
    rig.settle()
    put = stream.events()[-1]
    assert put == Event("put", rig.get("/pools/c1/n1/p3").json(), etag(rig))
    rig.publish(pool("p3", model="newer"))
    rig.settle()
    assert stream.events()[-1].data["model"] == "newer"
    rig.publish(gone=["p3"])
    rig.settle()
    assert stream.events()[-1] == Event("delete", {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p3"}, etag(rig))
    rig.publish(complete=False)
    rig.settle()
    assert stream.events()[-1] == Event("complete", {"complete": False}, etag(rig))
    assert told(stream) == ["snapshot True", "put p3", "put p3", "delete p3", "complete False"]


def test_of_what_is_published_together_only_the_last_event_has_an_id(rig: Rig) -> None:
    stream = rig.open(EVENTS)
    rig.publish(pool("p3"), pool("p1", model="n"), gone=["p2"], complete=False)
    rig.settle()
    events = stream.events()[1:]
    assert [event.name for event in events] == ["complete", "put", "put", "delete"]
    assert [event.id for event in events] == [None, None, None, etag(rig)]


def test_a_renewal_is_no_event(rig: Rig) -> None:
    stream = rig.open(EVENTS)
    rig.publish(pool("p1"), pool("p2"))
    rig.pass_time(5)
    assert told(stream) == ["snapshot True"]


def test_what_a_subscriber_puts_together_is_what_get_says(rig: Rig) -> None:
    stream, seen = rig.open(EVENTS), Assembled()
    for step in range(30):
        rig.publish(
            pool(f"p{step % 7}", model=f"m{step}"),
            gone=[f"p{(step + 3) % 7}"] if step % 2 else [],
            complete=step % 5 > 0,
        )
        rig.settle()
        seen = Assembled()
        seen.take(stream.events())
        assert seen.document() == rig.get("/pools").json()
        assert stream.last_event_id == etag(rig)


def test_a_comment_comes_every_fifteen_seconds_and_no_event(rig: Rig) -> None:
    streams = [rig.open(EVENTS) for _ in range(20)]
    rig.pass_time(150.5)
    for stream in streams:
        comments = [block for block in stream.blocks() if "" in block]
        assert len(comments) in (10, 11)
        assert told(stream) == ["snapshot True"]


def test_comments_are_spread_so_that_not_all_streams_are_written_to_at_once(rig: Rig) -> None:
    streams = [rig.open(EVENTS) for _ in range(60)]
    rig.pass_time(7.5)
    commented = sum(any("" in block for block in stream.blocks()) for stream in streams)
    assert 10 < commented < 50


def test_head_of_a_stream_ends_at_once_and_leaves_nothing_open(rig: Rig) -> None:
    answer = rig.ask("HEAD", EVENTS)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert rig.streams.streams == 0
    assert rig.pools.everything.readers == 0


def test_routers_are_streamed_as_pools_are() -> None:
    with Rig() as rig:
        assert rig.get("/routers").status == 503
        rig.publish_routers(Router("r0", "http://10.0.0.5:9000"))
        rig.settle()
        stream = rig.open("/routers/events")
        rig.publish_routers(Router("r1", "http://10.0.0.6:9000"), gone=["r0"])
        rig.settle()
        snapshot, put, delete = stream.events()
        assert snapshot.data == {"complete": True, "routers": [{"id": "r0", "url": "http://10.0.0.5:9000"}]}
        assert (put.name, put.data) == ("put", {"id": "r1", "url": "http://10.0.0.6:9000"})
        assert (delete.name, delete.data, delete.id) == ("delete", {"id": "r0"}, etag(rig, "/routers"))


def test_what_is_published_goes_past_send_and_is_framed_once_for_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [rig.open(EVENTS) for _ in range(5)]
    framed: list[bytes] = []
    written = Exchange.write_now
    monkeypatch.setattr(Exchange, "write_now", lambda self, chunk: framed.append(chunk) or written(self, chunk))
    rig.publish(pool("p3"))
    rig.settle()
    assert [stream.pushed for stream in streams] == [1] * 5
    assert [told(stream)[-1] for stream in streams] == ["put p3"] * 5
    assert len({id(chunk) for chunk in framed}) == 1, "each subscriber was given a copy of its own"


def test_an_answer_that_is_not_chunked_is_written_as_it_is(rig: Rig) -> None:
    """HTTP/1.0 knows no chunks: such a stream ends with its connection."""
    stream, other = rig.open(EVENTS), rig.open(EVENTS)
    taken: list[bytes] = []
    stream.chunked_encoding = False
    stream.write_now = lambda framed: not taken.append(framed)  # type: ignore[method-assign]
    rig.publish(pool("p3"))
    rig.settle()
    assert told(other)[-1] == "put p3"
    assert taken == other.writes[-1:]


# ---- filters


def test_a_filtered_stream_sees_pools_come_and_go_over_its_border(rig: Rig) -> None:
    stream = rig.open(EVENTS + "?model=m&capability=chat")
    assert stream.events()[0].data == {"complete": True, "pools": []}
    rig.publish(pool("p1", capabilities=["chat"]))
    rig.settle()
    rig.publish(pool("p1", capabilities=["chat"], model="other"))
    rig.settle()
    rig.publish(pool("p1", model="other"), pool("p2", model="other"))
    rig.settle()
    rig.publish(pool("p1", capabilities=["tools", "chat"]))
    rig.settle()
    rig.publish(gone=["p1", "p2"])
    rig.settle()
    assert told(stream) == ["snapshot True", "put p1", "delete p1", "put p1", "delete p1"]


def test_the_id_of_a_filtered_stream_is_the_tag_of_the_same_filter(rig: Rig) -> None:
    stream = rig.open(EVENTS + "?model=x")
    rig.publish(pool("p3", model="x"))
    rig.settle()
    assert stream.last_event_id == etag(rig, "/pools?model=x") != etag(rig)
    assert resume(rig, stream.last_event_id, EVENTS + "?model=x").events() == []


# ---- resuming


def test_a_reader_that_is_up_to_date_is_told_nothing_but_retry(rig: Rig) -> None:
    stream = resume(rig, etag(rig))
    assert [list(block) for block in stream.blocks()] == [["retry"]]
    rig.publish(pool("p3"))
    rig.settle()
    assert told(stream) == ["put p3"]


def test_a_gap_that_the_journal_bridges_is_told_as_changes_alone(rig: Rig) -> None:
    seen, token = Assembled(), etag(rig)
    seen.take(rig.open(EVENTS).events())
    for step in range(10):
        rig.publish(pool(f"q{step}"), gone=["p1"] if step == 5 else [])
        rig.settle()
    stream = resume(rig, token)
    assert {event.name for event in stream.events()} == {"put", "delete"}
    assert len(stream.events()) == 11
    seen.take(stream.events())
    assert seen.document() == rig.get("/pools").json()
    assert stream.last_event_id == etag(rig)


@pytest.mark.parametrize(
    "token", ["", "0" * 32, "garbage", "x" * 10_000, 'W/"0"', "\u00e9\u00ff", "\x00", "1, 2"], ids=range(8)
)
def test_a_token_that_means_nothing_is_answered_with_the_whole_list(rig: Rig, token: str) -> None:
    assert told(resume(rig, token)) == ["snapshot True"]


def test_a_token_from_before_the_journal_is_answered_with_the_whole_list(rig: Rig) -> None:
    old = etag(rig)
    for step in range(journal.JOURNAL_ENTRIES + 1):
        rig.publish(pool("p1", model=f"m{step}"))
        rig.call(rig.pools._flush)
    stream = resume(rig, old)
    assert told(stream) == ["snapshot True"]
    assert stream.events()[0].data == rig.get("/pools").json()


def test_a_token_of_another_replica_with_the_same_content_is_as_good(rig: Rig) -> None:
    with Rig() as other:
        other.publish(pool("p2"), pool("zz"))
        other.settle()
        other.publish(pool("p1"), gone=["zz"])
        other.settle()
        assert resume(other, etag(rig)).events() == []


def test_a_reader_that_was_cut_off_inside_a_change_resumes_from_before_it(rig: Rig) -> None:
    """The events of one change are taken whole or again: those without an id do not move the reader on."""
    stream = rig.open(EVENTS)
    token = stream.last_event_id
    rig.publish(pool("p3"), pool("p4"), gone=["p1"])
    rig.settle()
    cut = stream.events()[:-1]
    assert len(cut) == 3
    seen = Assembled()
    seen.take(cut)
    assert [event.id for event in cut[1:]] == [None, None]
    for event in resume(rig, token).events():
        if event.name != "delete" or ("c1", "n1", event.data["dgd_name"]) in seen.pools:
            seen.take([event])
    assert seen.document() == rig.get("/pools").json()


def test_several_ids_in_one_request_are_no_token(rig: Rig) -> None:
    assert told(resume(rig, f"{etag(rig)}, {etag(rig)}")) == ["snapshot True"]


def test_a_reader_that_resumes_while_a_change_is_pending_is_told_it_once(rig: Rig) -> None:
    token = etag(rig)

    class Costly:
        def offer(self, frames: bytes, token: str) -> bool:
            rig.loop._now += 0.01
            return True

        def fall_behind(self) -> None:
            raise AssertionError

    rig.pools.everything.subscribers.add(Costly())
    rig.publish(pool("p3"))
    rig.settle()
    rig.publish(pool("p4"))
    rig.settle()
    stream, fresh = resume(rig, token), rig.open(EVENTS)
    assert rig.names() == ["p1", "p2", "p3", "p4"]
    assert stream.events() == fresh.events() == [], "what is pending is told with the rest, a moment later"
    rig.pass_time(1)
    assert told(stream) == ["put p3", "put p4"]
    assert told(fresh) == ["snapshot True"]
    assert fresh.last_event_id == stream.last_event_id == etag(rig)


# ---- slow readers


def test_a_reader_that_stops_reading_catches_up_with_what_it_missed(rig: Rig) -> None:
    slow, quick = rig.open(EVENTS), rig.open(EVENTS)
    slow.stop_reading()
    for step in range(5):
        rig.publish(pool(f"q{step}"))
        rig.settle()
    assert told(quick) == ["snapshot True", *(f"put q{step}" for step in range(5))]
    assert told(slow) == ["snapshot True"]
    assert rig.streams.fell_behind == 1
    slow.read()
    rig.settle()
    assert slow.body.partition(b"event:")[2] == quick.body.partition(b"event:")[2]
    rig.publish(pool("last"))
    rig.settle()
    assert told(slow)[-1] == told(quick)[-1] == "put last"
    assert len(slow.writes) == len(quick.writes), "after that it is written to as others are"


def test_a_reader_far_behind_skips_to_the_newest_state(rig: Rig) -> None:
    slow = rig.open(EVENTS)
    slow.stop_reading()
    for step in range(journal.JOURNAL_ENTRIES + 50):
        rig.publish(pool("p1", model=f"m{step}"))
        rig.call(rig.pools._flush)
    slow.read()
    rig.settle()
    assert len(told(slow)) <= 3, "it was told every single step"
    assert told(slow)[-1] == "snapshot True"
    seen = Assembled()
    seen.take(slow.events())
    assert seen.document() == rig.get("/pools").json()


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_that_takes_a_few_bytes_at_a_time_never_sees_a_torn_or_stale_state(rig: Rig, seed: int) -> None:
    """Long listings come in pieces, and between two of them everything may change: at each id it has what GET had."""
    chance = random.Random(seed)
    truth = {etag(rig): rig.get("/pools").json()}
    slow = rig.open(EVENTS, room=1)
    for step in range(60):
        names = [f"p{chance.randrange(12)}" for _ in range(4)]
        rig.publish(
            *(
                pool(name, metadata={"k": "x" * chance.choice([10, 30_000])}, instance_id=str(step))
                for name in names[:3]
            ),
            gone=names[3:] if names[3] not in names[:3] else [],
            complete=chance.random() < 0.8,
        )
        rig.settle()
        truth[etag(rig)] = rig.get("/pools").json()
        slow.read(chance.choice([1, 1_000, 100_000]))
        rig.settle()
    slow.read()
    rig.pass_time(1)
    seen = Assembled()
    for event in slow.events():
        seen.take([event])
        if event.id is not None:
            assert seen.document() == truth[event.id]
    assert seen.document() == rig.get("/pools").json()


def test_readers_that_do_not_read_cost_bounded_memory(rig: Rig) -> None:
    slow = [rig.open(EVENTS) for _ in range(20)]
    for stream in slow:
        stream.stop_reading()
    gc.collect()
    tracemalloc.start()
    try:
        for step in range(1_500):
            rig.publish(pool("p1", metadata={"k": f"{step:05}" + "x" * 8_000}))
            rig.call(rig.pools._flush)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    written = 1_500 * 8_000
    assert written > 2 * journal.JOURNAL_BYTES
    assert grown < journal.JOURNAL_BYTES + (2 << 20)


def test_a_change_too_long_for_one_write_reaches_everybody_in_pieces(rig: Rig) -> None:
    stream = rig.open(EVENTS)
    rig.publish(*(pool(f"q{number}", metadata={"k": "x" * 50_000}) for number in range(10)))
    rig.settle()
    assert len(told(stream)) == 11
    assert max(map(len, stream.writes)) <= journal.PIECE_BYTES
    assert rig.streams.fell_behind == 1
    rig.publish(gone=["q0"])
    rig.settle()
    assert told(stream)[-1] == "delete q0"


def test_a_reader_that_leaves_while_it_is_behind_is_forgotten(rig: Rig) -> None:
    slow = rig.open(EVENTS)
    slow.stop_reading()
    rig.publish(pool("p3"))
    rig.settle()
    slow.leave()
    rig.settle()
    assert slow.task.done()
    assert rig.streams.streams == 0
    assert rig.pools.everything.readers == 0
    assert not rig.pools.everything.subscribers
    assert b"p3" not in slow.body


def test_a_reader_that_leaves_is_written_to_no_longer(rig: Rig) -> None:
    stream = rig.open(EVENTS)
    assert rig.streams.streams == 1
    assert len(rig.pools.everything.subscribers) == 1
    stream.leave()
    rig.settle()
    assert stream.task.done()
    assert rig.streams.streams == 0
    assert not rig.pools.everything.subscribers
    writes = len(stream.writes)
    rig.publish(pool("p3"))
    rig.pass_time(40)
    assert len(stream.writes) == writes


def test_a_reader_whose_connection_breaks_in_a_write_disturbs_nobody(rig: Rig) -> None:
    broken, other = rig.open(EVENTS), rig.open(EVENTS)
    broken.broken = True
    rig.publish(pool("p3"))
    rig.settle()
    assert told(other) == ["snapshot True", "put p3"]
    assert told(broken) == ["snapshot True"]
    rig.publish(pool("p4"))
    rig.settle()
    assert told(other)[-1] == "put p4"


def test_no_comment_gets_in_between_the_pieces_of_a_long_event(rig: Rig) -> None:
    rig.publish(*(pool(f"q{number}", metadata={"k": "x" * 50_000}) for number in range(5)))
    rig.settle()
    slow = rig.open(EVENTS, room=100_000)

    def room_and_comment() -> None:
        slow.read(50_000)
        for slot in rig.streams._open:
            for stream in slot:
                stream.comment()

    rig.call(room_and_comment)
    slow.read()
    rig.settle()
    assert slow.events()[0].data == rig.get("/pools").json()


# ---- long polls


def wait(rig: Rig, secs: int = 30, token: str | None = None, target: str = "/pools") -> Exchange:
    tag = f'W/"{token or etag(rig, target)}"'
    return rig.open(target, {"if-none-match": tag, "prefer": f"wait={secs}"})


def test_a_poll_that_waits_is_answered_by_the_change(rig: Rig) -> None:
    poll = wait(rig)
    rig.pass_time(20)
    assert not poll.answered
    rig.publish(pool("p3"))
    rig.settle()
    answer = poll.answer()
    assert answer.status == 200
    assert answer.headers["preference-applied"] == "wait=30"
    assert [entry["dgd_name"] for entry in answer.json()["pools"]] == ["p1", "p2", "p3"]
    assert answer.headers["etag"] == f'W/"{etag(rig)}"'


def test_a_poll_that_waits_in_vain_is_told_so_after_its_time(rig: Rig) -> None:
    poll = wait(rig)
    rig.pass_time(29.9)
    assert not poll.answered
    rig.pass_time(0.2)
    answer = poll.answer()
    assert (answer.status, answer.body) == (304, b"")
    assert answer.headers["etag"] == f'W/"{etag(rig)}"'
    assert answer.headers["preference-applied"] == "wait=30"


def test_no_poll_waits_longer_than_five_minutes(rig: Rig) -> None:
    poll = wait(rig, 86_400)
    rig.pass_time(299)
    assert not poll.answered
    rig.pass_time(1.1)
    assert poll.answer().headers["preference-applied"] == "wait=300"


def test_what_is_no_change_does_not_answer_a_poll(rig: Rig) -> None:
    poll, filtered = wait(rig), wait(rig, target="/pools?model=other")
    rig.publish(pool("p1"))
    rig.settle()
    assert not poll.answered
    rig.publish(pool("p1", instance_id="i"))
    rig.settle()
    assert poll.answered
    assert not filtered.answered, "nothing changed for its filter"
    rig.publish(complete=False)
    rig.settle()
    assert filtered.answer().json() == {"complete": False, "pools": []}


def test_a_change_that_is_undone_before_anybody_was_told_does_not_answer_a_poll(rig: Rig) -> None:
    poll = wait(rig)

    def there_and_back() -> None:
        for listed in (pool("p1", model="n"), pool("p1")):
            rig.pools.publish([(listed.key, snapshot.pool_fragment(listed))], True, float("inf"))

    rig.call(there_and_back)
    rig.pass_time(10)
    assert not poll.answered


@pytest.mark.parametrize("prefer", ["wait=0", "wait=-1", "wait=x", "respond-async", "wait", "\u00ff"])
def test_a_wait_that_makes_no_sense_is_none(rig: Rig, prefer: str) -> None:
    answer = rig.get("/pools", {"if-none-match": f'"{etag(rig)}"', "prefer": prefer})
    assert answer.status == 304
    assert "preference-applied" not in answer.headers


def test_a_poll_whose_tag_is_not_the_current_one_does_not_wait(rig: Rig) -> None:
    assert wait(rig, token="0" * 32).answer().status == 200
    assert rig.get("/pools", {"prefer": "wait=30"}).status == 200


def test_routers_can_be_waited_for() -> None:
    with Rig() as rig:
        rig.publish_routers()
        rig.settle()
        poll = wait(rig, target="/routers")
        rig.publish_routers(Router("r0", "http://10.0.0.5:9000"))
        rig.settle()
        assert poll.answer().json()["routers"] == [{"id": "r0", "url": "http://10.0.0.5:9000"}]


def test_a_poll_whose_client_leaves_gives_its_place_back(rig: Rig) -> None:
    poll = wait(rig, 300)
    assert rig.streams.parked == 1
    poll.leave()
    rig.settle()
    assert rig.streams.parked == 0
    assert rig.pools.everything.readers == 0
    assert poll.task.done()
    assert not poll.answered


# ---- the cap and the end


def test_above_the_cap_streams_and_polls_are_refused_and_nobody_else() -> None:
    with Rig(max_streams=3) as rig:
        rig.publish(pool("p1"))
        rig.settle()
        streams, poll = [rig.open(EVENTS), rig.open("/pools/events?model=m")], wait(rig)
        assert (rig.streams.streams, rig.streams.parked) == (2, 1)
        for _ in range(2):
            for refused in (rig.open(EVENTS), wait(rig), rig.open("/routers/events")):
                assert refused.answer().status == 503
        problem = rig.open(EVENTS).answer().problem()
        assert "--max-streams" in problem["detail"]
        waits = {int(rig.open(EVENTS).headers["retry-after"]) for _ in range(60)}
        assert len(waits) > 3
        assert min(waits) >= 1
        assert rig.get("/pools").status == 200
        assert rig.get("/pools", {"if-none-match": "*"}).status == 304
        rig.publish(pool("p2"))
        rig.settle()
        assert poll.answered
        assert [told(stream)[-1] for stream in streams] == ["put p2", "put p2"]
        streams[0].leave()
        rig.settle()
        assert rig.open(EVENTS).status == 200


def test_at_the_end_every_stream_is_told_when_to_come_back_and_ends_regularly(rig: Rig) -> None:
    streams = [rig.open(EVENTS) for _ in range(50)]
    poll = wait(rig)
    rig.close()
    assert all(stream.ended for stream in streams)
    last = [stream.blocks()[-1] for stream in streams]
    assert all(list(block) == ["retry"] for block in last)
    retries = {int(block["retry"]) for block in last}
    assert len(retries) > 10, "all of them would come back in the same moment"
    assert min(retries) >= 1000
    assert max(retries) <= 3000
    assert poll.answer().status == 304
    for late in (rig.open(EVENTS), wait(rig)):
        answer = late.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert "shutting down" in answer.problem()["detail"]
    assert rig.get("/pools").status == 200


def test_at_the_end_a_reader_that_is_behind_ends_as_soon_as_it_reads(rig: Rig) -> None:
    slow, unaware = rig.open(EVENTS), rig.open(EVENTS)
    slow.stop_reading()
    rig.publish(pool("p3"))
    rig.settle()
    unaware.stop_reading()
    rig.close()
    assert not slow.ended
    assert not unaware.ended
    for stream in (slow, unaware):
        stream.read()
    rig.settle()
    for stream in (slow, unaware):
        assert stream.ended
        assert list(stream.blocks()[-1]) == ["retry"]


def test_at_the_end_changes_that_streams_were_not_told_of_are_left_to_the_next_replica(rig: Rig) -> None:
    stream = rig.open(EVENTS)

    def change_and_close() -> None:
        listed = pool("p3")
        rig.pools.publish([(listed.key, snapshot.pool_fragment(listed))], True, float("inf"))
        rig.streams.close()
        rig.pools.close()

    before = etag(rig)
    rig.call(change_and_close)
    rig.settle()
    assert stream.ended
    assert stream.last_event_id == before


def test_a_silent_rig_leaves_no_timer_behind(rig: Rig) -> None:
    stream = rig.open(EVENTS)
    stream.leave()
    rig.pass_time(2)
    assert rig.streams._timer is None
