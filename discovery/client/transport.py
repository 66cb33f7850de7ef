"""HTTP towards the service: places tried in turn, deadlines on everything, and every failure as one of our errors.

Cookies, redirects and proxies from the environment are never followed: answers come from the URLs that were given, or
not at all. Knows nothing of pools; whether and when to try again is for the caller.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from discovery.client.answers import Answer, NoAnswer, NoStream, RejectedHere, judged
from discovery.client.broken import BROKEN, no_answer
from discovery.client.places import Place, Places
from discovery.client.race import Progress, Race, Stage
from discovery.client.service import STREAM_OPENS_SECS, Request, Service
from discovery.client.sessions import Kept, session_at
from discovery.errors import Unavailable

Result = TypeVar("Result")

CONNECT_SECS = 3.0
"""How long a connection may take, with its TLS handshake."""
STALL_SECS = 5.0
"""How long the body of an answer may stand still."""


class Stream:
    """An answer that does not end by itself, read as it comes."""

    def __init__(self, base: str, session: aiohttp.ClientSession, response: aiohttp.ClientResponse) -> None:
        self.base = base
        self._session = session
        self._response = response

    async def read(self, silence_secs: float) -> bytes:
        """The bytes that have come; empty at a clean end. Raises ``NoAnswer`` if broken off or silent for too long."""
        try:
            async with asyncio.timeout(silence_secs):
                return await self._response.content.readany()
        except TimeoutError as error:
            raise NoAnswer(f"{self.base} was silent for {silence_secs:g} s", reached=True) from error
        except BROKEN as error:
            raise no_answer(self.base, error) from error

    async def close(self) -> None:
        """End it, and its connection."""
        self._response.close()
        await self._session.close()


class Connections:
    """Connections for one use of the service, remembering at which place it answered last.

    Requests may use a kept connection; after a failure the next one uses a new one, which a balancer may hand to
    another replica. A stream always has a connection of its own: a kept one would lead back to the very replica that
    ended the stream before because it shuts down. ``address`` is the one to connect to of those that the URL's name
    has; whichever it is, Host and the name that TLS checks are the URL's.
    """

    def __init__(self, service: Service, *, address: str | None = None) -> None:
        self._service = service
        self._places = Places(service.urls, address)
        self._kept: dict[Place, Kept] = {}
        self._retired: list[Kept] = []
        self._closed = False

    async def request(
        self, request: Request, *, deadline_secs: float, coming: Callable[[], None] = lambda: None
    ) -> Answer:
        """The first answer that settles it, of one attempt per place, each within the deadline.

        ``coming`` is called whenever bytes of an answer have come. Raises ``Rejected`` for a 4xx, ``NoAnswer`` when
        nobody answered, ``Unavailable`` when only "not now" was heard.
        """

        async def attempt(progress: Progress) -> Answer:
            if waits:
                return await self._attempt(progress, request, deadline_secs, coming)
            with self._places.waiting_for(progress.place):
                return await self._attempt(progress, request, deadline_secs, coming)

        waits = "Prefer" in request.headers  # an answer that is late on purpose is no reason to ask another
        return await self._first(attempt, again=request.method == "GET" and not waits)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """An open stream of events from the first place that gives one; opening it raises as ``request`` does."""
        late: list[Stream] = []
        try:
            stream = await self._first(lambda progress: self._open(progress, request), again=True, discard=late.append)
        finally:
            for each in late:
                await each.close()
        try:
            yield stream
        finally:
            await stream.close()

    def renew(self) -> None:
        """Use no connection again that is open now: it may be a dead one."""
        for place in list(self._kept):
            self._retire(place)

    def _retire(self, place: Place) -> None:
        if kept := self._kept.pop(place, None):
            kept.retired = True
            self._retired.append(kept)

    def move_on(self) -> None:
        """Begin with the next place: this one has just sent us away."""
        self._places.move_on()

    async def close(self) -> None:
        """End every connection."""
        self._closed = True
        self.renew()
        retired, self._retired = self._retired, []
        await self._places.close()
        for each in retired:
            await each.session.close()

    async def _first(
        self,
        attempt: Callable[[Progress], Coroutine[Any, Any, Result]],
        *,
        again: bool,
        discard: Callable[[Result], None] = lambda _: None,
    ) -> Result:
        places, nameless = await self._places.in_turn()
        await self._end_what_is_not_used()
        race = Race(places, attempt, again=again, discard=discard)
        race.failures += [
            NoAnswer(f"cannot connect to {url}: the name cannot be resolved", reached=False) for url in nameless
        ]
        place, result = await race.run()
        self._places.prefer(place)
        return result

    async def _end_what_is_not_used(self) -> None:
        """The connections to places that are gone, and those that failed."""
        for place in [place for place in self._kept if place not in self._places]:
            self._retire(place)
        retired, self._retired = self._retired, []
        self._retired += [each for each in retired if not await each.end_if_unused()]

    async def _attempt(
        self, progress: Progress, request: Request, deadline_secs: float, coming: Callable[[], None]
    ) -> Answer:
        """One answer; a kept connection that turns out to have ended costs no failure, but is tried anew."""
        try:
            return await self._ask(progress, request, deadline_secs, coming)
        except NoAnswer as failure:
            self._retire(progress.place)
            self._places.failed()
            if not (failure.dropped and progress.kept):
                raise
        except (Unavailable, RejectedHere):
            self._retire(progress.place)
            raise
        return await self._ask(progress, request, deadline_secs, coming)

    async def _ask(
        self, progress: Progress, request: Request, deadline_secs: float, coming: Callable[[], None]
    ) -> Answer:
        place = progress.place
        if self._closed:
            raise RuntimeError("the client was closed while it was in use")
        limits = aiohttp.ClientTimeout(total=deadline_secs, sock_connect=min(CONNECT_SECS, deadline_secs))
        kept = self._kept.get(place) or self._kept.setdefault(place, Kept(place))
        async with kept.use() as session:
            response = await self._send(session, progress, request, limits)
            return await _read(place.name, response, coming)

    async def _open(self, progress: Progress, request: Request) -> Stream:
        if self._closed:
            raise RuntimeError("the client was closed while it was in use")
        session = session_at(progress.place, keep_alive=False)
        try:
            with self._places.waiting_for(progress.place):
                async with asyncio.timeout(STREAM_OPENS_SECS):
                    response = await self._opened(session, progress, request)
        except BaseException as error:
            await session.close()
            self._places.failed()
            if isinstance(error, TimeoutError):
                raise NoAnswer(f"{progress.place.name} did not answer in time", reached=True) from error
            raise
        return Stream(progress.place.name, session, response)

    async def _opened(
        self, session: aiohttp.ClientSession, progress: Progress, request: Request
    ) -> aiohttp.ClientResponse:
        wanted = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        forever = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECS)
        asked = request._replace(headers={**request.headers, **wanted})
        response, base = await self._send(session, progress, asked, forever), progress.place.name
        if response.status == 200:
            if response.content_type == "text/event-stream":
                return response
            response.close()
        else:
            await _read(base, response)
        raise NoStream(f"{base} answered {response.status} but no stream of events: is it a discovery service?")

    async def _send(
        self, session: aiohttp.ClientSession, progress: Progress, request: Request, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        url = progress.place.url
        try:
            response = await session.request(
                request.method,
                URL(url + request.target, encoded=True),
                headers={**request.headers, **self._service.authorization()},
                data=request.body,
                timeout=limits,
                allow_redirects=False,
                ssl=self._service.trust.context(),
                trace_request_ctx=progress,
            )
        except BROKEN as error:
            raise no_answer(progress.place.name, error) from error
        progress.reach(Stage.ANSWERED)
        return response


async def _read(base: str, response: aiohttp.ClientResponse, coming: Callable[[], None] = lambda: None) -> Answer:
    pieces = []
    try:
        async with response:
            coming()
            while piece := await asyncio.wait_for(response.content.readany(), STALL_SECS):
                pieces.append(piece)
                coming()
    except BROKEN as error:
        raise no_answer(base, error) from error
    return judged(base, response.status, response.headers, b"".join(pieces))
