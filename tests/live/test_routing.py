"""From relays to requests: a router sends load to pools of three clusters while everything in between is replaced.

Three replicas on one Redis behind Sentinel watch three clusters; the router follows all three. Replicas are restarted
one after the other, the master of Redis is killed, pools come and go. No request fails that had a live pool.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from discovery.client import Client, Heartbeat
from discovery.model import Capacity, Registration
from tests.live.clusters import Cluster, watching
from tests.live.conftest import MakeReplica
from tests.live.mock_frontends import MockFrontend
from tests.live.replica import Replica
from tests.live.routed_load import Asked, Load, RouterProcess
from tests.live.sentinel_group import SentinelGroup
from tests.live.signs import await_sign
from tests.live.traffic import Traffic
from tests.mcs.shapes import HTTP

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

LEASE_SECS = 5.0
CLUSTERS = ("east", "south", "west")
LLAMAS = {"east/llm/llama": 8, "south/llm/llama": None, "west/llm/llama": 16}
QWENS = ("east/llm/qwen", "west/llm/qwen")
LEAVING = "east/llm/qwen"
COMING = "south/llm/gemma"
MODELS = ("llama", "llama", "llama", "qwen", "gemma", "unknown")


class Pool:
    """One pool: two frontends, what its cluster shows of it, and its relay's heartbeat."""

    def __init__(self, traffic: Traffic, cluster: Cluster, urls: list[str], name: str, gpus: int | None) -> None:
        self.name = name
        self.frontends = [MockFrontend(f"{name}#{number}", name) for number in range(2)]
        self._traffic = traffic
        self._cluster = cluster
        self._urls = urls
        capacity = () if gpus is None else (Capacity("nvidia.com/gpu", gpus),)
        self._registration = Registration(*name.split("/"), model=name.split("/")[2], capacity=capacity)
        self._relay = AsyncExitStack()
        self.heartbeat: Heartbeat | None = None

    def start(self) -> None:
        """Frontends first, then the addresses, then the heartbeat, as a pool that becomes ready."""
        for number, frontend in enumerate(self.frontends):
            self._traffic.call(frontend.start())
            self._import(number, frontend)
        self._cluster.relays(self.name, "127.0.0.1")
        self._traffic.call(self._register())

    def lose(self, number: int) -> str:
        """End one frontend, whose address stays imported, as it may happen for a moment; gives its URL."""
        self._traffic.call(self.frontends[number].end())
        return self.frontends[number].url

    def replace(self, number: int) -> None:
        """Import another one in its place."""
        self.frontends.append(MockFrontend(f"{self.name}#{number}", self.name))
        self._traffic.call(self.frontends[-1].start())
        self._import(number, self.frontends[-1])

    def _import(self, number: int, frontend: MockFrontend) -> None:
        port = {**HTTP, "port": frontend.port}
        self._cluster.frontends(self.name, "127.0.0.1", suffix=f"-{number}", ports=[port])

    async def _register(self) -> None:
        client = await self._relay.enter_async_context(Client(self._urls))
        self.heartbeat = await self._relay.enter_async_context(client.register(self._registration))

    def deregister(self) -> None:
        """DELETE; the frontends go on."""
        self._traffic.call(self._relay.aclose())

    def withdraw(self) -> None:
        """Its pods are no longer ready."""
        self._cluster.withdraw(self.name)

    def end(self) -> None:
        """The frontends answer what they have begun, and end."""
        for frontend in self.frontends:
            self._traffic.call(frontend.end())


class Fleet:
    """All of it."""

    def __init__(self, group: SentinelGroup, replicas: list[Replica], pools: dict[str, Pool]) -> None:
        self.group = group
        self.replicas = replicas
        self.pools = pools

    def are_complete(self) -> bool:
        return all(replica.pools().complete for replica in self.replicas)

    def restart(self, replica: Replica) -> None:
        """As a rollout does: the next one is not touched before this one is ready again."""
        replica.terminate()
        assert replica.exit_code(20) == 0, replica.log
        replica.start(within=30)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    made = SentinelGroup("redis", tmp_path / "group")
    try:
        made.start()
        # Replicas that find no epoch take the server for one that lost its data, and settle for a lease first.
        made.servers[0].cli("SET", "{discovery}:epoch", "in-use-before")
        assert made.servers[0].cli("WAIT", 1, 5000) == 1
        yield made
    finally:
        made.close()


@pytest.fixture
def fleet(
    group: SentinelGroup,
    make_cluster: Callable[[], Cluster],
    make_replica: MakeReplica,
    traffic: Traffic,
    tmp_path: Path,
) -> Iterator[Fleet]:
    """Five of six pools are there and listed; frontends of all six answer once their pool starts."""
    clusters = {name: make_cluster() for name in CLUSTERS}
    settings = {"redis_url": group.url, "lease": LEASE_SECS, "heartbeat": 1.0}
    replicas = [make_replica(name, flags=watching(tmp_path, **clusters), **settings).launch() for name in "abc"]
    gpus = {**LLAMAS, **dict.fromkeys(QWENS), COMING: None}
    with contextlib.ExitStack() as stack:
        pools = {}
        for place, (name, number) in enumerate(gpus.items()):
            urls = [replica.url for replica in [*replicas[place % 3 :], *replicas[: place % 3]]]
            pools[name] = Pool(traffic, clusters[name.split("/")[0]], urls, name, number)
            stack.callback(pools[name].end)
            stack.callback(pools[name].deregister)
        for replica in replicas:
            await_sign(lambda replica=replica: replica.says("/readyz", 200), 30, f"{replica.name} is ready")
        for name in (*LLAMAS, *QWENS):
            pools[name].start()
        yield Fleet(group, replicas, pools)


@pytest.fixture
def router(fleet: Fleet, tmp_path: Path) -> Iterator[RouterProcess]:
    running = RouterProcess(tmp_path, [replica.url for replica in fleet.replicas])
    try:
        await_sign(lambda: running.lists(*LLAMAS, *QWENS), 30, "the router has a complete list of all pools")
        yield running
    finally:
        running.close()


def test_no_request_fails_that_had_a_live_pool(fleet: Fleet, router: RouterProcess, traffic: Traffic) -> None:
    load = Load(traffic, router.url, MODELS)
    weighed = load.await_answers(150, "llama")
    assert_weights(load.since(weighed, "llama"))

    # A frontend of a live pool is replaced, and others get its requests before anybody says so.
    largest = fleet.pools["west/llm/llama"]
    lost = largest.lose(0)
    load.await_answers(20, "llama")
    assert any(lost in line and "was sent nothing" in line for line in router.log)
    largest.replace(0)

    # A rollout, in the middle of which one pool leaves and another comes.
    fleet.restart(fleet.replicas[0])
    leaving, coming = fleet.pools[LEAVING], fleet.pools[COMING]
    leaving.deregister()
    router.await_change(LEAVING, "gone")
    leaving.end()
    fleet.restart(fleet.replicas[1])
    coming.start()
    router.await_change(COMING, "listed")
    served_from = time.monotonic()
    fleet.restart(fleet.replicas[2])

    # A failover, after which lists are not complete for a lease: meanwhile a pool leaves.
    old = fleet.group.kill_master()
    killed = time.monotonic()
    fleet.group.await_other_master(old)
    load.await_answers(20, "llama")
    served_until = time.monotonic()
    coming.deregister()
    coming.withdraw()
    router.await_change(COMING, "gone")
    coming.end()
    stay = (*LLAMAS, QWENS[1])
    await_sign(lambda: router.lists(*stay), 30, "the router has a complete list of the pools that stay", every=0.1)
    await_sign(fleet.are_complete, 20, "all replicas are complete", every=0.1)
    load.await_answers(20, "llama")
    asked = load.stop()
    assert router.end() == 0, router.log[-30:]
    print(Counter((one.model, one.status, one.code) for one in asked), len(asked))

    assert [one for one in asked if one.fault] == [], "every answer is whole"
    assert failed(asked, "llama", "qwen") == []
    assert failed([one for one in asked if served_from <= one.sent and one.answered <= served_until], "gemma") == []
    assert_refusals([one for one in asked if one.status != 200], killed)
    assert router.changes("gone") == {LEAVING: 1, COMING: 1}, "no other pool ever left the router's list"
    assert router.changes("listed") == dict.fromkeys(fleet.pools, 1)
    for pool in fleet.pools.values():
        sent = router.sent_before_gone(pool.name)
        served = {(served.request_id, frontend.url) for frontend in pool.frontends for served in frontend.served}
        assert served <= sent, "what a pool got was sent to it before the router saw its delete"
        assert served, f"{pool.name} got requests"
    for replica in fleet.replicas:
        assert "Traceback" not in replica.log


def failed(asked: list[Asked], *models: str) -> list[Asked]:
    return [one for one in asked if one.model in models and one.status != 200]


def assert_weights(answers: list[Asked]) -> None:
    """8, 16 and nothing stated, which is 1; each pool's two frontends alike. Some answers are always on their way."""
    counts = Counter(one.frontend for one in answers)
    for name, gpus in LLAMAS.items():
        for number in range(2):
            due = len(answers) * (gpus or 1) / 25 / 2
            assert abs(counts[f"{name}#{number}"] - due) <= 8, counts


def assert_refusals(refused: list[Asked], killed: float) -> None:
    """404 is only said by a complete list; while it is not, everything unknown is "not known now"."""
    assert {one.model for one in refused} <= {"gemma", "unknown"}
    known = {(404, "model_not_found", None), (503, "pools_unknown", "2")}
    assert {(one.status, one.code, one.retry_after) for one in refused} == known
    assert any(one.status == 404 for one in refused if one.sent < killed)
    assert any(one.status == 503 for one in refused if one.sent > killed), "a failover makes lists incomplete"
    assert refused[-1].status == 404, "complete again at the end"
