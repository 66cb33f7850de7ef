"""What is written to Redis: each write one script, sent by its hash, and by its source where the server forgot it.

A write that Redis confirmed is done, also where its announcement was refused: then the others see it by the revision.
"""

import itertools
import logging
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from discovery.logs import event
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.registrations import key_path
from discovery.stores import Deleted, Outcome
from discovery.stores.redis.link import Refused
from discovery.stores.redis.names import Names, bulk, revision_of
from discovery.stores.redis.scripts import DELETE, END_SETTLING, ESTABLISH, PUT, REPLACE_EPOCH, SETTLE, Script
from discovery.stores.redis.server import Server

log = logging.getLogger(__name__)

_encode_json = msgspec.json.Encoder().encode


class Writer:
    """Writes to one server. Every one raises ``Unavailable`` where it is not confirmed.

    ``on_written(epoch, revision, announced)`` is called with what each write was told.
    """

    def __init__(
        self,
        server: Server,
        names: Names,
        lease_secs: float,
        counters: Counters,
        on_written: Callable[[str, int, bool], None],
    ) -> None:
        self._server = server
        self._names = names
        self._lease_ms = round(lease_secs * 1000)
        self._counters = counters
        self._on_written = on_written
        self._unannounced = False
        self._told_epoch, self._told_epoch_text = b"", ""
        self._candidate = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count())  # never the same one twice
        # Nearly every command is a put: what they share is made once.
        self._put_prefix = PUT.prefix(4 + 5, 4)
        self._shared_keys = b"".join(bulk(name.encode()) for name in (names.revision, names.epoch, names.settling))
        self._channel = bulk(names.changes.encode())
        self._pools = names.pools.encode()
        self._lease = lease_secs, bulk(b"%d" % self._lease_ms)

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """See ``Store.put``."""
        command = self._put_command(key, value, lease_secs)
        (answer,) = await self._server.writes.call(command)
        if isinstance(answer, Refused):
            answer = await self._after_refusal(PUT, command, answer)
        status, found, told = answer[:3]
        revision, epoch = revision_of(found), self._epoch(told)
        if status and (answer[3] or self._unannounced):
            self._announced(answer[3])
        self._on_written(epoch, revision, status > 0)
        return Outcome(status == 1, status > 0, revision, epoch)

    def _put_command(self, key: PoolKey, value: bytes, lease_secs: float) -> bytes:
        path, candidate = key_path(key).encode(), next(self._candidate).encode()
        length, pools = len(path), self._pools
        known_secs, lease = self._lease
        if lease_secs != known_secs:
            lease = bulk(b"%d" % round(lease_secs * 1000))
        head = b"%b$%d\r\n%b%b\r\n%b$%d\r\n" % (
            (self._put_prefix, len(pools) + length, pools, path, self._shared_keys, len(value))
        )
        rest = b'\r\n%b$%d\r\n"%b"\r\n%b$%d\r\n%b\r\n' % (
            (lease, length + 2, path, self._channel, len(candidate), candidate)  # a path needs no escapes in JSON
        )
        return b"".join((head, value, rest))  # its value is most of it, and is copied once

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``."""
        path, names = key_path(key), self._names
        answer = await self._run(
            DELETE,
            DELETE.command(
                [names.pools + path, names.revision, names.epoch, names.settling],
                [
                    _encode_json(path),
                    names.changes,
                    next(self._candidate),
                    self._lease_ms,
                    "" if instance_id is None else "=" + instance_id,
                ],
            ),
        )
        if answer == 0:
            return None
        revision, epoch = revision_of(answer[0]), self._epoch(answer[1])
        self._announced(answer[2])
        self._on_written(epoch, revision, False)  # its announcement is followed as anybody's
        return Deleted(key, epoch, revision)

    def _epoch(self, told: bytes) -> str:
        """The epoch as text: one string for as long as it lasts, since every pool keeps it."""
        if told != self._told_epoch:
            self._told_epoch, self._told_epoch_text = told, told.decode(errors="replace")
        return self._told_epoch_text

    async def settle(self, reason: str, secs: float) -> None:
        """See ``Store.settle``."""
        await self._run(SETTLE, SETTLE.command([self._names.settling], [reason, round(secs * 1000)]))

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``."""
        await self._run(END_SETTLING, END_SETTLING.command([self._names.settling], [reason]))

    async def establish_epoch(self, reason: str) -> None:
        """Make the epoch where there is none, and settle for a lease."""
        await self._run(ESTABLISH, ESTABLISH.command(*self._epoch_change(reason)))

    async def replace_epoch(self, expected: str, reason: str) -> None:
        """Make another epoch and settle for a lease, unless somebody else replaced ``expected`` meanwhile."""
        keys, arguments = self._epoch_change(reason)
        await self._run(REPLACE_EPOCH, REPLACE_EPOCH.command(keys, [*arguments, expected]))

    def _epoch_change(self, reason: str) -> tuple[list[str], list[bytes | str | int]]:
        return [self._names.epoch, self._names.settling], [next(self._candidate), reason, self._lease_ms]

    async def _run(self, script: Script, command: bytes) -> Any:
        """The answer of a script, loaded when the server does not know it (any more)."""
        (answer,) = await self._server.writes.call(command)
        return await self._after_refusal(script, command, answer) if isinstance(answer, Refused) else answer

    async def _after_refusal(self, script: Script, command: bytes, answer: Any) -> Any:
        if str(answer).startswith("NOSCRIPT"):
            (answer,) = await self._server.writes.call(script.with_source(command))
        if isinstance(answer, Refused):
            raise self._server.refusal(answer, "item" if str(answer).startswith("WRONGTYPE") else "writes")
        return answer

    def _announced(self, refusal: bytes) -> None:
        if not refusal and not self._unannounced:
            return
        if refusal:
            self._counters.announcements_refused.inc()
        if bool(refusal) != self._unannounced:
            self._unannounced = bool(refusal)
            if refusal:
                event(
                    log,
                    logging.WARNING,
                    "store.refuses",
                    "Redis at %s takes writes but refuses to announce them, other replicas see them a second later: "
                    "%s; grant the right to the channel: ACL SETUSER … +publish &%s*",
                    self._server.address,
                    refusal.decode(errors="replace")[:200],
                    self._names.root,
                    store=str(self._server.address),
                    cause="publish",
                )
            else:
                at = self._server.address
                event(log, logging.INFO, "store.accepts", "Redis at %s announces writes again", at, store=str(at))
