"""A watcher against the fake API server: its view, whether it is whole, and what it says of itself."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from discovery.mcs import watch as module
from discovery.mcs.endpoint_slice import EndpointSlice
from discovery.mcs.kube import Pace
from discovery.mcs.names import Names, RouterService
from discovery.mcs.origin import Rules
from discovery.mcs.slices import Endpoints, Reading, Slices, Touched
from discovery.mcs.watch import Watcher
from discovery.metrics import Counters
from discovery.model import PoolKey
from tests.mcs.api_objects import CLUSTER_PROPERTIES, CLUSTERS, MULTI_CLUSTER_SERVICES, SLICES
from tests.mcs.api_server import ApiServer
from tests.mcs.kube_feed import PACE, connect
from tests.mcs.shapes import (
    HTTP,
    KARMADA_CONTROL_PLANE,
    KARMADA_MEMBER,
    KARMADA_SHAPES,
    NO_SOURCE,
    RELAY,
    STANDARD_SHAPES,
    Manifest,
    imported,
)
from tests.mcs.test_slices import EVERYTHING_DOCUMENTED, KARMADA_DOCUMENTED, known

P1 = PoolKey("c1", "llm", "p1")
NAMES = Names(router=RouterService("global", "router"))


def relay(name: str = "p1", *addresses: str, cluster: str = "c1") -> Manifest:
    """The slice of a pool's relays."""
    endpoints = list(addresses or ("10.0.0.1",))
    return imported(f"{name}-of-{cluster}", f"{name}-pool-relay", cluster, endpoints=endpoints, ports=[RELAY])


def urls(*addresses: str) -> Endpoints:
    """What comes of it."""
    return Endpoints(tuple(f"http://{address}:5561" for address in addresses), ())


class Running:
    """A watcher that runs, and all that it told: each change with what the view said at that moment."""

    def __init__(self, watcher: Watcher, counters: Counters) -> None:
        self.watcher = watcher
        self.counters = counters
        self.told: list[tuple[frozenset[PoolKey], str | None, Endpoints | None]] = []

    def take(self, touched: Touched) -> None:
        """What the watcher calls."""
        self.told.append((touched.keys, self.watcher.incomplete(), self.watcher.endpoints(P1)))

    async def until(self, sign: Callable[[], object], within: float = 5.0) -> None:
        """Wait for a sign."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not sign():
            assert loop.time() < end, f"no sign: {self.watcher.describe()}"
            await asyncio.sleep(0.01)

    async def whole(self) -> None:
        """Wait until the view is whole."""
        await self.until(lambda: self.watcher.incomplete() is None)

    async def sees(self, *addresses: str) -> None:
        """Wait until these are the pool's relays."""
        await self.until(lambda: self.watcher.endpoints(P1) == (urls(*addresses) if addresses else None))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits between attempts."""
    monkeypatch.setattr(module, "BACKOFF_SECS", (0.02, 0.1))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A cluster."""
    async with ApiServer() as running:
        yield running


@contextlib.asynccontextmanager
async def watch(
    server: ApiServer, directory: Path, rules: Rules | None = None, pace: Pace = PACE, **user: Any
) -> AsyncIterator[Running]:
    """A watcher that runs meanwhile."""
    counters = Counters()
    running: Running
    watcher = Watcher(
        connect(server, directory, **user),
        NAMES,
        rules or Rules("mcs"),
        counters=counters,
        on_change=lambda touched: running.take(touched),
        pace=pace,
    )
    running = Running(watcher, counters)
    task = asyncio.create_task(watcher.run())
    try:
        yield running
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await watcher.close()


async def test_the_first_list_is_told_whole_or_not_at_all(server: ApiServer, tmp_path: Path) -> None:
    server.apply_all([relay(), relay("p2")])
    async with watch(server, tmp_path) as running:
        assert not running.watcher.listed
        assert running.watcher.incomplete() == "east: the slices have not been listed yet"
        await running.whole()
        assert running.watcher.listed
        assert [told for told in running.told if told[1] is None and told[2] != urls("10.0.0.1")] == []
        assert frozenset(key for keys, _, _ in running.told for key in keys) == {P1, PoolKey("c1", "llm", "p2")}


async def test_others_are_served_while_a_long_list_is_read_and_nobody_sees_half_of_it(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_SECS", 0.0)
    turn = 0
    read_in, sizes = set(), set()
    read = Slices.read

    def noting(slices: Slices, item: EndpointSlice) -> Reading:
        read_in.add(turn)
        return read(slices, item)

    async def others(running: Running) -> None:
        nonlocal turn
        while True:
            turn += 1
            sizes.add(len(running.watcher.slices.pool_keys()))
            await asyncio.sleep(0)

    monkeypatch.setattr(Slices, "read", noting)
    server.apply_all([relay(f"p{number}") for number in range(50)])
    async with watch(server, tmp_path) as running:
        serving = asyncio.create_task(others(running))
        await running.whole()
        serving.cancel()
    assert len(read_in) == 50, "one turn for each"
    assert sizes == {0, 50}


async def test_a_view_is_listed_when_every_selector_was_listed(server: ApiServer, tmp_path: Path) -> None:
    server.fault("hang", ["list"], times=1)
    async with watch(server, tmp_path) as running:
        await running.until(lambda: [request.status for request in server.requests].count(200) >= 2)
        await running.until(lambda: len(server.watches) == 2)
        assert not running.watcher.listed
        assert running.watcher.incomplete() is not None
        await running.whole()
        assert running.watcher.listed
        assert [why for _, why, _ in running.told][-1] is None


async def test_changes_of_health_alone_are_told(server: ApiServer, tmp_path: Path) -> None:
    async with watch(server, tmp_path) as running:
        await running.whole()
        await running.until(lambda: len(server.watches) == 3)
        running.told.clear()
        await server.close()
        await running.until(running.watcher.incomplete)
        await server.start()
        await running.whole()
        assert {keys for keys, _, _ in running.told} == {frozenset()}
        whole = [why is None for _, why, _ in running.told]
        assert whole == [False, True] * (len(whole) // 2), "each change once"


async def test_events_tell_the_touched_pools_alone(server: ApiServer, tmp_path: Path) -> None:
    server.apply_all([relay(), relay("p2")])
    async with watch(server, tmp_path) as running:
        await running.whole()
        running.told.clear()
        server.apply(relay("p1", "10.0.0.1", "10.0.0.2"))
        await running.sees("10.0.0.1", "10.0.0.2")
        server.delete("p1-of-c1")
        await running.sees()
        assert [keys for keys, _, _ in running.told] == [{P1}, {P1}]
        assert {why for _, why, _ in running.told} == {None}


async def test_events_are_counted_by_type(server: ApiServer, tmp_path: Path) -> None:
    server.apply(relay())
    async with watch(server, tmp_path) as running:
        await running.whole()
        listed, applied, removed = (
            running.counters.watcher_events.of("east", kind) for kind in ("listed", "applied", "removed")
        )
        lists = listed.value
        assert lists >= 1
        server.apply(relay("p2"))
        await running.until(lambda: applied.value == 1)
        server.delete("p2-of-c1")
        await running.until(lambda: removed.value == 1)
        assert listed.value == lists


async def test_routers_are_told_as_routers(server: ApiServer, tmp_path: Path) -> None:
    async with watch(server, tmp_path) as running:
        await running.whole()
        running.told.clear()
        server.apply(imported("r", "router", "hub", namespace="global", endpoints=["10.7.0.1"], ports=[HTTP]))
        await running.until(running.watcher.routers)
        assert [(router.id, router.url) for router in running.watcher.routers()] == [
            ("hub/10.7.0.1", "http://10.7.0.1:8000")
        ]
        assert [keys for keys, _, _ in running.told] == [frozenset()]


async def test_a_connection_that_freezes_without_a_word_is_replaced(server: ApiServer, tmp_path: Path) -> None:
    server.apply(relay())
    async with watch(server, tmp_path, pace=PACE._replace(silence_secs=0.4)) as running:
        await running.whole()
        await running.until(lambda: len(server.watches) == 3)
        frozen = list(server.watches)
        server.freeze_watches()
        running.told.clear()
        server.apply(relay("p1", "10.0.0.2"))
        await running.sees("10.0.0.2")
        await running.until(lambda: not set(frozen) & set(server.watches))
        assert {why for _, why, _ in running.told} == {None}


@pytest.mark.parametrize(
    ("kind", "options", "said", "counted_as"),
    [
        ("status", {"code": 403}, "(403)", "denied"),
        ("status", {"code": 429, "retry_after": 0}, "answer 429", "throttled"),
        ("status", {"code": 500}, "answer 500", "error"),
        ("status", {"code": 503}, "answer 503", "error"),
        ("truncate", {}, "broke the connection off", "broken"),
        ("html", {}, "text/html", "foreign"),
        ("reset", {}, "broke the connection off", "broken"),
        ("json", {"body": {"kind": "Status", "metadata": {}, "items": []}}, "no list of EndpointSlices", "foreign"),
    ],
)
async def test_f34_a_list_that_fails_leaves_the_view_and_an_empty_one_withdraws_it(
    server: ApiServer, tmp_path: Path, kind: str, options: dict[str, Any], said: str, counted_as: str
) -> None:
    server.apply(relay())
    async with watch(server, tmp_path) as running:
        await running.whole()
        relists = running.counters.watcher_relists.of(running.watcher.name, "unavailable")
        failures = running.counters.watcher_failures.of(running.watcher.name, counted_as)
        counted, failed = relists.value, failures.value
        server.fault(kind, ["list"], **options)
        server.delete("p1-of-c1")
        server.apply(relay())
        server.expire()
        server.cut_watches()
        await running.until(lambda: said in (running.watcher.incomplete() or ""))
        await running.until(lambda: relists.value > counted + 1)
        assert failures.value > failed + 1
        assert running.watcher.endpoints(P1) == urls("10.0.0.1")
        assert running.watcher.listed
        server.heal()
        await running.whole()
        assert running.watcher.endpoints(P1) == urls("10.0.0.1")
        server.delete("p1-of-c1")
        await running.sees()
        assert running.watcher.incomplete() is None


async def test_a_fresh_list_that_is_long_in_coming_makes_the_view_incomplete_and_a_quick_one_does_not(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def force_relist(number: int) -> None:
        server.expire()
        server.apply(imported(f"other-{number}", "other", "c1", namespace="other"))
        server.expire()
        server.end_watches()

    monkeypatch.setattr(module, "CONFIRMED_FOR_SECS", 0.3)
    server.apply(relay())
    async with watch(server, tmp_path) as running:
        await running.whole()
        await running.until(lambda: len(server.watches) == 3)
        running.told.clear()
        server.delete("p1-of-c1")
        force_relist(1)
        await running.sees()
        assert {why for _, why, _ in running.told} == {None}
        await running.until(lambda: len(server.watches) == 3)
        server.fault("hang", ["list"], times=3)
        force_relist(2)
        await running.until(running.watcher.incomplete)
        assert running.watcher.incomplete() == "east: the slices are being listed again, which takes long"
        await running.whole()


async def test_a_relist_takes_away_what_it_lacks(server: ApiServer, tmp_path: Path) -> None:
    server.apply_all([relay(), relay("p2")])
    async with watch(server, tmp_path) as running:
        await running.whole()
        await server.refuse()
        server.cut_watches()
        await running.until(running.watcher.incomplete)
        server.delete("p1-of-c1")
        server.expire()
        await server.start()
        await running.sees()
        assert running.watcher.endpoints(P1._replace(dgd_name="p2")) == urls("10.0.0.1")
        await running.whole()


async def test_an_outage_is_logged_once_for_each_kind_and_again_when_it_is_over(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines(*words: str) -> list[str]:
        messages = [record.getMessage() for record in caplog.records if record.name == module.__name__]
        return [message for message in messages if all(word in message for word in words)]

    caplog.set_level(logging.INFO)
    await server.close()
    async with watch(server, tmp_path) as running:
        relists = running.counters.watcher_relists.of("east", "unavailable")
        await running.until(lambda: relists.value > 8)
        assert len(lines("east", "cannot be reached")) == 1
        server.forbidden.add(("list", "endpointslices"))
        await server.start()
        await running.until(lambda: "(403)" in (running.watcher.incomplete() or ""))
        await running.until(lambda: len(server.requests) > 12)
        assert len(lines("east", "(403)")) == 1
        assert lines("well again") == []
        server.forbidden.clear()
        await running.whole()
        assert len(lines("well again")) == 1
        assert len(lines()) == 3
        await server.close()
        await running.until(lambda: len(lines("cannot be reached")) == 2)


async def test_the_clusters_own_name_is_learned_also_where_the_server_comes_late(tmp_path: Path) -> None:
    server = await ApiServer(resources=[SLICES, CLUSTER_PROPERTIES]).start()
    await server.close()
    server.apply(
        {"kind": "ClusterProperty", "metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": "home"}}
    )
    async with watch(server, tmp_path) as running:
        await running.until(lambda: "cannot be reached" in (running.watcher.incomplete() or ""))
        await server.start()
        await running.until(lambda: running.watcher.cluster_id == "home")
        assert running.watcher.listed
    await server.close()


async def test_the_clusters_own_name_is_asked_for_again_where_it_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAME_BACKOFF_SECS", (0.02, 0.1))
    async with ApiServer(resources=[SLICES, CLUSTER_PROPERTIES]) as server:
        server.apply(
            {"kind": "ClusterProperty", "metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": "home"}}
        )
        server.fault("status", ["get"], times=3, code=503)
        async with watch(server, tmp_path) as running:
            await running.until(lambda: running.watcher.cluster_id == "home")
            assert {why for _, why, _ in running.told} == {None}, "the view is whole without the name"


async def test_a_name_that_was_given_goes_before_the_clusters_own(tmp_path: Path) -> None:
    async with ApiServer(resources=[SLICES, CLUSTER_PROPERTIES]) as server:
        server.apply(
            {"kind": "ClusterProperty", "metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": "home"}}
        )
        async with watch(server, tmp_path, Rules("mcs", "given")) as running:
            await running.whole()
            assert running.watcher.cluster_id == "given"
            assert not any("about.k8s.io" in request.path for request in server.requests)


async def test_a_fault_of_ours_leaves_the_view_and_the_watch_can_be_run_again(
    server: ApiServer, tmp_path: Path
) -> None:
    server.apply(relay())

    def fail(touched: Touched) -> None:
        raise RuntimeError("a fault")

    async with watch(server, tmp_path) as running:
        await running.whole()
        watcher = running.watcher
        broken = Watcher(connect(server, tmp_path), NAMES, Rules("mcs"), counters=Counters(), on_change=fail, pace=PACE)
        with pytest.raises(ExceptionGroup):
            await broken.run()
        broken._on_change = lambda touched: None
        task = asyncio.create_task(broken.run())
        await running.until(lambda: broken.incomplete() is None)
        assert broken.endpoints(P1) == watcher.endpoints(P1) == urls("10.0.0.1")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert broken.endpoints(P1) == urls("10.0.0.1")
        again = asyncio.create_task(broken.run())
        await asyncio.sleep(0)
        assert broken.endpoints(P1) == urls("10.0.0.1"), "the view is there all the time"
        again.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await again
        await broken.close()


async def test_karmada_is_asked_what_it_is_until_it_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resources = [SLICES, CLUSTERS, MULTI_CLUSTER_SERVICES]
    async with ApiServer(resources=resources) as server:
        server.apply(KARMADA_CONTROL_PLANE)
        service = {"metadata": {"name": "s", "namespace": "llm"}, "spec": {"types": ["CrossCluster"]}}
        server.apply({"kind": "MultiClusterService", **service})
        server.fault("status", code=503)
        async with watch(server, tmp_path, Rules("karmada")) as running:
            await running.until(lambda: "answer 503" in (running.watcher.incomplete() or ""))
            assert not running.watcher.listed
            server.heal()
            await running.whole()
            key = PoolKey("east-1", "llm", "llama-70b")
            assert running.watcher.endpoints(key) == Endpoints(("http://10.30.0.5:5561",), ())
            assert running.watcher.warning is not None
            assert running.watcher.warning in caplog.text


async def test_a_karmada_member_is_no_control_plane(server: ApiServer, tmp_path: Path) -> None:
    server.apply(KARMADA_MEMBER)
    async with watch(server, tmp_path, Rules("karmada")) as running:
        await running.whole()
        assert running.watcher.rules.is_control_plane is False
        assert running.watcher.warning is None
        found = running.watcher.endpoints(PoolKey("east-1", "llm", "llama-70b"))
        assert found == Endpoints((), ("http://10.30.0.8:8000",))


async def test_what_must_be_mended_is_logged_once_and_described(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.apply_all([relay(), NO_SOURCE, imported("f", "p1-frontend", "c1", endpoints=["10.0.0.9"], ports=[RELAY])])
    server.apply(
        {"metadata": {"name": "broken", "namespace": "llm", "labels": relay()["metadata"]["labels"]}} | {"endpoints": 5}
    )
    async with watch(server, tmp_path) as running:
        await running.whole()
        server.apply(relay("p1", "10.0.0.2"))
        await running.sees("10.0.0.2")
        server.expire()
        server.cut_watches()
        await running.until(lambda: sum(request.verb == "list" for request in server.requests) >= 6)
        await running.whole()
        state = running.watcher.describe()
        assert [text.split(":")[0] for text in caplog.messages if "p1-frontend" in text] == [
            "Service llm/p1-frontend of cluster c1 has slices without a TCP port named http (found"
        ]
        assert len([text for text in caplog.messages if "which cluster they come from" in text]) == 1
    assert state["listed"] is True
    assert state["incomplete_because"] is None
    assert (state["name"], state["services"], state["source_clusters"]) == ("east", 2, ["c1"])
    assert len(state["unusable_services"]) == len(state["refused_services"]) == 1  # type: ignore[arg-type]
    skipped = state["skipped"]
    assert isinstance(skipped, dict)
    assert (skipped["no_source_cluster"], skipped["no_port"]) == (1, 1)
    assert skipped["objects"] >= 1


async def test_who_stops_leaves_no_watch_open(server: ApiServer, tmp_path: Path) -> None:
    async with watch(server, tmp_path) as running:
        await running.until(lambda: len(server.watches) == 3)
    await running.until(lambda: server.watches == [])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("rules", "shapes", "documented"),
    [
        (Rules("mcs"), STANDARD_SHAPES, EVERYTHING_DOCUMENTED),
        (Rules("karmada"), KARMADA_SHAPES, KARMADA_DOCUMENTED),
    ],
    ids=["mcs", "karmada"],
)
async def test_every_shape_comes_through_a_server_in_any_order_and_split(
    tmp_path: Path, rules: Rules, shapes: tuple[Manifest, ...], documented: Any, seed: int
) -> None:
    """Some are there at the first list, the others come as events; some empty at first, or once gone in between."""
    dice = random.Random(seed)
    order = dice.sample(shapes, len(shapes))
    first = dice.randrange(len(order))
    async with ApiServer(resources=[SLICES]) as server:
        server.apply_all(order[:first])
        async with watch(server, tmp_path, rules) as running:
            await running.whole()
            for shape in order[first:]:
                if dice.random() < 0.5:
                    server.apply(shape | {"endpoints": None})
                server.apply(shape)
                if dice.random() < 0.3:
                    server.delete(shape["metadata"]["name"], shape["metadata"]["namespace"])
                    server.apply(shape)
            await running.until(lambda: known(running.watcher.slices) == documented)
