"""What Python can do at best: uvicorn applications that do the least possible and keep no promise.

Run as ``python -m tests.bench.references NAME PORT BODY-FILE REDIS-PORT``. They share nothing with the service, so
that a fault of the service cannot make a reference slow.

``list-raw`` and ``list-starlette`` answer GET with one ready body and If-None-Match with 304. ``post`` decodes a
registration and answers when Redis has acknowledged SET PX and PUBLISH, all waiting ones in one write of ready bytes;
``post-multi`` does the same by redis-py, a MULTI for each request. The ``fanout-`` ones send what is POSTed as one
event to every subscriber: ``transport`` writes to the sockets, ``nowait`` steps each connection's ``send`` from the
publisher's turn, ``queue`` is Starlette's usual way, a queue and a task for each subscriber.
"""

import asyncio
import sys
from collections import deque
from pathlib import Path
from typing import Any

import hiredis
import msgspec
import redis.asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

ETAG = b'W/"4e1243bd22c66e76c2ba9eddc1f91394"'
FRAME = b"event: put\nid: 4e1243bd22c66e76c2ba9eddc1f91394\ndata: %b\n\n"
ACCEPTED = b'{"lease_duration_secs":86400,"heartbeat_interval_secs":28800,"created":false}'
JSON = (b"content-type", b"application/json")
EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
HELLO = b"retry: 2000\n\n"


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _whole(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    start = _start(status, [*headers, (b"content-length", b"%d" % len(body))])
    return start, {"type": "http.response.body", "body": body}


async def _received(receive: Any) -> bytes:
    message = await receive()
    body = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return bytes(body)


def list_raw(body: bytes) -> Any:
    """GET without any framework."""
    start, content = _whole(200, body, JSON, (b"etag", ETAG))
    same_start, nothing = _start(304, [(b"etag", ETAG)]), {"type": "http.response.body", "body": b""}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for name, value in scope["headers"]:
            if name == b"if-none-match" and value == ETAG:
                await send(same_start)
                await send(nothing)
                return
        await send(start)
        await send(content)

    return app


def list_starlette(body: bytes) -> Any:
    """GET as a Starlette route."""
    etag = ETAG.decode()

    async def pools(request: Any) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"etag": etag})
        return Response(body, media_type="application/json", headers={"etag": etag})

    return Starlette(routes=[Route("/pools", pools), Route("/ready", pools)])


class _Capacity(msgspec.Struct):
    resource: str
    quantity: int | float
    unit: str = ""


class _Location(msgspec.Struct):
    region: str = ""
    zone: str = ""


class _Registration(msgspec.Struct):
    cluster_id: str
    namespace: str
    dgd_name: str
    model: str
    relays: list[str]
    frontends: list[str]
    capabilities: list[str]
    capacity: list[_Capacity]
    location: _Location
    metadata: dict[str, str]
    instance_id: str = ""


class _RedisWire(asyncio.Protocol):
    """SET and PUBLISH over one connection: whatever one turn of the loop asks for leaves in one write."""

    def __init__(self) -> None:
        self._replies = hiredis.Reader()
        self._asked: deque[asyncio.Future[None]] = deque()
        self._pieces: list[bytes] = []
        self._set_answered = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._replies.feed(data)
        while (reply := self._replies.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            if self._set_answered:
                self._asked.popleft().set_result(None)
            self._set_answered = not self._set_answered

    def store(self, key: bytes, value: bytes) -> "asyncio.Future[None]":
        """Done when both commands are answered."""
        if not self._pieces:
            self._loop.call_soon(self._write)
        self._pieces.append(
            b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nPX\r\n$5\r\n15000\r\n"
            b"*3\r\n$7\r\nPUBLISH\r\n$7\r\nchanges\r\n$%d\r\n%b\r\n"
            % (len(key), key, len(value), value, len(value), value)
        )
        answered = self._loop.create_future()
        self._asked.append(answered)
        return answered

    def _write(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._transport.write(b"".join(pieces))


def post(redis_port: int) -> Any:
    """POST through Redis, by ready bytes."""
    decode = msgspec.json.Decoder(_Registration).decode
    start, content = _whole(200, ACCEPTED, JSON)
    wires: list[_RedisWire] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            body = await _received(receive)
            told = decode(body)
            if not wires:
                opened = await asyncio.get_running_loop().create_connection(_RedisWire, "127.0.0.1", redis_port)
                wires.append(opened[1])
            await wires[0].store(f"pool:{told.cluster_id}/{told.namespace}/{told.dgd_name}".encode(), body)
        await send(start)
        await send(content)

    return app


def post_multi(redis_port: int) -> Any:
    """POST through Redis the usual way, by redis-py."""
    decode = msgspec.json.Decoder(_Registration).decode
    start, content = _whole(200, ACCEPTED, JSON)
    client = redis.asyncio.Redis(port=redis_port)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            body = await _received(receive)
            told = decode(body)
            both = client.pipeline(transaction=True)
            both.set(f"pool:{told.cluster_id}/{told.namespace}/{told.dgd_name}", body, px=15_000)
            both.publish("changes", body)
            await both.execute()
        await send(start)
        await send(content)

    return app


def fanout(way: str) -> Any:
    """POST sends its body to all that GET the event stream; bare ASGI."""
    subscribers: set[Any] = set()
    start, content = _whole(200, ACCEPTED, JSON)

    def publish(frame: bytes) -> None:
        if way == "transport":
            chunk = b"%x\r\n%b\r\n" % (len(frame), frame)
            for transport in subscribers:
                transport.write(chunk)
            return
        message = {"type": "http.response.body", "body": frame, "more_body": True}
        for send in list(subscribers):
            sending = send(message)
            try:
                sending.send(None)
            except StopIteration:
                continue
            sending.close()  # a service would have to let this slow reader catch up
            subscribers.discard(send)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            publish(FRAME % await _received(receive))
        elif scope["path"] == "/pools/events":
            await send(_start(200, EVENT_STREAM))
            await send({"type": "http.response.body", "body": HELLO, "more_body": True})
            subscriber = send.__self__.transport if way == "transport" else send
            subscribers.add(subscriber)
            while (await receive())["type"] != "http.disconnect":
                pass
            subscribers.discard(subscriber)
            return
        await send(start)
        await send(content)

    return app


def fanout_queue() -> Any:
    """The same the usual way: Starlette, and a queue for each subscriber."""
    queues: set[asyncio.Queue[bytes]] = set()

    async def frames() -> Any:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queues.add(queue)
        try:
            yield HELLO
            while True:
                yield FRAME % await queue.get()
        finally:
            queues.discard(queue)

    async def events(request: Any) -> Response:
        return StreamingResponse(frames(), media_type="text/event-stream")

    async def register(request: Any) -> Response:
        body = await request.body()
        for queue in queues:
            queue.put_nowait(body)
        return Response(ACCEPTED, media_type="application/json")

    return Starlette(
        routes=[
            Route("/pools", register, methods=["POST"]),
            Route("/pools/events", events),
            Route("/ready", lambda request: Response()),
        ]
    )


def main(name: str, port: int, body: bytes, redis_port: int) -> None:
    """Serve one of them until ended."""
    makers = {
        "list-raw": lambda: list_raw(body),
        "list-starlette": lambda: list_starlette(body),
        "post": lambda: post(redis_port),
        "post-multi": lambda: post_multi(redis_port),
        "fanout-transport": lambda: fanout("transport"),
        "fanout-nowait": lambda: fanout("nowait"),
        "fanout-queue": fanout_queue,
    }
    uvicorn.run(
        makers[name](),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="error",
        backlog=4096,
        timeout_keep_alive=75,  # as the service: a connection may rest while thousands of others are opened
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).read_bytes(), int(sys.argv[4]))
