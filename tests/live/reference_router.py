"""A Global Router for requests in OpenAI's form, small enough to be read and whole enough to be run.

It follows the pools of a discovery service and passes each request on to a frontend of a pool that serves the model
which the request names. It stands alone: the standard library, aiohttp, msgspec and the client library.

    python reference_router.py --listen 127.0.0.1:9000 --url http://discovery-a:8080,http://discovery-b:8080

Which pool: smooth weighted round robin. A pool weighs what it states of one resource (``--weigh-by``), and 1 where it
states nothing of it; its frontends share that evenly. A frontend that took no connection goes last for some seconds.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from discovery.client import Client, Pools, Snapshot
from discovery.errors import DiscoveryError
from discovery.model import Listing, PoolKey

CONNECT_SECS = 2.0
SILENCE_SECS = 600.0
HEAVIEST = 1e9
"""Any finite number may be stated, and the sum of all has to be one."""
REST_SECS = 5.0
PAUSE_SECS = 1.0
LARGEST_BODY = 64 * 2**20
REPEATS = 2
"""How often what a frontend may have read is sent again: a request that breaks frontends shall not break them all."""

REPEATABLE = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
"""Asking twice costs computing time and changes nothing; not so where the answer is to be stored."""

HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"})
HOP_BY_HOP |= {"te", "trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect"}

logger = logging.getLogger("router")


# ---- which frontend


class Target(NamedTuple):
    """One frontend of one pool."""

    pool: PoolKey
    url: str


class Turns:
    """Smooth weighted round robin: at each turn everybody earns its weight, and the richest pays for all and goes."""

    def __init__(self) -> None:
        self._credit: dict[Target, float] = {}

    def next(self, weights: Mapping[Target, float]) -> Target:
        """The next one of these. Who is not among them keeps its credit until ``forget``."""
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1.0)
        for target, weight in weights.items():
            self._credit[target] = self._credit.get(target, 0.0) + weight
        chosen = max(weights, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(weights.values())
        return chosen

    def forget(self, others_than: Collection[Target]) -> None:
        """Who left and comes again begins anew."""
        self._credit = {target: credit for target, credit in self._credit.items() if target in others_than}


class Served:
    """One model: the pools that serve it, what their frontends weigh, and whose turn it is."""

    def __init__(self) -> None:
        self.pools: tuple[Listing, ...] = ()
        self.weights: dict[Target, float] = {}
        self.turns = Turns()

    def serve(self, pools: tuple[Listing, ...], weigh_by: str) -> None:
        """Take the pools as they are now."""
        self.pools = pools
        self.weights = {target: weight for pool in pools for target, weight in weights_of(pool, weigh_by).items()}
        self.turns.forget(self.weights)


class Choice:
    """The next frontend for a model, out of the pools that serve it at that moment."""

    def __init__(self, weigh_by: str) -> None:
        self._weigh_by = weigh_by
        self._models: dict[str, Served] = {}
        self._rests_until: dict[str, float] = {}

    def among(self, model: str, pools: tuple[Listing, ...], tried: Collection[Target]) -> Target | None:
        """One that was not tried yet, if there is one."""
        if not pools:
            self._models.pop(model, None)
            return None
        served = self._models.setdefault(model, Served())
        if served.pools is not pools:  # the list gives the same tuple until it changes
            served.serve(pools, self._weigh_by)
        left = without(served.weights, tried)
        awake = without(left, [target for target in left if self._rests(target.url)]) if self._rests_until else left
        return served.turns.next(awake or left) if left else None

    def let_rest(self, url: str) -> None:
        """It took no connection: others first, for a while."""
        now = time.monotonic()
        self._rests_until = {each: until for each, until in self._rests_until.items() if until > now}
        self._rests_until[url] = now + REST_SECS

    def _rests(self, url: str) -> bool:
        return self._rests_until.get(url, 0.0) > time.monotonic()


def weights_of(pool: Listing, weigh_by: str) -> dict[Target, float]:
    """What the pool states of that resource, or 1, in equal parts for its frontends."""
    stated = (float(each.quantity) for each in pool.capacity if each.resource == weigh_by)
    weight = min(next(stated, 1.0), HEAVIEST)
    return {Target(pool.key, url): weight / len(pool.frontends) for url in pool.frontends}


def without(weights: dict[Target, float], some: Collection[Target]) -> dict[Target, float]:
    """The rest."""
    return {target: weight for target, weight in weights.items() if target not in some} if some else weights


# ---- errors, as clients of OpenAI know them


class Refusal(Exception):
    """An answer of the router itself."""

    def __init__(
        self, status: int, code: str | None, message: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def answer(self) -> web.Response:
        """The same as a response."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return web.json_response({"error": error}, status=self.status, headers=self.headers)


@web.middleware
async def errors_in_openai_form(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Also for what aiohttp refuses: unknown paths, wrong methods, bodies that are too large."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return refusal.answer()
    except web.HTTPException as refused:
        answer = Refusal(refused.status, None, f"{request.method} {request.path}: {refused.reason}").answer()
        if "Allow" in refused.headers:
            answer.headers["Allow"] = refused.headers["Allow"]
        return answer


# ---- requests


class _Body(msgspec.Struct):
    """What the router reads of a body; all the rest is for the frontend."""

    model: str | None = None
    store: bool | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


class Asked(NamedTuple):
    """One request as it is sent on, to as many frontends as it takes."""

    id: str
    path: str
    headers: CIMultiDict[str]
    body: bytes
    model: str
    repeatable: bool


async def read(request: web.Request) -> Asked:
    """The whole request; raises ``Refusal`` where it names no model."""
    body = await request.read()
    try:
        known = _decode_body(body)
    except msgspec.ValidationError as error:
        raise Refusal(400, None, f"the body does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, None, "the body is no JSON") from error
    if not known.model:
        raise Refusal(400, "missing_required_parameter", "you must provide a model parameter", param="model")
    headers = end_to_end(request.headers)
    headers.popall("Content-Encoding", None)  # aiohttp has unpacked the body
    headers["Content-Length"] = str(len(body))
    request_id = headers.setdefault("X-Request-Id", uuid.uuid4().hex)
    repeatable = request.path in REPEATABLE and not known.store
    return Asked(request_id, request.raw_path, headers, body, known.model, repeatable)


def end_to_end(headers: "Mapping[str, str]") -> CIMultiDict[str]:
    """Without what concerns one connection alone."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    kept = [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP | named]
    return CIMultiDict(kept)


def may_repeat(asked: Asked, error: Exception) -> bool:
    """Whether to send it again though a frontend may have read it.

    One that is silent is still at it, and another would be as slow; one that answered nonsense did answer.
    """
    return asked.repeatable and not isinstance(error, TimeoutError | aiohttp.ClientResponseError)


class Attempt:
    """One request to one frontend; ``sent`` turns true with its first byte."""

    def __init__(self, body: bytes, is_listed: Callable[[], bool]) -> None:
        self.sent = False
        self._body = body
        self._is_listed = is_listed

    async def body(self) -> AsyncIterator[bytes]:
        """aiohttp asks for this once it is connected, and keeps the head back until then.

        So this is the last moment at which a pool that was deleted while the connection was made can be spared.
        """
        if not self._is_listed():
            raise LookupError("no longer listed")
        self.sent = True
        yield self._body


class Router:
    """Passes requests on. ``pools`` is the followed list, once there is one."""

    def __init__(self, weigh_by: str) -> None:
        self.pools: Pools | None = None
        self._choice = Choice(weigh_by)
        self._began = int(time.time())
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def open(self) -> None:
        """Begin to hold connections to frontends."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECS, sock_read=SILENCE_SECS)
        for repeatable in (True, False):
            # A kept connection may be closed by the frontend just when it is used; what cannot be repeated is not
            # trusted to one.
            self._sessions[repeatable] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=not repeatable),
                timeout=limits,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            )

    async def close(self) -> None:
        """End them."""
        for session in self._sessions.values():
            await session.close()

    def application(self) -> web.Application:
        """All routes."""
        application = web.Application(client_max_size=LARGEST_BODY, middlewares=[errors_in_openai_form])
        application.router.add_post("/v1/{path:.+}", self.pass_on)
        application.router.add_get("/v1/models", self.models)
        application.router.add_get("/v1/models/{model:.+}", self.model)
        application.router.add_get("/readyz", self.readyz)
        application.router.add_get("/status", self.status)
        return application

    def _snapshot(self) -> Snapshot:
        if self.pools is None:
            raise Refusal(503, "pools_unknown", "there is no list of pools yet", retry_after=1)
        return self.pools.snapshot

    # Where to

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """To one frontend after the other, until one begins to answer."""
        asked = await read(request)
        tried: set[Target] = set()
        repeats = 0
        while target := self._choice.among(asked.model, self._snapshot().pools_for(asked.model), tried):
            tried.add(target)
            attempt = Attempt(asked.body, partial(self._is_listed, asked.model, target))
            try:
                answer = await self._send(asked, target, attempt)
            except (aiohttp.ClientError, OSError) as error:
                self._failed(asked, target, attempt, error)
                repeats += attempt.sent
                if attempt.sent and (not may_repeat(asked, error) or repeats > REPEATS):
                    raise self._broken(error) from error
            else:
                return await pass_back(request, asked, answer)
        raise self._nobody(asked.model)

    def _is_listed(self, model: str, target: Target) -> bool:
        pools = self._snapshot().pools_for(model)
        return any(pool.key == target.pool and target.url in pool.frontends for pool in pools)

    async def _send(self, asked: Asked, target: Target, attempt: Attempt) -> aiohttp.ClientResponse:
        logger.debug("request %s goes to %s of %s", asked.id, target.url, target.pool)
        url = URL(target.url.rstrip("/") + asked.path, encoded=True)
        session = self._sessions[asked.repeatable]
        return await session.post(url, data=attempt.body(), headers=asked.headers, allow_redirects=False)

    def _failed(self, asked: Asked, target: Target, attempt: Attempt, error: Exception) -> None:
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            self._choice.let_rest(target.url)
        said = "broke off" if attempt.sent else "was sent nothing"
        logger.warning(
            "request %s: %s of %s %s: %s", asked.id, target.url, target.pool, said, str(error) or repr(error)
        )

    def _broken(self, error: Exception) -> Refusal:
        if isinstance(error, TimeoutError):
            return Refusal(504, "frontend_silent", f"the model's frontend was silent for {SILENCE_SECS:g} s")
        return Refusal(502, "frontend_failed", "the model's frontend broke off before it answered")

    def _nobody(self, model: str) -> Refusal:
        """What it means that no frontend is left depends on how much is known.

        A list is complete while the service says so, and no longer than some seconds after it last did.
        """
        snapshot = self._snapshot()
        if snapshot.pools_for(model):
            return Refusal(503, "no_frontend", f"no frontend of {model!r} answers now", retry_after=2)
        if snapshot.complete:
            return Refusal(404, "model_not_found", f"the model {model!r} does not exist", param="model")
        return Refusal(503, "pools_unknown", f"whether a pool serves {model!r} is not known now", retry_after=2)

    # What is there

    async def models(self, _: web.Request) -> web.Response:
        """The models of all pools. While the list is not complete there may be more."""
        models = sorted({pool.model for pool in self._snapshot().pools})
        return web.json_response({"object": "list", "data": [self._model(model) for model in models]})

    async def model(self, request: web.Request) -> web.Response:
        """One of them."""
        model = request.match_info["model"]
        if not self._snapshot().pools_for(model):
            raise self._nobody(model)
        return web.json_response(self._model(model))

    def _model(self, model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": self._began, "owned_by": "pool-discovery"}

    async def readyz(self, _: web.Request) -> web.Response:
        """Ready from the first list on, and for good: an old list is better than none."""
        self._snapshot()
        return web.Response(text="ready\n")

    async def status(self, _: web.Request) -> web.Response:
        """How good the list is: whoever watches the router watches these."""
        snapshot = self._snapshot()
        pools = [f"{pool.key}" for pool in snapshot.pools]
        trouble = self.pools.trouble if self.pools else None
        return web.json_response(
            {"complete": snapshot.complete, "age": round(snapshot.age, 1), "trouble": trouble, "pools": pools}
        )


async def pass_back(request: web.Request, asked: Asked, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """The answer as it is and as it comes; one that breaks off breaks off, so that nobody takes it for a whole one."""
    async with answer:
        headers = end_to_end(answer.headers)
        headers.setdefault("X-Request-Id", asked.id)
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        response.content_length = answer.content_length
        await response.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await response.write(piece)
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("request %s: the answer broke off: %s", asked.id, str(error) or repr(error))
            if request.transport is not None:
                request.transport.abort()
        return response


# ---- the list


async def follow(client: Client, router: Router) -> None:
    """Keep the router's list, from the first one that can be had; tell the log what comes and goes."""
    while True:
        try:
            async with client.follow() as pools:
                router.pools = pools
                await tell(pools)
        except DiscoveryError as error:
            logger.warning("there is no list of pools yet: %s", error)
            await asyncio.sleep(PAUSE_SECS)


async def tell(pools: Pools) -> None:
    """A line for each pool that comes or goes, and for each change of ``complete``."""
    listed: set[PoolKey] = set()
    complete: bool | None = None
    while True:
        snapshot = pools.snapshot
        now = {pool.key for pool in snapshot.pools}
        for key in sorted(now - listed):
            logger.info("pool %s is listed", key)
        for key in sorted(listed - now):
            logger.info("pool %s is gone", key)
        if snapshot.complete != complete:
            logger.info("the list is %s", "complete" if snapshot.complete else "not complete: pools may be missing")
        listed, complete = now, snapshot.complete
        if not await pools.changed():
            return


# ---- the program


@contextlib.asynccontextmanager
async def running(options: argparse.Namespace) -> AsyncIterator[Router]:
    """The router, listening until the block ends; then requests that have begun are answered, within the grace."""
    router = Router(options.weigh_by)
    # Whoever hangs up no longer wants the answer: its handler is cancelled, and with it what a frontend still computes.
    runner = web.AppRunner(
        router.application(), access_log=None, handler_cancellation=True, shutdown_timeout=options.grace_secs
    )
    async with Client(options.url.split(","), options.token_path) as client:
        following = asyncio.create_task(follow(client, router))
        try:
            await router.open()
            await runner.setup()
            host, _, port = options.listen.rpartition(":")
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
            yield router
        finally:
            await runner.cleanup()  # listens no more, and waits; the list is followed meanwhile
            await router.close()
            following.cancel()
            await asyncio.wait([following])


async def serve(options: argparse.Namespace) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(options):
        logger.info("listening on %s", options.listen)
        await stop.wait()
        logger.info("ending")
    logger.info("ended")


def flags() -> argparse.ArgumentParser:
    """What can be said on the command line."""
    found = argparse.ArgumentParser(description="Passes OpenAI-style requests on to the pools of a discovery service.")
    found.add_argument("--listen", default="127.0.0.1:9000", help="where clients connect to (default: %(default)s)")
    found.add_argument("--url", default="http://127.0.0.1:8080", help="the discovery service; several by commas")
    found.add_argument("--token-path", help="file with a token for the discovery service")
    found.add_argument("--weigh-by", default="nvidia.com/gpu", help="the resource that counts (default: %(default)s)")
    found.add_argument("--grace-secs", type=float, default=60.0, help="for the last answers (default: %(default)s)")
    found.add_argument("--verbose", action="store_true", help="a line of log for each request")
    return found


def main() -> None:
    """Read the flags and serve."""
    options = flags().parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logger.setLevel(logging.DEBUG if options.verbose else logging.INFO)
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
