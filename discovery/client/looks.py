"""Looks: plain, conditional requests for the list, whenever nothing has confirmed it for a moment.

They are what keeps a follower current whatever becomes of streams, which may be mute, cut, or half open without anybody
noticing. So a list is never older than a look and a half allow, and every way of being told at once (``channel``) needs
only be fast, not safe. Most are answered by 304.

How often, and why: a list should be current within two seconds of whatever the service or the network went through.
The next look comes 1.1 to 1.5 s after the last confirmation or failure, drawn by dice so that clients spread; one that
is not answered within a second has another beside it, on another connection, and at most three are under way. That also
bounds what a thousand clients ask of a service in an outage: each about once a second, and never more often, unless it
asked for more time by ``Retry-After``. ``follow`` has a knob for those who have very many clients.
"""

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from discovery.client.answers import NoAnswer
from discovery.client.kept import KeptList
from discovery.client.reach import Reach
from discovery.client.service import Request
from discovery.client.snapshot import Snapshot, read_pools
from discovery.errors import DiscoveryError, Unavailable

QUIET_SECS = 1.5
FIRST_SECS = 0.5
"""How long the first list of all may take to come by a stream before a look goes beside it."""
BESIDE_SECS = 1.0
BODY_SECS = 3.0
"""How long a look may go without an answer, or its answer without an end, before another goes beside it."""
AT_ONCE = 3
SLOW_SECS = 10.0
"""How long the oldest look under way may take."""
DEADLINE_SECS = 30.0
GAP_SECS = 0.5
"""Looks that are hurried are at least so far apart."""
GRACE_SECS = 0.25
"""How long a stream that seems to be alive has to tell by itself of what a look shows already."""
LONGEST_TRICKLE_SECS = 10.0
"""How long a list that is coming by a stream, slowly, holds looks back."""


class _UnderWay(NamedTuple):
    begun_at: float
    another_at: float


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
        self._draw()
        self._beside: str | None = None
        """The name of an incomplete list that was seen while a stream told of another: no need to see it again."""

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
        self._number += 1
        number, mark, token = self._number, self._kept.mark, self._kept.token
        names = [name for name in (token, self._beside if self._told() else None) if name is not None]
        headers = {"If-None-Match": ", ".join(f'W/"{name}"' for name in names)} if names else {}
        if wait_secs and token is not None:
            headers["Prefer"] = f"wait={wait_secs:.0f}"
        task, deadline_secs = asyncio.current_task(), wait_secs + DEADLINE_SECS
        answer = await self._reach.request(
            Request("GET", self._target, headers), deadline_secs=deadline_secs, begun=lambda: self._is_coming(task)
        )
        self.good_at = _now()
        if answer.status == 304:
            self._same(answer.etag, names, number, mark)
            return False
        given = _list_of(answer.body, answer.etag)
        await self._take(given, number, mark)
        return True

    def _same(self, named: str | None, names: list[str], number: int, mark: int) -> None:
        """304: nothing is other than what was named, which was first our own list."""
        if not names or (named is not None and named not in names):
            raise Unavailable("the answer was that a list has not changed that we do not have: is a cache on the way?")
        if named is not None and named != names[0] and self._told():
            self._kept.trust(_now())
        is_ours = names[0] == self._kept.token and (named == names[0] or (named is None and len(names) == 1))
        if is_ours and mark == self._kept.mark and number > self._concluded:
            self._concluded = number
            self._kept.confirm(_now())

    async def _take(self, given: Snapshot, number: int, mark: int) -> None:
        if self._is_old(number, mark):
            return
        if self._kept.is_already(given):
            self._concluded = number
            self._kept.confirm(_now())
            return
        if self._told():
            if not given.complete:  # it comes from a replica that lacks something, which that of the stream may not
                self._beside = given.etag
                self._kept.trust(_now())
                return
            await asyncio.sleep(GRACE_SECS)
            if self._is_old(number, mark):
                return
        self._concluded = number
        if self._kept.take_list(given, _now()):
            self._changed()
        self._overtook()

    def _is_old(self, number: int, mark: int) -> bool:
        """Whether something was taken, or answered, that was asked for later: then this may be older."""
        old = number < self._concluded or mark != self._kept.mark
        if old and not self._told():
            self.hurry()  # what the list is now is still to be found out
        return old

    def _kept_since(self) -> float:
        return max(self._kept.confirmed_at, self._quiet_from)

    def _due_at(self) -> float:
        quiet_until = max(self._kept_since() + self._patience, self._trickling_until)
        due = self._begun_at + GAP_SECS if self._hurried else quiet_until
        if self._under_way:
            due = max(due, max(look.another_at for look in self._under_way.values()))
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
        task = asyncio.create_task(self._look(), name="look at pools")
        self._under_way[task] = _UnderWay(self._begun_at, self._begun_at + BESIDE_SECS)
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
        if task in self._under_way:
            self._under_way[task] = self._under_way[task]._replace(another_at=_now() + BODY_SECS)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self._all.discard(task)
        self._wake.set()

    async def _look(self) -> None:
        try:
            await self.ask()
        except DiscoveryError as failure:
            asked = failure.retry_after_secs if isinstance(failure, Unavailable) else 0
            self._not_before = _now() + max(self._patience, asked * random.uniform(1.0, 1.25))  # noqa: S311
            self._heard(failure)
        else:
            self._quiet_from = _now()
            self._heard(None)

    def _draw(self) -> None:
        self._patience = self._quiet_secs * random.uniform(0.75, 1.0)  # noqa: S311 - spreads clients, hides nothing


def _list_of(body: bytes, etag: str | None) -> Snapshot:
    try:
        return read_pools(body, etag)
    except ValueError as error:
        raise Unavailable("the list of pools cannot be read: is it a discovery service?") from error


def _now() -> float:
    return asyncio.get_running_loop().time()
