"""Relays register, renew, fall silent and deregister through two replicas while their store fails in every way.

A state machine on virtual time. The promises are judged twenty times a second against what the shared server holds and
what each replica has published, not against what the replica thinks of itself.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from discovery import registrations
from discovery.errors import Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.registrations import Heartbeat
from discovery.stores import Listed
from discovery.stores.replica import Change, Replica
from tests.stores.shared_server import Path, SharedServer, View
from tests.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.timeout(60)

LEASE = 6.0
HEARTBEAT = 1.0
RETRY = 1.0

# What the service may take to notice: a call that is silent for a second, a backoff of a second, a check.
NOTICE = 3.0
# What an announcement takes to arrive.
TRAVEL = 0.2

# From the end of a lease, or of a hold, to the moment the pool has left.
SLACK = 1.0

# How long a mass loss is held, where it is.
HOLD = 15.0

KEYS = [PoolKey("c1", "n1", "p1"), PoolKey("c1", "n1", "p2"), PoolKey("c2", "n1", "p3")]


@cache
def heartbeat(key: PoolKey, model: str) -> Heartbeat:
    """What a relay of that pool sends."""
    return Heartbeat(key, registrations.encode(registrations.canonical(Registration(*key, model=model))))


@cache
def decoded(stored: bytes) -> Registration:
    """What a value says. The judge asks that some hundred thousand times about a few values."""
    return registrations.decode(stored)


class Judged:
    """One replica with all that it ever published, and what the judge has to remember of its path to the store."""

    def __init__(self, name: str, server: SharedServer, loop: VirtualTimeLoop, hold: float) -> None:
        self.name = name
        self.hold = hold
        self.view = View(server)
        self.loop = loop
        self.listed: dict[PoolKey, Registration] = {}
        self.published = False
        self.claimed = False
        self.claimed_until = 0.0
        self.up_since = loop.time()
        self.down_since: float | None = None
        self.deaf_at = float("-inf")
        self.readable = 0.0
        self.start()

    def start(self) -> None:
        self.listed, self.published, self.claimed = {}, False, False
        self.seen: set[PoolKey] = set()
        self.started = self.loop.time()
        self.up_since = max(self.up_since, self.started)
        self.replica = Replica(
            self.view,
            lease_secs=LEASE,
            heartbeat_secs=HEARTBEAT,
            max_pools=100,
            counters=Counters(),
            on_change=partial(self._take, self.listed),
            mass_loss_hold_secs=self.hold,
            clock=self.loop.time,
        )
        self.task = self.loop.create_task(self.replica.run())

    def _take(
        self,
        listed: dict[PoolKey, Registration],
        changes: Sequence[Change],
        complete: bool,
        complete_until: float,
    ) -> None:
        if listed is not self.listed:
            return  # a call of the replica before the restart came to its end
        for key, registration in changes:
            if registration is None:
                self.listed.pop(key, None)
            else:
                self.listed[key] = registration
        self.published = True
        self.claimed, self.claimed_until = complete, complete_until

    @property
    def complete(self) -> bool:
        return self.claimed and self.loop.time() < self.claimed_until

    def restart(self) -> None:
        self.task.cancel()
        self.loop.run(asyncio.wait_for(asyncio.gather(self.task, return_exceptions=True), 10))
        self.start()

    def set_path(self, path: Path) -> None:
        now = self.loop.time()
        if path == "up":
            if self.down_since is not None:
                self.up_since = now
            self.down_since = None
        elif self.down_since is None:
            self.down_since = now
        self.view.set_path(path)

    def up_for(self) -> float:
        return 0.0 if self.down_since is not None else self.loop.time() - self.up_since


@dataclass
class Pool:
    """One relay as it is and as it was answered."""

    key: PoolKey
    model: str = "m0"
    beats: asyncio.Event = field(default_factory=asyncio.Event)
    accepted_at: float = float("-inf")
    first_accepted_at: float = float("inf")
    readable_then: dict[str, float] = field(default_factory=dict)

    @property
    def beating(self) -> bool:
        return self.beats.is_set()

    @beating.setter
    def beating(self, beating: bool) -> None:
        if beating:
            self.beats.set()
        else:
            self.beats.clear()


class ReplicasAgainstTheTruth(RuleBasedStateMachine):
    """Two replicas, three pools, one server."""

    hold = 0.0

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        random.seed(seed)
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.server = SharedServer(LEASE, self.loop.time)
        self.server.epoch()
        self.loop.pass_time(LEASE + 1)
        self.replicas = [Judged(name, self.server, self.loop, self.hold) for name in "ab"]
        self.pools = {key: Pool(key) for key in KEYS}
        self.absent_since: dict[PoolKey, float] = dict.fromkeys(KEYS, float("-inf"))
        self.lost_at = float("-inf")
        self.troubled_at = self.loop.time()
        self.returned_at = float("-inf")
        self.tasks = {key: self.loop.create_task(self._beat(pool)) for key, pool in self.pools.items()}
        self._let_pass(NOTICE)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        ended = [task for task in (*self.tasks.values(), *(each.task for each in self.replicas)) if task.done()]
        self.loop.shut()
        asyncio.set_event_loop(None)
        for task in ended:
            task.result()  # raises what ended it; none of these may end

    # Relays

    async def _beat(self, pool: Pool) -> None:
        """The first pool alternates between the replicas; the others stay with one of them until it refuses."""
        place = KEYS.index(pool.key)
        turn = place
        while True:
            await pool.beats.wait()
            try:
                await self._register(pool, self.replicas[turn % 2])
            except Unavailable:
                turn += 1
                await asyncio.sleep(RETRY)
            else:
                turn += place == 0
                await asyncio.sleep(HEARTBEAT * random.uniform(0.9, 1.0))

    async def _register(self, pool: Pool, judged: Judged) -> None:
        sent = self.loop.time()
        replica = judged.replica
        async with asyncio.timeout(1.5):
            try:
                await replica.put(heartbeat(pool.key, pool.model))
            except TimeoutError as error:
                raise Unavailable("no answer") from error
        pool.accepted_at = sent
        pool.first_accepted_at = min(pool.first_accepted_at, self.loop.time())
        pool.readable_then = {each.name: each.readable for each in self.replicas}
        if replica is judged.replica and judged.published and pool.beating:
            assert judged.listed.get(pool.key) is not None, f"{judged.name} accepted {pool.key} and does not list it"

    @rule(key=st.sampled_from(KEYS))
    def start_beating(self, key: PoolKey) -> None:
        pool = self.pools[key]
        if not pool.beating:
            pool.beating, pool.accepted_at, pool.first_accepted_at = True, float("-inf"), float("inf")
        self._let_pass(0.3)

    @rule(key=st.sampled_from(KEYS), model=st.sampled_from(["m0", "m1"]))
    def say_something_else(self, key: PoolKey, model: str) -> None:
        self.pools[key].model = model

    @rule(key=st.sampled_from(KEYS))
    def fall_silent(self, key: PoolKey) -> None:
        self.pools[key].beating = False

    @rule(key=st.sampled_from(KEYS), through=st.integers(0, 1), unheard=st.booleans())
    def deregister(self, key: PoolKey, through: int, unheard: bool) -> None:
        """A relay ends its heartbeat in flight, then says goodbye, which the other replica may not hear."""
        self.pools[key].beating = False
        self._let_pass(1.6)
        if unheard:
            self.go_deaf(1 - through)
        judged = self.replicas[through]
        try:
            self.loop.run(asyncio.wait_for(judged.replica.delete(key, None), 1.5))
        except (Unavailable, TimeoutError):
            return
        if key not in self.server.held():
            assert key not in judged.listed, f"{judged.name} still lists {key}, which it was told to remove"

    @rule(key=st.sampled_from(KEYS), through=st.integers(0, 1), models=st.permutations(["m0", "m1"]))
    def two_relays_contradict_each_other(self, key: PoolKey, through: int, models: Sequence[str]) -> None:
        """Both replicas are told of one pool at the same moment; the server says which was the later one."""
        self._together(
            *(judged.replica.put(heartbeat(key, model)) for judged, model in zip(self.replicas, models, strict=True))
        )

    @rule(key=st.sampled_from(KEYS), through=st.integers(0, 1))
    def a_goodbye_races_a_heartbeat(self, key: PoolKey, through: int) -> None:
        """One relay of a pool says goodbye while another still registers it."""
        self.pools[key].beating = False
        self._together(
            self.replicas[through].replica.delete(key, None),
            self.replicas[1 - through].replica.put(heartbeat(key, "m0")),
        )

    def _together(self, *calls: Coroutine[Any, Any, object]) -> None:
        async def run() -> None:
            bounded = (asyncio.wait_for(call, 1.5) for call in calls)
            for result in await asyncio.gather(*bounded, return_exceptions=True):
                assert result is None or isinstance(result, bool | Unavailable | TimeoutError), result

        self.loop.run(run())
        self._let_pass(0.05)

    # Faults

    @rule(which=st.sampled_from(["a", "b", "both"]), path=st.sampled_from(["refusing", "silent"]))
    def fail(self, which: str, path: Path) -> None:
        for judged in self.replicas:
            if which in (judged.name, "both"):
                judged.set_path(path)
        self._let_pass(0.1)

    @rule()
    def heal(self) -> None:
        for judged in self.replicas:
            judged.set_path("up")
        self._let_pass(0.1)

    @rule(which=st.integers(0, 1))
    def go_deaf(self, which: int) -> None:
        self.replicas[which].view.deaf = True
        self.replicas[which].deaf_at = self.loop.time()
        self.troubled_at = self.loop.time()

    @rule()
    def lose_everything(self) -> None:
        self.server.lose_everything()
        self.lost_at = self.loop.time()

    @rule(which=st.integers(0, 1))
    def restart_a_replica(self, which: int) -> None:
        self.replicas[which].restart()

    @rule(secs=st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, LEASE, LEASE + 2, 2 * LEASE]))
    def wait(self, secs: float) -> None:
        self._let_pass(secs)

    # The judge

    def _let_pass(self, secs: float) -> None:
        for _ in range(max(1, round(secs / 0.05))):
            self.loop.pass_time(0.05)
            self._look()
            for judged in self.replicas:
                if judged.down_since is None:
                    judged.readable += 0.05
                self._judge(judged)

    def _look(self) -> None:
        now, held = self.loop.time(), self.server.held()
        for key in KEYS:
            if key in held and self.absent_since[key] < float("inf"):
                self.returned_at = now
            self.absent_since[key] = float("inf") if key in held else self.server.gone_at.get(key, float("-inf"))
        if any(judged.down_since is not None for judged in self.replicas):
            self.troubled_at = now

    def _judge(self, judged: Judged) -> None:
        if not judged.published:
            assert judged.up_for() < NOTICE or self.loop.time() < judged.started + NOTICE, "never read the store"
            return
        held = self.server.held()
        living = {key for key in KEYS if self._lives(key)}
        judged.seen = living.intersection([*judged.listed, *judged.seen])
        for key, pool in self.pools.items():
            self._judge_pool(judged, pool, held.get(key), key in living)
        self._judge_complete(judged, held)

    def _judge_pool(self, judged: Judged, pool: Pool, held: tuple[bytes, float, float] | None, lives: bool) -> None:
        now = self.loop.time()
        listed = judged.listed.get(pool.key)
        hearing_for = min(judged.up_for(), now - judged.started)
        if held is not None and now - held[2] > NOTICE and hearing_for > NOTICE:
            assert listed is not None, f"{judged.name} lacks {pool.key}, which is registered"
            stored = decoded(held[0])
            assert listed.model == stored.model, f"{judged.name} says {listed.model} of {pool.key}, not {stored.model}"
        if lives and self._must_stay(judged, pool, now):
            assert listed is not None, f"{judged.name} dropped {pool.key}, whose relay lives"
        held_until = max(judged.up_since + NOTICE, self.lost_at + NOTICE) + LEASE
        untroubled = max(judged.up_since, judged.started, judged.deaf_at + LEASE) < self.absent_since[pool.key]
        due = self.absent_since[pool.key] + (0.0 if untroubled and self.lost_at < now - 3 * LEASE else NOTICE)
        if judged.down_since is None and now > max(due, held_until) + self._held_at_most() + SLACK:
            assert listed is None, f"{judged.name} still lists {pool.key}, gone for {now - due:.2f} s"

    def _must_stay(self, judged: Judged, pool: Pool, now: float) -> bool:
        """A relay that beats keeps its place where it was listed or could be heard.

        When no heartbeat came through for a lease, and for another one in which the store could be read, it may go.
        """
        if judged.readable - pool.readable_then[judged.name] >= 2 * LEASE:
            return False
        could_hear_since = max(judged.up_since, judged.started, pool.first_accepted_at)
        heard = judged.down_since is None and now - could_hear_since > NOTICE and pool.key in self.server.held()
        return pool.key in judged.seen or heard

    def _held_at_most(self) -> float:
        """How much longer a dead pool may stay where nearly all died with it."""
        return self.hold and self.hold + NOTICE

    def _may_be_held(self) -> bool:
        """Whether a hold may have begun, or begun to end, so lately that it still runs."""
        ends = [since for since in self.absent_since.values() if since < float("inf")]
        lately = max([*ends, self.returned_at, self.troubled_at, self.lost_at])
        return bool(self.hold) and self.loop.time() < lately + 2 * LEASE + self._held_at_most()

    def _lives(self, key: PoolKey) -> bool:
        """Whether a relay beats, and did so long enough for its return to have travelled to every replica."""
        return self.pools[key].beating and self.loop.time() - self.pools[key].first_accepted_at > TRAVEL

    def _judge_complete(self, judged: Judged, held: dict[PoolKey, tuple[bytes, float, float]]) -> None:
        now = self.loop.time()
        if judged.complete:
            young = 2.0 + 0.3
            missing = [key for key, value in held.items() if now - value[2] > young and key not in judged.listed]
            assert not missing, f"{judged.name} claims to be complete without {missing}"
            assert judged.down_since is None or now - judged.down_since < 2.3, f"{judged.name} is sure, and cut off"
            assert not self.lost_at + 2.3 < now < self.lost_at + LEASE, f"{judged.name} is sure too early after a loss"
        quiet_since = max(self.troubled_at, self.lost_at, judged.started)
        if now > quiet_since + LEASE + NOTICE + SLACK and not self._may_be_held():
            assert judged.complete, f"{judged.name} is not complete though all is quiet: {judged.replica.incomplete()}"

    @invariant()
    def replicas_agree_when_all_is_quiet(self) -> None:
        if not hasattr(self, "loop"):
            return
        self._look()
        now, held = self.loop.time(), self.server.held()
        quiet_since = max(self.troubled_at, self.lost_at, *(judged.started for judged in self.replicas))
        settled = all(now - value[2] > NOTICE for value in held.values())
        gone = all(since == float("inf") or now - since > NOTICE for since in self.absent_since.values())
        if now > quiet_since + LEASE + NOTICE + SLACK and settled and gone and not self._may_be_held():
            truth = {key: decoded(value[0]) for key, value in held.items()}
            for judged in self.replicas:
                assert judged.listed == truth


TestReplicasAgainstTheTruth = ReplicasAgainstTheTruth.TestCase
TestReplicasAgainstTheTruth.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class ReplicasThatHoldOverMassLosses(ReplicasAgainstTheTruth):
    """The same with a hold over mass losses: no living pool leaves either, and no dead one stays for ever."""

    hold = HOLD

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        super().begin(seed)
        self.all_live_for_long()

    @rule()
    def all_live_for_long(self) -> None:
        self.heal()
        for pool in self.pools.values():
            self.start_beating(pool.key)
        self._let_pass(3 * LEASE)

    @rule(secs=st.sampled_from([2.0, LEASE, LEASE + 2]))
    def all_are_cut_off(self, secs: float) -> None:
        for pool in self.pools.values():
            pool.beating = False
        self._let_pass(secs)

    @rule(several=st.sets(st.sampled_from(KEYS)), secs=st.sampled_from([0.1, LEASE, LEASE + 3]))
    def some_return(self, several: set[PoolKey], secs: float) -> None:
        for key in sorted(several):
            self.start_beating(key)
        self._let_pass(secs)


TestReplicasThatHoldOverMassLosses = ReplicasThatHoldOverMassLosses.TestCase
TestReplicasThatHoldOverMassLosses.settings = settings(
    TestReplicasAgainstTheTruth.settings, max_examples=25, stateful_step_count=20
)


@pytest.fixture
def machine() -> Iterator[ReplicasAgainstTheTruth]:
    """The same judge for a course of events that is written down."""
    running = ReplicasAgainstTheTruth()
    running.begin(seed=1)
    yield running
    running.teardown()


def test_however_often_data_is_lost_a_dead_pool_leaves_after_two_leases(machine: ReplicasAgainstTheTruth) -> None:
    machine.start_beating(KEYS[0])
    machine.start_beating(KEYS[1])
    machine.wait(2.0)
    machine.fall_silent(KEYS[1])
    died = machine.loop.time()
    while any(KEYS[1] in judged.listed for judged in machine.replicas):
        machine.lose_everything()
        machine.wait(1.0)
        assert machine.loop.time() < died + 3 * LEASE + 4, "a dead pool stays for ever"
        assert all(KEYS[0] in judged.listed for judged in machine.replicas)
    assert machine.loop.time() > died + LEASE


def test_an_outage_of_ten_minutes_keeps_every_pool_and_the_dead_leave_after_it(
    machine: ReplicasAgainstTheTruth,
) -> None:
    machine.start_beating(KEYS[0])
    machine.start_beating(KEYS[1])
    machine.wait(2.0)
    machine.fail("both", "silent")
    machine.fall_silent(KEYS[1])
    machine.loop.pass_time(600)
    for judged in machine.replicas:
        assert set(judged.listed) == {KEYS[0], KEYS[1]}
        assert not judged.complete
    machine.lose_everything()
    machine.heal()
    healed = machine.loop.time()
    machine.wait(LEASE - 1)
    assert all(set(judged.listed) == {KEYS[0], KEYS[1]} for judged in machine.replicas)
    machine.wait(healed + LEASE + NOTICE + SLACK - machine.loop.time())
    assert all(set(judged.listed) == {KEYS[0]} and judged.complete for judged in machine.replicas)


@pytest.mark.parametrize("path", ["refusing", "silent"])
def test_a_replica_that_alone_was_cut_off_for_leases_catches_up_without_emptying(
    machine: ReplicasAgainstTheTruth, path: Path
) -> None:
    machine.start_beating(KEYS[1])  # its relay stays with the other replica
    machine.start_beating(KEYS[2])
    machine.wait(2.0)
    machine.fail("a", path)
    machine.wait(LEASE)
    machine.fall_silent(KEYS[2])
    machine.say_something_else(KEYS[1], "m1")
    machine.start_beating(KEYS[0])
    machine.wait(4 * LEASE)
    a, b = machine.replicas
    assert set(a.listed) == {KEYS[1], KEYS[2]}, "what it knew stays, new things cannot be known"
    assert set(b.listed) == {KEYS[0], KEYS[1]}
    machine.heal()
    healed = machine.loop.time()
    while machine.loop.time() < healed + LEASE:
        machine.wait(0.1)
        assert KEYS[1] in a.listed
        assert machine.loop.time() < healed + NOTICE or KEYS[0] in a.listed
    machine.wait(NOTICE + SLACK)
    assert a.listed == b.listed
    assert set(a.listed) == {KEYS[0], KEYS[1]}
    assert a.listed[KEYS[1]].model == "m1"


@pytest.mark.parametrize("later", [0.3, 2.0, LEASE])
def test_replicas_that_see_a_failover_at_different_times_drop_no_living_pool_and_agree(
    machine: ReplicasAgainstTheTruth, later: float
) -> None:
    for key in KEYS:
        machine.start_beating(key)
    machine.wait(2.0)
    machine.fail("a", "refusing")
    machine.wait(later)
    machine.fail("b", "silent")
    machine.wait(LEASE + 1)
    machine.lose_everything()  # the new master knows nothing
    machine.replicas[1].set_path("up")
    for _ in range(round(later / 0.1)):
        machine.wait(0.1)
        assert all(set(judged.listed) == set(KEYS) for judged in machine.replicas)
    machine.heal()
    for _ in range(round(2 * LEASE / 0.1)):
        machine.wait(0.1)
        assert all(set(judged.listed) == set(KEYS) for judged in machine.replicas)
    machine.replicas_agree_when_all_is_quiet()
    assert all(judged.complete for judged in machine.replicas)


@pytest.mark.parametrize("which", ["a", "both"])
def test_a_pool_deregistered_during_an_outage_does_not_come_back_after_the_hold(
    machine: ReplicasAgainstTheTruth, which: str
) -> None:
    """One that could not hear of it lists it until its hold ends; a store that was frozen does what it was told."""
    for key in KEYS[:2]:
        machine.start_beating(key)
    machine.wait(2.0)
    machine.fail(which, "silent")
    machine.wait(3.0)
    machine.deregister(KEYS[0], through=1, unheard=False)
    machine.wait(2 * LEASE)
    machine.heal()
    healed = machine.loop.time()
    machine.wait(LEASE + NOTICE + SLACK)
    for _ in range(round(3 * LEASE / 0.1)):
        machine.wait(0.1)
        assert all(set(judged.listed) == {KEYS[1]} for judged in machine.replicas)
    assert machine.loop.time() > healed + 3 * LEASE


def test_a_loss_at_any_moment_of_a_lease_costs_no_living_pool(machine: ReplicasAgainstTheTruth) -> None:
    """The question about a lease that seems to end may meet a server that was emptied a moment ago."""
    for key in KEYS:
        machine.start_beating(key)
    machine.wait(2.0)
    for _ in range(80):
        machine.lose_everything()
        machine.wait(2 * LEASE + 0.11)


def test_a_pool_that_returns_while_its_end_is_asked_about_stays(machine: ReplicasAgainstTheTruth) -> None:
    machine.start_beating(KEYS[0])
    for step in range(60):
        machine.wait(1.0)
        machine.fall_silent(KEYS[0])
        last = machine.pools[KEYS[0]].accepted_at
        machine.loop.pass_time(last + LEASE - 0.3 + step * 0.01 - machine.loop.time())
        machine.start_beating(KEYS[0])
        assert all(KEYS[0] in judged.listed for judged in machine.replicas)


def test_an_outage_in_which_leases_just_end_costs_no_living_pool(machine: ReplicasAgainstTheTruth) -> None:
    """Too short to be announced as a loss, and long enough for a lease to end before its relay comes through."""
    for key in KEYS:
        machine.start_beating(key)
    machine.wait(2.0)
    for step in range(40):
        machine.fail("both", "silent")
        machine.wait(3.0 + step * 0.023)
        machine.heal()
        machine.wait(2 * LEASE + 0.11)


@pytest.mark.parametrize("path", ["refusing", "silent"])
def test_no_lease_end_is_acted_on_for_a_lease_after_an_outage(machine: ReplicasAgainstTheTruth, path: Path) -> None:
    machine.start_beating(KEYS[0])
    machine.wait(2.0)
    machine.fall_silent(KEYS[0])
    machine.wait(1.6)
    machine.fail("both", path)
    machine.wait(3.0)
    machine.heal()
    healed = machine.loop.time()
    while machine.loop.time() < healed + LEASE - 0.2:
        machine.wait(0.1)
        assert all(KEYS[0] in judged.listed for judged in machine.replicas)
    assert KEYS[0] not in machine.server.held()
    machine.wait(NOTICE + SLACK)
    assert all(KEYS[0] not in judged.listed for judged in machine.replicas)


def test_a_list_begun_before_a_loss_and_ended_after_it_does_not_deafen_the_replica(
    machine: ReplicasAgainstTheTruth,
) -> None:
    """What a replica reads of the old life after it wrote in the new one must not make the new one the past."""
    starting = machine.replicas[0]
    reached, go_on = asyncio.Event(), asyncio.Event()
    items = machine.server.items

    async def slow_list() -> Listed:
        asked_at = machine.loop.time()
        health = machine.server.health(asked_at)
        reached.set()
        await go_on.wait()
        del starting.view.list_all
        return Listed(health, items())

    starting.view.list_all = slow_list  # type: ignore[method-assign]
    starting.restart()
    machine.loop.run(asyncio.wait_for(reached.wait(), 5))
    machine.server.lose_everything()
    machine.lost_at = machine.loop.time()
    machine.loop.run(starting.replica.put(heartbeat(KEYS[0], "m0")))
    go_on.set()
    machine.wait(NOTICE)
    assert KEYS[0] in starting.listed
    machine.loop.run(machine.replicas[1].replica.put(heartbeat(KEYS[1], "m1")))
    machine.loop.run(starting.replica.delete(KEYS[0], None))
    machine.wait(0.2)
    assert set(starting.listed) == {KEYS[1]}
