"""``GET /status``: what this replica is and does, and why pools are or are not listed, as far as that is asked.

Some of it takes long where thousands of pools are one-sided or asked about: it is made in steps, between which the
loop turns, and once for all who ask meanwhile. Knows neither the table of paths nor where explanations come from.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from discovery.http.answers import JSON, NO_CACHE, Receive, Scope, Send, encode_json
from discovery.http.handlers import Service
from discovery.http.own_answers import OwnAnswers
from discovery.http.requests import key_in_query, parameters_of
from discovery.listing.explain import Explanation
from discovery.model import PoolKey

STEP_SECS = 0.004
KEPT_FACTOR = 20
"""So many times what it took to make is the time for which one-sided pools are told again: at most 5 % of the loop."""


class Status:
    """``GET /status``; with ``?pool=`` it also says why those pools are or are not listed, ``*`` for all."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._answers = OwnAnswers()
        self._one_sided = MadeInSteps(service.one_sided, KEPT_FACTOR)
        self._everything = MadeInSteps(lambda: self._explained(None), 1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What this replica is and does."""
        asked = parameters_of(scope["query_string"], ("pool",)).get("pool")
        keys = () if asked is None or "*" in asked else tuple(key_in_query(path) for path in asked)
        one_sided = await self._one_sided.get()
        explained: object = None
        if asked is not None:
            explained = (
                await self._everything.get()
                if "*" in asked
                else [one for one in self._explained(keys) if one is not None]
            )
        # Last, so that what the replica says of itself is of one moment, and as new as the answer.
        status = self._service.status() | {"one_sided_pools": one_sided}
        if explained is not None:
            status["explained"] = explained
        await self._answers.give(send, [JSON, NO_CACHE], encode_json(status))

    def _explained(self, keys: Sequence[PoolKey] | None) -> Iterable[Explanation | None]:
        replica = self._service.replica
        return self._service.explain(keys, replica.incomplete(), replica.lease_left_secs)


class MadeInSteps:
    """A JSON array that takes long to make: never for long at once, and by one reader for all.

    ``make`` gives None where the loop may turn. ``kept_factor`` times what it took is how long it is given again.
    """

    def __init__(self, make: Callable[[], Iterable[Any]], kept_factor: float) -> None:
        self._make = make
        self._kept_factor = kept_factor
        self._lock = asyncio.Lock()
        self._made = msgspec.Raw(b"[]")
        self._kept_until = float("-inf")

    async def get(self) -> msgspec.Raw:
        """The array."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._kept_until:
                self._made, took = await self._made_anew(loop)
                self._kept_until = loop.time() + self._kept_factor * took
            return self._made

    async def _made_anew(self, loop: asyncio.AbstractEventLoop) -> tuple[msgspec.Raw, float]:
        pieces, took, begun = [], 0.0, loop.time()
        for one in self._make():
            if one is not None:
                pieces.append(encode_json(one))
            if (lasted := loop.time() - begun) >= STEP_SECS:
                took += lasted
                await asyncio.sleep(0)
                begun = loop.time()
        return msgspec.Raw(b"[%b]" % b",".join(pieces)), took + loop.time() - begun
