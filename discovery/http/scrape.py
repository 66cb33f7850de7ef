"""``GET /sd/prometheus``: the frontends and relays of the list, for Prometheus' discovery of targets by HTTP.

Prometheus takes each 200 for the whole truth and forgets what it does not name; on an error it keeps what it has. So
what is not complete is an error here, unless it is asked for. The bytes are made once for each state of the list and
each query, in steps between which the loop turns. Knows no label: ``scrape_targets`` does.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from discovery.errors import Unavailable
from discovery.http.answers import Receive, Scope, Send, answer_as_is
from discovery.http.handlers import MIN_GZIP_BYTES, ListHeads, Service
from discovery.http.own_answers import SHORT_BYTES, OwnAnswers
from discovery.http.requests import TargetsAsked, header, tag_matches, takes_gzip, targets_asked
from discovery.http.status import STEP_SECS
from discovery.listing.scrape_targets import body, target_groups
from discovery.listing.selection import GZIP_INLINE_BYTES, Selection, squeezed
from discovery.model import Listing

KEPT = 16
KEPT_BYTES = 64 << 20
"""Of so many queries, and so many bytes, the answers are kept for the next reader."""


class ScrapeTargets:
    """``GET /sd/prometheus``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._one_at_a_time = asyncio.Lock()
        self._kept: OrderedDict[TargetsAsked, TargetList] = OrderedDict()
        self._heads = ListHeads()
        self._answers = OwnAnswers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The targets of the pools that are asked for, or 304."""
        asked = targets_asked(scope["query_string"])
        if not self._service.pools.ready:
            raise Unavailable(f"There is no list yet: {self._service.stage()[1]}.")
        selection = self._select(asked)
        self._check(asked, selection.complete)
        wanted = header(scope, b"if-none-match")
        if wanted is not None and tag_matches(wanted, selection.token):
            await answer_as_is(send, 304, self._heads.of(selection.token))
            return
        encoding = header(scope, b"accept-encoding")
        made = await self._list(asked).get(gzip=encoding is not None and takes_gzip(encoding))
        self._forget_idle()
        self._check(asked, made.complete)  # it may be a newer one
        headers = self._heads.of(made.token, len(made.body), gzip=made.is_gzip)
        if len(made.body) <= SHORT_BYTES:
            await answer_as_is(send, 200, headers, made.body)
        else:
            await self._answers.give_as_is(send, headers, made.body)

    def _select(self, asked: TargetsAsked) -> Selection[Listing]:
        return self._service.pools.select(asked.wanted, asked.wanted.matches)

    def _check(self, asked: TargetsAsked, complete: bool) -> None:
        if not complete and not asked.incomplete:
            raise Unavailable(
                f"Targets may be missing, so keep those that you have: {self._service.stage()[1]}. "
                "With incomplete=true you get what is known."
            )

    def _list(self, asked: TargetsAsked) -> "TargetList":
        # Both answers are the same bytes.
        key = asked._replace(incomplete=False)
        if key not in self._kept:
            self._kept[key] = TargetList(lambda: self._select(key), key.roles, self._one_at_a_time)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _forget_idle(self) -> None:
        size = 0
        for number, (key, kept) in enumerate(reversed(list(self._kept.items()))):
            size += kept.size
            if number >= KEPT or (number > 0 and size > KEPT_BYTES):
                del self._kept[key]


class Targets(NamedTuple):
    """The targets of one state of the list, as bytes."""

    token: str
    complete: bool
    body: bytes
    is_gzip: bool = False


class TargetList:
    """What one query is answered with: made by its first reader for all who ask while it is made, or until it changes.

    ``one_at_a_time`` is shared by all queries, so that a crowd of them holds no more than one that is not finished.
    """

    def __init__(
        self, select: Callable[[], Selection[Listing]], roles: tuple[str, ...], one_at_a_time: asyncio.Lock
    ) -> None:
        self._select = select
        self._roles = roles
        self._one_at_a_time = one_at_a_time
        self._begun = 0
        self._made_by = 0
        self._made: Targets | None = None
        self._gzip: Targets | None = None

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return sum(len(made.body) for made in (self._made, self._gzip) if made is not None)

    async def get(self, *, gzip: bool) -> Targets:
        """As the list is now, or was at a moment since this was called."""
        begun_before = self._begun
        async with self._one_at_a_time:
            selection = self._select()
            made = self._made
            if made is None or (made.token != selection.token and self._made_by <= begun_before):
                made = await self._make(selection)
            if not gzip or len(made.body) < MIN_GZIP_BYTES:
                return made
            if self._gzip is None:
                self._gzip = made._replace(body=await _squeezed(made.body), is_gzip=True)
            return self._gzip

    async def _make(self, selection: Selection[Listing]) -> Targets:
        self._begun += 1
        number, token, complete = self._begun, selection.token, selection.complete
        listings = [fragment.entry for fragment in selection.in_order()]
        groups = []
        loop = asyncio.get_running_loop()
        step_begun = loop.time()
        for listing in listings:
            groups.append(target_groups(listing, self._roles))
            if loop.time() - step_begun >= STEP_SECS:
                await asyncio.sleep(0)
                step_begun = loop.time()
        self._made, self._made_by, self._gzip = Targets(token, complete, body(groups)), number, None
        return self._made


async def _squeezed(plain: bytes) -> bytes:
    if len(plain) <= GZIP_INLINE_BYTES:
        return squeezed([plain])
    return await asyncio.get_running_loop().run_in_executor(None, squeezed, [plain])
