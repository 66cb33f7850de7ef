"""Keeps one pool registered for as long as a block runs, then says that it is gone.

One request at a time: registrations follow each other, and the last one has ended before the pool is deregistered,
since one that arrives later would register it anew. How a server is reached is for ``transport``.
"""

import asyncio
import logging
import math
import random
from typing import Self

import msgspec

from discovery.backoff import Backoff
from discovery.client.answers import NoAnswer, one_line
from discovery.client.blocks import Blocks, not_twice
from discovery.client.reach import Reach
from discovery.client.service import Request, path_of, target
from discovery.errors import DiscoveryError, Misconfigured, Rejected, Unavailable
from discovery.logs import Fields, event
from discovery.model import Accepted, PoolKey, Registration

POST_SECS = 5.0
DELETE_SECS = 3.0
LAST_POST_SECS = 3.0
DEREGISTER_SECS = 6.0
FIRST_INTERVAL_SECS = 5.0
SHORTEST_INTERVAL_SECS = 0.05

logger = logging.getLogger(__name__)

_decode_accepted = msgspec.json.Decoder(Accepted).decode


class Heartbeat:
    """One registered pool, within an ``async with`` block.

    Entering makes one attempt per base URL. It raises ``Rejected``, with every fault, when the service refuses the
    registration; when nobody takes it now, the block runs all the same and the attempts go on. ``accepted`` is the last
    good answer, ``trouble`` why the newest attempt failed. Leaving the block deregisters the pool, within a deadline,
    unless ``keep_on_exit`` leaves it to its other relays. It never deregisters another ``instance_id`` than its own.
    """

    def __init__(
        self, reach: Reach, registration: Registration, *, keep_on_exit: bool = False, blocks: Blocks | None = None
    ) -> None:
        self._blocks = blocks
        check_encodable(registration)
        self.registration = registration
        self.accepted: Accepted | None = None
        self.trouble: DiscoveryError | None = None
        self._reach = reach
        self._keep_on_exit = keep_on_exit
        self._may_be_stored: set[str | None] = set()  # instance_id of what was sent and not replaced for certain
        self._failing_since: float | None = None
        self._confirmed_at = 0.0
        self._backoff = Backoff(0.5, FIRST_INTERVAL_SECS)
        self._attempted = asyncio.Event()
        self._settled: asyncio.Future[Accepted] | None = None
        self._hurry = asyncio.Event()
        self._ending = False
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        not_twice(self._task)
        if self._blocks is not None:
            self._blocks.enter(self._end, registers=self.registration.key)
        self._settled = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._beat(), name=f"heartbeat of {self.registration.key}")
        try:
            await self._attempted.wait()
            if isinstance(self.trouble, Rejected | Misconfigured):
                raise self.trouble
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def settled(self) -> Accepted:
        """Wait for the first answer that settles it; raises ``Rejected`` where that is a refusal."""
        if self._settled is None:
            raise RuntimeError("a heartbeat begins with its block")
        return await asyncio.shield(self._settled)

    def update(self, registration: Registration) -> None:
        """Say something else of the same pool from now on, beginning at once."""
        if self._ending:
            raise RuntimeError("the block of this registration has ended")
        if registration.key != self.registration.key:
            raise ValueError(f"{registration.key} is another pool than {self.registration.key}")
        check_encodable(registration)
        self.registration = registration
        self._hurry.set()

    async def _beat(self) -> None:
        while not self._ending:
            self._hurry.clear()
            next_at = await self._attempt()
            self._attempted.set()
            await self._pause(next_at)

    async def _pause(self, until: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until - _now())):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _attempt(self) -> float:
        """One attempt per base URL; answers when the next one is due."""
        started = _now()
        try:
            self._succeeded(await self._post())
        except Unavailable as error:
            self._failed(error)
            return _now() + self._wait_after(error)
        except DiscoveryError as error:
            self._failed(error)
        except Exception as error:  # the task must outlive whatever one answer brings
            logger.exception("a heartbeat of %s failed in a way that was not foreseen", self.registration.key)
            self._failed(Unavailable(one_line(str(error))))
        return started + self._interval()

    async def _post(self) -> Accepted:
        sent = self.registration
        request = Request("POST", path_of("pools"), {"Content-Type": "application/json"}, msgspec.json.encode(sent))
        before = self._may_be_stored
        self._may_be_stored = before | {sent.instance_id}
        try:
            answer = await self._reach.request(request, deadline_secs=self._deadline_secs())
        except (Rejected, NoAnswer) as error:
            if isinstance(error, Rejected) or not error.reached:
                self._may_be_stored = before
            raise
        try:
            accepted = _decode_accepted(answer.body)
        except ValueError as error:
            raise Unavailable("the answer to a registration cannot be read: is it a discovery service?") from error
        self._may_be_stored = {sent.instance_id}
        return accepted

    def _succeeded(self, accepted: Accepted) -> None:
        before, self.accepted, self.trouble = self.accepted, accepted, None
        key, lease, now = self.registration.key, accepted.lease_duration_secs, _now()
        if before is None:
            text = "registered %s: lease %g s, heartbeat every %g s"
            interval = self._nominal_interval()
            event(logger, logging.INFO, "heartbeat.registered", text, key, lease, interval, pool=str(key))
        elif self._failing_since is not None:
            text, lasted = "regained %s after %.1f s without an answer", now - self._failing_since
            fields: Fields = {"pool": str(key), "lasted_secs": round(lasted, 3)}
            event(logger, logging.INFO, "heartbeat.regained", text, key, lasted, **fields)
        elif accepted.created:
            text = "registered %s again: the service no longer had it"
            event(logger, logging.WARNING, "heartbeat.registered", text, key, pool=str(key))
        self._failing_since = None
        self._confirmed_at = now
        self._backoff = Backoff(min(0.5, self._nominal_interval()), self._nominal_interval())
        if self._settled and not self._settled.done():
            self._settled.set_result(accepted)

    def _failed(self, error: DiscoveryError) -> None:
        first = self._failing_since is None
        other_kind = isinstance(error, Rejected) != isinstance(self.trouble, Rejected)
        self.trouble = error
        if isinstance(error, Rejected) and self._settled and not self._settled.done():
            self._settled.set_exception(error)
            self._settled.exception()  # nobody has to ask for it
        if self._failing_since is None:
            self._failing_since = _now()
        if first or other_kind:
            faults = error.faults if isinstance(error, Rejected) else ()
            text = "; ".join([str(error), *(f"{fault.path}: {fault.message}" for fault in faults)])
            what, pool = "lost" if self.accepted else "cannot register", str(self.registration.key)
            line = "%s %s, trying again: %s"
            event(logger, logging.WARNING, "heartbeat.lost", line, what, self._where(), text, pool=pool, cause=text)

    def _where(self) -> str:
        if self.accepted is None:
            return str(self.registration.key)
        left = self._confirmed_at + self.accepted.lease_duration_secs - _now()
        return f"{self.registration.key} (its lease ends in {max(0.0, left):.0f} s)"

    def _nominal_interval(self) -> float:
        """What the service asked for, and never so long that a lease could end in between."""
        if self.accepted is None:
            return FIRST_INTERVAL_SECS
        interval, lease = float(self.accepted.heartbeat_interval_secs), float(self.accepted.lease_duration_secs)
        if not (math.isfinite(interval) and 0 < interval < lease):
            interval = lease / 3
        return max(interval, SHORTEST_INTERVAL_SECS)

    def _interval(self) -> float:
        return self._nominal_interval() * random.uniform(0.8, 1.0)  # noqa: S311 - spreads clients, hides nothing

    def _deadline_secs(self) -> float:
        """Short enough that a server which does not answer leaves time to try another within the lease."""
        return min(max(self.accepted.lease_duration_secs / 5, 1.0), 20.0) if self.accepted else POST_SECS

    def _wait_after(self, error: Unavailable) -> float:
        """As long as was asked for, but no longer than a heartbeat may wait: a page of a proxy may ask for minutes."""
        asked = min(error.retry_after_secs * random.uniform(1.0, 1.25), self._nominal_interval())  # noqa: S311
        return max(asked, self._backoff.next())

    async def _end(self) -> None:
        """Leave the block. Who is cancelled in that waits no longer; what was begun goes on, within its deadlines."""
        self._ending = True
        self._hurry.set()
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(), name=f"leaving {self.registration.key}")
        await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        """No registration from here on; then the pool is deregistered, if it may be there at all."""
        try:
            await self._end_task()
            if self._may_be_stored and not self._keep_on_exit:
                await self._deregister()
        finally:
            if self._blocks is not None:
                self._blocks.leave(self._end)
            await self._reach.close()

    async def _end_task(self) -> None:
        task = self._task
        if task is None:
            return
        try:
            await asyncio.wait([task], timeout=LAST_POST_SECS)
        finally:
            task.cancel()
        await asyncio.wait([task])

    async def _deregister(self) -> None:
        key = self.registration.key
        try:
            async with asyncio.timeout(DEREGISTER_SECS):
                await self._delete_until_taken()
        except (DiscoveryError, TimeoutError) as error:
            self._say_left_over(str(error) or str(self.trouble))
        except asyncio.CancelledError:
            self._say_left_over("the program ended first")
            raise
        else:
            event(logger, logging.INFO, "heartbeat.deregistered", "deregistered %s", key, pool=str(key))

    def _say_left_over(self, reason: str) -> None:
        key, text = self.registration.key, "%s was not deregistered, it stays until its lease ends: %s"
        event(logger, logging.WARNING, "heartbeat.left_over", text, key, reason, pool=str(key), cause=reason)

    async def _delete_until_taken(self) -> None:
        backoff = Backoff(0.2, 2.0)
        while self._may_be_stored:
            instance_id = next(iter(self._may_be_stored))
            try:
                await delete(self._reach, self.registration.key, instance_id)
                self._may_be_stored.discard(instance_id)
            except Unavailable as error:
                self.trouble = error
                asked = min(error.retry_after_secs, DEREGISTER_SECS / 4)
                await asyncio.sleep(max(asked, backoff.next()))


def check_encodable(registration: Registration) -> None:
    """Raise ``TypeError`` for what cannot be sent at all, before it is tried for ever."""
    if not isinstance(registration, Registration):
        raise TypeError(f"what is registered is a Registration, not {type(registration).__name__}")
    try:
        msgspec.json.encode(registration)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"the registration cannot be written as JSON: {one_line(str(error))}") from error


async def delete(reach: Reach, key: PoolKey, instance_id: str | None) -> None:
    """Ask for a pool's removal, of whatever instance or of one alone; raises as ``Reach.request``."""
    query = [("instance_id", instance_id)] if instance_id is not None else []
    request = Request("DELETE", target(path_of("pools", *key), query))
    await reach.request(request, deadline_secs=DELETE_SECS)


def _now() -> float:
    return asyncio.get_running_loop().time()
