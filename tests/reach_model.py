"""A discovery service in memory, reached without sockets and on the loop's own time, for tests of following.

It answers as the service does, by whatever stands between: streams that are mute, cut, frozen or refused, plain
requests that hang or fail, long polls of which ``Prefer`` was taken out. What was asked, and when, is in ``asked``.
"""

import asyncio
import hashlib
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from discovery.client.answers import Answer, NoAnswer, NoStream
from discovery.client.service import Request
from discovery.errors import DiscoveryError
from tests.fake_service import frame, listing


class ModelStream:
    """One stream; ``frozen`` holds back what is sent from then on, as a way on which bytes wait."""

    base = "http://model"

    def __init__(self, *, frozen: bool) -> None:
        self.frozen = frozen
        self.open = True
        self._held = b""
        self._bytes: asyncio.Queue[bytes | DiscoveryError] = asyncio.Queue()

    def send(self, data: bytes) -> None:
        if self.frozen:
            self._held += data
        else:
            self._bytes.put_nowait(data)

    def thaw(self) -> None:
        self.frozen, held, self._held = False, self._held, b""
        if held:
            self.send(held)

    def end(self) -> None:
        self._bytes.put_nowait(b"")

    def cut(self) -> None:
        self._bytes.put_nowait(NoAnswer("http://model broke the connection off", reached=True))

    async def read(self, silence_secs: float) -> bytes:
        try:
            async with asyncio.timeout(silence_secs):
                found = await self._bytes.get()
        except TimeoutError:
            raise NoAnswer(f"http://model was silent for {silence_secs:g} s", reached=True) from None
        if isinstance(found, DiscoveryError):
            raise found
        return found


class Model:
    """The service, and whatever is on the way to it."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.complete = True
        self.asked: list[tuple[float, str, dict[str, str]]] = []
        self.streams: list[ModelStream] = []
        self.stream_failure: DiscoveryError | None = None
        self.streams_are_mute = False
        self.streams_live_secs: float | None = None
        self.plain_failure: DiscoveryError | None = None
        self.plain_hangs = False
        self.plain_hangs_secs = float("inf")
        self.plain_takes_secs = 0.0
        """How long an answer is on its way: it is made when it is asked for."""
        self.answer: Answer | None = None
        self.lagging: bytes | None = None
        """A replica whose list this is answers all plain requests but the first one on a new connection."""
        self._led_to = 0
        self.balanced: list[Answer | None] = [None]
        """Replicas, one of which answers from each renewal on; None is this one, which has all streams."""
        self._chosen: Answer | None = None
        self.strips_prefer = False
        self.waits_live_secs = float("inf")
        self.moved_on = self.renewed = 0
        self._changed = asyncio.Event()

    # ---- the service

    def body(self) -> str:
        pools = [listing(name, model=model) for name, model in sorted(self.names.items())]
        return json.dumps({"complete": self.complete, "pools": pools})

    @property
    def token(self) -> str:
        return hashlib.sha256(self.body().encode()).hexdigest()[:16]

    def put(self, name: str, model: str = "m") -> None:
        self.names[name] = model
        self._tell(frame("put", listing(name, model=model), self.token))

    def drop(self, name: str) -> None:
        del self.names[name]
        key = {"cluster_id": "c1", "namespace": "n1", "dgd_name": name}
        self._tell(frame("delete", key, self.token))

    def say_complete(self, complete: bool) -> None:
        self.complete = complete
        self._tell(frame("complete", {"complete": complete}, self.token))

    def _tell(self, data: bytes) -> None:
        for stream in self.streams:
            if stream.open:
                stream.send(data)
        self._changed.set()
        self._changed = asyncio.Event()

    def restart(self) -> None:
        """All streams end, as when the replica shuts down."""
        for stream in self.streams:
            stream.end()

    def asked_for(self, kind: str) -> list[float]:
        return [at for at, what, _ in self.asked if what == kind]

    # ---- how it is reached

    def _note(self, kind: str, request: Request) -> None:
        headers = dict(request.headers)
        self.asked.append((asyncio.get_running_loop().time(), kind, headers))

    async def request(
        self, request: Request, *, deadline_secs: float, coming: Callable[[], None] = lambda: None
    ) -> Answer:
        prefer = re.fullmatch("wait=([0-9]+)", request.headers.get("Prefer", ""))
        self._note("wait" if prefer else "look", request)
        if self.plain_hangs:
            await asyncio.sleep(min(deadline_secs, self.plain_hangs_secs))
            raise NoAnswer("http://model did not answer in time", reached=True)
        if self.plain_failure is not None:
            raise self.plain_failure
        known = request.headers.get("If-None-Match", "")
        if prefer and not self.strips_prefer:
            await self._wait(known, float(prefer[1]))
        answer = Answer(304, self.token, b"") if self.token in known else Answer(200, self.token, self.body().encode())
        if self.lagging is not None and self._led_to == self.renewed:
            answer = Answer(304, "lagging", b"") if "lagging" in known else Answer(200, "lagging", self.lagging)
        if self._led_to != self.renewed:
            self._chosen = random.choice(self.balanced)
        self._led_to = self.renewed
        if self._chosen is not None:
            answer = self._chosen if str(self._chosen.etag) not in known else Answer(304, self._chosen.etag, b"")
        answer = self.answer or answer
        coming()
        await asyncio.sleep(self.plain_takes_secs)
        return answer

    async def _wait(self, known: str, secs: float) -> None:
        try:
            async with asyncio.timeout(min(secs, self.waits_live_secs)):
                while self.token in known:
                    await self._changed.wait()
        except TimeoutError:
            if secs > self.waits_live_secs:
                raise NoAnswer("http://model broke the connection off", reached=True) from None

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[ModelStream]:
        self._note("stream", request)
        if self.stream_failure is not None:
            raise self.stream_failure
        stream = ModelStream(frozen=self.streams_are_mute)
        self.streams.append(stream)
        stream.send(b"retry: 1000\n\n")
        if request.headers.get("Last-Event-ID") != self.token:
            stream.send(frame("snapshot", json.loads(self.body()), self.token))
        loop = asyncio.get_running_loop()
        commenting = asyncio.create_task(self._comment(stream))
        cutting = loop.call_later(self.streams_live_secs, stream.cut) if self.streams_live_secs is not None else None
        try:
            yield stream
        finally:
            stream.open = False
            commenting.cancel()
            if cutting is not None:
                cutting.cancel()

    async def _comment(self, stream: ModelStream) -> None:
        while True:
            await asyncio.sleep(15)
            stream.send(b":\n\n")

    def renew(self) -> None:
        self.renewed += 1

    def move_on(self) -> None:
        self.moved_on += 1

    async def close(self) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        return


def no_stream() -> NoStream:
    return NoStream("http://model answered 200 but no stream of events")
