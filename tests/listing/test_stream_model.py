"""Subscribers that connect, lag, are cut and come back to another replica: what they hold is what GET says there.

A state machine over two publishers and the code that writes streams, without sockets, on virtual time. Replicas learn
of each change at different moments and in different company. Every id that a subscriber is given is checked against the
content it names, so a torn or stale state is found at the event that made it.
"""

import asyncio
import itertools
import json
import random
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from discovery.http.streams import WIRE, Streams
from discovery.listing import snapshot
from discovery.listing.publisher import Publisher, Selection
from discovery.listing.snapshot import EVERYTHING, Filter, pool_fragment
from discovery.model import Listing, PoolKey, Registration
from discovery.registrations import listing
from tests.http.in_process import unchunked
from tests.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.timeout(60)

KEYS = [PoolKey("c1", "n1", f"p{number}") for number in range(4)]
MODELS = ["m0", "m1"]
FILTERS = [EVERYTHING, Filter(model=frozenset({"m0"})), Filter(namespace=frozenset({"n1"}), model=frozenset({"m1"}))]

# The longest pause between two rounds of the publisher is a tenth of a second.
QUIET = 0.25

Truth = dict[PoolKey, Listing]


def pool(key: PoolKey, model: str, version: int) -> Listing:
    """One listing; ``version`` is told apart by routers, and its size varies with it."""
    metadata = {"version": str(version), "filling": "x" * (version % 7) * 20_000}
    return listing(Registration(*key, model=model, metadata=metadata))


def name_of(state: dict[PoolKey, Any], complete: bool) -> str:
    """The id that names this content, made from nothing but the content."""
    digests = [blake2b(msgspec.json.encode(entry), digest_size=32).digest() for entry in state.values()]
    total = sum(int.from_bytes(digest, "big") for digest in digests)
    return snapshot.token(total % 2**256, complete)


class Served:
    """One replica: its publisher and its streams, and the changes that have not reached it yet."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        # Each look at the clock costs a little, so rounds cost something and the next changes have to wait.
        looks = itertools.count()
        self.publisher: Publisher[Listing] = Publisher("pools", lambda: loop.time() + next(looks) * 0.005)
        self.streams = Streams(1000)
        self.waiting: list[tuple[PoolKey | None, Listing | None, bool]] = []
        self.publisher.publish([], True, float("inf"))

    def select(self, wanted: Filter) -> Selection[Listing]:
        return self.publisher.select(wanted, wanted.matches)

    def deliver(self, number: int) -> None:
        """Let the next changes arrive, each as it happened."""
        for key, entry, complete in self.waiting[:number]:
            changes = [] if key is None else [(key, None if entry is None else pool_fragment(entry))]
            self.publisher.publish(changes, complete, float("inf"))
        del self.waiting[:number]


class Following:
    """One subscriber and the wire to it.

    Events are applied as they come and stay applied when the wire is cut. Whoever was cut off in the middle of a
    published change holds no state that has a name, so it comes back without one.
    """

    def __init__(self, loop: VirtualTimeLoop, wanted: Filter) -> None:
        self.loop = loop
        self.wanted = wanted
        self.state: dict[PoolKey, Any] = {}
        self.complete = False
        self.last_id: str | None = None
        self.served: Served | None = None
        self.task: asyncio.Task[None] | None = None
        self.wire = b""
        self.ended = False
        self.room = asyncio.Event()
        self.room.set()

    def connect(self, served: Served) -> None:
        self.served, self.wire, self.ended = served, b"", False
        self.room.set()
        self.fresh = self.last_id is None
        headers = [] if self.last_id is None else [(b"last-event-id", self.last_id.encode())]
        scope = {"type": "http", "method": "GET", "headers": headers, WIRE: self}
        selection = served.select(self.wanted)
        self.task = self.loop.create_task(served.streams.serve(scope, self._receive, self._send, selection))

    async def _receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Any) -> None:
        # As the server's: waits for room before it writes.
        await self.room.wait()
        if message["type"] == "http.response.body":
            assert not self.ended, "bytes after the end"
            self.wire += message["body"]
            self.ended = not message.get("more_body", False)

    chunked_encoding = True

    def write_now(self, framed: bytes) -> bool:
        """What the publisher writes past ``send``, from its own turn."""
        if not self.room.is_set():
            return False
        assert not self.ended, "bytes after the end"
        self.wire += unchunked(framed)
        return True

    def read(self) -> None:
        """Take whole events off the wire."""
        *frames, self.wire = self.wire.split(b"\n\n")
        for frame in frames:
            lines = dict(line.split(b": ", 1) for line in frame.split(b"\n") if line and not line.startswith(b":"))
            if b"data" in lines:
                self._apply(lines[b"event"].decode(), json.loads(lines[b"data"]), lines.get(b"id"))

    def _apply(self, event: str, data: Any, given: bytes | None) -> None:
        assert event == "snapshot" or not self.fresh, f"the first event of a fresh stream is {event}"
        self.fresh = False
        match event:
            case "snapshot":
                self.state = {self._key(entry): entry for entry in data["pools"]}
                self.complete = data["complete"]
                assert given is not None
            case "put":
                assert self.state.get(self._key(data)) != data, "put of what the subscriber has"
                self.state[self._key(data)] = data
            case "delete":
                assert self._key(data) in self.state, "delete of a pool that was never given"
                self.state.pop(self._key(data), None)
            case "complete":
                assert self.complete != data["complete"], "complete said twice"
                self.complete = data["complete"]
            case other:
                raise AssertionError(other)
        self.last_id = None if given is None else given.decode()
        if given is not None:
            assert name_of(self.state, self.complete) == self.last_id, "the id names another state than this one"

    def _key(self, entry: dict[str, Any]) -> PoolKey:
        return PoolKey(entry["cluster_id"], entry["namespace"], entry["dgd_name"])

    def cut(self, keep: float) -> None:
        """The wire breaks; of what is on it only the first part arrives."""
        self.wire = self.wire[: int(len(self.wire) * keep)]
        self.read()
        if self.task is not None:
            self.task.cancel()
            self.loop.run(asyncio.wait([self.task]))
        self.task = self.served = None


class SubscribersAgainstTheList(RuleBasedStateMachine):
    """Two replicas, four pools, three subscribers with a filter each."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        random.seed(seed)
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.version = 0
        self.complete = True
        self.loop.run(self._begin())

    async def _begin(self) -> None:
        self.replicas = [Served(self.loop), Served(self.loop)]
        self.followers = [Following(self.loop, wanted) for wanted in FILTERS]

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.loop.run(self._settle())
        finally:
            self.loop.shut()
            asyncio.set_event_loop(None)

    async def _settle(self) -> None:
        for served in self.replicas:
            served.deliver(len(served.waiting))
        for follower in self.followers:
            follower.room.set()
        await self._pass(QUIET * 2)
        first, second = (served.select(EVERYTHING).body() for served in self.replicas)
        assert first == second

    async def _pass(self, secs: float) -> None:
        """Let time pass, and judge whoever is connected and reads."""
        await asyncio.sleep(secs)
        for follower in self.followers:
            if follower.task is None:
                continue
            assert not follower.task.done(), follower.task
            if not follower.room.is_set():
                continue
            follower.read()
            if secs >= QUIET:
                self._judge(follower)

    def _judge(self, follower: Following) -> None:
        assert follower.served is not None
        said = json.loads(follower.served.select(EVERYTHING).body())
        said["pools"] = [entry for entry in said["pools"] if not follower.wanted.model or self._wants(follower, entry)]
        held = [follower.state[key] for key in sorted(follower.state)]
        assert {"complete": follower.complete, "pools": held} == said
        assert follower.last_id == follower.served.select(follower.wanted).token

    def _wants(self, follower: Following, entry: dict[str, Any]) -> bool:
        return entry["model"] in follower.wanted.model

    def _do(self, *work: Any) -> None:
        async def run() -> None:
            for each in work:
                each()
            await self._pass(0.0)

        self.loop.run(run())

    @rule(changes=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([None, *MODELS])), min_size=1, max_size=4))
    def change(self, changes: list[tuple[PoolKey, str | None]]) -> None:
        for key, model in changes:
            self.version += 1
            entry = None if model is None else pool(key, model, self.version)
            for served in self.replicas:
                served.waiting.append((key, entry, self.complete))

    @rule(key=st.sampled_from(KEYS))
    def change_and_undo(self, key: PoolKey) -> None:
        """A pool that comes and goes: the list is again what it was."""
        self.version += 1
        for served in self.replicas:
            served.waiting.append((key, pool(key, "m0", self.version), self.complete))
            served.waiting.append((key, None, self.complete))

    @rule()
    def doubt(self) -> None:
        self.complete = not self.complete
        for served in self.replicas:
            served.waiting.append((None, None, self.complete))

    @rule(which=st.integers(0, 1), number=st.integers(1, 6))
    def deliver(self, which: int, number: int) -> None:
        self._do(lambda: self.replicas[which].deliver(number))

    @rule()
    def deliver_everything(self) -> None:
        self._do(*(lambda served=served: served.deliver(len(served.waiting)) for served in self.replicas))

    @rule(who=st.integers(0, 2), which=st.integers(0, 1))
    def connect(self, who: int, which: int) -> None:
        follower = self.followers[who]
        if follower.task is None:
            self._do(lambda: follower.connect(self.replicas[which]))

    @rule(who=st.integers(0, 2), which=st.integers(0, 1), number=st.integers(1, 4))
    def connect_amid_changes(self, who: int, which: int, number: int) -> None:
        """The snapshot is taken while changes are known of which no stream has been told yet."""
        follower, served = self.followers[who], self.replicas[which]
        if follower.task is None:
            self._do(lambda: served.deliver(number), lambda: follower.connect(served))

    @rule(who=st.integers(0, 2))
    def lag(self, who: int) -> None:
        self.followers[who].room.clear()

    @rule(who=st.integers(0, 2))
    def read_again(self, who: int) -> None:
        self._do(self.followers[who].room.set)

    @rule(who=st.integers(0, 2), keep=st.sampled_from([0.0, 0.3, 0.7, 1.0]), which=st.integers(0, 1))
    def cut_and_come_back(self, who: int, keep: float, which: int) -> None:
        follower = self.followers[who]
        follower.cut(keep)
        self._do(lambda: follower.connect(self.replicas[which]))

    @rule(who=st.integers(0, 2), changes=st.integers(1, 4), keep=st.sampled_from([0.2, 0.5, 0.8]))
    def cut_in_the_middle(self, who: int, changes: int, keep: float) -> None:
        """What was just published is on the wire, and only a part of it arrives."""
        follower = self.followers[who]
        served = follower.served
        if served is None:
            return

        async def publish() -> None:
            served.deliver(changes)
            await asyncio.sleep(QUIET)

        self.loop.run(publish())
        follower.cut(keep)

    @rule(who=st.integers(0, 2), last_id=st.sampled_from(["0", "abc", "-1", "f" * 32, "é"]))
    def come_back_with_a_strange_id(self, who: int, last_id: str) -> None:
        follower = self.followers[who]
        follower.cut(1.0)
        follower.last_id = last_id
        follower.connect(self.replicas[0])
        follower.fresh = True
        self._do()

    @rule(secs=st.sampled_from([0.01, 0.1, QUIET, 16.0]))
    def wait(self, secs: float) -> None:
        self.loop.run(self._pass(secs))


TestSubscribersAgainstTheList = SubscribersAgainstTheList.TestCase
TestSubscribersAgainstTheList.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_a_stream_that_opens_amid_a_change_that_is_undone_gets_its_snapshot() -> None:
    course = SubscribersAgainstTheList()
    course.begin(seed=1)
    served, follower = course.replicas[0], course.followers[0]

    async def run() -> None:
        await asyncio.sleep(QUIET)
        served.publisher.publish([(KEYS[0], pool_fragment(pool(KEYS[0], "m0", 1)))], True, float("inf"))
        await asyncio.sleep(0)  # told at once; what comes within the next moments has to wait
        assert not served.select(EVERYTHING).pending
        served.publisher.publish([], False, float("inf"))
        follower.connect(served)
        await asyncio.sleep(0)
        served.publisher.publish([], True, float("inf"))
        await asyncio.sleep(QUIET)

    try:
        course.loop.run(run())
        follower.read()
        assert follower.complete
        assert list(follower.state) == [KEYS[0]]
    finally:
        course.loop.shut()
        asyncio.set_event_loop(None)
