"""Frontends of pools as routers meet them: they answer in OpenAI's form with their own name, and write down what came.

They live on whatever loop starts them. One that is ended answers what it has begun and accepts nothing more, as a pod
that is told to stop.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from aiohttp import web

from tests.live.signs import free_port

Behaviour = Literal["answers", "drops", "babbles", "breaks", "refuses"]
WORDS = ("one", "two", "three")


class Served(NamedTuple):
    """One request as it came in."""

    request_id: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    model: str
    connection: object


class MockFrontend:
    """One frontend; ``pool`` is whose. ``gate`` holds every answer back after its first piece.

    ``drops``: the connection ends without an answer; ``babbles``: after something that is none; ``breaks``: in the
    middle of one; ``refuses``: 429 in good order.
    """

    def __init__(self, name: str, pool: str = "", behaviour: Behaviour = "answers") -> None:
        self.name = name
        self.pool = pool
        self.behaviour: Behaviour = behaviour
        self.port = 0
        self.served: list[Served] = []
        self.answering = 0
        self.abandoned = 0
        self.gate: asyncio.Event | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """From its first start on."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> "MockFrontend":
        self.port = self.port or free_port()
        application = web.Application()
        application.router.add_post("/v1/{path:.+}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=10)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        return self

    async def end(self) -> None:
        """In order; nothing happens where it has ended."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body)
        request_id = request.headers.get("X-Request-Id", "")
        served = Served(request_id, request.raw_path, dict(request.headers), body, asked["model"], request.transport)
        self.served.append(served)
        self.answering += 1
        try:
            return await self._answer(request, asked)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.answering -= 1

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        if self.behaviour == "refuses":
            error = {"message": "too busy", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
            return web.json_response({"error": error}, status=429, headers={"Retry-After": "7"})
        if self.behaviour in ("drops", "babbles"):
            request.transport.write(b"" if self.behaviour == "drops" else b"what?\r\n\r\n")
            request.transport.close()
            return web.Response()
        if asked.get("stream") or self.behaviour == "breaks":
            return await self._stream(request, asked["model"])
        if self.gate is not None:
            await self.gate.wait()
        return web.json_response(completion(self.name, asked["model"]), headers={"X-Frontend": self.name})

    async def _stream(self, request: web.Request, model: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Frontend": self.name})
        await response.prepare(request)
        for place, word in enumerate(WORDS):
            await response.write(f"data: {json.dumps(piece(word, model))}\n\n".encode())
            if place == 0 and self.gate is not None:
                await self.gate.wait()
            if self.behaviour == "breaks":
                assert request.transport is not None
                request.transport.abort()
                return response
        await response.write(b"data: [DONE]\n\n")
        return response


def completion(text: str, model: str) -> dict[str, Any]:
    """A whole answer to ``/v1/chat/completions``."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}


def piece(text: str, model: str) -> dict[str, Any]:
    """One event of a streamed answer."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}


def words_of(body: str) -> list[str]:
    """What a streamed answer says; a piece that was cut, or an end that never came, is an error."""
    events = [event.removeprefix("data: ") for event in body.split("\n\n")]
    assert events[-2:] == ["[DONE]", ""], body
    return [json.loads(event)["choices"][0]["delta"]["content"] for event in events[:-2]]


def count_by(frontends: "list[MockFrontend]", key: Callable[["MockFrontend"], str]) -> dict[str, int]:
    """How many requests came, summed by name or by pool."""
    counts: dict[str, int] = {}
    for frontend in frontends:
        counts[key(frontend)] = counts.get(key(frontend), 0) + len(frontend.served)
    return counts
