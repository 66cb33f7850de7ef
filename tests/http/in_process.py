"""A whole replica without sockets: the app driven by hand, on virtual time.

What a client does is a plain call: ``rig.get("/pools")``. A stream or a parked poll is an ``Exchange`` that goes on
while the test lets time pass; its client can read slowly, or leave. ``send`` behaves as the server's: it waits for room
before it writes, and is silent once the client has left; so does the wire past it, which takes chunks.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from discovery.errors import Unavailable
from discovery.http.access import RateLimit
from discovery.http.api import make_app
from discovery.http.handlers import Service
from discovery.http.streams import WIRE, Streams
from discovery.listing.lists import Lists
from discovery.listing.publisher import Publisher
from discovery.listing.snapshot import pool_fragment, router_fragment
from discovery.metrics import Counters
from discovery.model import Listing, PoolKey, Router
from discovery.registrations import listing, parse
from discovery.stores import Outcome
from discovery.stores.memory import MemoryStore
from discovery.stores.replica import Replica
from tests.virtual_time import VirtualTimeLoop

Result = TypeVar("Result")
Headers = dict[str, str]
Lines = list[tuple[str, str]]
LEASE = 15.0


class Answer(NamedTuple):
    """One whole answer; header names in lower case."""

    status: int
    headers: Headers
    body: bytes

    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)

    def problem(self) -> dict[str, Any]:
        """The problem document; fails on an answer that is none."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem: dict[str, Any] = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        return problem


class Event(NamedTuple):
    """One server-sent event."""

    name: str
    data: Any
    id: str | None


class Exchange:
    """One request and what came back so far."""

    def __init__(self, loop: VirtualTimeLoop, app: Any, scope: dict[str, Any], body: bytes) -> None:
        self._loop = loop
        self._requests: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        self._left = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.messages: list[dict[str, Any]] = []
        self.writes: list[bytes] = []
        self.ended = False
        self.broken = False
        self.room: float = float("inf")
        self.chunked_encoding: bool | None = None
        self.pushed = 0
        self.task = loop.create_task(app(scope | {WIRE: self}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._requests:
            return self._requests.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self.broken:
            raise OSError("the connection is closing")
        if not self._left.is_set():
            await self._writable.wait()
        if self._left.is_set():
            return
        assert not self.ended, f"something was sent after the end: {message}"
        assert (message["type"] == "http.response.start") == (not self.messages)
        self.messages.append(message)
        if message["type"] == "http.response.body":
            self._arrive(b"".join(message["pieces"]) if "pieces" in message else message["body"])
            self.ended = not message.get("more_body")
        else:
            self.chunked_encoding = all(name != b"content-length" for name, _ in message["headers"])

    def write_now(self, framed: bytes) -> bool:
        """See ``streams.Wire``."""
        if self._left.is_set() or self.broken:
            return True
        if not self._writable.is_set():
            return False
        assert self.chunked_encoding, "past send before the head, or into an answer that is not chunked"
        assert not self.ended
        self.pushed += 1
        self._arrive(unchunked(framed))
        return True

    def _arrive(self, body: bytes) -> None:
        self.writes.append(body)
        self.room -= len(body)
        if self.room <= 0:
            self._writable.clear()

    # ---- what the client does

    def stop_reading(self) -> None:
        """From now on not a byte more is taken."""
        self.room = 0
        self._writable.clear()

    def read(self, count: float = float("inf")) -> None:
        """Take ``count`` bytes more."""
        self.room += count
        if self.room > 0:
            self._writable.set()

    def leave(self) -> None:
        """Close the connection."""
        self._left.set()
        self._writable.set()

    # ---- what the client sees

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> Headers:
        found: Headers = {}
        for name, value in self.messages[0]["headers"]:
            assert name == name.lower()
            assert name.decode() not in found, f"{name!r} comes twice"
            found[name.decode()] = value.decode()
        return found

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def answered(self) -> bool:
        return bool(self.messages)

    def answer(self) -> Answer:
        assert self.ended, "the answer is not over"
        return Answer(self.status, self.headers, self.body)

    def blocks(self) -> list[dict[str, str]]:
        """The stream so far, block by block, each as its fields; a comment is the field ``""``."""
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        text = self.body.decode()
        assert text.endswith("\n\n"), f"torn: {text[-200:]!r}"
        return [
            {name: value.removeprefix(" ") for name, _, value in (line.partition(":") for line in block.split("\n"))}
            for block in text.split("\n\n")[:-1]
        ]

    def events(self) -> list[Event]:
        """All events so far."""
        return [
            Event(block["event"], json.loads(block["data"]), block.get("id"))
            for block in self.blocks()
            if "event" in block
        ]

    @property
    def last_event_id(self) -> str | None:
        return next((event.id for event in reversed(self.events()) if event.id is not None), None)


def unchunked(framed: bytes) -> bytes:
    """What one chunk of HTTP/1.1 holds; fails on anything else."""
    size, _, rest = framed.partition(b"\r\n")
    assert len(rest) == int(size, 16) + 2 > 2, "an empty chunk would be the end of the body"
    assert rest.endswith(b"\r\n")
    return rest[:-2]


class Assembled:
    """The list as a subscriber puts it together, across visits."""

    def __init__(self) -> None:
        self.complete: bool | None = None
        self.pools: dict[tuple[str, ...], Any] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            match event.name:
                case "snapshot":
                    self.pools = {_key(pool): pool for pool in event.data["pools"]}
                    self.complete = event.data["complete"]
                case "put":
                    self.pools[_key(event.data)] = event.data
                case "delete":
                    del self.pools[_key(event.data)]
                case "complete":
                    self.complete = event.data["complete"]
                case other:
                    raise AssertionError(f"an unknown event: {other}")

    def document(self) -> Any:
        return {"complete": self.complete, "pools": [self.pools[key] for key in sorted(self.pools)]}


def _key(pool: dict[str, str]) -> tuple[str, ...]:
    return pool["cluster_id"], pool["namespace"], pool["dgd_name"]


class SwitchedStore(MemoryStore):
    """A memory store that can be away."""

    away = False

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        self._check()
        return await super().put(key, value, lease_secs)

    async def delete(self, key: PoolKey, instance_id: str | None) -> Any:
        self._check()
        return await super().delete(key, instance_id)

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the store does not answer")


class Rig:
    """All parts of a replica as ``serve`` composes them, with a hand on its clock, its store and its publisher."""

    def __init__(
        self,
        *,
        max_streams: int = 100,
        max_pools: int = 100,
        max_pools_per_cluster: int = 0,
        rate_limit: float = 0,
        **options: Any,
    ) -> None:
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.counters = Counters()
        self.store = SwitchedStore(LEASE, clock=self.loop.time)
        self.pools: Publisher[Listing] = Publisher("pools", clock=self.loop.time)
        self.routers: Publisher[Router] = Publisher("routers", clock=self.loop.time)
        self.streams = Streams(max_streams)
        self.stage = ("ready", "the list is complete")
        self.lists = lists = Lists(self.pools, self.routers, lease_secs=LEASE, clock=self.loop.time)
        self.replica = Replica(
            self.store,
            lease_secs=LEASE,
            heartbeat_secs=5,
            max_pools=max_pools,
            max_pools_per_cluster=max_pools_per_cluster,
            counters=self.counters,
            on_change=lists.registrations_changed,
            clock=self.loop.time,
        )
        service = {
            "replica": self.replica,
            "explain": lists.explain,
            "pools": self.pools,
            "routers": self.routers,
            "streams": self.streams,
            "counters": self.counters,
            "rate_limit": RateLimit(rate_limit, clock=self.loop.time),
            "stage": lambda: self.stage,
            "status": lambda: {"version": "test"},
            "lease_duration_secs": 15,
            "heartbeat_interval_secs": 5,
            "max_body_bytes": 65536,
            "cors_origin": None,
        }
        self.service = Service(**(service | options))
        self.app = make_app(self.service)

    # ---- time and parts

    def call(self, function: Callable[[], Result]) -> Result:
        """Call something that needs the running loop."""

        async def run() -> Result:
            return function()

        return self.loop.run(run())

    def settle(self) -> None:
        """Let everything happen that needs no time."""

        async def turns() -> None:
            for _ in range(50):
                await asyncio.sleep(0)

        self.loop.run(turns())

    def pass_time(self, secs: float) -> None:
        self.loop.pass_time(secs)

    def start(self) -> "Rig":
        """Follow the store, as ``serve`` does; the list is complete one lease later."""
        self.loop.create_task(self.replica.run())
        self.settle()
        return self

    def publish(
        self, *listed: Listing, gone: Iterable[str] = (), complete: bool = True, until: float = float("inf")
    ) -> None:
        """Publish pools without a store behind them; ``gone`` are names of pools made by ``pool``."""
        changes: list[Any] = [(entry.key, pool_fragment(entry)) for entry in listed]
        changes += [(PoolKey("c1", "n1", name), None) for name in gone]
        self.call(lambda: self.pools.publish(changes, complete, until))

    def publish_routers(self, *routers: Router, gone: Iterable[str] = (), complete: bool = True) -> None:
        changes: list[Any] = [((router.id,), router_fragment(router)) for router in routers]
        changes += [((name,), None) for name in gone]
        self.call(lambda: self.routers.publish(changes, complete, float("inf")))

    def close(self) -> None:
        """End streams and lists in the order of ``serve``."""

        def close() -> None:
            self.streams.close()
            self.pools.close()
            self.routers.close()

        self.call(close)
        self.settle()

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.set_event_loop(self.loop)  # another rig may have ended in between
        self.loop.shut()
        asyncio.set_event_loop(None)

    # ---- requests

    def open(
        self,
        target: str,
        headers: Headers | Lines | None = None,
        *,
        method: str = "GET",
        body: bytes = b"",
        room: float = float("inf"),
        client: str = "10.0.0.1",
    ) -> Exchange:
        """Send a request and see how far it gets without time passing; ``room`` is how much the client reads."""
        raw_path, _, query = target.partition("?")
        lines = headers if isinstance(headers, list) else (headers or {}).items()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode(),
            "query_string": query.encode("latin-1"),
            "root_path": "",
            "headers": [(b"host", b"test")]
            + [(name.lower().encode(), value.encode("latin-1")) for name, value in lines],
            "client": (client, 5000),
            "server": ("test", 80),
            "state": {},
        }
        exchange = Exchange(self.loop, self.app, scope, body)
        exchange.room = room
        self.last = exchange
        self.settle()
        if exchange.task.done():
            exchange.task.result()
        return exchange

    def ask(self, method: str, target: str, headers: Headers | Lines | None = None, **options: Any) -> Answer:
        """A request that is answered without time passing."""
        return self.open(target, headers, method=method, **options).answer()

    def get(self, target: str, headers: Headers | Lines | None = None, **options: Any) -> Answer:
        return self.ask("GET", target, headers, **options)

    def post(self, body: Any, headers: Headers | None = None, target: str = "/pools", **options: Any) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if headers is None else headers
        return self.ask("POST", target, headers, body=raw, **options)

    def delete(self, target: str) -> Answer:
        return self.ask("DELETE", target)

    def names(self, target: str = "/pools") -> list[str]:
        return [pool["dgd_name"] for pool in self.get(target).json()["pools"]]


def fields(name: str = "p1", **more: Any) -> dict[str, Any]:
    """A registration's body."""
    return {"cluster_id": "c1", "namespace": "n1", "dgd_name": name, "model": "m"} | more


def pool(name: str = "p1", **more: Any) -> Listing:
    """One listing."""
    return listing(parse(json.dumps(fields(name, **more)).encode()))
