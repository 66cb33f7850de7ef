"""A discovery service in memory: one truth, and replicas that learn of its changes each in its own time.

As the real one: lists with ETag, 304 and ``Prefer: wait``; streams with ids made of content, resumed from a journal;
503 with Retry-After before the first list; ``complete`` that is false after a restart while pools are still missing.
Whatever a replica says is told to a listener, as what it means: the oracle judges by that. A proxy may stand before
each replica and answer in its place.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tests.client_faults.memory_network import Mark, MemoryLoop, Server, Wire

Pools = dict[str, dict[str, Any]]
JOURNAL_STEPS = 6
COMMENT_SECS = 15.0


class Saying(NamedTuple):
    """What one message of a replica means. ``shown`` are pools that it names; ``whole`` that all others are gone.

    ``revision`` is how much of the truth the replica knew.
    """

    revision: int
    shown: Pools
    gone: tuple[str, ...] = ()
    whole: bool = False


class Listener(Protocol):
    """Who is told of messages: when the last byte arrived, and when the client must have read it."""

    def said(self, saying: Saying, wire: Wire, stream: bool) -> tuple[Callable[[], object], Callable[[], object]]:
        """A message was made just now; gives what to call when it arrived, and when it was read."""


class State(NamedTuple):
    """What is published at one moment, as of a revision of the truth."""

    pools: Pools
    complete: bool
    revision: int = 0

    @property
    def body(self) -> bytes:
        pools = [self.pools[key] for key in sorted(self.pools)]
        return json.dumps({"complete": self.complete, "pools": pools}, sort_keys=True).encode()

    @property
    def token(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:32]


def listing(name: str, version: int) -> dict[str, Any]:
    """One pool as it is served; the version is part of its content."""
    empty: dict[str, Any] = {"relays": [], "capabilities": [], "capacity": [], "location": {}}
    key = {"cluster_id": "c1", "namespace": "n1", "dgd_name": name}
    frontends = [f"http://10.0.0.1:{version}"]
    return key | {"model": "m", "frontends": frontends, "metadata": {"filling": "x" * (version % 5 * 200)}} | empty


def _key(name: str) -> dict[str, str]:
    return {"cluster_id": "c1", "namespace": "n1", "dgd_name": name}


class Replica:
    """One replica; ``behind`` is how many of the truth's changes it has not heard of yet."""

    def __init__(self, loop: MemoryLoop, listener: Listener, name: str, truth: State) -> None:
        self.loop = loop
        self.listener = listener
        self.name = name
        self.server = Server(self.serve)
        self.proxy: Callable[[Replica, Wire, str, dict[str, str]], bool] | None = None
        """Answers a request in place of the replica, and says whether it did."""
        self.ready = True
        self.lag_secs = 0.0
        self.requests = 0
        self.truth = truth
        self.unknown: set[str] = set()
        """Pools that it has not learned of since its restart."""
        self.restarted = False
        self.state = truth
        self.journal: list[tuple[str, list[tuple[Saying, bytes]]]] = []
        self.start = truth.token
        self._streams: list[Wire] = []
        self._changed = asyncio.Event()
        self._publishing: asyncio.TimerHandle | None = None

    # what it publishes

    def hear(self, truth: State, gone: tuple[str, ...] = ()) -> None:
        """The truth changed; it is published after the replica's lag, with all that was heard by then."""
        self.truth = truth
        self.unknown -= set(gone)
        if self._publishing is None:
            self._publishing = self.loop.call_later(self.lag_secs, self._publish)

    def settle(self) -> None:
        """Publish at once what was heard."""
        if self._publishing is not None:
            self._publishing.cancel()
            self._publish()

    def restart(self, knows: int) -> None:
        """It comes back with a new journal, not complete, and knows only some pools."""
        self.settle()
        self.unknown = set(sorted(self.truth.pools)[knows:])
        self.restarted = True
        self.state = self._own()
        self.start, self.journal = self.state.token, []

    def learn(self, number: int) -> None:
        """It hears of pools that it missed; of all of them, and it is complete."""
        self.unknown -= set(sorted(self.unknown)[:number])
        self.restarted = bool(self.unknown)
        self._publish()

    def _own(self) -> State:
        known = {name: pool for name, pool in self.truth.pools.items() if name not in self.unknown}
        return State(known, self.truth.complete and not self.restarted, self.truth.revision)

    def _publish(self) -> None:
        self._publishing = None
        self.unknown &= set(self.truth.pools)
        old, new = self.state, self._own()
        if old.body == new.body:
            self.state = new
            return
        events: list[tuple[str, Saying, Any]] = []
        for name in sorted(old.pools.keys() | new.pools.keys()):
            if name not in new.pools:
                events.append(("delete", Saying(new.revision, {}, (name,)), _key(name)))
            elif old.pools.get(name) != new.pools[name]:
                events.append(("put", Saying(new.revision, {name: new.pools[name]}), new.pools[name]))
        if old.complete != new.complete:
            saying = Saying(new.revision, new.pools if new.complete else {}, whole=new.complete)
            events.append(("complete", saying, {"complete": new.complete}))
        self.state = new
        frames = [
            (saying, _frame(kind, data, new.token if number == len(events) else None))
            for number, (kind, saying, data) in enumerate(events, 1)
        ]
        self.journal.append((new.token, frames))
        for dropped, _ in self.journal[:-JOURNAL_STEPS]:
            self.start = dropped
        self.journal = self.journal[-JOURNAL_STEPS:]
        for wire in self._streams:
            self._send_events(wire, frames)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _since(self, token: str | None) -> list[tuple[Saying, bytes]] | None:
        at = [number for number, (reached, _) in enumerate(self.journal, 1) if reached == token]
        at += [0] if token == self.start else []
        return [frame for _, frames in self.journal[at[0] :] for frame in frames] if len(at) == 1 else None

    # how it answers

    async def serve(self, wire: Wire, head: bytes) -> None:
        self.requests += 1
        first, *lines = head.decode("latin-1").split("\r\n")
        _, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if self.proxy is not None and self.proxy(self, wire, target, headers):
            return
        if not self.ready:
            answer(wire, 503, b'{"title":"Not ready"}', "Retry-After: 1", "Connection: close")
        elif target.startswith("/pools/events"):
            await self.stream(wire, headers)
        else:
            await self.answer_list(wire, headers)

    async def answer_list(self, wire: Wire, headers: dict[str, str]) -> None:
        """The list, at once or when it differs from what the reader has."""
        wanted = headers.get("if-none-match", "").removeprefix("W/").strip('"')
        if "prefer" in headers:
            until = self.loop.time() + float(headers["prefer"].partition("wait=")[2])
            while self.state.token == wanted and (left := until - self.loop.time()) > 0:
                try:
                    async with asyncio.timeout(left):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        tag = f'ETag: W/"{self.state.token}"'
        if self.state.token == wanted:
            answer(wire, 304, b"", tag)
        else:
            saying = Saying(self.state.revision, self.state.pools, whole=self.state.complete)
            answer(wire, 200, self.state.body, tag, mark=self.listener.said(saying, wire, stream=False))

    async def stream(self, wire: Wire, headers: dict[str, str]) -> None:
        """Events from where the reader was, until its connection ends."""
        wire.send(STREAM_HEAD)
        self._send_chunk(wire, b"retry: %d\n\n" % random.randint(1000, 3000))
        frames = self._since(headers.get("last-event-id"))
        if frames is None:
            saying = Saying(self.state.revision, self.state.pools, whole=self.state.complete)
            frames = [(saying, _frame("snapshot", json.loads(self.state.body), self.state.token))]
        self._send_events(wire, frames)
        self._streams.append(wire)
        try:
            while True:
                await asyncio.sleep(COMMENT_SECS)
                self._send_chunk(wire, b":\n\n")
        finally:
            self._streams.remove(wire)

    def drain(self) -> None:
        """End the streams as a replica does that shuts down."""
        for wire in self._streams:
            self._send_chunk(wire, b"retry: %d\n\n" % random.randint(1000, 3000))
            wire.send(b"0\r\n\r\n")

    def babble(self, data: bytes) -> None:
        """What no replica says appears in its streams."""
        for wire in self._streams:
            self._send_chunk(wire, data)
            wire.broken = True

    def _send_events(self, wire: Wire, frames: list[tuple[Saying, bytes]]) -> None:
        if frames:
            data = b"".join(frame for _, frame in frames)
            size = b"%x\r\n" % len(data)
            marks, offset = [], len(size)
            for saying, frame in frames:
                offset += len(frame)
                marks.append(Mark(offset, *self.listener.said(saying, wire, stream=True)))
            wire.send(size + data + b"\r\n", *marks)

    def _send_chunk(self, wire: Wire, data: bytes) -> None:
        wire.send(b"%x\r\n%b\r\n" % (len(data), data))


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)

Met = tuple[Callable[[], object], Callable[[], object]]


def answer(wire: Wire, status: int, body: bytes, *headers: str, mark: Met | None = None, length: int = -1) -> None:
    """A whole answer; ``length`` is what it says of its body where that is a lie."""
    lines = [f"HTTP/1.1 {status} Whatever", *headers]
    if not any(header.startswith("Content-Type") for header in headers):
        lines.append("Content-Type: application/json")
    if status != 304:
        lines.append(f"Content-Length: {len(body) if length < 0 else length}")
    data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
    wire.send(data, *([] if mark is None else [Mark(len(data), *mark)]))
    if length >= 0 or "Connection: close" in headers:
        wire.end()


def _frame(kind: str, data: Any, token: str | None) -> bytes:
    last = f"id: {token}\n" if token is not None else ""
    return f"event: {kind}\n{last}data: {json.dumps(data)}\n\n".encode()
