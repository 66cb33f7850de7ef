"""The two published lists: when the first comes, when they are complete, what several views come to, what is said."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pytest

from discovery.listing.lists import FOR_EVER, Lists
from discovery.listing.publisher import Publisher
from discovery.listing.snapshot import Filter
from discovery.mcs.names import Names, RouterService
from discovery.mcs.origin import Rules
from discovery.mcs.slices import Endpoints, Slices, Touched
from discovery.model import Listing, PoolKey, Registration, Router
from tests.listing.test_join import key, registration
from tests.mcs.shapes import HTTP, RELAY, Manifest, imported, slice_of
from tests.virtual_time import VirtualTimeLoop

LEASE = 6.1  # no multiple of the lists' own ticks
GATHER = LEASE / 3
NAMES = Names(router=RouterService("global", "router"))


class View:
    """One watcher's view: real slices, and health as the test says."""

    def __init__(self, *, listed: bool = True, cluster_id: str | None = None) -> None:
        self.cluster_id = cluster_id
        self.namespace: str | None = None
        self.warning: str | None = None
        self.listed = listed
        self.failing: str | None = None
        self.slices = Slices(NAMES, Rules("mcs"))

    def endpoints(self, key: PoolKey) -> Endpoints | None:
        return self.slices.endpoints(key)

    def routers(self) -> tuple[Router, ...]:
        return self.slices.routers()

    def incomplete(self) -> str | None:
        return self.failing or (None if self.listed else "not listed yet")


class Rig:
    """Lists over some views, on virtual time."""

    def __init__(self, loop: VirtualTimeLoop, *views: View, registrations_only: bool = False) -> None:
        self.loop = loop
        self.views = views
        self.pools: Publisher[Listing] = Publisher("pools", loop.time)
        self.routers: Publisher[Router] = Publisher("routers", loop.time)
        self.lists = Lists(
            self.pools,
            self.routers,
            lease_secs=LEASE,
            views=None if registrations_only else views,
            names=None if registrations_only else NAMES,
            clock=loop.time,
        )
        self._task = loop.create_task(self.lists.run())

    def register(self, *names: str, complete: bool = True) -> None:
        """The store tells of pools."""
        changes: list[tuple[PoolKey, Registration | None]] = [(key(name), registration(name)) for name in names]
        self.call(lambda: self.lists.registrations_changed(changes, complete, FOR_EVER))

    def deregister(self, name: str) -> None:
        """The store tells that a pool is gone."""
        self.call(lambda: self.lists.registrations_changed([(key(name), None)], True, FOR_EVER))

    def import_(self, *manifests: Manifest, view: int = 0) -> None:
        """A view lists these, and nothing else."""
        self.views[view].listed = True
        touched = self.views[view].slices.relist([slice_of(one) for one in manifests])
        self.tell(touched)

    def tell(self, touched: Touched | None = None) -> None:
        """A view tells of a change, of its health if of nothing else."""
        self.call(lambda: self.lists.view_changed(touched or Touched()))

    def wait(self, secs: float) -> None:
        """Let time pass."""
        self.loop.pass_time(secs)
        assert not self._task.done() or self._task.result() is None

    @property
    def names(self) -> list[str]:
        """The pools that are listed."""
        return sorted(name for _, _, name in self.pools.everything.members)

    @property
    def complete(self) -> tuple[bool, bool]:
        """Whether the pools and the routers are complete."""
        return self.pools.everything.complete, self.routers.everything.complete

    def call(self, work: Any) -> None:
        """Something that belongs into the event loop."""

        async def call() -> None:
            work()

        self.loop.run(call())


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop()
    yield loop
    loop.shut()


def relay(name: str, *addresses: str, cluster: str = "c1") -> Manifest:
    return imported(
        f"{name}-relay",
        f"{name}-pool-relay",
        cluster,
        namespace="n1",
        endpoints=list(addresses or ("10.1.0.1",)),
        ports=[RELAY],
    )


def frontend(name: str, *addresses: str) -> Manifest:
    return imported(f"{name}-fe", f"{name}-frontend", "c1", namespace="n1", endpoints=list(addresses), ports=[HTTP])


def router(pod: str, address: str, cluster: str = "hub") -> Manifest:
    endpoint = {"addresses": [address], "targetRef": {"kind": "Pod", "name": pod}}
    return imported(f"router-{pod}", "router", cluster, namespace="global", endpoints=[endpoint], ports=[HTTP])


Item = TypeVar("Item")


def told(in_steps: Iterable[Item | None]) -> list[Item]:
    """All of it, without the places where the loop may turn."""
    return [one for one in in_steps if one is not None]


# ---- the first list


def test_without_views_the_store_alone_decides(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, registrations_only=True)
    rig.wait(1)
    assert not rig.pools.ready
    rig.register("p1")
    assert rig.names == ["p1"]
    assert rig.pools.everything.complete
    assert rig.lists.waiting_for_views() is None
    assert told(rig.lists.one_sided()) == []


@pytest.mark.parametrize("store_first", [True, False])
def test_the_first_list_waits_for_both_sides_and_is_whole(loop: VirtualTimeLoop, store_first: bool) -> None:
    rig = Rig(loop, View(listed=False))
    steps = [lambda: rig.register("p1", "p2"), lambda: rig.import_(relay("p1"), relay("p3"))]
    if not store_first:
        steps.reverse()
    steps[0]()
    rig.wait(10 * LEASE)
    assert not rig.pools.ready
    assert (rig.lists.waiting_for_views() is None) != store_first
    steps[1]()
    assert rig.pools.ready
    assert rig.names == ["p1"]
    assert rig.complete == (True, True)


def test_what_changed_while_the_first_list_was_held_back_is_in_it(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, View(listed=False))
    rig.register("p1", "p2", "p3")
    rig.deregister("p2")
    rig.import_(relay("p1"), relay("p2"))
    assert rig.names == ["p1"]


def test_one_view_alone_is_waited_for_for_ever_and_of_two_the_first_that_listed_is_enough_after_a_lease(
    loop: VirtualTimeLoop,
) -> None:
    alone, two = Rig(loop, View(listed=False)), Rig(loop, View(), View(listed=False))
    alone.register("p1")
    two.register("p1")
    two.import_(relay("p1"))
    two.wait(LEASE - 0.5)
    assert two.lists.waiting_for_views() == "not listed yet"
    assert not two.pools.ready
    two.wait(1)
    assert two.lists.waiting_for_views() is None
    assert two.pools.ready
    assert two.routers.ready
    assert two.names == ["p1"]
    assert two.complete == (False, False)
    two.wait(10 * LEASE)
    assert alone.lists.waiting_for_views() == "not listed yet"
    assert not alone.pools.ready


def test_nobody_is_told_to_be_ready_before_the_first_list_is_there(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, View(), View(listed=False))
    rig.register("p1")
    for _ in range(200):
        rig.wait(0.04)
        assert (rig.lists.waiting_for_views() is None) == rig.pools.ready


# ---- completeness


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("first", [None, "first fails"])
@pytest.mark.parametrize("second", [None, "second fails"])
def test_complete_is_a_conjunction(loop: VirtualTimeLoop, store: bool, first: str | None, second: str | None) -> None:
    rig = Rig(loop, View(), View())
    rig.register("p1")
    rig.import_(relay("p1"))
    assert rig.complete == (True, True)
    rig.views[0].failing, rig.views[1].failing = first, second
    rig.tell()
    rig.register(complete=store)
    assert rig.complete == (store and not first and not second, not first and not second)
    assert rig.lists.incomplete_view() == (first or second)
    assert rig.names == ["p1"], "the last list stays"
    rig.views[0].failing = rig.views[1].failing = None
    rig.tell()
    rig.register(complete=True)
    assert rig.complete == (True, True)


def test_registrations_go_on_while_a_view_fails(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, View())
    rig.import_(relay("p1"), relay("p2"))
    rig.register("p1")
    rig.views[0].failing = "away"
    rig.tell()
    rig.register("p2")
    assert rig.names == ["p1", "p2"]
    rig.deregister("p1")
    assert rig.names == ["p2"]
    assert rig.complete == (False, False)


# ---- several views, routers


def test_a_pool_that_one_view_sees_by_ipv4_and_another_by_ipv6_is_listed_by_one_family(
    loop: VirtualTimeLoop,
) -> None:
    rig = Rig(loop, View(), View())
    rig.register("p1")
    rig.import_(relay("p1", "fd00::1"), frontend("p1", "10.2.0.1"), view=0)
    rig.import_(relay("p1", "10.1.0.1"), frontend("p1", "fd00::2"), view=1)
    (listed,) = (fragment.entry for fragment in rig.pools.everything.members.values())
    assert (listed.relays, listed.frontends) == (("http://10.1.0.1:5561",), ("http://10.2.0.1:8000",))
    rig.import_(view=1)
    (listed,) = (fragment.entry for fragment in rig.pools.everything.members.values())
    assert listed.relays == ("http://[fd00::1]:5561",)


def test_a_pool_that_several_views_see_has_the_addresses_of_all(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, View(), View())
    rig.register("p1")
    rig.import_(relay("p1", "10.1.0.2", "10.1.0.1"), view=0)
    rig.import_(relay("p1", "10.1.0.3", "10.1.0.1"), frontend("p1", "10.2.0.1"), view=1)
    listed = rig.pools.everything.members[key("p1")].entry
    assert listed.relays == tuple(f"http://10.1.0.{number}:5561" for number in (1, 2, 3))
    assert listed.frontends == ("http://10.2.0.1:8000",)
    rig.import_(view=0)
    assert len(rig.pools.everything.members[key("p1")].entry.relays) == 2
    rig.import_(view=1)
    assert rig.names == []


def test_routers_come_from_all_views_and_leave(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, View(), View(listed=False))
    rig.import_(router("r-0", "10.7.0.1"))
    assert not rig.routers.ready
    rig.import_(router("r-1", "10.7.0.2"), view=1)
    assert rig.routers.ready
    listed = rig.routers.everything.members
    assert sorted(listed) == [("hub/r-0",), ("hub/r-1",)]
    token = rig.routers.everything.token
    rig.import_(router("r-1", "10.7.0.2"), view=1)
    assert rig.routers.everything.token == token, "a relist is no change"
    rig.import_(view=0)
    assert sorted(listed) == [("hub/r-1",)]


def test_fixed_routers_are_complete_at_once(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, registrations_only=True)
    loop.run(_called(lambda: rig.lists.set_routers([Router("r", "http://10.7.0.1:1")])))
    assert rig.routers.ready
    assert rig.routers.everything.complete


async def _called(work: Any) -> None:
    work()


# ---- what people are told


def said(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [text for text in caplog.messages if all(word in text for word in words)]


def test_nothing_is_said_of_one_side_before_both_were_read(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(loop, View(listed=False, cluster_id="c1"))
    rig.register("p1")
    rig.wait(10 * LEASE)
    assert said(caplog, "c1/n1/p1") == []
    rig.import_(relay("other"))
    rig.wait(2 * LEASE - 0.5)
    assert said(caplog, "c1/n1/") == []
    rig.wait(GATHER + 1)
    assert len(said(caplog, "c1/n1/p1")) == 1
    assert len(said(caplog, "c1/n1/other")) == 1
    assert [(one["dgd_name"], one["side"]) for one in told(rig.lists.one_sided())] == [
        ("other", "ready"),
        ("p1", "registered"),
    ]


def test_a_pool_of_the_local_cluster_under_another_name_is_said_at_once_and_then_never_again(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(loop, View(cluster_id="home"))
    rig.register("p1")
    rig.import_(relay("p1", cluster="home"))
    rig.wait(1)
    assert len(said(caplog, "check cluster_id", "'home'", "'c1'")) == 1
    rig.wait(10 * LEASE)
    assert len(caplog.messages) == 1, "neither side is named again"


def test_nobody_is_misnamed_while_relays_may_not_have_called_yet(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(loop, View(cluster_id="c1"))
    rig.import_(relay("p1"), relay("p3"), relay("other", cluster="c2"))
    known, unknown = Registration("c2", "n1", "p1", "m"), Registration("typo", "n1", "p3", "m")
    changes = [(one.key, one) for one in (known, unknown)]
    rig.call(lambda: rig.lists.registrations_changed(changes, False, FOR_EVER))
    rig.wait(1)
    assert [line.split(", and ")[1] for line in said(caplog)] == ["its pool typo/n1/p3 registered as 'typo'"]
    rig.register("p1")
    rig.wait(2 * LEASE + GATHER)
    assert [line for line in said(caplog) if "its pool c2/n1/p1" in line] == []
    assert [line for line in said(caplog) if "c2/n1/p1" in line] != [], "its own fault is said in its own time"


def test_equal_names_in_the_local_and_another_cluster_are_no_mistake(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(loop, View(cluster_id="home"))
    rig.import_(relay("p1", cluster="home"))
    home = PoolKey("home", "n1", "p1")
    loop.run(
        _called(
            lambda: rig.lists.registrations_changed([(home, registration("p1", cluster_id="home"))], True, FOR_EVER)
        )
    )
    rig.register("p1")  # c1's own pool, whose Service is not imported yet
    rig.wait(LEASE)
    assert said(caplog, "check cluster_id") == []


STORE_TROUBLE = "the store has not been read yet"


@pytest.mark.parametrize("trouble", [None, STORE_TROUBLE])
def test_logs_and_the_lists_of_what_is_wrong_and_explanations_use_the_same_sentence(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture, trouble: str | None
) -> None:
    rig = Rig(loop, View())
    rig.lists._store_trouble = lambda: trouble
    rig.register("registered", "bare")
    rig.import_(relay("ready"), relay("bare"))
    rig.wait(2 * LEASE + GATHER + 1)
    listed = {one["dgd_name"]: one["text"] for one in told(rig.lists.one_sided())}
    explained = {one.dgd_name: one.text for one in told(rig.lists.explain(None))}
    assert sorted(listed) == ["ready", "registered"]
    assert listed == {name: explained[name] for name in listed}
    assert sorted(said(caplog)) == sorted(explained.values())
    assert (STORE_TROUBLE in explained["ready"]) == (trouble is not None)


def test_of_pools_that_agree_while_the_one_sided_are_told_nothing_is_said(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, View())
    rig.register("p1", "p2", "p3")
    rig.import_(relay("other"))
    rest = (one["dgd_name"] for one in rig.lists.one_sided() if one is not None)
    assert next(rest) == "other"
    rig.import_(relay("other"), relay("p2"))
    assert list(rest) == ["p1", "p3"]


def test_a_pool_without_frontends_is_named_with_the_suffix_that_is_set(
    loop: VirtualTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names(frontend_suffix="-http")
    rig = Rig(loop, View())
    rig.lists._names = names
    rig.register("p1")
    rig.import_(relay("p1"))
    rig.wait(2 * LEASE)
    assert said(caplog, "p1-http", "without frontends")[0].startswith("check that p1-http")


def test_explanations_follow_the_list(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, View())
    rig.import_(relay("p1"), frontend("p1", "10.2.0.1"), relay("p2"))
    rig.register("p1", "p3")
    found = {one.dgd_name: one.listed for one in told(rig.lists.explain(None))}
    assert found == {"p1": True, "p2": False, "p3": False}
    [one] = told(rig.lists.explain([key("never")]))
    assert not one.listed


def test_what_the_store_tells_in_one_turn_is_seen_by_whoever_reads_before_its_end(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, registrations_only=True)
    rig.register("p1")
    seen: list[Any] = []

    def tell_and_read() -> None:
        published, tell = rig.pools.everything.published, rig.lists.registrations_changed
        for change in ((key("p2"), registration("p2")), (key("p1"), None), (key("p3"), registration("p3"))):
            tell([change], True, FOR_EVER)
        seen.append(sorted(name for _, _, name in rig.pools.everything.members))
        tell([(key("p4"), registration("p4"))], True, FOR_EVER)
        wanted = Filter(namespace=frozenset({key("p4").namespace}))
        seen.append(json.loads(rig.pools.select(wanted, wanted.matches).body())["pools"][-1]["dgd_name"])
        tell([(key("p4"), None)], True, FOR_EVER)
        seen.append([one.listed for one in told(rig.lists.explain([key("p4"), key("p3")]))])
        seen.append(rig.pools.everything.published == published)

    rig.call(tell_and_read)
    assert seen == [["p2", "p3"], "p4", [False, True], True]
    rig.wait(1)
    assert rig.names == ["p2", "p3"]


def test_what_the_store_tells_in_one_turn_reaches_streams_as_one_step(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, registrations_only=True)
    rig.register("p1")
    rig.wait(1)
    before = rig.pools.everything.published

    def tell() -> None:
        for number in range(5):
            rig.lists.registrations_changed([(key(f"q{number}"), registration(f"q{number}"))], True, FOR_EVER)

    rig.call(tell)
    rig.wait(1)
    assert [step.joined().count(b"event: put") for step in rig.pools.everything.since(before) or ()] == [5]


def test_incompleteness_that_comes_with_changes_is_published_with_them(loop: VirtualTimeLoop) -> None:
    rig = Rig(loop, registrations_only=True)
    rig.register("p1")
    rig.wait(1)
    before = rig.pools.everything.published

    def tell() -> None:
        rig.lists.registrations_changed([(key("p2"), registration("p2"))], True, FOR_EVER)
        rig.lists.registrations_changed([(key("p3"), registration("p3"))], False, FOR_EVER)
        rig.lists.registrations_changed([(key("p4"), registration("p4"))], False, FOR_EVER)

    rig.call(tell)
    rig.wait(1)
    told = b"".join(step.joined() for step in rig.pools.everything.since(before) or ())
    assert (rig.names, rig.complete[0]) == (["p1", "p2", "p3", "p4"], False)
    assert told.index(b'{"complete":false}') < told.index(b"p2")
    assert told.count(b"event: put") == 3
