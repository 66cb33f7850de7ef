"""One deployment and one client in memory, and everything that can go wrong between them, as steps to be drawn.

A step is a word with what it needs. Faults last for a while; ``calm`` ends those that still do, and then the client has
to be current.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiohttp.connector

from discovery.client import Client, Pools
from discovery.errors import Rejected, Unavailable
from tests.client_faults.memory_network import MemoryLoop, Wire
from tests.client_faults.memory_service import STREAM_HEAD, Replica, State, answer, listing
from tests.client_faults.oracle import Oracle, pools_of

NAMES = [f"p{number}" for number in range(5)]
CURRENT_SECS = 2.0
REQUESTS_PER_SEC = 4
REQUESTS_PER_STEP = 10
"""What a client may ask, at most: now and then, and where something happens."""
TOO_LATE_SECS = 60.0
UNTIL_THE_END_SECS = 1e6

HTML = b"<html><body>Bad Gateway</body></html>"
BABBLE = (
    b"event: put\ndata: {\n\n",
    b"event: put\ndata: null\n\n",
    b"event: put\ndata: {}\n\n",
    b"event: delete\ndata: []\n\n",
    b"event: snapshot\ndata: []\n\n",
    b'event: snapshot\ndata: {"complete":true}\n\n',
    b'event: snapshot\ndata: {"complete":true,"pools":null}\n\n',
    b'event: snapshot\ndata: {"complete":true,"pools":[{}]}\n\n',
    b'event: complete\ndata: {"complete":1}\n\n',
    b"event: complete\ndata: true\n\n",
    b"\xff\xfe\x00\n\n",
    HTML,
    HTML + b"\n",
    b"event: pu",
    b"event: snapshot\ndata: " + b"[" * 5000 + b"\n\n",
    b"retry: 99999999999999\n\n",
    b"retry: -1\n: comment\n\n",
)
WRONG_BODIES = (
    b"",
    b"[]",
    b"{}",
    b"null",
    b'{"pools":[]}',
    b'{"complete":true}',
    b'{"complete":true,"pools":{}}',
    b'{"complete":true,"pools":[{"cluster_id":"c1"}]}',
    b'{"complete":true,"pools":[',
    HTML,
)


class Course:
    """The client follows ``count`` replicas, reached as ``way`` says."""

    def __init__(self, way: str, count: int) -> None:
        self.loop = MemoryLoop()
        self.oracle = Oracle()
        self.truth = State({name: listing(name, 0) for name in NAMES[:3]}, True)
        self.replicas = [Replica(self.loop, self.oracle, f"r{number}", self.truth) for number in range(count)]
        self.faults = self.requests = 0
        self._begun = self.loop.time()
        self.version = 0
        self.failures: list[BaseException] = []
        self._undo: dict[int, tuple[asyncio.TimerHandle, Callable[[], object]]] = {}
        self._place(way)

    def _place(self, way: str) -> None:
        addresses = [f"10.0.0.{number}" for number in range(1, len(self.replicas) + 1)]
        self.loop.servers = {address: [each.server] for address, each in zip(addresses, self.replicas, strict=True)}
        match way:
            case "URLs":
                self.loop.names = {each.name: [address] for each, address in zip(self.replicas, addresses, strict=True)}
                self.urls = [f"http://{each.name}:8080" for each in self.replicas]
            case "addresses":
                self.loop.names, self.urls = {"discovery": addresses}, ["http://discovery:8080"]
            case "balancer":
                self.loop.names, self.urls = {"discovery": ["10.9.9.9"]}, ["http://discovery:8080"]
                self.loop.servers = {"10.9.9.9": [each.server for each in self.replicas]}

    # the whole of it

    def run(self, seed: int, bursts: list[list[tuple[Any, ...]]]) -> None:
        """Every burst of steps, each followed by a calm. Raises what the oracle found."""
        random.seed(seed)
        self.loop.dice.seed(seed)
        with self._watched_loop():
            self.loop.run(self._follow(bursts))
        secs, steps = self.loop.time() - self._begun, sum(map(len, bursts)) + 2 * len(bursts)
        self.requests = sum(replica.requests for replica in self.replicas)
        assert self.requests <= REQUESTS_PER_SEC * secs + REQUESTS_PER_STEP * steps, f"asked {self.requests} times"

    async def _follow(self, bursts: list[list[tuple[Any, ...]]]) -> None:
        async with Client(self.urls) as client:
            first = bursts[0][: len(bursts[0]) // 3]
            for step in first:  # some have begun before the client
                self._do(step)
            async with await self._entered(client) as pools:
                await self._live(pools, [bursts[0][len(first) :], *bursts[1:]])

    async def _entered(self, client: Client) -> "_Entered":
        while True:
            pools = client.follow(model="m")
            try:
                return _Entered(await pools.__aenter__())
            except (Rejected, Unavailable):  # which may come at once
                await asyncio.sleep(0.1)

    async def _live(self, pools: Pools, bursts: list[list[tuple[Any, ...]]]) -> None:
        self.oracle.judge(pools.snapshot)
        judging = asyncio.create_task(self._judge_each(pools))
        try:
            for burst in bursts:
                for step in burst:
                    self._do(step)
                    await self._wait(pools, step[-1])
                await self._calm(pools)
        finally:
            judging.cancel()
            await asyncio.wait([judging])

    async def _judge_each(self, pools: Pools) -> None:
        async for snapshot in pools:
            try:
                self.oracle.judge(snapshot)
            except AssertionError as error:
                self.failures.append(error)
                return

    async def _wait(self, pools: Pools, secs: float) -> None:
        until = self.loop.time() + secs
        while True:
            await asyncio.sleep(min(0.1, max(0.0, until - self.loop.time())))
            if self.failures:
                raise self.failures[0]
            if self.loop.time() >= until:
                break
            self.oracle.judge(pools.snapshot)

    async def _calm(self, pools: Pools) -> None:
        """All faults end now; from 2 s later on the client is current, and stays so when something changes."""
        self._end_faults()
        await self._wait(pools, CURRENT_SECS)
        self.oracle.judge_current(pools.snapshot, self.truth)
        self._change([(NAMES[self.version % len(NAMES)], True)])
        await self._wait(pools, CURRENT_SECS)
        self.oracle.judge_current(pools.snapshot, self.truth)

    @contextmanager
    def _watched_loop(self) -> Iterator[None]:
        """Nothing fails in the background: no exception that nobody takes, no error in the client's log."""
        self.loop.set_exception_handler(lambda _, context: self.failures.append(_failure(context)))
        log, handler = logging.getLogger("discovery"), _Errors(self.failures)
        level, monotonic = log.level, aiohttp.connector.monotonic
        asyncio.set_event_loop(self.loop)
        aiohttp.connector.monotonic = self.loop.time  # type: ignore[attr-defined]
        log.setLevel(logging.ERROR)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            aiohttp.connector.monotonic = monotonic  # type: ignore[attr-defined]
            self.loop.shut()
            asyncio.set_event_loop(None)
        if self.failures:
            raise self.failures[0]

    # a course without chance

    def follow_changes(self, how: str, what: int, changes: int) -> tuple[float, float]:
        """Everything goes through a spoiling proxy, for good: how late changes are at most, and requests per second."""
        with self._watched_loop():
            return self.loop.run(self._follow_changes(how, what, changes))

    async def _follow_changes(self, how: str, what: int, changes: int) -> tuple[float, float]:
        for which in range(len(self.replicas)):
            self._proxy(which, how, what, UNTIL_THE_END_SECS)
        latest, begun = 0.0, self.loop.time()
        async with Client(self.urls) as client, client.follow() as pools:
            for number in range(changes):
                await self._wait(pools, random.uniform(0, 4))
                self._change([(NAMES[number % len(NAMES)], True)])
                changed = self.loop.time()
                while pools_of(pools.snapshot) != self.truth.pools:
                    await self._wait(pools, 0.01)
                    assert self.loop.time() < changed + TOO_LATE_SECS, f"not current: {pools.trouble}"
                latest = max(latest, self.loop.time() - changed)
        return latest, sum(replica.requests for replica in self.replicas) / (self.loop.time() - begun)

    # steps

    def _do(self, step: tuple[Any, ...]) -> None:
        word, *what, _ = step
        {
            "change": self._change,
            "undone": self._undone,
            "doubt": self._doubt,
            "lag": self._lag,
            "cut": self._cut,
            "cut amid": self._cut_amid,
            "freeze": self._freeze,
            "stall": self._stall,
            "slow": self._slow,
            "fall behind": self._fall_behind,
            "pause": self._pause,
            "refuse": self._refuse,
            "vanish": self._vanish,
            "names": self._names,
            "restart": self._restart,
            "drain": self._drain,
            "pieces": self._pieces,
            "babble": self._babble,
            "proxy": self._proxy,
        }[word](*what)

    def _change(self, operations: list[tuple[str, bool]]) -> None:
        pools, gone = dict(self.truth.pools), []
        for name, there in operations:
            self.version += 1
            if there:
                pools[name] = listing(name, self.version)
            elif pools.pop(name, None):
                gone.append(name)
        self._tell(State(pools, self.truth.complete), tuple(name for name in gone if name not in pools))

    def _undone(self, name: str, others: list[tuple[str, bool]]) -> None:
        """Something changes and is again as it was; who lags never knows."""
        before = self.truth
        self._change([(name, name not in before.pools), *others])
        self._tell(before, tuple(self.truth.pools.keys() - before.pools.keys()))

    def _doubt(self) -> None:
        self._tell(self.truth._replace(complete=not self.truth.complete))

    def _tell(self, truth: State, gone: tuple[str, ...] = ()) -> None:
        self.truth = truth._replace(revision=self.truth.revision + 1)
        for replica in self.replicas:
            replica.hear(self.truth, gone)

    def _lag(self, which: int, secs: float) -> None:
        self._at(which).lag_secs = secs

    # faults

    def _cut(self, which: int) -> None:
        self.faults += 1
        self._at(which).server.cut()

    def _cut_amid(self, bytes_more: int, operations: list[tuple[str, bool]]) -> None:
        """Every connection breaks within what is sent next, and that is a change."""
        self.faults += 1
        for wire in self._wires():
            wire.cut_after = bytes_more
        self._change(operations)

    def _freeze(self, which: int, secs: float, ends: str) -> None:
        """The open connections to one replica pass nothing more.

        In the end what is stuck arrives or is lost, or they stay as they are, as where a router forgot them.
        """
        self.faults += 1
        self._freeze_wires(list(self._at(which).server.wires), secs, ends)

    def _freeze_wires(self, wires: list[Wire], secs: float, ends: str) -> None:
        for wire in wires:
            wire.frozen = True

        def end() -> None:
            for wire in wires:
                wire.frozen, wire.pieces = False, lambda: (200, 0.002)  # what is stuck does not come all at once
                wire.flow() if ends == "thaw" else wire.cut()

        if ends != "never":
            self._for(secs, end)

    def _stall(self, secs: float, ends: str, changes: list[list[tuple[str, bool]]]) -> None:
        """Every open connection stands still, while one change follows the other."""
        self.faults += 1
        self._freeze_wires(self._wires(), secs, ends)
        self._in_turn(changes, secs / 4)

    def _slow(self, secs: float, changes: list[list[tuple[str, bool]]]) -> None:
        """Whole answers take long, streams do not: what is asked before a change may come after it."""
        self.faults += 1
        slowed: list[Wire] = []

        def slow(replica: Replica, wire: Wire, target: str, headers: dict[str, str]) -> bool:
            if not target.startswith("/pools/events"):
                wire.pieces = lambda: (1 << 20, secs)
                slowed.append(wire)
            return False

        def end() -> None:
            for replica in self.replicas:
                replica.proxy = None
            for wire in slowed:
                wire.pieces = None

        for replica in self.replicas:
            replica.proxy = slow
        self._for(4.0, end)
        self._in_turn(changes, 0.3)

    def _fall_behind(self, which: int, secs: float, operations: list[tuple[str, bool]]) -> None:
        """All replicas but one lag; the client hears of a change from that one, and then has to ask the others."""
        self.faults += 1
        prompt = self._at(which)
        for replica in self.replicas:
            replica.settle()
            replica.lag_secs = 0.0 if replica is prompt else secs
        self._change(operations)
        self._for(0.3, prompt.server.cut)
        self._for(secs, self._keep_up)

    def _keep_up(self) -> None:
        for replica in self.replicas:
            replica.lag_secs = 0.0

    def _in_turn(self, changes: list[list[tuple[str, bool]]], apart_secs: float) -> None:
        for number, operations in enumerate(changes, 1):
            self._for(number * apart_secs, partial(self._change, operations))

    def _pause(self, which: int, secs: float) -> None:
        """A replica stands still as a whole: it takes connections, and nothing comes."""
        self.faults += 1
        server = self._at(which).server
        server.frozen = True
        self._for(secs, server.thaw)

    def _refuse(self, which: int, secs: float) -> None:
        self.faults += 1
        server = self._at(which).server
        server.refuses = True
        server.cut()
        self._for(secs, lambda: setattr(server, "refuses", False))

    def _vanish(self, which: int, secs: float) -> None:
        """Packets are lost: what is open is silent, and no new connection is made."""
        self.faults += 1
        server = self._at(which).server
        server.unreachable = server.frozen = True

        def end() -> None:
            server.unreachable = False
            server.thaw()

        self._for(secs, end)

    def _names(self, how: str, secs: float) -> None:
        """The resolver fails or hangs. Connections that are open would hide that: they are cut."""
        self.faults += 1
        setattr(self.loop, f"resolver_{how}", True)
        for replica in self.replicas:
            replica.server.cut()
        self._for(secs, lambda: setattr(self.loop, f"resolver_{how}", False))

    def _restart(
        self, which: int, down_secs: float, loading_secs: float, knows: int, changes: list[list[tuple[str, bool]]]
    ) -> None:
        """A replica comes back empty or nearly so, and learns pool by pool before it is complete; some change then."""
        self.faults += 1
        replica = self._at(which)
        replica.server.refuses = True
        replica.server.cut()

        def up() -> None:
            replica.server.cut()  # another fault may have let it be reached meanwhile
            replica.restart(knows)
            replica.server.refuses, replica.ready = False, loading_secs == 0
            self._for(loading_secs, lambda: setattr(replica, "ready", True))
            self._in_turn(changes, loading_secs + 0.3)
            self._for(3 * loading_secs + 0.5, lambda: replica.learn(2))
            self._for(6 * loading_secs + 1.0, lambda: replica.learn(len(NAMES)))

        self._for(down_secs, up)

    def _drain(self, which: int, secs: float) -> None:
        self.faults += 1
        replica = self._at(which)
        replica.drain()
        replica.ready = False
        self._for(secs, lambda: setattr(replica, "ready", True))

    def _pieces(self, largest: int, secs_each: float, secs: float) -> None:
        """Whatever is open brings its bytes in small pieces."""
        self.faults += 1
        dice = random.Random(largest)
        wires = self._wires()
        for wire in wires:
            wire.pieces = lambda: (dice.randint(1, largest), dice.uniform(0, secs_each))

        def end() -> None:
            for wire in wires:
                wire.pieces = None

        self._for(secs, end)

    def _babble(self, what: int, operations: list[tuple[str, bool]]) -> None:
        """What no replica says appears in every stream, and then a change."""
        self.faults += 1
        for replica in self.replicas:
            replica.babble(BABBLE[what % len(BABBLE)])
        self._change(operations)

    def _proxy(self, which: int, how: str, what: int, secs: float) -> None:
        """What stands before a replica answers in its place, or spoils its answers."""
        self.faults += 1
        replica = self._at(which)

        def spoil(replica: Replica, wire: Wire, target: str, headers: dict[str, str]) -> bool:
            return self._spoil(how, what, wire, target, headers)

        replica.proxy = spoil
        self._for(secs, lambda: setattr(replica, "proxy", None))

    def _spoil(self, how: str, what: int, wire: Wire, target: str, headers: dict[str, str]) -> bool:
        streams = target.startswith("/pools/events")
        match how:
            case "status":
                status = (500, 502, 503, 504, 429, 408, 404, 403, 301, 206)[what % 10]
                answer(
                    wire, status, HTML, "Content-Type: text/html", "Connection: close", "Location: http://elsewhere/"
                )
            case "later":
                answer(wire, 503, b"{}", "Retry-After: 1", "Connection: close")
            case "page":
                answer(wire, 200, HTML, "Content-Type: text/html")
            case "wrong":
                kind = "text/event-stream" if streams else "application/json"
                answer(wire, 200, WRONG_BODIES[what % len(WRONG_BODIES)], f"Content-Type: {kind}")
            case "truncated":
                answer(wire, 200, b'{"complete":true,"pools":[]}', length=2000)
            case "no HTTP":
                wire.send(
                    (b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x01\x00\x02\x02\x46", b"HTTP/1.1 abc\r\n\r\n")[what % 3]
                )
                wire.end()
            case "nothing":
                wire.end()
            case "hangs":
                pass
            case "buffers" if streams:
                wire.stuck_after = (0, len(STREAM_HEAD))[what % 2]
                return False
            case "strips":
                for name in ("prefer", "if-none-match", "last-event-id"):
                    headers.pop(name, None)
                return False
            case "no streams" if streams:
                answer(wire, (404, 406, 200, 502)[what % 4], HTML, "Content-Type: text/html")
            case "cuts":
                self.loop.call_later(0.3, wire.cut if what % 2 else wire.end)
                return False
            case _:
                return False
        return True

    # how long

    def _for(self, secs: float, end: Callable[[], object]) -> None:
        number = len(self._undo) and max(self._undo) + 1

        def over() -> None:
            self._undo.pop(number, None)
            end()

        self._undo[number] = (self.loop.call_later(secs, over), over)

    def _end_faults(self) -> None:
        while self._undo:
            timer, over = self._undo[min(self._undo)]
            timer.cancel()
            over()
        self._keep_up()
        for replica in self.replicas:
            replica.settle()
        for wire in self._wires():
            wire.cut_after = None

    def _at(self, which: int) -> Replica:
        return self.replicas[which % len(self.replicas)]

    def _wires(self) -> list[Wire]:
        return [wire for replica in self.replicas for wire in replica.server.wires]


class _Entered:
    """A block that was entered already."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def __aenter__(self) -> Pools:
        return self._pools

    async def __aexit__(self, *_: object) -> None:
        await self._pools.__aexit__(None, None, None)


class _Errors(logging.Handler):
    """Errors in the log are failures."""

    def __init__(self, failures: list[BaseException]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._failures.append(error or AssertionError(record.getMessage()))


def _failure(context: dict[str, Any]) -> BaseException:
    error: BaseException | None = context.get("exception")
    return error or AssertionError(context["message"])
