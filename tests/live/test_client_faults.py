"""The client against two real replicas behind proxies that fail: a hundred faults, while pools change.

What the service published is what was posted to it; when it was over, is when both replicas were seen without it, asked
past the proxies.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from discovery.client import Client, Pools, Snapshot
from tests.live.conftest import StartPair
from tests.live.http_proxy import HttpProxy
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica, pool

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

FAULTS_AT_LEAST = 100
FAULTS_EACH = 10
FAULTS_BEFORE_A_CALM = 5
WAYS = [[0, 1], [1, 0], [0], [1], [0, 1]] * 2
"""Which replicas each client knows, in its order."""
CHANGES_BEFORE_AN_OUTAGE = 20
CURRENT_SECS = 2.0
STREAMING_SECS = 4
"""How long clients stay, in the end, for streams to be tried again: the service asks them to wait for up to 3 s."""
BUSY_SECS = 2.0
"""What a busy machine may add to any promise."""
NAMES = [f"c1/n1/p{number}" for number in range(5)]


class Version:
    """One content of one pool. Moments are of the clock of this process; what is not over yet is at infinity."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.body = pool(name, metadata={"version": str(number)})
        self.sent = time.monotonic()
        self.ended = float("inf")
        """When the replicas were first told of what came after it."""
        self.over = float("inf")
        """When both replicas had dropped it."""
        self.removed = False
        """Whether what came after it was its removal."""


class Publisher:
    """Changes pools all along, at either replica, and remembers what was published when."""

    def __init__(self, redis: RedisServer, replicas: tuple[Replica, Replica], dice: random.Random) -> None:
        self.redis = redis
        self.replicas = replicas
        self.complete = True
        self.dice = dice
        self.versions: list[Version] = []
        self.now: dict[str, Version] = {}
        self.removals: dict[str, list[float]] = {name: [] for name in NAMES}
        """When removals were asked for."""
        self.up = asyncio.Event()
        self.up.set()
        self.up_since = 0.0
        self.faults = 0

    async def run(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(self.dice.uniform(0.02, 0.12))
            await self.change()
            if number % CHANGES_BEFORE_AN_OUTAGE == 0:
                await self._outage(number // CHANGES_BEFORE_AN_OUTAGE)

    async def _outage(self, number: int) -> None:
        """One replica stands still, or is killed and comes back."""
        self.faults += 1
        self.up.clear()
        replica = self.dice.choice(self.replicas)
        if number % 2:
            replica.freeze()
            await asyncio.sleep(0.4)
            replica.thaw()
        else:
            await asyncio.to_thread(replica.kill)
            await asyncio.to_thread(replica.start)
        self.up_since = time.monotonic()
        self.up.set()

    async def lose_everything(self) -> None:
        """The store is empty, and a replica starts: it has an empty list until relays register, and is not complete."""
        self.faults += 1
        self.up.clear()
        empty = self.replicas[0]
        await asyncio.to_thread(empty.kill)
        await asyncio.to_thread(self.redis.cli, "FLUSHALL")
        await asyncio.to_thread(empty.start)
        assert await self.list(empty) == {}
        self.complete = False  # and it stays so for a lease
        await asyncio.sleep(1.5)
        for version in self.now.values():
            await self._told(empty, partial(empty.post, version.body))
        await self.until_both_have_it()
        self.up_since = time.monotonic()
        self.up.set()

    async def change(self) -> None:
        name = self.dice.choice(NAMES)
        before, replica = self.now.get(name), self.dice.choice(self.replicas)
        removes = before is not None and len(self.now) > 1 and self.dice.random() < 0.4
        if before is not None:
            before.ended, before.removed = time.monotonic(), removes
        if removes:
            self.removals[name].append(time.monotonic())
            del self.now[name]
            await self._told(replica, lambda: replica.delete(name))
        else:
            version = Version(name, len(self.versions))
            self.versions.append(version)
            self.now[name] = version
            await self._told(replica, lambda: replica.post(version.body))
        await self.until_both_have_it()
        if before is not None:
            before.over = time.monotonic()

    async def _told(self, replica: Replica, work: Callable[[], Any]) -> None:
        """A replica that stands still takes it later; what is asked for is taken in the end."""
        answer = await asyncio.to_thread(work)
        assert answer.status in (200, 204), f"{replica.name}: {answer.status} {answer.body!r}"

    def is_current(self, snapshot: Snapshot) -> bool:
        """While lists are not complete, nobody is told of all that left."""
        shown = {str(each.key): int(each.metadata["version"]) for each in snapshot.pools}
        now = {name: version.number for name, version in self.now.items()}
        if self.complete:
            return snapshot.complete and shown == now
        return not snapshot.complete and shown.items() >= now.items()

    async def until_both_have_it(self) -> None:
        wanted = {name: str(version.number) for name, version in self.now.items()}
        for replica in self.replicas:
            while {name: each["metadata"]["version"] for name, each in (await self.list(replica)).items()} != wanted:
                await asyncio.sleep(0.005)

    async def list(self, replica: Replica) -> dict[str, Any]:
        return (await asyncio.to_thread(replica.pools)).pools


class Judge:
    """One client's snapshots, one after the other, against what was published."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.shown: dict[str, Version] = {}
        self.left: dict[int, float] = {}
        """When a version was first seen to be followed by something else, or nothing."""
        self.judged = 0

    def judge(self, snapshot: Snapshot) -> None:
        self.judged += 1
        now = time.monotonic()
        shown = {str(each.key): self._published(each.metadata["version"]) for each in snapshot.pools}
        for name, version in self.shown.items():
            if shown.get(name) is not version:
                self.left.setdefault(version.number, now)
            if name not in shown:
                taken = any(version.sent <= asked <= now for asked in self.publisher.removals[name])
                assert taken, f"{name} vanished, and nobody took it away"
        for name, version in shown.items():
            late = now - version.over
            assert version.over >= self.left.get(version.number, 0.0), f"{name} is back {late:.3f} s after it was over"
        self.shown = shown

    def _published(self, number: str) -> Version:
        return self.publisher.versions[int(number)]


async def judge_each(pools: Pools, judge: Judge) -> None:
    async for snapshot in pools:
        judge.judge(snapshot)


# ---- faults: each is begun; most are ended by healing


async def reset(proxy: HttpProxy) -> None:
    proxy.reset()


async def refuse(proxy: HttpProxy) -> None:
    await proxy.refuse()


async def freeze(proxy: HttpProxy) -> None:
    proxy.freeze()


async def cut_within(proxy: HttpProxy) -> None:
    proxy.cut_after(random.randint(1, 600))


def given(**wrong: Any) -> Callable[[HttpProxy], Awaitable[None]]:
    """Something is wrong with what comes from now on; what is open is reset, that it may be met."""

    async def fault(proxy: HttpProxy) -> None:
        for name, value in wrong.items():
            assert hasattr(proxy, name)
            setattr(proxy, name, value)
        proxy.reset()

    return fault


FAULTS = [
    reset,
    reset,
    refuse,
    freeze,
    freeze,
    cut_within,
    cut_within,
    cut_within,
    given(status=502),
    given(status=503),
    given(status=504),
    given(status=200),
    given(swallows=True),
    given(buffers=True),
    given(cuts_after_secs=0.15),
    given(delay_secs=0.1),
    given(piece_bytes=3),
    given(strips=frozenset({"etag", "if-none-match"})),
    given(strips=frozenset({"last-event-id", "prefer"})),
    given(strips=frozenset({"content-type"})),
]


async def through_faults(
    publisher: Publisher, proxies: list[HttpProxy], pools: Pools, judge: Judge, dice: random.Random
) -> float:
    """A client's way through its faults; how long it was not current after the last one, at most."""
    slowest = 0.0
    for number in range(1, FAULTS_EACH + 1):
        fault, hit = dice.choice(FAULTS), dice.sample(proxies, dice.randint(1, len(proxies)))
        for proxy in hit:
            await fault(proxy)
        await asyncio.sleep(dice.choice([0.02, 0.2, 0.8, 2.0]))
        judge.judge(pools.snapshot)
        if dice.random() < 0.7 or number % FAULTS_BEFORE_A_CALM == 0:
            for proxy in proxies:
                await proxy.heal()
        if number % FAULTS_BEFORE_A_CALM == 0:
            slowest = max(slowest, await current_again(publisher, pools))
    for _ in range(STREAMING_SECS):  # streams are back by then, and changes come by them
        await asyncio.sleep(1.0)
        slowest = max(slowest, await current_again(publisher, pools))
    return slowest


async def current_again(publisher: Publisher, pools: Pools) -> float:
    """Until the client shows what is published just now; how long that took while both replicas were up."""
    called = time.monotonic()
    while True:
        await publisher.up.wait()
        begun = max(called, publisher.up_since)
        if publisher.is_current(pools.snapshot):
            return time.monotonic() - begun
        secs = time.monotonic() - begun
        assert secs < CURRENT_SECS + BUSY_SECS, f"not current after {secs:.1f} s: {pools.trouble}"
        await asyncio.sleep(0.01)


async def test_a_hundred_faults_on_the_way_to_two_replicas(debian_redis: RedisServer, start_pair: StartPair) -> None:
    replicas = await asyncio.to_thread(start_pair, debian_redis, lease=100, heartbeat=30)
    dice = random.Random(9)
    publisher = Publisher(debian_redis, replicas, dice)
    for _ in range(4):
        await publisher.change()
    publishing = asyncio.create_task(publisher.run())
    passed = asyncio.Barrier(len(WAYS) + 1)
    async with asyncio.TaskGroup() as group:
        going = [
            group.create_task(one_client(publisher, way, random.Random(seed), passed)) for seed, way in enumerate(WAYS)
        ]
        group.create_task(lose_everything_then(publisher, publishing, passed))
    faults = publisher.faults + len(WAYS) * FAULTS_EACH
    assert faults >= FAULTS_AT_LEAST
    print(
        faults,
        "faults,",
        len(publisher.versions),
        "versions; seconds until current, snapshots judged:",
        [task.result() for task in going],
    )


async def lose_everything_then(publisher: Publisher, publishing: asyncio.Task[None], passed: asyncio.Barrier) -> None:
    """When all clients are through their faults, changes end; and when all are current then, the store is lost."""
    try:
        await passed.wait()
        assert not publishing.done(), publishing
    finally:
        publishing.cancel()
        await asyncio.wait([publishing])
    await publisher.until_both_have_it()
    await passed.wait()
    await passed.wait()
    await publisher.lose_everything()
    await passed.wait()


async def one_client(
    publisher: Publisher, way: list[int], dice: random.Random, passed: asyncio.Barrier
) -> tuple[float, int]:
    proxies = [HttpProxy(publisher.replicas[which].port) for which in way]
    judge = Judge(publisher)
    for proxy in proxies:
        await proxy.listen()
    try:
        async with Client([proxy.url for proxy in proxies]) as client, client.follow() as pools:
            judge.judge(pools.snapshot)
            judging = asyncio.create_task(judge_each(pools, judge))
            try:
                slowest = await through_faults(publisher, proxies, pools, judge, dice)
                for _ in ("no changes any more", "the store was lost"):
                    await passed.wait()
                    await passed.wait()
                    slowest = max(slowest, await current_again(publisher, pools))
                if judging.done():
                    judging.result()
            finally:
                judging.cancel()
                await asyncio.wait([judging])
    finally:
        for proxy in proxies:
            await proxy.close()
    return slowest, judge.judged
