"""A discovery service in a few lines, on a real port, for tests of its clients.

It keeps pools, answers as the service does, and can misbehave on request: refuse, hang, fall silent, cut a stream in
the middle of an event, vanish, or stand behind a proxy that breaks what takes long. It has no leases. Every request
that it got is in ``seen``.
"""

import asyncio
import contextlib
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

from tests.listening import stop_listening
from tests.live.signs import free_port

REASONS = {200: "OK", 204: "No Content", 304: "Not Modified"}
BLANK = {
    "relays": [],
    "frontends": [],
    "capabilities": [],
    "capacity": [],
    "location": {},
    "metadata": {},
}


def listing(dgd_name: str, **fields: Any) -> dict[str, Any]:
    """A pool as the service lists it."""
    key = {"cluster_id": "c1", "namespace": "n1", "dgd_name": dgd_name}
    return key | {"model": "m"} | BLANK | fields


def frame(name: str, data: Any, event_id: str | None = None) -> bytes:
    """One event."""
    last = f"id: {event_id}\n" if event_id is not None else ""
    return f"event: {name}\ndata: {json.dumps(data)}\n{last}\n".encode()


async def until(sign: Callable[[], Any], within_secs: float = 5.0) -> Any:
    """Wait for a sign; its value."""
    async with asyncio.timeout(within_secs):
        while not (value := sign()):
            await asyncio.sleep(0.005)
    return value


class Seen(NamedTuple):
    """One request as it came in; ``connection`` counts from 1."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


class Canned(NamedTuple):
    """An answer to give instead of the real one; ``gate`` holds it back, ``status`` 0 drops the connection."""

    status: int
    body: Any = None
    headers: tuple[str, ...] = ()
    gate: asyncio.Event | None = None


@dataclass
class Proxy:
    """What something on the way does to what takes long."""

    buffers_streams: bool = False
    stream_lives_secs: float | None = None
    answers_streams: Canned | None = None
    strips_prefer: bool = False
    answers_waits: Canned | None = None
    wait_lives_secs: float | None = None


class OpenStream:
    """One subscriber's stream."""

    def __init__(self, writer: asyncio.StreamWriter, *, held: bool = False) -> None:
        self._writer = writer
        self._held: bytes | None = b"" if held else None
        self.gone = False

    def hold(self) -> None:
        """From now on nothing of it gets through."""
        self._held = b""

    async def release(self) -> None:
        """What was held back gets through after all."""
        data, self._held = self._held or b"", None
        await self.send(data)

    async def send(self, data: bytes) -> None:
        if self._held is not None:
            self._held += data
            return
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def cut(self) -> None:
        self._writer.transport.abort()


class FakeService:
    """One replica. ``retry_ms`` is what streams are told first; ``reach`` is its base URL."""

    def __init__(self, *, retry_ms: int | None = 10) -> None:
        self.pools: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.complete = True
        self.retry_ms = retry_ms
        self.interval_secs = 5.0
        self.lease_secs = 15.0
        self.seen: list[Seen] = []
        self.streams: list[OpenStream] = []
        self.canned: dict[str, deque[Canned]] = {}
        self.greets = True
        self.proxy = Proxy()
        self.waits = 0
        """How many long polls wait now."""
        self.status: dict[str, Any] | None = None
        """What ``/status`` answers, with the ETag and the number of the pools at that moment; 404 without."""
        self.host = "127.0.0.1"
        self.port = free_port()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return hashlib.sha256(self.body()).hexdigest()[:16]

    def body(self) -> bytes:
        return json.dumps(
            {"complete": self.complete, "pools": [self.pools[key] for key in sorted(self.pools)]}
        ).encode()

    def requests(self, method: str) -> list[Seen]:
        return [request for request in self.seen if request.method == method]

    def can(self, method: str, *answers: Canned) -> None:
        """Answer the next requests of this method so; a stream counts as ``STREAM``."""
        self.canned.setdefault(method, deque()).extend(answers)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)

    async def stop(self) -> None:
        """Vanish as a killed process does."""
        if self._server is not None:
            server, self._server = self._server, None
            await stop_listening(server)
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, *pools: dict[str, Any]) -> None:
        for pool in pools:
            self.pools[pool["cluster_id"], pool["namespace"], pool["dgd_name"]] = pool

    async def put(self, *pools: dict[str, Any]) -> None:
        """Publish pools as one change."""
        self.set(*pools)
        frames = [frame("put", pool) for pool in pools[:-1]] + [frame("put", pools[-1], self.token)]
        await self.tell(b"".join(frames))

    async def drop(self, dgd_name: str) -> None:
        del self.pools["c1", "n1", dgd_name]
        key = {"cluster_id": "c1", "namespace": "n1", "dgd_name": dgd_name}
        await self.tell(frame("delete", key, self.token))

    async def tell(self, data: bytes) -> None:
        for stream in self.streams:
            if not stream.gone:
                await stream.send(data)

    def snapshot_frame(self) -> bytes:
        return frame("snapshot", json.loads(self.body()), self.token)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self._connections += 1
        number = self._connections
        try:
            while await self._one(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        method, where, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.append(Seen(method, where, headers, body, number))
        path, _, query = where.partition("?")
        kind = "STREAM" if path.endswith("/events") else method
        if self.canned.get(kind):
            return await self._give(writer, self.canned[kind].popleft())
        if kind == "STREAM" and self.proxy.answers_streams is not None:
            return await self._give(writer, self.proxy.answers_streams)
        if kind == "STREAM":
            return await self._stream(reader, writer, headers.get("last-event-id"))
        wanted = headers.get("if-none-match")
        wait = re.fullmatch("wait=([0-9]+)", headers.get("prefer", ""))
        if wait is not None and not self.proxy.strips_prefer:
            if self.proxy.answers_waits is not None:
                return await self._give(writer, self.proxy.answers_waits)
            if not await self._wait_for_change(wanted, float(wait[1])):
                return await self._give(writer, Canned(504))
        return await self._answer(writer, method, path, dict(parse_qsl(query)), body, wanted)

    async def _wait_for_change(self, wanted: str | None, secs: float) -> bool:
        """Whether the proxy let it wait to its end."""
        loop = asyncio.get_running_loop()
        limit = self.proxy.wait_lives_secs or float("inf")
        ends_at = loop.time() + min(secs, limit)
        self.waits += 1
        try:
            while wanted is not None and self.token in wanted and loop.time() < ends_at:
                await asyncio.sleep(0.005)
        finally:
            self.waits -= 1
        return limit > secs or loop.time() < ends_at

    async def _give(self, writer: asyncio.StreamWriter, canned: Canned) -> bool:
        if canned.gate is not None:
            await canned.gate.wait()
        if canned.status == 0:
            return False
        body = json.dumps(canned.body).encode() if canned.body is not None else b""
        await self._write(writer, canned.status, body, *canned.headers)
        return not any(re.match("(?i)connection: *close", header) for header in canned.headers)

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes,
        wanted: str | None,
    ) -> bool:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if (method, parts) == ("GET", ["pools"]):
            tag = f'W/"{self.token}"'
            known = wanted is not None and tag in wanted.split(", ")
            await self._write(writer, 304 if known else 200, b"" if known else self.body(), f"ETag: {tag}")
        elif (method, parts) == ("GET", ["status"]) and self.status is not None:
            said = {"complete": self.complete, "etag": self.token, "pools": len(self.pools)}
            await self._write(writer, 200, json.dumps(said | self.status).encode())
        elif (method, parts) == ("GET", ["routers"]):
            routers = {
                "complete": True,
                "routers": [{"id": "r2", "url": "http://r2"}, {"id": "r1", "url": "http://r1"}],
            }
            await self._write(writer, 200, json.dumps(routers).encode(), 'ETag: W/"routers"')
        elif (method, parts) == ("POST", ["pools"]):
            said = BLANK | json.loads(body)
            key = (said["cluster_id"], said["namespace"], said["dgd_name"])
            created = key not in self.pools
            self.set(said)
            accepted = {
                "lease_duration_secs": self.lease_secs,
                "heartbeat_interval_secs": self.interval_secs,
                "created": created,
            }
            await self._write(writer, 200, json.dumps(accepted).encode())
        elif method == "DELETE" and parts[0] == "pools":
            stored = self.pools.get((parts[1], parts[2], parts[3]))
            if stored and query.get("instance_id", stored.get("instance_id")) == stored.get("instance_id"):
                del self.pools[parts[1], parts[2], parts[3]]
            await self._write(writer, 204, b"")
        else:
            await self._write(writer, 404, b'{"title":"Not found","detail":"there is no such path"}')
        return True

    async def _write(self, writer: asyncio.StreamWriter, status: int, body: bytes, *headers: str) -> None:
        kind = "application/json" if status < 400 else "application/problem+json"
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}", f"Content-Type: {kind}", *headers]
        if status not in (204, 304):
            lines.append(f"Content-Length: {len(body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await writer.drain()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, last_id: str | None) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        stream = OpenStream(writer, held=self.proxy.buffers_streams)
        if self.retry_ms is not None:
            await stream.send(b"retry: %d\n\n" % self.retry_ms)
        if self.greets and last_id != self.token:
            await stream.send(self.snapshot_frame())
        self.streams.append(stream)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.proxy.stream_lives_secs):
                    await reader.read()
        finally:
            stream.gone = True
        return False
