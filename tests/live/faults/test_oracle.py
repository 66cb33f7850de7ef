"""The oracle on made-up histories: it is content with a good one, and finds each promise that a bad one breaks."""

import dataclasses

import pytest

from tests.live.faults.oracle import Promises, Window, judge, lost_writes
from tests.live.faults.records import Answer, Beat, Content, Life, Records, Told

LEASE = 3.0
BEGUN, HEALED = 100.0, 104.0
RESTED = HEALED + LEASE + 2.5
OUTAGE = Window("outage", BEGUN, HEALED, RESTED, LEASE, Promises(silent=True))


def living(name: str, born: float = 50.0, born_on: str = "a") -> Life:
    """A pool whose relay beats to the end."""
    return Life(name, 0, born, born_on, accepted_sent=RESTED, accepted=RESTED, versions=[(born, 0)])


def history(*lives: Life, window: Window = OUTAGE) -> Records:
    """A good one: both replicas list what lives, every 20 ms, and say when that is not the whole truth."""
    records = Records(lives={life.name: life for life in lives})
    for step in range(int((window.rested - window.begun + 1) / 0.02)):
        at = window.begun - 1 + step * 0.02
        whole = not window.begun + 2 <= at < window.healed + LEASE
        for replica in "ab":
            versions = {life.name: life.least_version(at) or 0 for life in lives if _right(life, at)}
            content = Content(whole, versions, f"{whole}{sorted(versions.items())}")
            records.answers.append(Answer(at, at + 0.001, replica, 200, content))
            outage = window.begun <= at < window.healed
            status, retry = (503, "1") if outage else (200, "")
            records.beats.append(Beat("c1/n1/p1", 0, at, at + 0.002, replica, status, retry, outage))
    return records


def _right(life: Life, at: float) -> bool:
    return life.born is not None and life.born <= at < life.ended


def broken(records: Records, window: Window = OUTAGE) -> set[str]:
    """The promises that were broken."""
    return {each.promise for each in judge(records, window)}


def alter(records: Records, since: float, until: float, replica: str, **changes: object) -> Records:
    """The lists of one replica in that time, otherwise than they were."""
    for place, answer in enumerate(records.answers):
        if since <= answer.sent < until and answer.replica == replica and answer.content is not None:
            content = dataclasses.replace(answer.content, etag="", **changes)  # type: ignore[arg-type]
            records.answers[place] = dataclasses.replace(answer, content=content)
    return records


def test_a_good_history_breaks_nothing() -> None:
    assert judge(history(living("c1/n1/p1"), living("c1/n1/p2")), OUTAGE) == []


@pytest.mark.parametrize("at", [BEGUN - 0.5, BEGUN + 1, HEALED + 0.5, HEALED + LEASE + 1])
@pytest.mark.parametrize("complete", [True, False])
def test_one_list_without_a_live_pool_is_found_whatever_it_says_of_itself(at: float, complete: bool) -> None:
    records = alter(history(living("c1/n1/p1"), living("c1/n1/p2")), at, at + 0.02, "b", versions={"c1/n1/p1": 0})
    alter(records, at, at + 0.02, "b", complete=complete)
    found = [each for each in judge(records, OUTAGE) if each.promise == "no live pool is missing"]
    assert [(each.replica, "c1/n1/p2" in each.text) for each in found] == [("b", True)]


@pytest.mark.parametrize(
    ("replica", "after", "found"),
    [("a", 0.01, True), ("b", 0.5, False), ("b", 1.1, True)],
    ids=["the replica that took it", "another, at once", "another, a second later"],
)
def test_a_new_pool_is_listed_at_once_where_it_was_taken_and_elsewhere_a_second_later(
    replica: str, after: float, found: bool
) -> None:
    born = HEALED + LEASE + 0.5
    records = history(living("c1/n1/p1"), living("c1/n1/new", born))
    alter(records, born + after, born + after + 0.02, replica, versions={"c1/n1/p1": 0})
    assert ("no live pool is missing" in broken(records)) == found


def test_a_pool_born_in_an_outage_is_due_elsewhere_two_seconds_after_it() -> None:
    born = BEGUN + 1
    for until, found in ((HEALED + 1.9, False), (HEALED + 2.5, True)):
        records = history(living("c1/n1/p1"), living("c1/n1/new", born))
        alter(records, born, until, "b", versions={"c1/n1/p1": 0})
        assert ("no live pool is missing" in broken(records)) == found


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (Told(BEGUN + 3, "a", "delete", frozenset(["c1/n1/p1"])), True),
        (Told(BEGUN + 3, "a", "snapshot", frozenset()), True),
        (Told(BEGUN + 3, "a", "snapshot", frozenset(["c1/n1/p1"])), False),
        (Told(BEGUN + 3, "a", "put", frozenset(["c1/n1/p2"])), False),
        (Told(BEGUN + 3, "a", "delete", frozenset(["c1/n1/p2"])), False),
    ],
)
def test_a_stream_that_takes_a_live_pool_away_is_found(told: Told, found: bool) -> None:
    records = history(living("c1/n1/p1"))
    records.told.append(told)
    assert ("no live pool is missing" in broken(records)) == found


def dying(silent: float, accepted: float) -> Life:
    return dataclasses.replace(living("c1/n1/dead"), silent=silent, accepted=accepted, accepted_sent=accepted - 0.01)


@pytest.mark.parametrize(
    ("life", "listed_until", "found"),
    [
        (dying(BEGUN - 5, BEGUN - 5.1), BEGUN - 0.5, True),
        (dying(BEGUN - 1, BEGUN - 1.1), HEALED + LEASE + 2, False),
        (dying(HEALED + 0.1, HEALED), HEALED + LEASE + 2, False),
    ],
    ids=["dead before the fault", "its lease ended in the fault", "died after it"],
)
def test_a_dead_pool_may_stay_for_its_lease_a_second_and_the_hold(life: Life, listed_until: float, found: bool) -> None:
    records = history(living("c1/n1/p1"), life)
    both = {"c1/n1/p1": 0, "c1/n1/dead": 0}
    alter(records, life.ended, listed_until, "b", versions=both)
    assert ("no dead pool stays" in broken(records)) == found


def test_where_a_fault_does_not_concern_a_replica_it_may_hold_back_only_what_it_calls_incomplete() -> None:
    only_a = dataclasses.replace(OUTAGE, promises=Promises(of=frozenset("a")))
    for complete, found in ((True, True), (False, False)):
        life = dying(BEGUN - 1, BEGUN - 1.1)
        records = history(living("c1/n1/p1"), life)
        both = {"c1/n1/p1": 0, "c1/n1/dead": 0}
        alter(records, HEALED, HEALED + 1, "b", versions=both, complete=complete)
        assert ("no dead pool stays" in broken(records, only_a)) == found


def test_a_dead_pool_that_outstays_the_hold_is_found() -> None:
    window = dataclasses.replace(OUTAGE, rested=RESTED + 5)
    life = dying(BEGUN - 1, BEGUN - 1.1)
    records = alter(
        history(living("c1/n1/p1"), life, window=window),
        life.ended,
        HEALED + LEASE + 4,
        "b",
        versions={"c1/n1/p1": 0, "c1/n1/dead": 0},
    )
    assert "no dead pool stays" in broken(records, window)


def removed(at: float, on: str = "a") -> Life:
    return dataclasses.replace(living("c1/n1/gone"), removing=at - 0.01, removed=at, removed_on=on)


@pytest.mark.parametrize(
    ("life", "begin", "end", "found"),
    [
        (removed(HEALED + 2.5), 0.02, 0.1, False),
        (removed(HEALED + 2.5), 1.5, 1.6, True),
        (removed(HEALED + 2.5, "b"), 0.02, 0.1, True),
        (removed(BEGUN + 3.0), 0.0, HEALED + LEASE - BEGUN - 3, False),
        (removed(BEGUN + 3.0, "b"), 1.0, 1.1, True),
    ],
    ids=[
        "elsewhere at once",
        "elsewhere later",
        "where it was taken",
        "elsewhere in the hold",
        "comes back in the fault",
    ],
)
def test_a_removed_pool_does_not_come_back(life: Life, begin: float, end: float, found: bool) -> None:
    records = history(living("c1/n1/p1"), life)
    at = life.removed or 0.0
    alter(records, at + begin, at + end, "b", versions={"c1/n1/p1": 0, "c1/n1/gone": 0})
    assert ("no dead pool stays" in broken(records)) == found


def test_accepted_writes_that_a_fault_undoes_may_bring_a_removed_pool_back_until_the_hold_is_over() -> None:
    life = removed(BEGUN - 0.5, "b")
    records = history(living("c1/n1/p1"), life)
    alter(records, BEGUN + 1, HEALED + LEASE, "b", versions={"c1/n1/p1": 0, "c1/n1/gone": 0})
    assert "no dead pool stays" in broken(records)
    undone = dataclasses.replace(OUTAGE, promises=Promises(silent=True, loses_writes=True))
    assert broken(records, undone) == set()


def test_a_post_without_an_answer_may_have_begun_a_lease_when_the_store_went_on() -> None:
    life = dying(BEGUN - 0.5, BEGUN - 4.5)
    alone = history(living("c1/n1/p1"), life)
    alter(alone, life.ended, HEALED + LEASE, "b", versions={"c1/n1/p1": 0, "c1/n1/dead": 0})
    assert "no dead pool stays" in broken(alone)
    life.doubtful.append((BEGUN - 0.6, BEGUN + 0.9, 0))
    assert broken(alone) == set()


def test_a_list_that_is_behind_its_relay_is_found_from_two_seconds_after_the_fault() -> None:
    life = living("c1/n1/p1")
    life.versions.append((HEALED + 0.5, 1))
    for begin, found in ((HEALED + 1.8, False), (HEALED + 3.0, True)):
        records = alter(history(life), begin, begin + 0.1, "a", versions={"c1/n1/p1": 0})
        assert ("replicas agree within 2 s" in broken(records)) == found
    dead = dataclasses.replace(life, silent=HEALED, accepted=HEALED + 0.5)
    assert "replicas agree within 2 s" not in broken(
        alter(history(living("c1/n1/p2"), dead), HEALED + 3, HEALED + 3.1, "a", versions={"c1/n1/p1": 0})
    ), "what a fault has undone is told by nobody where the relay is dead"
    life.doubtful.append((HEALED - 2, HEALED - 1, 0))
    records = alter(history(life), HEALED + 3, HEALED + 3.1, "a", versions={"c1/n1/p1": 0})
    assert broken(records) == set(), "the unconfirmed POST of the older version may have taken effect late"


def test_a_list_that_calls_itself_complete_in_an_outage_is_found() -> None:
    for begin, found in ((BEGUN + 1.5, False), (BEGUN + 3, True)):
        records = alter(history(living("c1/n1/p1")), begin, begin + 0.1, "b", complete=True)
        assert ("an outage is told" in broken(records)) == found
    only_a = dataclasses.replace(OUTAGE, promises=Promises(silent=True, of=frozenset("a")))
    records = alter(history(living("c1/n1/p1")), BEGUN + 3, BEGUN + 3.1, "b", complete=True)
    assert broken(records, only_a) == set()


def test_lists_that_stay_complete_through_a_loss_or_are_so_too_soon_are_found() -> None:
    loss = dataclasses.replace(OUTAGE, promises=Promises(loss=True))
    assert broken(history(living("c1/n1/p1")), loss) == set()
    silent = alter(history(living("c1/n1/p1")), BEGUN, RESTED, "a", complete=True)
    assert broken(silent, loss) == {"a loss is told"}
    soon = alter(history(living("c1/n1/p1")), HEALED - 0.5, RESTED, "a", complete=True)
    assert broken(soon, loss) == {"a loss is told"}
    assert broken(soon, dataclasses.replace(OUTAGE, promises=Promises())) == set()


def test_a_list_that_stays_incomplete_is_found() -> None:
    records = alter(history(living("c1/n1/p1")), HEALED + LEASE + 2.45, RESTED, "b", complete=False)
    assert broken(records) == {"complete again one lease later"}


def test_one_tag_for_two_lists_is_found() -> None:
    records = history(living("c1/n1/p1"), living("c1/n1/p2"))
    answer = records.answers[10]
    assert answer.content is not None
    other = dataclasses.replace(answer.content, versions={**answer.content.versions, "c1/n1/p3": 0})
    records.answers[10] = dataclasses.replace(answer, content=other)
    assert broken(records) == {"one tag, one content"}


def test_a_list_that_is_refused_is_found_unless_the_replica_itself_was_stopped() -> None:
    records = history(living("c1/n1/p1"))
    records.answers.append(Answer(BEGUN + 1, BEGUN + 2, "a", 503))
    assert broken(records) == {"the last list stays"}
    stopped = dataclasses.replace(OUTAGE, promises=Promises(silent=True, stopped=True, of=frozenset("a")))
    assert "the last list stays" not in broken(records, stopped)


@pytest.mark.parametrize(
    ("beat", "promise"),
    [
        (Beat("p", 0, BEGUN + 1, BEGUN + 2.4, "a", 503, "1", True), None),
        (Beat("p", 0, BEGUN + 1, BEGUN + 3.1, "a", 503, "1", True), "every POST is answered"),
        (Beat("p", 0, BEGUN + 1, BEGUN + 1.1, "a", 0), "every POST is answered"),
        (Beat("p", 0, BEGUN + 1, BEGUN + 1.1, "a", 500, "1", True), "every POST is answered"),
        (Beat("p", 0, BEGUN + 1, BEGUN + 1.1, "a", 503, "", True), "a 503 says when to come again"),
        (Beat("p", 0, BEGUN + 1, BEGUN + 1.1, "a", 503, "1", False), "a 503 says when to come again"),
        (Beat("p", 0, HEALED + 3, HEALED + 3.1, "a", 503, "1", True), "writes are taken again within 2 s"),
        (Beat("p", 0, BEGUN - 3, BEGUN - 2.9, "a", 503, "1", True), "writes are taken again within 2 s"),
    ],
)
def test_a_heartbeat_that_is_not_answered_as_promised_is_found(beat: Beat, promise: str | None) -> None:
    records = history(living("c1/n1/p1"))
    records.beats.append(beat)
    assert broken(records) == ({promise} if promise else set())


def test_time_that_the_recorder_itself_lost_is_no_fault_of_the_service() -> None:
    records = history(living("c1/n1/p1"))
    records.beats.append(Beat("p", 0, BEGUN + 1, BEGUN + 3.1, "a", 503, "1", True))
    records.lags.append((BEGUN + 2.9, 1.5))
    assert broken(records) == set()


def test_a_verdict_without_a_load_means_nothing() -> None:
    records = history(living("c1/n1/p1"))
    records.answers = [answer for answer in records.answers if answer.replica == "a"]
    assert broken(records) == {"the load was there"}


def test_accepted_writes_that_are_not_in_the_store_are_found() -> None:
    life = living("c1/n1/p1")
    life.versions.append((BEGUN, 4))
    lives = {life.name: life}
    assert lost_writes({"c1/n1/p1": 4}, lives) == lost_writes({"c1/n1/p1": 5}, lives) == []
    assert lost_writes({"c1/n1/p1": 3}, lives) == ["c1/n1/p1: version 4 was accepted, the store has 3"]
    assert lost_writes({}, lives) == ["c1/n1/p1: version 4 was accepted, the store has None"]
    life.doubtful.append((BEGUN - 1, BEGUN, 3))
    assert lost_writes({"c1/n1/p1": 3}, lives) == []
    life.silent = HEALED
    assert lost_writes({}, lives) == [], "its lease may be over"


def test_records_forget_what_was_judged_and_keep_who_lives() -> None:
    records = history(living("c1/n1/p1"), dying(BEGUN, BEGUN))
    records.forget(RESTED)
    assert [*records.lives] == ["c1/n1/p1"]
    assert not records.answers
    assert not records.beats
