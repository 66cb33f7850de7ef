"""Looks: plain, conditional requests for the list, whenever nothing has confirmed it for a moment.

They are what keeps a follower current whatever becomes of streams, which may be mute, cut, or half open without anybody
noticing. So a list is never older than a look and a half allow, and every way of being told at once (``channel``) needs
only be fast, not safe. Most are answered by 304.

How often, and why: a list should be current within two seconds of whatever the service or the network went through.
The next look comes 0.9 to 1.25 s after the last confirmation or failure, drawn by dice so that clients spread. One that
is not answered in four times the usual time has another beside it, on a new connection, since the one before may be
dead without anybody knowing; further ones follow a second apart, and at most three are under way. That also bounds what
a thousand clients ask of a service in an outage: each about once a second, unless it asked for more time, up to 5 s, by
``Retry-After``. A 304 takes some 45 microseconds of the service's processor, a thousand idle followers 4 % of a core.
``follow`` has a knob for those who have very many.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import NamedTuple

from discovery.client.answers import NoAnswer, one_line
from discovery.client.dissent import Dissent
from discovery.client.kept import KeptList
from discovery.client.reach import Reach
from discovery.client.service import Request
from discovery.client.snapshot import Snapshot, read_pools
from discovery.errors import DiscoveryError, Unavailable
from discovery.logs import event

QUIET_SECS = 1.25
FIRST_SECS = 0.5
"""How long the first list of all may take to come by a stream before a look goes beside it."""
BESIDE_SECS = 1.0
"""How long looks that have another beside them may go without an answer before a further one goes."""
FIRST_BESIDE_SECS = (0.35, 0.65)
"""How long one alone may: what is usual decides between these. Connections that all die at once leave a look without an
answer, and the next one, on a new connection, still has to come within two seconds of the last confirmation."""
USUAL_SECS = 0.1
GAP_IN_BODY_SECS = 0.7
"""How long an answer that has begun may stand still."""
AT_ONCE = 3
SLOW_SECS = 10.0
"""How long the oldest look under way may take."""
DEADLINE_SECS = 30.0
SETTLING_SECS = 1.3
"""How long after its last event a stream is not doubted: other replicas may be behind it for a second."""
GAP_SECS = 0.5
"""Looks that follow from one another are at least so far apart."""
GRACE_SECS = 0.25
"""How long a stream that seems to be alive has to tell by itself of what a look shows already."""
LONGEST_ASKED_SECS = 5.0
"""The service asks for a second or two by ``Retry-After``; what asks for more is a page of something on the way."""
LONGEST_TRICKLE_SECS = 10.0
"""How long a list that is coming by a stream, slowly, holds looks back."""


logger = logging.getLogger(__name__)


class _Opinion(NamedTuple):
    """The list as the service says it is, None where that is ours; and what was known when it was asked."""

    number: int
    asked_at: float
    mark: int
    given: Snapshot | None


class _UnderWay(NamedTuple):
    begun_at: float
    another_at: float
    has_begun: bool


class Looks:
    """Looks at one list, from when it runs until it is cancelled.

    ``told`` says whether a stream seems to be alive and would tell of changes by itself. ``overtook`` is called when a
    list was taken that no stream told of, ``changed`` where readers see a change, and ``heard`` after each look with
    what was wrong with its answer, or None.
    """

    def __init__(
        self,
        reach: Reach,
        target: str,
        kept: KeptList,
        *,
        quiet_secs: float,
        told: Callable[[], bool],
        overtook: Callable[[], None],
        changed: Callable[[], None],
        heard: Callable[[DiscoveryError | None], None],
    ) -> None:
        self.good_at = float("-inf")
        """When a look was last answered well."""
        self._reach = reach
        self._target = target
        self._kept = kept
        self._quiet_secs = quiet_secs
        self._told = told
        self._overtook = overtook
        self._changed = changed
        self._heard = heard
        self._under_way: dict[asyncio.Task[None], _UnderWay] = {}
        self._all: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._number = self._concluded = 0
        self._not_before = self._quiet_from = self._begun_at = float("-inf")
        self._trickling_until = float("-inf")
        self._hurried = False
        self._usual_secs = USUAL_SECS
        self._dissent = Dissent()
        self._draw()

    @property
    def replicas_differ(self) -> bool:
        """Whether a list was overruled not long ago."""
        return bool(self._dissent)

    async def run(self) -> None:
        """Look whenever it is due."""
        self._quiet_from = _now() + FIRST_SECS - self._patience
        try:
            while True:
                if (wait := self._due_at() - _now()) > 0:
                    await self._sleep(wait)
                else:
                    self._begin()
        finally:
            for task in self._all:
                task.cancel()
            await asyncio.gather(*self._all, return_exceptions=True)

    def hurry(self) -> None:
        """Something is wrong: look now, if not just done."""
        self._hurried = True
        self._wake.set()

    def trickling(self) -> None:
        """Bytes of a list are coming by a stream: one look later is early enough, up to a limit."""
        self._trickling_until = min(_now() + self._patience, self._kept_since() + LONGEST_TRICKLE_SECS)

    async def ask(self, wait_secs: float = 0.0) -> bool:
        """One request for the list, and what follows from its answer; with ``wait_secs`` a long poll.

        Whether the answer was another list than ours. Raises as ``Reach.request``, also for what is no list.
        """
        opinion = await self._opinion(wait_secs)
        if opinion.given is None:
            return False
        await self._take(opinion)
        return True

    async def _opinion(self, wait_secs: float = 0.0) -> _Opinion:
        """What the service says; where that is that our list has not changed, it is confirmed."""
        self._number += 1
        number, asked_at, mark, token = self._number, _now(), self._kept.mark, self._kept.token
        names = [token, *(self._dissent.aside(_now()) if self._told() else [])] if token is not None else []
        headers = {"If-None-Match": ", ".join(f'W/"{name}"' for name in names)} if names else {}
        if wait_secs and names:
            headers["Prefer"] = f"wait={wait_secs:.0f}"
        task, deadline_secs = asyncio.current_task(), wait_secs + DEADLINE_SECS
        answer = await self._reach.request(
            Request("GET", self._target, headers), deadline_secs=deadline_secs, coming=lambda: self._is_coming(task)
        )
        self.good_at = _now()
        if answer.status == 304:
            opinion = _Opinion(number, asked_at, mark, None)
            self._same(answer.etag, names, opinion)
            return opinion
        return _Opinion(number, asked_at, mark, _list_of(answer.body, answer.etag))

    def _same(self, named: str | None, names: list[str], opinion: _Opinion) -> None:
        """304: nothing is other than what was named, which was first our own list."""
        if not names or (named is not None and named not in names):
            raise Unavailable("the answer was that a list has not changed that we do not have: is a cache on the way?")
        if named is not None and named != names[0]:
            self._kept.trust(_now())
            self._quiet_from = _now()
            return
        is_ours = names[0] == self._kept.token and (named is not None or len(names) == 1)
        if is_ours and opinion.mark == self._kept.mark and opinion.number > self._concluded:
            self._confirm(opinion)

    async def _take(self, opinion: _Opinion) -> None:
        if self._told() and not self._is_old(opinion) and not self._agrees(opinion):
            await asyncio.sleep(GRACE_SECS)  # the stream may tell of it right now
            if opinion.given is not None and not self._is_old(opinion):
                opinion = await self._other_opinions(opinion)
        if opinion.given is None or self._is_old(opinion):
            return
        self._concluded = opinion.number
        if self._agrees(opinion):
            self._confirm(opinion)
            return
        changed = self._kept.take_list(opinion.given, _now())
        self._kept.settle(opinion.asked_at)  # only now: what it lacks is merged as it was told
        if changed:
            self._changed()
        self._overtook()

    def _confirm(self, opinion: _Opinion) -> None:
        self._concluded = opinion.number
        self._kept.confirm(_now())
        self._kept.settle(opinion.asked_at)

    def _agrees(self, opinion: _Opinion) -> bool:
        return opinion.given is None or self._kept.is_already(opinion.given)

    async def _other_opinions(self, opinion: _Opinion) -> _Opinion:
        """Of a list other than what a stream tells: it may come from a replica that lags, and the stream's may not."""
        name = opinion.given.etag if opinion.given is not None else None
        for _ in range(self._dissent.opinions(name)):
            self._reach.renew()
            opinion = await self._opinion()
            if opinion.given is None:
                if name is not None and self._dissent.overrule(name, _now()):
                    text = "replicas give different lists of pools: ask discovery doctor --all-replicas"
                    event(logger, logging.WARNING, "stream.dissent", text)
                break
        return opinion

    def _is_old(self, opinion: _Opinion) -> bool:
        """Whether something was taken, or answered, that was asked for later: then this may be older."""
        old = opinion.number < self._concluded or opinion.mark != self._kept.mark
        if old and not self._told():
            self.hurry()  # what the list is now is still to be found out
        return old

    def _kept_since(self) -> float:
        return max(self._kept.confirmed_at, self._quiet_from)

    def _due_at(self) -> float:
        quiet_until = max(self._kept_since() + self._patience, self._trickling_until)
        if self._told():
            quiet_until = max(quiet_until, self._kept.told_at + SETTLING_SECS)
        due = self._begun_at if self._hurried else quiet_until
        if self._under_way:
            due = max(due, max(look.another_at for look in self._under_way.values()))
        else:
            due = max(due, self._begun_at + GAP_SECS)
        return max(due, self._not_before)

    async def _sleep(self, wait: float) -> None:
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _begin(self) -> None:
        self._hurried = False
        self._begun_at = _now()
        self._draw()
        if len(self._under_way) >= AT_ONCE:
            self._give_one_up()
        if self._under_way:
            self._reach.renew()
        beside = BESIDE_SECS if self._under_way else _between(*FIRST_BESIDE_SECS, 4 * self._usual_secs)
        task = asyncio.create_task(self._look(), name="look at pools")
        self._under_way[task] = _UnderWay(self._begun_at, self._begun_at + beside, has_begun=False)
        self._all.add(task)
        task.add_done_callback(self._ended)

    def _give_one_up(self) -> None:
        """Not the oldest, until it has had its time: a service may be slow, and all would be given up before it."""
        oldest, second, *_ = self._under_way
        overdue = oldest if _now() - self._under_way[oldest].begun_at > SLOW_SECS else second
        lasted = _now() - self._under_way.pop(overdue).begun_at
        overdue.cancel()
        self._heard(NoAnswer(f"the service did not answer within {lasted:.1f} s", reached=True))

    def _is_coming(self, task: asyncio.Task[None] | None) -> None:
        if task is None or (look := self._under_way.get(task)) is None:
            return
        if not look.has_begun:
            self._usual_secs += 0.3 * (_now() - look.begun_at - self._usual_secs)
        self._under_way[task] = _UnderWay(look.begun_at, _now() + GAP_IN_BODY_SECS, has_begun=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self._all.discard(task)
        self._wake.set()

    async def _look(self) -> None:
        begun_at = _now()
        try:
            await self.ask()
        except DiscoveryError as failure:
            self._failed(failure, begun_at)
        except Exception as error:  # looks must outlive whatever one answer brings
            logger.exception("a look at the pools failed in a way that was not foreseen")
            self._failed(Unavailable(f"asking for the pools failed: {one_line(str(error))}"), begun_at)
        else:
            self._heard(None)

    def _failed(self, failure: DiscoveryError, begun_at: float) -> None:
        """The next one may come so long after this one began, or after it was asked for more time."""
        asked = failure.retry_after_secs if isinstance(failure, Unavailable) else 0
        asked_secs = min(asked, LONGEST_ASKED_SECS) * random.uniform(1.0, 1.25)  # noqa: S311 - as below
        next_at = max(begun_at + min(self._patience, QUIET_SECS), _now() + asked_secs)
        self._not_before = max(self._not_before, next_at)
        self._heard(failure)

    def _draw(self) -> None:
        self._patience = self._quiet_secs * random.uniform(0.75, 1.0)  # noqa: S311 - spreads clients, hides nothing


def _between(least: float, most: float, secs: float) -> float:
    return max(least, min(secs, most))


def _list_of(body: bytes, etag: str | None) -> Snapshot:
    try:
        return read_pools(body, etag)
    except ValueError as error:
        raise Unavailable("the list of pools cannot be read: is it a discovery service?") from error


def _now() -> float:
    return asyncio.get_running_loop().time()
