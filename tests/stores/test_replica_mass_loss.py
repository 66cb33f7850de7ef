"""Mass loss as whole replicas live through it: a shared server, relays with spread heartbeats, virtual time.

What is promised is judged by what the replicas published and by what the server holds.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import pytest

from discovery import registrations
from discovery.errors import Unavailable
from discovery.listing.lists import Lists
from discovery.listing.publisher import Publisher
from discovery.metrics import Counters
from discovery.model import Listing, PoolKey, Registration
from discovery.problems import not_complete
from discovery.registrations import Heartbeat
from discovery.stores import Remaining
from discovery.stores.mass_loss import REASON
from discovery.stores.memory import MemoryStore
from discovery.stores.replica import Change, Replica
from tests.listing.test_lists import NAMES
from tests.listing.test_lists import View as ClusterView
from tests.mcs.shapes import RELAY, imported, slice_of
from tests.stores.shared_server import SharedServer, View
from tests.virtual_time import VirtualTimeLoop

LEASE, HEARTBEAT, HOLD = 6.0, 2.0, 30.0
OLD = 3 * LEASE + 1
CHECK = 1.0
"""A replica reads what the server says of itself at least this often."""

EAST = [PoolKey("east", "n", f"p{number}") for number in range(4)]
WEST = [PoolKey("west", "n", f"p{number}") for number in range(3)]
ALL = EAST + WEST


class Published:
    """One replica and what it last said."""

    def __init__(self, store: View | MemoryStore, loop: VirtualTimeLoop, hold: float, local: str | None) -> None:
        self.view = store
        self.counters = Counters()
        self.listed: dict[PoolKey, Registration] = {}
        self.complete = False
        self.left: list[PoolKey] = []
        self.also: Callable[[Sequence[Change], bool, float], None] = lambda *_: None
        self.replica = Replica(
            store,
            lease_secs=LEASE,
            heartbeat_secs=HEARTBEAT,
            max_pools=100,
            counters=self.counters,
            on_change=self._take,
            mass_loss_hold_secs=hold,
            local_cluster_id=local,
            clock=loop.time,
        )
        self.task = loop.create_task(self.replica.run())

    def _take(self, changes: Sequence[Change], complete: bool, complete_until: float) -> None:
        for key, registration in changes:
            if registration is None:
                del self.listed[key]
                self.left.append(key)
            else:
                self.listed[key] = registration
        self.complete = complete
        self.also(changes, complete, complete_until)

    @property
    def holds_begun(self) -> float:
        return self.counters.values()["mass_losses"]


class Fleet:
    """Two replicas, and the relays that beat through them until they are cut."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.server = SharedServer(LEASE, loop.time)
        self.server.epoch()
        loop.pass_time(LEASE + 1)
        self.replicas: list[Published] = []
        self.cut: set[PoolKey] = set()
        self.dropped_at: dict[PoolKey, float] = {}

    def start(self, hold: float = HOLD, local: str | None = None) -> Published:
        self.replicas.append(Published(View(self.server), self.loop, hold, local))
        self.loop.pass_time(0.3)
        return self.replicas[-1]

    def relays(self, keys: Iterable[PoolKey], to: Sequence[Published]) -> None:
        for number, key in enumerate(keys):
            self.loop.create_task(self._beat(key, to[number % len(to)], random.uniform(0, HEARTBEAT)))

    async def _beat(self, key: PoolKey, to: Published, first_after: float) -> None:
        await asyncio.sleep(first_after)
        while True:
            pause = HEARTBEAT * random.uniform(0.9, 1.0)
            if key not in self.cut:
                try:
                    await to.replica.put(heartbeat(key))
                except Unavailable:
                    pause = 1.0
            await asyncio.sleep(pause)

    def cut_off(self, keys: Iterable[PoolKey]) -> float:
        self.cut.update(keys)
        return self.loop.time()

    def watch(self, until: float, always: Callable[[], None] = lambda: None) -> None:
        while self.loop.time() < until:
            self.loop.pass_time(0.05)
            assert not any(each.task.done() for each in self.replicas)
            always()

    def holding(self) -> list[bool]:
        return [REASON in (each.replica.incomplete() or "") for each in self.replicas]


def heartbeat(key: PoolKey) -> Heartbeat:
    return Heartbeat(key, registrations.encode(registrations.canonical(Registration(*key, model="m"))))


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    random.seed(1)
    running = VirtualTimeLoop()
    asyncio.set_event_loop(running)
    yield running
    running.shut()
    asyncio.set_event_loop(None)


@pytest.fixture
def fleet(loop: VirtualTimeLoop) -> Fleet:
    """Replicas a and b, all pools listed for three leases."""
    made = Fleet(loop)
    both = [made.start(), made.start()]
    made.relays(ALL, both)
    loop.pass_time(OLD)
    assert all(set(each.listed) == set(ALL) and each.complete for each in both)
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "mass loss" in record.getMessage()]


def test_when_all_clusters_are_cut_nothing_leaves_for_the_time_of_the_hold_on_any_replica(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cut = fleet.cut_off(ALL)

    def whoever_holds_is_not_sure() -> None:
        assert not any(each.complete for each in fleet.replicas if each.holds_begun)

    fleet.watch(cut + LEASE + CHECK, whoever_holds_is_not_sure)
    assert all(fleet.holding())
    assert [each.holds_begun for each in fleet.replicas] == [1, 1]
    assert not any(each.complete for each in fleet.replicas)
    assert not [line for line in lines(caplog) if "kept for now" in line], "one line"
    late = fleet.start()
    assert not late.complete, "a replica that starts in a hold knows of it"
    assert late.replica._mass_loss.until() is not None, "and joins it with its first list"
    assert late.listed == {}
    begins = [line for line in lines(caplog) if line.startswith(not_complete(f"{REASON}: "))]
    assert len(begins) == 2
    assert "7 of 7 pools of all 2 clusters" in begins[0]
    assert "(east 4 of 4, west 3 of 3)" in begins[0]
    assert "check the ingress in front of the service" in begins[0]

    def all_stay() -> None:
        assert all(set(each.listed) == set(ALL) for each in fleet.replicas[:2])
        assert not late.complete

    fleet.watch(cut + LEASE - HEARTBEAT + HOLD - 0.1, all_stay)
    fleet.watch(cut + LEASE + HOLD + CHECK + 1)
    assert all(each.listed == {} and each.complete for each in fleet.replicas)
    fleet.watch(cut + LEASE + HOLD + 4 * LEASE)
    assert [each.holds_begun for each in fleet.replicas] == [1, 1, 0], "no second hold"
    ends = [line for line in lines(caplog) if "is over after" in line]
    assert len(ends) == 3
    assert "0 of 7 lost pools are back" in ends[0]


def test_after_half_are_back_and_one_lease_more_what_is_still_gone_leaves(fleet: Fleet) -> None:
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 5)
    assert all(fleet.holding())
    fleet.cut.difference_update(EAST)
    back = fleet.loop.time()

    def all_stay() -> None:
        assert all(set(each.listed) == set(ALL) for each in fleet.replicas)

    fleet.watch(back + LEASE, all_stay)
    fleet.watch(back + HEARTBEAT + LEASE + 2 * CHECK + 0.5)
    assert all(set(each.listed) == set(EAST) for each in fleet.replicas)
    fleet.watch(fleet.loop.time() + CHECK)
    assert all(each.complete for each in fleet.replicas), "the store's word was taken back"
    assert fleet.server.health(0.0).settling is None


def test_one_dead_cluster_leaves_at_the_ends_of_its_leases(fleet: Fleet) -> None:
    cut = fleet.cut_off(EAST)
    gone: dict[PoolKey, float] = {}

    def look() -> None:
        assert all(each.complete for each in fleet.replicas)
        for key in EAST:
            if all(key not in each.listed for each in fleet.replicas):
                gone.setdefault(key, fleet.loop.time())

    fleet.watch(cut + LEASE + 1, look)
    assert set(gone) == set(EAST)
    assert all(at <= fleet.server.gone_at[key] + 0.5 for key, at in gone.items())
    assert [each.holds_begun for each in fleet.replicas] == [0, 0]
    assert all(set(each.listed) == set(WEST) for each in fleet.replicas)


@pytest.mark.parametrize("back", [False, True], ids=["gone", "back"])
def test_two_clusters_that_end_one_after_the_other_within_a_lease_are_a_mass_loss_unless_the_first_is_back(
    fleet: Fleet, back: bool
) -> None:
    cut = fleet.cut_off(EAST)
    fleet.watch(cut + 4.6)  # when the last of the first cluster ends, nobody of the second is late yet
    later = fleet.cut_off(WEST)
    fleet.watch(cut + LEASE + 0.4)
    assert all(set(each.listed) == set(WEST) for each in fleet.replicas), "the first cluster alone is none"
    if back:
        for key in EAST:
            fleet.loop.run(fleet.replicas[0].replica.put(heartbeat(key)))
    fleet.watch(later + LEASE + 0.6)
    assert [each.holds_begun for each in fleet.replicas] == ([0, 0] if back else [1, 1])
    assert all(set(each.listed) == set(EAST if back else WEST) for each in fleet.replicas)


def test_a_word_of_a_hold_that_never_ends_holds_for_the_time_of_a_hold(loop: VirtualTimeLoop) -> None:
    """Its writer may have died, or somebody wrote it by hand. The replica is too young to hold by itself."""
    fleet = Fleet(loop)
    other = fleet.start(hold=0)
    fleet.relays(ALL, [other])
    loop.pass_time(HEARTBEAT + 1)
    young = fleet.start()
    fleet.server.settle(REASON, 1000.0)
    fleet.watch(loop.time() + CHECK)
    joined = loop.time()
    cut = fleet.cut_off(ALL)

    def all_stay() -> None:
        assert set(young.listed) == set(ALL)

    fleet.watch(joined + HOLD - CHECK, all_stay)
    assert loop.time() > cut + LEASE
    assert other.listed == {}, "it is switched off there"
    fleet.watch(joined + HOLD + 0.5)
    assert young.listed == {}
    fleet.watch(joined + 3 * HOLD)
    assert young.holds_begun == 0


def test_pools_younger_than_three_leases_just_expire(loop: VirtualTimeLoop) -> None:
    fleet = Fleet(loop)
    both = [fleet.start(), fleet.start()]
    fleet.relays(ALL, both)
    loop.pass_time(2 * LEASE - HEARTBEAT)
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    assert all(each.listed == {} and each.complete and not each.holds_begun for each in both)


def test_switched_off_all_leave_at_the_ends_of_their_leases(loop: VirtualTimeLoop) -> None:
    fleet = Fleet(loop)
    both = [fleet.start(hold=0), fleet.start(hold=0)]
    fleet.relays(ALL, both)
    loop.pass_time(OLD)
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    assert all(each.listed == {} and each.complete and not each.holds_begun for each in both)


def test_the_local_cluster_neither_prevents_a_hold_nor_is_dropped_in_one(loop: VirtualTimeLoop) -> None:
    fleet = Fleet(loop)
    home = [PoolKey("home", "n", f"p{number}") for number in range(5)]
    both = [fleet.start(local="home"), fleet.start(local="home")]
    fleet.relays(ALL + home, both)
    loop.pass_time(OLD)
    cut = fleet.cut_off(ALL + home[:1])

    def all_stay() -> None:
        assert all(set(each.listed) == {*ALL, *home} for each in both)

    fleet.watch(cut + HOLD, all_stay)
    assert all(fleet.holding())
    fleet.watch(cut + LEASE + HOLD + 1)
    assert all(set(each.listed) == set(home[1:]) for each in both)


def test_a_pool_that_deregisters_in_a_hold_leaves_at_once_and_does_not_come_back(fleet: Fleet) -> None:
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    fleet.loop.run(fleet.replicas[0].replica.delete(EAST[0], None))
    assert EAST[0] not in fleet.replicas[0].listed
    fleet.watch(fleet.loop.time() + 0.2)
    assert all("6 ended pools are kept" in (each.replica.incomplete() or "") for each in fleet.replicas)

    def stays_away() -> None:
        assert all(EAST[0] not in each.listed and len(each.listed) == 6 for each in fleet.replicas)

    fleet.watch(cut + HOLD, stays_away)


def test_a_pool_that_registers_in_a_hold_and_dies_again_is_kept_to_its_end(fleet: Fleet) -> None:
    """It is not forgotten either: its next end is asked about at its time, not when the hold was to be over."""
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    fleet.loop.run(fleet.replicas[0].replica.put(heartbeat(EAST[0])))
    fleet.loop.pass_time(0.2)
    assert all(each.replica._mass_loss.kept == 6 for each in fleet.replicas)
    fleet.watch(fleet.loop.time() + LEASE + 1)
    assert all(each.replica._mass_loss.kept == 7 for each in fleet.replicas)
    fleet.watch(cut + LEASE + HOLD + 1)
    assert all(each.listed == {} for each in fleet.replicas)


@pytest.mark.parametrize("path", ["refusing", "silent"])
def test_an_outage_over_the_end_of_a_hold_keeps_the_pools_until_a_lease_after_it(fleet: Fleet, path: str) -> None:
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    fleet.watch(cut + LEASE + HOLD - 8)
    for each in fleet.replicas:
        each.view.set_path(path)  # type: ignore[union-attr, arg-type]

    def all_stay() -> None:
        assert all(set(each.listed) == set(ALL) and not each.complete for each in fleet.replicas)

    fleet.watch(cut + LEASE + HOLD + 20, all_stay)
    for each in fleet.replicas:
        each.view.set_path("up")  # type: ignore[union-attr]
    healed = fleet.loop.time()
    fleet.watch(healed + LEASE, all_stay)
    fleet.watch(healed + LEASE + 4)
    assert all(each.listed == {} for each in fleet.replicas)
    fleet.watch(healed + 3 * LEASE)
    assert all(each.complete for each in fleet.replicas)
    assert [each.holds_begun for each in fleet.replicas] == [1, 1]


def test_a_loss_of_data_in_a_hold_shortens_nothing_and_the_store_is_told_again(fleet: Fleet) -> None:
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    fleet.server.lose_everything()
    fleet.watch(fleet.loop.time() + 3)
    assert fleet.server.health(0.0).settling == REASON, "a replica that starts now must know"

    def all_stay() -> None:
        assert all(set(each.listed) == set(ALL) and not each.complete for each in fleet.replicas)

    fleet.watch(cut + LEASE - HEARTBEAT + HOLD - 0.1, all_stay)
    fleet.watch(cut + LEASE + HOLD + CHECK + 1)
    assert all(each.listed == {} and each.complete for each in fleet.replicas)


def test_a_loss_of_data_just_before_the_end_of_a_hold_keeps_what_is_gone_for_its_own_lease(fleet: Fleet) -> None:
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE - HEARTBEAT + HOLD - 2)
    fleet.server.lose_everything()
    lost = fleet.loop.time()

    def all_stay() -> None:
        assert all(set(each.listed) == set(ALL) and not each.complete for each in fleet.replicas)

    fleet.watch(lost + LEASE, all_stay)
    fleet.watch(lost + LEASE + 3)
    assert all(each.listed == {} for each in fleet.replicas)


def test_when_half_are_back_during_the_settling_after_a_loss_that_settling_goes_on(fleet: Fleet) -> None:
    """The store keeps one word at a time: the end of a hold does not take away what another reason needs."""
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    fleet.cut.difference_update(EAST)
    fleet.watch(fleet.loop.time() + HEARTBEAT + LEASE - 2)
    assert all(fleet.holding())
    fleet.server.lose_everything()
    lost = fleet.cut_off(EAST)

    def no_stranger_is_sure() -> None:
        assert lost + 2 > fleet.loop.time() or fleet.server.health(0.0).settling is not None

    fleet.watch(lost + 3.5, no_stranger_is_sure)
    fleet.cut.difference_update(EAST)  # they call again only now: nor does the loss move the end of the hold
    fleet.watch(lost + LEASE, no_stranger_is_sure)
    fleet.watch(lost + LEASE + 2)
    assert all(set(each.listed) == set(EAST) and each.complete for each in fleet.replicas)


def test_a_replica_too_young_to_judge_holds_with_the_others_once_it_hears_of_it(fleet: Fleet) -> None:
    """Its streams would else tell clients for good that all pools have left."""
    young = fleet.start()
    fleet.watch(fleet.loop.time() + LEASE)
    assert young.complete
    cut = fleet.cut_off(ALL)
    while not any(each.holds_begun for each in fleet.replicas):
        assert fleet.loop.time() < cut + LEASE
        fleet.loop.pass_time(0.01)
    first = fleet.loop.time()
    fleet.watch(first + CHECK)
    stayed = set(young.listed)
    assert stayed
    assert not young.complete

    def all_stay() -> None:
        assert set(young.listed) == stayed
        assert all(set(each.listed) == set(ALL) for each in fleet.replicas[:2])

    fleet.watch(first + HOLD - 0.1, all_stay)
    assert young.holds_begun == 0
    fleet.watch(cut + LEASE + HOLD + 2 * CHECK + 1)
    assert all(each.listed == {} and each.complete for each in fleet.replicas)


@pytest.mark.parametrize("offset", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_loss_of_data_does_not_end_the_hold_of_those_that_joined_it(fleet: Fleet, offset: float) -> None:
    """The word was lost with the data; whoever began the hold tells it again, maybe after this one has looked."""
    fleet.loop.pass_time(offset)  # so that it looks at the store before the others, or after them
    young = fleet.start()
    fleet.watch(fleet.loop.time() + LEASE)
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    stayed = set(young.listed)
    assert stayed
    fleet.server.lose_everything()

    def all_stay() -> None:
        assert set(young.listed) == stayed

    fleet.watch(cut + LEASE - HEARTBEAT + HOLD - 0.1, all_stay)
    fleet.watch(cut + LEASE + HOLD + 2 * CHECK + 1)
    assert young.listed == {}


def test_while_all_leases_are_asked_for_a_pool_may_register_and_one_may_leave(fleet: Fleet) -> None:
    """The answer says that they are gone; what was heard after the question is newer."""
    cut = fleet.cut_off(ALL)
    held = fleet.replicas[0]
    view, remaining = held.view, held.view.remaining
    asked: list[int] = []

    async def slow(keys: Sequence[PoolKey]) -> Remaining:
        answer = await remaining(keys)
        asked.append(len(keys))
        if len(keys) == len(ALL) and len(asked) < 20:
            await fleet.replicas[1].replica.put(heartbeat(EAST[0]))
            await fleet.replicas[1].replica.delete(EAST[1], None)
            await asyncio.sleep(0.2)
        return answer

    view.remaining = slow  # type: ignore[method-assign]
    fleet.server.lose(EAST[0])
    fleet.watch(cut + LEASE + 1)
    assert len(ALL) in asked
    assert all(set(each.listed) == {*ALL} - {EAST[1]} for each in fleet.replicas)


def slow_surveys(fleet: Fleet, meanwhile: Callable[[], Awaitable[object]]) -> list[float]:
    """The first replica's question about all leases takes a while, in which something else happens."""
    view, asked = fleet.replicas[0].view, []
    remaining = view.remaining

    async def slow(keys: Sequence[PoolKey]) -> Remaining:
        answer = await remaining(keys)
        if len(keys) == len(ALL):
            asked.append(fleet.loop.time())
            await meanwhile()
            await asyncio.sleep(0.2)
        return answer

    view.remaining = slow  # type: ignore[method-assign]
    return asked


def test_a_pool_that_registers_while_all_leases_are_asked_for_is_not_dropped(fleet: Fleet) -> None:
    one = fleet.replicas[0]
    cut = fleet.cut_off(EAST[:1])
    asked = slow_surveys(fleet, lambda: one.replica.put(heartbeat(EAST[0])))
    fleet.watch(cut + LEASE + 1)
    assert asked
    assert one.left == []


def test_a_pool_that_registers_while_all_leases_are_asked_for_is_not_lost(loop: VirtualTimeLoop) -> None:
    """Three of four and two of three would be a mass loss; one of three is none, when the other is back."""
    fleet = Fleet(loop)
    one = fleet.start()
    fleet.relays(ALL, [one])
    loop.pass_time(OLD)
    fleet.cut_off(EAST[:3] + WEST[:2])
    asked = slow_surveys(fleet, lambda: one.replica.put(heartbeat(WEST[0])))
    while not asked:
        fleet.watch(loop.time() + 0.05)
    fleet.watch(asked[0] + 0.5)
    assert one.holds_begun == 0
    assert WEST[0] in one.listed


def test_a_survey_from_another_life_of_the_store_is_void(fleet: Fleet) -> None:
    cut = fleet.cut_off(ALL)
    held = fleet.replicas[0]
    remaining = held.view.remaining
    lost: list[float] = []

    async def emptied(keys: Sequence[PoolKey]) -> Remaining:
        if len(keys) == len(ALL) and not lost:
            fleet.server.lose_everything()
            lost.append(fleet.loop.time())
            fleet.server.epoch()
        return await remaining(keys)

    held.view.remaining = emptied  # type: ignore[method-assign]
    fleet.watch(cut + LEASE + 1)
    assert lost
    assert held.holds_begun == 0, "it is a loss of data, and held as one"
    assert set(held.listed) == set(ALL)


def test_all_leases_are_asked_for_at_most_once_a_second_while_pools_end(fleet: Fleet) -> None:
    surveys: list[float] = []
    held = fleet.replicas[0]
    remaining = held.view.remaining

    async def counted(keys: Sequence[PoolKey]) -> Remaining:
        if len(keys) >= 5:
            surveys.append(fleet.loop.time())
        return await remaining(keys)

    held.view.remaining = counted  # type: ignore[method-assign]
    fleet.watch(fleet.loop.time() + 3 * LEASE)
    assert surveys == [], "renewals cost no survey"
    cut = fleet.cut_off(EAST[:3])
    fleet.watch(cut + LEASE + 1)
    assert 1 <= len(surveys) <= 3
    fleet.watch(cut + LEASE + 12)
    assert len(surveys) <= 3
    assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(surveys))


def test_a_pool_that_is_not_ready_in_a_healthy_view_leaves_in_a_hold_too(loop: VirtualTimeLoop) -> None:
    """Only the ends of leases are held: what a cluster says of its own pods is known."""
    fleet = Fleet(loop)
    one = fleet.start()
    view = ClusterView()
    view.slices.relist([relay_slice(key) for key in ALL])
    published: Publisher[Listing] = Publisher("pools", loop.time)
    lists = Lists(
        published, Publisher("routers", loop.time), lease_secs=LEASE, views=[view], names=NAMES, clock=loop.time
    )
    one.also = lists.registrations_changed
    fleet.relays(ALL, [one])
    loop.pass_time(OLD)
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    assert {PoolKey(*key) for key in published.everything.members} == {*ALL}
    assert not published.everything.complete

    async def becomes_unready() -> None:
        lists.view_changed(view.slices.relist([relay_slice(key) for key in ALL if key != WEST[0]]))

    loop.run(becomes_unready())
    assert {PoolKey(*key) for key in published.everything.members} == {*ALL} - {WEST[0]}
    assert WEST[0] in one.listed, "its registration is held"


def relay_slice(key: PoolKey) -> object:
    """The slice of that pool's relay, as its cluster exports it."""
    name, service = f"{key.dgd_name}-{key.cluster_id}", f"{key.dgd_name}-pool-relay"
    return slice_of(imported(name, service, key.cluster_id, namespace="n", endpoints=["10.1.0.1"], ports=[RELAY]))


def test_the_memory_store_holds_alone_and_takes_its_word_back(loop: VirtualTimeLoop) -> None:
    store = MemoryStore(LEASE, loop.time)
    one = Published(store, loop, HOLD, None)
    fleet = Fleet(loop)
    fleet.replicas.append(one)
    fleet.relays(ALL, [one])
    loop.pass_time(OLD)
    assert one.complete
    cut = fleet.cut_off(ALL)
    fleet.watch(cut + LEASE + 1)
    assert set(one.listed) == set(ALL)
    assert not one.complete
    fleet.cut.clear()
    fleet.watch(loop.time() + HEARTBEAT + LEASE + 2 * CHECK + 1)
    assert one.complete
    assert one.holds_begun == 1


def test_a_write_that_went_to_a_store_of_the_past_is_not_confirmed(fleet: Fleet) -> None:
    """The connection still led to a server that the others had left: its answer would be lost with it."""
    one = fleet.replicas[0]
    before = fleet.server.epoch()
    put, delete = one.view.put, one.view.delete

    async def old_put(key: PoolKey, value: bytes, lease_secs: float) -> object:
        return (await put(key, value, lease_secs))._replace(epoch=before)

    async def old_delete(key: PoolKey, instance_id: str | None) -> object:
        found = await delete(key, instance_id)
        assert found is not None
        return found._replace(epoch=before)

    one.view.put, one.view.delete = old_put, old_delete  # type: ignore[method-assign, assignment]
    fleet.server.lose_everything()
    fleet.watch(fleet.loop.time() + 3)
    with pytest.raises(Unavailable, match="not confirmed: the store was replaced meanwhile"):
        fleet.loop.run(one.replica.put(heartbeat(EAST[0])))
    with pytest.raises(Unavailable, match="not confirmed: the store was replaced meanwhile"):
        fleet.loop.run(one.replica.delete(EAST[0], None))
    assert one.replica.failing() is None, "that is no outage"
