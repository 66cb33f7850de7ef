"""What Redis's figures mean: tables of signs, and properties of its clock as seen through answers of any speed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.stores.redis.signs import Life, Offset, Signs, clock_stepped, moved_on, read

LEASE = 15.0
INFO = (
    b"# Server\r\nredis_version:7.0.15\r\nrun_id:aaaa\r\nserver_time_usec:1796034636533043\r\n",
    b"# Replication\r\nrole:master\r\nmaster_replid:11112222333\r\n",
    b"# Stats\r\nevicted_keys:7\r\n",
    b"# Memory\r\nmaxmemory:1048576\r\nmaxmemory_policy:volatile-ttl\r\n",
)
CALM = Signs("master", "aaaa", "1111222233", 7, Offset(0.0, 0.002, 100.0), "noeviction", False)


def test_the_signs_are_read_from_whichever_section_has_them() -> None:
    signs = read(INFO, 100.0, 100.5)
    assert signs[:4] == ("master", "aaaa", "11112222333", 7)
    assert (signs.policy, signs.limited) == ("volatile-ttl", True)
    assert signs.offset is not None
    assert signs.offset.least == pytest.approx(1796034636.533043 - 100.5)
    assert signs.offset.most == pytest.approx(1796034636.533043 - 100.0)
    assert signs.untold == []


@pytest.mark.parametrize(
    "sections",
    [
        (),
        (b"",),
        (ValueError("NOPERM"),),
        (None, 7, [b"role:master"]),
        (b"role\r\nevicted_keys:\r\nserver_time_usec:soon\r\nmaxmemory:much",),
        (b"\xff\xfe:\xff\r\n",),
    ],
    ids=["nothing", "empty", "refused", "other-types", "no-values", "no-text"],
)
def test_what_a_server_does_not_tell_is_no_sign_and_no_error(sections: tuple[object, ...]) -> None:
    signs = read(sections, 100.0, 100.1)
    assert signs == Signs()
    assert set(signs.untold) == {"role", "master_replid", "evicted_keys", "server_time_usec"}
    life = Life(LEASE)
    life.adopt("e", 1, CALM, None, 100.0)
    assert life.contradicted(signs, 101.0) is None
    life.adopt("e", 1, signs, None, 101.0)
    assert life.signs == CALM, "what was known before is compared with the next answer that tells it"


@pytest.mark.parametrize(("role", "replica"), [("master", False), ("slave", True), ("replica", True), (None, False)])
def test_a_replica_is_told_by_its_role(role: str | None, replica: bool) -> None:
    assert Signs(role).is_replica is replica


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"evicted_keys": 8}, "evicted"),
        ({"evicted_keys": 0}, None),  # the figures were reset
        ({"replid": "99998888"}, "another master_replid (11112222, now 99998888)"),
        ({"replid": "99998888", "run_id": "bbbb", "evicted_keys": 9}, "another master_replid"),
        ({"run_id": "bbbb"}, None),  # the same data, as the ids of the replication say
        ({"run_id": "bbbb", "replid": None}, "another Redis process"),
        ({"offset": Offset(3.0, 3.002, 101.0)}, "clock moved by +3.0 s"),
        ({"offset": Offset(-3.0, -2.998, 101.0)}, "clock moved by -3.0 s"),
        ({"offset": Offset(0.9, 0.902, 101.0)}, None),
        ({"offset": Offset(0.5, 3.5, 101.0)}, None),  # a slow answer: the clock may stand where it stood
        ({"policy": "allkeys-lru", "limited": True}, None),
        ({"role": None}, None),
    ],
    ids=str,
)
def test_each_sign_by_itself(changes: dict[str, object], says: str | None) -> None:
    life = Life(LEASE)
    life.adopt("e", 1, CALM, None, 100.0)
    reason = life.contradicted(CALM._replace(**changes), 101.0)
    assert (reason is None) if says is None else (says in (reason or ""))


def test_nothing_is_a_sign_before_anything_is_known() -> None:
    assert Life(LEASE).contradicted(CALM, 100.0) is None


def test_evictions_that_go_on_are_one_loss_in_half_a_lease_and_none_is_forgotten() -> None:
    life = Life(LEASE)
    life.adopt("e0", 1, CALM, None, 0.0)
    losses = []
    for step in range(300):
        now, seen = step / 10, CALM._replace(evicted_keys=8 + step if step < 100 else 107)
        reason = life.contradicted(seen, now)
        if reason:
            losses.append(now)
        life.adopt(f"e{len(losses)}", 1, seen, reason, now)
    assert losses == [0.0, 7.5, 15.0], "the last one is for those until the tenth second"


def test_another_server_and_a_step_of_the_clock_are_signs_also_right_after_a_loss() -> None:
    life = Life(LEASE)
    life.adopt("e", 1, CALM, "a loss", 100.0)
    assert life.contradicted(CALM._replace(evicted_keys=8), 101.0) is None
    assert life.contradicted(CALM._replace(replid="99998888"), 101.0)
    assert life.contradicted(CALM._replace(offset=Offset(9.0, 9.1, 101.0)), 101.0)


def test_the_highest_revision_belongs_to_its_epoch() -> None:
    life = Life(LEASE)
    life.wrote("e", 9)
    assert life.revision == 0
    life.adopt("e", 3, CALM, None, 100.0)
    life.wrote("e", 5)
    life.wrote("e", 4)
    life.wrote("other", 50)
    assert life.revision == 5
    life.adopt("e", 4, CALM, None, 101.0)
    assert life.revision == 5
    life.adopt("other", 1, CALM, "a loss", 102.0)
    assert life.revision == 1


secs = st.floats(0, 5)


@given(st.lists(st.tuples(secs, secs, secs), min_size=1, max_size=40), st.floats(-0.0005, 0.0005), st.floats(-1e6, 1e6))
def test_a_clock_that_only_drifts_never_seems_to_step_however_slow_answers_are(
    answers: list[tuple[float, float, float]], drift: float, apart: float
) -> None:
    known, now = Signs(), 0.0
    for pause, there, back in answers:
        asked = now + pause
        now = asked + there + back
        server = apart + (asked + there) * (1 + drift)
        seen = Signs(offset=Offset(server - now, server - asked, now))
        assert clock_stepped(known, seen) is None
        known = moved_on(known, seen)


@given(
    st.lists(st.tuples(secs, st.floats(0, 0.05), st.floats(0, 0.05)), min_size=1, max_size=20),
    st.floats(1.2, 1e5),
    st.booleans(),
    st.floats(0, 0.05),
    secs,
)
def test_a_step_shows_in_the_next_answer_and_once(
    answers: list[tuple[float, float, float]], step: float, back_in_time: bool, travel: float, slow: float
) -> None:
    known, now, step = Signs(), 0.0, -step if back_in_time else step
    for pause, there, back in answers:
        asked = now + pause
        now = asked + there + back
        known = moved_on(known, Signs(offset=Offset(asked + there - now, there, now)))
    asked, now = now, now + 2 * travel
    stepped = Signs(offset=Offset(asked + travel + step - now, travel + step, now))
    said = clock_stepped(known, stepped)
    assert said is not None
    assert ("+" in said) is (step > 0)
    known = moved_on(known, stepped)
    asked, now = now, now + slow
    assert clock_stepped(known, Signs(offset=Offset(asked + step - now, step, now))) is None


def test_a_slow_answer_does_not_hide_the_step_that_follows_it() -> None:
    known = moved_on(CALM, Signs(offset=Offset(-2.0, 2.0, 104.0)))
    assert clock_stepped(known, Signs(offset=Offset(1.5, 1.502, 105.0)))
