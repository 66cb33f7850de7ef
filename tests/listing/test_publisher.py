"""The published list: what readers see at once, what streams are told and when, filters, the journal, completeness."""

import asyncio
import contextlib
import gzip
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.listing import journal, selection
from discovery.listing import publisher as module
from discovery.listing.publisher import Publisher
from discovery.listing.selection import Selection
from discovery.listing.snapshot import Filter, pool_fragment
from discovery.model import Listing, PoolKey
from tests.http.in_process import pool
from tests.virtual_time import VirtualTimeLoop

FOREVER = float("inf")


class Reader:
    """A subscriber that notes what it is given; ``busy`` it takes nothing."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.busy = False
        self.fell_behind = 0
        self.at: list[float] = []

    def offer(self, frames: bytes, token: str) -> bool:
        if self.busy:
            return False
        self.taken.append((token, frames))
        self.at.append(asyncio.get_running_loop().time())
        return True

    def fall_behind(self) -> None:
        self.fell_behind += 1

    @property
    def events(self) -> list[str]:
        """Each event as its name and the pool's name."""
        return [described(block) for _, frames in self.taken for block in frames.decode().split("\n\n") if block]


def described(block: str) -> str:
    lines = dict(line.split(": ", 1) for line in block.split("\n"))
    data = json.loads(lines["data"])
    return f"{lines['event']} {data.get('dgd_name', data.get('complete'))}"


class Rig:
    def __init__(self) -> None:
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.publisher: Publisher[Listing] = Publisher("pools", clock=self.loop.time)

    def publish(
        self, *listed: Listing, gone: Iterable[str] = (), complete: bool = True, until: float = FOREVER
    ) -> None:
        self.publish_in_one_turn((listed, gone), complete=complete, until=until)

    def publish_in_one_turn(
        self,
        *calls: tuple[Iterable[Listing], Iterable[str]],
        complete: bool = True,
        until: float = FOREVER,
        then: Callable[[], Any] = lambda: None,
    ) -> Any:
        """One call of the publisher after the other, then a look at it, before streams have had a turn."""

        async def run() -> Any:
            for listed, gone in calls:
                changes: list[Any] = [(entry.key, pool_fragment(entry)) for entry in listed]
                changes += [(PoolKey("c1", "n1", name), None) for name in gone]
                self.publisher.publish(changes, complete, until)
            return then()

        return self.loop.run(run())

    def turn(self) -> None:
        """One turn of the loop: what is due now happens."""
        self.loop.pass_time(0)
        self.loop.pass_time(0)

    def told(self, *listed: Listing, **options: Any) -> None:
        """Publish, and let streams be told."""
        self.publish(*listed, **options)
        self.turn()

    def select(self, **wanted: str) -> Selection[Listing]:
        selection = Filter(**{name: frozenset([value]) for name, value in wanted.items()})

        async def run() -> Selection[Listing]:
            return self.publisher.select(selection, selection.matches)

        return self.loop.run(run())

    @property
    def everything(self) -> Selection[Listing]:
        async def run() -> Selection[Listing]:
            return self.publisher.everything

        return self.loop.run(run())

    def read(self) -> Any:
        return json.loads(self.everything.body())


@contextlib.contextmanager
def running() -> Iterator[Rig]:
    rig = Rig()
    try:
        yield rig
    finally:
        rig.loop.shut()
        asyncio.set_event_loop(None)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running() as rig:
        yield rig


def names(document: Any) -> list[str]:
    return [entry["dgd_name"] for entry in document["pools"]]


# ---- what readers see


def test_nothing_is_ready_before_the_first_publish(rig: Rig) -> None:
    assert not rig.publisher.ready
    rig.publish(complete=False)
    assert rig.publisher.ready


def test_a_reader_sees_a_change_at_once_and_before_any_stream_is_told(rig: Rig) -> None:
    def look() -> tuple[list[str], bool]:
        return names(json.loads(rig.publisher.everything.body())), rig.publisher.everything.pending

    rig.told()
    assert rig.publish_in_one_turn(([pool("p1")], []), then=look) == (["p1"], True)


def test_the_first_list_is_taken_in_parts_and_is_no_change_that_anybody_is_told_of(rig: Rig) -> None:
    for name in ("p2", "p1", "p3"):
        rig.publisher.prepare([(PoolKey("c1", "n1", name), pool_fragment(pool(name)))])
    rig.publisher.prepare([(PoolKey("c1", "n1", "p3"), None)])
    assert not rig.publisher.ready
    rig.publish(pool("p4"))
    first = rig.everything.published
    assert names(rig.read()) == ["p1", "p2", "p4"]
    assert first == rig.everything.token
    assert rig.everything.since(first) == []
    assert not rig.everything.pending
    rig.told(pool("p5"))
    changes = rig.everything.since(first)
    assert changes is not None
    assert [described(step.joined().decode().rstrip()) for step in changes] == ["put p5"]


def test_pools_are_sorted_by_key_whatever_order_they_came_in(rig: Rig) -> None:
    listed = [pool(name, cluster_id=cluster) for name in ("b", "a", "c") for cluster in ("z", "a/", "a", "a-")]
    random.Random(7).shuffle(listed)
    for entry in listed:
        rig.publish(entry)
        rig.read()
    keys = [(entry["cluster_id"], entry["namespace"], entry["dgd_name"]) for entry in rig.read()["pools"]]
    assert keys == sorted(keys)
    assert len(keys) == 12


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["m", "n", None]))), st.booleans()),
        max_size=8,
    )
)
def test_the_body_always_is_the_sorted_list_of_members(steps: list[tuple[list[tuple[int, str | None]], bool]]) -> None:
    """Few changes are moved into the kept order one by one, many by sorting anew: both must give the same."""
    expected = {f"p{number:03}": "m" for number in range(0, 200, 2)}
    with running() as rig:
        rig.publish(*(pool(name) for name in expected))
        for changes, look in steps:
            for number, model in changes:
                name = f"p{number:03}"
                rig.publish(*([pool(name, model=model)] if model else ()), gone=() if model else (name,))
                expected.pop(name, None)
                if model:
                    expected[name] = model
            if look:
                found = {entry["dgd_name"]: entry["model"] for entry in rig.read()["pools"]}
                assert list(found.items()) == sorted(expected.items())
        assert names(rig.read()) == sorted(expected)


def test_the_body_is_made_once_per_change(rig: Rig) -> None:
    rig.told(pool("p1"))
    first = rig.everything.body()
    assert rig.everything.body() is first
    rig.told(pool("p1"))
    assert rig.everything.body() is first, "what says the same is no change"
    rig.told(pool("p1", model="n"))
    assert rig.everything.body() is not first


@settings(max_examples=40)
@given(st.data(), st.dictionaries(st.sampled_from("abcde"), st.sampled_from(["m", "n"])))
def test_two_replicas_give_equal_bytes_and_tags_whatever_order_things_happened_in(
    data: Any, final: dict[str, str]
) -> None:
    outcomes = set()
    for _ in range(2):
        with running() as rig:
            for name, model in data.draw(st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("mnx")))):
                rig.told(pool(name, model=model), complete=data.draw(st.booleans()))
            rig.publish(gone=[name for name in "abcdefg" if name not in final])
            for name, model in data.draw(st.permutations(list(final.items()))):
                rig.told(pool(name, model=model))
            rig.told()
            outcomes.add((rig.everything.body(), rig.everything.token, rig.everything.published))
    assert len(outcomes) == 1
    [(_, token, published)] = outcomes
    assert token == published


def test_complete_is_part_of_the_tag(rig: Rig) -> None:
    rig.told(pool("p1"))
    whole = rig.everything.token
    rig.told(complete=False)
    assert rig.everything.token != whole
    rig.told(complete=True)
    assert rig.everything.token == whole


# ---- what streams are told, and when


def test_the_first_change_after_a_quiet_moment_is_told_in_the_same_turn(rig: Rig) -> None:
    reader = Reader()
    rig.told()
    rig.everything.subscribers.add(reader)
    before = rig.loop.time()
    rig.told(pool("p1"))
    assert reader.events == ["put p1"]
    assert reader.at == [before]


def test_changes_of_one_turn_are_told_together_under_one_id(rig: Rig) -> None:
    reader = Reader()
    rig.told(pool("gone"), pool("changed"))
    rig.everything.subscribers.add(reader)
    rig.publish_in_one_turn(
        *(([pool(name)], []) for name in ("p1", "p2", "p3")), ([pool("changed", model="n")], ["gone"])
    )
    rig.turn()
    assert len(reader.taken) == 1
    [(token, frames)] = reader.taken
    assert sorted(reader.events) == ["delete gone", "put changed", "put p1", "put p2", "put p3"]
    assert frames.count(b"\nid: ") == 1
    assert frames.endswith(b"\nid: %b\n\n" % token.encode())
    assert token == rig.everything.token


def test_after_an_expensive_round_changes_gather_for_a_time_in_proportion(rig: Rig) -> None:
    class Costly(Reader):
        def offer(self, frames: bytes, token: str) -> bool:
            rig.loop._now += 0.01
            return super().offer(frames, token)

    reader = Costly()
    rig.told()
    rig.everything.subscribers.add(reader)
    rig.told(pool("p1"))
    told_at = reader.at[0]
    for name in ("p2", "p3", "p4"):
        rig.told(pool(name))
    assert reader.events == ["put p1"], "the rest must wait"
    assert names(rig.read()) == ["p1", "p2", "p3", "p4"], "but not for those who poll"
    rig.loop.pass_time(1)
    assert reader.events == ["put p1", "put p2", "put p3", "put p4"]
    assert len(reader.taken) == 2
    assert reader.at[1] - told_at == pytest.approx(module.PAUSE_PER_COST * 0.01 + 0.01)


def test_what_transports_write_after_the_round_is_part_of_its_cost(rig: Rig) -> None:
    """They keep what they are given and write it at the end of the loop's turn: nearly all of the cost comes there."""

    class Deferred(Reader):
        def offer(self, frames: bytes, token: str) -> bool:
            def write() -> None:
                rig.loop._now += 0.01

            asyncio.get_running_loop().call_soon(write)
            return super().offer(frames, token)

    reader = Deferred()
    rig.told()
    rig.everything.subscribers.add(reader)
    rig.told(pool("p1"))
    rig.loop.pass_time(0)
    for name in ("p2", "p3"):
        rig.told(pool(name))
    assert reader.events == ["put p1"], "the rest must wait"
    rig.loop.pass_time(1)
    assert reader.events == ["put p1", "put p2", "put p3"]
    assert reader.at[1] - reader.at[0] == pytest.approx(module.PAUSE_PER_COST * 0.01 + 0.01)


def test_what_changes_while_a_round_is_being_written_is_told_after_the_pause_and_not_lost(rig: Rig) -> None:
    class Busy(Reader):
        def offer(self, frames: bytes, token: str) -> bool:
            if not self.taken:
                listed = pool("p2")
                change = [(listed.key, pool_fragment(listed))]
                asyncio.get_running_loop().call_soon(rig.publisher.publish, change, True, FOREVER)
            return super().offer(frames, token)

    reader = Busy()
    rig.told()
    rig.everything.subscribers.add(reader)
    rig.told(pool("p1"))
    rig.loop.pass_time(1)
    assert reader.events == ["put p1", "put p2"]


def test_the_pause_is_bounded_however_expensive_a_round_is(rig: Rig) -> None:
    class Endless(Reader):
        def offer(self, frames: bytes, token: str) -> bool:
            taken = super().offer(frames, token)
            rig.loop._now += 60
            return taken

    reader = Endless()
    rig.told()
    rig.everything.subscribers.add(reader)
    rig.told(pool("p1"))
    rig.told(pool("p2"))
    rig.loop.pass_time(1)
    assert reader.at[1] - (reader.at[0] + 60) == pytest.approx(module.MAX_PAUSE_SECS)


def test_what_is_undone_before_anybody_was_told_is_no_event(rig: Rig) -> None:
    reader = Reader()
    rig.told(pool("p1"))
    rig.everything.subscribers.add(reader)
    token = rig.everything.published
    rig.publish_in_one_turn(([pool("p1", model="n"), pool("p2")], []), ([pool("p1")], ["p2"]))
    rig.turn()
    assert reader.taken == []
    assert (rig.everything.published, rig.everything.pending) == (token, False)


def test_a_renewal_that_changes_nothing_wakes_nobody(rig: Rig) -> None:
    reader = Reader()
    rig.told(pool("p1"))
    everything = rig.everything
    everything.subscribers.add(reader)

    async def parked() -> bool:
        flush = everything.next_flush()
        rig.publisher.publish([(pool("p1").key, pool_fragment(pool("p1")))], True, FOREVER)
        done, _ = await asyncio.wait([flush], timeout=5)
        return bool(done)

    assert rig.loop.run(parked()) is False
    assert reader.taken == []


def test_incompleteness_is_told_before_the_changes_and_completeness_after_them(rig: Rig) -> None:
    reader = Reader()
    rig.told()
    rig.everything.subscribers.add(reader)
    rig.told(pool("p1"), complete=False)
    rig.told(pool("p2"), complete=True)
    assert reader.events == ["complete False", "put p1", "put p2", "complete True"]


def test_a_reader_that_takes_nothing_is_stepped_over_and_left_to_itself(rig: Rig) -> None:
    slow, quick = Reader(), Reader()
    rig.told()
    everything = rig.everything
    everything.subscribers |= {slow, quick}
    slow.busy = True
    rig.told(pool("p1"))
    assert (slow.fell_behind, quick.fell_behind) == (1, 0)
    assert everything.subscribers == {quick}
    rig.told(pool("p2"))
    assert slow.fell_behind == 1
    assert quick.events == ["put p1", "put p2"]


def test_a_change_too_long_for_one_write_lets_everybody_catch_up_alone(rig: Rig) -> None:
    reader = Reader()
    rig.told()
    everything, before = rig.everything, rig.everything.published
    everything.subscribers.add(reader)
    rig.told(*(pool(f"p{number}", metadata={"k": "x" * 10_000}) for number in range(30)))
    assert (reader.fell_behind, reader.taken, everything.subscribers) == (1, [], set())
    [step] = everything.since(before) or ()
    assert (step.token, step.joined().count(b"event: put")) == (everything.published, 30)


# ---- the journal


def test_the_journal_leads_from_any_published_state_to_the_present(rig: Rig) -> None:
    rig.told()
    tokens = [rig.everything.published]
    for number in range(5):
        rig.told(pool(f"p{number}"))
        tokens.append(rig.everything.published)
    for index, token in enumerate(tokens):
        steps = rig.everything.since(token)
        assert steps is not None
        assert [step.token for step in steps] == tokens[index + 1 :]
        described_steps = [
            described(block) for step in steps for block in step.joined().decode().split("\n\n") if block
        ]
        assert described_steps == [f"put p{number}" for number in range(index, 5)]


@pytest.mark.parametrize("token", ["", "0" * 32, "garbage", "x" * 10_000])
def test_a_token_that_was_never_published_leads_nowhere(rig: Rig, token: str) -> None:
    rig.told(pool("p1"))
    assert rig.everything.since(token) is None


def test_a_state_that_recurred_is_no_place_to_go_on_from(rig: Rig) -> None:
    rig.told(pool("p1"))
    recurring = rig.everything.published
    rig.told(pool("p2"))
    between = rig.everything.published
    rig.told(gone=["p2"])
    assert rig.everything.published == recurring
    assert rig.everything.since(recurring) is None
    assert [step.token for step in rig.everything.since(between) or ()] == [recurring]


def test_the_journal_is_bounded_in_entries(rig: Rig) -> None:
    rig.told()
    first = rig.everything.published
    tokens = []
    for number in range(journal.JOURNAL_ENTRIES + 10):
        rig.told(pool("p1", model=f"m{number}"))
        tokens.append(rig.everything.published)
    assert rig.everything.since(first) is None
    assert rig.everything.since(tokens[8]) is None
    assert len(rig.everything.since(tokens[9]) or ()) == journal.JOURNAL_ENTRIES


def test_the_journal_is_bounded_in_bytes(rig: Rig) -> None:
    rig.told()
    tokens = []
    for number in range(150):
        rig.told(pool("p1", metadata={"k": f"{number:05}" + "x" * 50_000}))
        tokens.append(rig.everything.published)
    kept = max(sum(len(step.joined()) for step in rig.everything.since(token) or ()) for token in tokens)
    assert journal.JOURNAL_BYTES // 2 < kept <= journal.JOURNAL_BYTES
    assert rig.everything.since(tokens[0]) is None
    assert len(rig.everything.since(tokens[-2]) or ()) == 1


def test_a_single_change_beyond_the_bound_is_still_told(rig: Rig) -> None:
    rig.told()
    before = rig.everything.published
    big = [pool(f"p{number}", metadata={"k": "x" * 60_000}) for number in range(journal.JOURNAL_BYTES // 50_000)]
    rig.told(*big)
    [step] = rig.everything.since(before) or ()
    assert step.token == rig.everything.published
    assert len(step.joined()) > journal.JOURNAL_BYTES


def test_a_snapshot_that_is_read_slowly_is_the_one_that_was_begun(rig: Rig) -> None:
    rig.told(*(pool(f"p{number:03}", metadata={"k": "x" * 2_000}) for number in range(100)))
    before = rig.everything.body()
    token, pieces = rig.everything.snapshot_event()
    taken = [next(pieces)]
    for number in range(0, 100, 7):
        rig.told(pool(f"p{number:03}", model="n"), pool(f"q{number}"), gone=[f"p{number + 1:03}"], complete=False)
        rig.read()
    taken += pieces
    assert len(taken) > 2
    assert b"".join(taken) == b"event: snapshot\nid: %b\ndata: %b\n\n" % (token.encode(), before)


# ---- filters


def test_a_filtered_list_has_its_own_members_tag_and_events(rig: Rig) -> None:
    rig.told(pool("p1", model="a"), pool("p2", model="b"))
    only_a = rig.select(model="a")
    assert names(json.loads(only_a.body())) == ["p1"]
    assert only_a.token != rig.everything.token
    reader = Reader()
    only_a.subscribers.add(reader)
    token = only_a.token
    rig.told(pool("p3", model="b"))
    assert (reader.taken, only_a.token) == ([], token), "a change elsewhere is none here"
    rig.told(pool("p4", model="a"))
    assert reader.events == ["put p4"]


def test_a_pool_that_crosses_the_border_of_a_filter_comes_and_goes(rig: Rig) -> None:
    rig.told(pool("p1", model="a"))
    only_a, reader = rig.select(model="a"), Reader()
    only_a.subscribers.add(reader)
    rig.told(pool("p1", model="b"))
    rig.told(pool("p1", model="b", instance_id="i"))
    rig.told(pool("p1", model="a"))
    rig.told(gone=["p1"])
    assert reader.events == ["delete p1", "put p1", "delete p1"]


def test_equal_content_has_an_equal_tag_with_and_without_a_filter(rig: Rig) -> None:
    rig.told(pool("p1", model="a"), pool("p2", model="a"))
    assert rig.select(model="a").token == rig.everything.token
    assert rig.select(model="a").body() == rig.everything.body()
    assert rig.select(model="a") is rig.select(model="a")


def test_completeness_reaches_every_filter(rig: Rig) -> None:
    rig.told(pool("p1", model="a"))
    only_a, reader = rig.select(model="a"), Reader()
    only_a.subscribers.add(reader)
    rig.told(complete=False)
    assert reader.events == ["complete False"]
    assert json.loads(only_a.body())["complete"] is False
    assert json.loads(rig.select(model="b").body()) == {"complete": False, "pools": []}


def test_filters_that_nobody_reads_are_forgotten_and_others_kept(rig: Rig) -> None:
    rig.told(pool("p1", model="a"))
    kept = rig.select(model="a")
    kept.readers += 1
    idle, asked_again = rig.select(model="idle"), rig.select(model="again")
    for number in range(module.IDLE_SELECTIONS + 1):
        rig.select(model=f"m{number}")
        assert rig.select(model="again") is asked_again, "what was asked for just now is forgotten first"
    assert rig.select(model="a") is kept
    assert rig.select(model="idle") is not idle
    assert len(rig.publisher._selections) <= module.IDLE_SELECTIONS + 1


def test_long_lists_that_nobody_reads_fill_no_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.publish(*(pool(f"p{number}") for number in range(20)))
    monkeypatch.setattr(module, "IDLE_BYTES", 3 * len(rig.publisher.everything.body()))
    read = rig.publisher.select(Filter(model=frozenset({"m", "read"})), lambda entry: True)
    read.readers += 1
    for number in range(20):
        rig.publisher.select(Filter(model=frozenset({"m", str(number)})), lambda entry: True).body()
    assert [sorted(wanted.model) for wanted in rig.publisher._selections] == [
        ["m", "read"],
        ["17", "m"],
        ["18", "m"],
        ["19", "m"],
    ]
    monkeypatch.setattr(module, "IDLE_BYTES", 0)
    newest = Filter(region=frozenset({"r"}))
    assert rig.publisher.select(newest, lambda entry: True) is rig.publisher.select(newest, lambda entry: True)


def test_a_filter_that_is_asked_for_while_changes_are_pending_has_them(rig: Rig) -> None:
    rig.told()
    wanted = Filter(model=frozenset("a"))
    only_a = rig.publish_in_one_turn(
        ([pool("p1", model="a")], []), then=lambda: rig.publisher.select(wanted, wanted.matches)
    )
    reader = Reader()
    only_a.subscribers.add(reader)
    assert names(json.loads(only_a.body())) == ["p1"]
    assert (only_a.pending, only_a.published) == (False, only_a.token)
    rig.turn()
    assert reader.taken == [], "it was told by the list itself"


# ---- completeness in time


def test_completeness_is_claimed_no_longer_than_it_is_known(rig: Rig) -> None:
    reader = Reader()
    rig.told(pool("p1"), until=rig.loop.time() + 2)
    rig.everything.subscribers.add(reader)
    rig.loop.pass_time(1.9)
    assert rig.read()["complete"] is True
    rig.loop.pass_time(0.2)
    assert reader.events == ["complete False"], "streams are told though nobody reads the list"
    assert rig.read()["complete"] is False


def test_streams_are_told_of_the_end_also_after_completeness_came_and_went(rig: Rig) -> None:
    reader, until = Reader(), rig.loop.time() + 2
    rig.told(pool("p1"), until=until)
    rig.everything.subscribers.add(reader)
    for complete in (False, True):
        rig.told(complete=complete, until=until)
    rig.loop.pass_time(2.1)
    assert reader.events == ["complete False", "complete True", "complete False"]


def test_a_reader_is_never_ahead_of_the_clock(rig: Rig) -> None:
    """After a pause of the process reads come before timers: the read itself must look at the clock."""
    wanted = Filter(model=frozenset("m"))
    for read in (
        lambda: rig.publisher.everything.body(),
        lambda: rig.publisher.select(wanted, wanted.matches).body(),
    ):
        rig.told(pool("p1"), until=rig.loop.time() + 2)
        rig.loop._now += 60
        assert json.loads(rig.publish_in_one_turn(then=read))["complete"] is False


def test_a_confirmation_in_time_keeps_the_list_complete(rig: Rig) -> None:
    reader = Reader()
    rig.told(pool("p1"), until=rig.loop.time() + 2)
    rig.everything.subscribers.add(reader)
    for _ in range(5):
        rig.loop.pass_time(1)
        rig.told(until=rig.loop.time() + 2)
    assert reader.taken == []


def test_what_is_confirmed_too_late_is_never_called_complete(rig: Rig) -> None:
    reader = Reader()
    rig.told(complete=False)
    rig.everything.subscribers.add(reader)
    rig.told(pool("p1"), until=rig.loop.time() - 1)
    rig.loop.pass_time(1)
    assert reader.events == ["put p1"]
    assert rig.read()["complete"] is False


# ---- waiting and gzip


def test_whoever_waits_is_woken_once_by_the_next_flush(rig: Rig) -> None:
    rig.told()
    everything = rig.everything

    async def waiting() -> list[Any]:
        return [everything.next_flush() for _ in range(3)]

    futures = rig.loop.run(waiting())
    futures[1].cancel()
    rig.turn()
    assert not futures[0].done()
    rig.told(pool("p1"))
    assert futures[0].done()
    assert futures[2].done()
    assert not everything._waiting, "those who gave up must leave nothing behind"


def test_a_waiter_that_gives_up_leaves_nothing_behind(rig: Rig) -> None:
    rig.told()
    everything = rig.everything

    async def give_up() -> None:
        everything.next_flush().cancel()
        everything.flush(journal.Round())
        everything.next_flush().cancel()
        await asyncio.sleep(0)

    rig.loop.run(give_up())
    assert not everything._waiting


def test_closing_tells_what_is_pending_and_wakes_whoever_waits(rig: Rig) -> None:
    reader = Reader()
    rig.told()
    everything = rig.everything
    everything.subscribers.add(reader)

    async def close() -> bool:
        future = everything.next_flush()
        rig.publisher.publish([(pool("p1").key, pool_fragment(pool("p1")))], True, FOREVER)
        rig.publisher.close()
        return future.done()

    assert rig.loop.run(close()) is True
    assert reader.events == ["put p1"]


async def test_gzip_is_made_once_per_change_also_for_readers_at_the_same_time() -> None:
    publisher: Publisher[Listing] = Publisher("pools")
    publisher.publish([(pool("p1").key, pool_fragment(pool("p1")))], True, FOREVER)
    first, second = await asyncio.gather(publisher.everything.gzipped(), publisher.everything.gzipped())
    assert first is second
    assert gzip.decompress(first) == publisher.everything.body()
    changed = pool("p1", model="n")
    publisher.publish([(changed.key, pool_fragment(changed))], True, FOREVER)
    third = await publisher.everything.gzipped()
    assert gzip.decompress(third) == publisher.everything.body()
    assert third is not first


async def test_a_long_list_is_compressed_while_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    compress = selection.squeezed

    def noting(body: bytes) -> bytes:
        threads.append(threading.current_thread())
        return compress(body)

    monkeypatch.setattr(selection, "squeezed", noting)
    publisher: Publisher[Listing] = Publisher("pools")
    listed = [pool(f"p{number}", metadata={"k": "x" * 500}) for number in range(500)]
    publisher.publish([(entry.key, pool_fragment(entry)) for entry in listed], True, FOREVER)
    before = publisher.everything.body()
    packing = asyncio.gather(publisher.everything.gzipped(), publisher.everything.gzipped())
    await asyncio.sleep(0)
    publisher.publish([(listed[0].key, None)], True, FOREVER)
    after = publisher.everything.gzipped()
    first, second = await packing
    assert first is second
    assert gzip.decompress(first) == before, "who asked before the change gets the list of then"
    assert gzip.decompress(await after) == publisher.everything.body() != before
    assert len(threads) == 2
    assert threading.current_thread() not in threads
