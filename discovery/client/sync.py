"""The client for programs without an event loop: the same calls, each of which waits for what it gives.

    with Client(["http://discovery:8080"]) as client:
        snapshot = client.list(model="m")
        with client.follow(model="m") as pools:      # the list is there when the block starts
            pools.snapshot                           # always the current one
            for snapshot in pools: ...               # a new one at each change
        with client.register(registration): ...      # heartbeats until the block ends, then deregisters

A facade and nothing else: each call runs the one of ``discovery.client`` on an event loop in the background, so that
rules, errors and docs are those given there. A client and its blocks may be used by several threads. Within a running
event loop the calls work too, and hold that loop up while they wait. Ctrl-C ends what is waited for as it ends a
coroutine: what was begun is undone first. SIGTERM ends a Python program without that; a program that keeps pools
registered makes it an exception: ``signal.signal(signal.SIGTERM, lambda *_: sys.exit())``.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from discovery.client import Client as AsyncClient
from discovery.client import Heartbeat as AsyncHeartbeat
from discovery.client import Pools as AsyncPools
from discovery.client import Snapshot
from discovery.client.background import Background, Block, Closed
from discovery.client.trust import File
from discovery.errors import DiscoveryError
from discovery.model import Accepted, Registration

__all__ = ["Client", "Closed", "Heartbeat", "Pools"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
AsyncBlock = TypeVar("AsyncBlock", bound=Block)
SyncBlock = TypeVar("SyncBlock")


class _Block(Generic[AsyncBlock]):
    """A block of the asynchronous client, for ``with``."""

    def __init__(self, background: Background, block: AsyncBlock) -> None:
        self._background = background
        self._block = block

    def __enter__(self) -> Self:
        self._background.enter(self._entered())
        return self

    def __exit__(self, *_: object) -> None:
        self._background.leave(self._entered())

    def _entered(self) -> Block:
        return self._block


class _Newest:
    """The newest snapshot of a block, to be read by any thread without a word to the loop."""

    def __init__(self, pools: AsyncPools) -> None:
        self.shown: tuple[Snapshot, int] | None = None
        self._pools = pools
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        await self._pools.__aenter__()
        self.shown = self._pools.snapshot, self._pools.version
        self._task = asyncio.create_task(self._show(self._pools.version), name="newest snapshot")

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._pools.__aexit__(None, None, None)
        finally:
            self.shown = None
            if self._task is not None:
                self._task.cancel()

    async def _show(self, version: int) -> None:
        while await self._pools.changed(version):
            version = self._pools.version
            self.shown = self._pools.snapshot, version


class Pools(_Block[AsyncPools]):
    """``discovery.client.Pools`` for ``with``: the pools as they are now. What it says of tasks is true of threads.

    When the block ends, or the client is closed, iterations end and ``changed`` gives false.
    """

    def __init__(self, background: Background, block: AsyncPools) -> None:
        super().__init__(background, block)
        self._newest = _Newest(block)
        self._seen = threading.local()

    def _entered(self) -> Block:
        return self._newest

    def __iter__(self) -> Iterator[Snapshot]:
        changes = aiter(self._block)

        async def following() -> Snapshot | None:
            return await anext(changes, None)

        with suppress(Closed):
            while (snapshot := self._background.run(following)) is not None:
                yield snapshot

    @property
    def snapshot(self) -> Snapshot:
        """The list as it is now, within the block. Reading it waits for nothing: it may be read for every request."""
        if (shown := self._newest.shown) is None:
            raise Closed
        snapshot, self._seen.version = shown
        age = time.monotonic() - self._block._kept.confirmed_at  # by the clock of the loop, and one word to read
        return Snapshot(snapshot.complete, snapshot.pools, snapshot.etag, age)

    @property
    def trouble(self) -> str | None:
        """Why the list cannot be kept current just now, if so."""
        return self._block.trouble

    @property
    def step(self) -> str:
        """By which way changes are heard of: ``stream``, ``long poll``, or ``poll`` where both are broken."""
        return self._block.step

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._block.version

    def changed(self, since: int | None = None, *, timeout_secs: float | None = None) -> bool:
        """Wait for a change that this thread has not seen, or with ``since`` for another ``version`` than that.

        False when the block has ended. Raises ``TimeoutError`` when there was none for ``timeout_secs``.
        """
        known = getattr(self._seen, "version", None) if since is None else since

        async def waiting() -> tuple[bool, int]:
            async with asyncio.timeout(timeout_secs):
                return await self._block.changed(known), self._block.version

        try:
            changed, version = self._background.run(waiting)
        except Closed:
            return False
        if changed:
            self._seen.version = version
        return changed


class Heartbeat(_Block[AsyncHeartbeat]):
    """``discovery.client.Heartbeat`` for ``with``: registered while the block runs, deregistered when it ends."""

    @property
    def registration(self) -> Registration:
        """What is said of the pool."""
        return self._block.registration

    @property
    def accepted(self) -> Accepted | None:
        """The last good answer."""
        return self._block.accepted

    @property
    def trouble(self) -> DiscoveryError | None:
        """Why the newest attempt failed, if it did."""
        return self._block.trouble

    def settled(self, timeout_secs: float | None = None) -> Accepted:
        """Wait for the first answer that settles it; raises ``Rejected`` for a refusal, and ``TimeoutError``."""

        async def waiting() -> Accepted:
            async with asyncio.timeout(timeout_secs):
                return await self._block.settled()

        return self._background.run(waiting)

    def update(self, registration: Registration) -> None:
        """Say something else of the same pool from now on, beginning at once."""

        async def saying() -> None:
            self._block.update(registration)

        self._background.run(saying)


def _waiting(
    method: Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate["Client", Arguments], Result]:
    """The same call, which waits for its result."""

    def call(client: "Client", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return client._background.run(lambda: method(client._client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _opening(
    method: Callable[Concatenate[AsyncClient, Arguments], AsyncBlock],
    facade: Callable[[Background, AsyncBlock], SyncBlock],
    doc: str,
) -> Callable[Concatenate["Client", Arguments], SyncBlock]:
    """The same call, whose block is one for ``with``."""

    def call(client: "Client", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> SyncBlock:
        return facade(client._background, method(client._client, *args, **kwargs))

    functools.update_wrapper(call, method)
    call.__doc__ = doc
    return call


class Client:
    """``discovery.client.Client`` for ``with``; arguments, results and errors are the same.

    At the end of its block, or with ``close``, the blocks that are still open are left: pools that they keep registered
    are deregistered, iterations end. Calls from then on raise ``Closed``. What is never closed is closed when the
    process ends.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        token_path: File | None = None,
        *,
        ca_path: File | None = None,
        cert_path: File | None = None,
        key_path: File | None = None,
    ) -> None:
        self._client = AsyncClient(urls, token_path, ca_path=ca_path, cert_path=cert_path, key_path=key_path)
        self._background = Background(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave all blocks and end all connections; fine when that was done before."""
        self._background.close()

    list = _waiting(AsyncClient.list)
    follow = _opening(AsyncClient.follow, Pools, "The pools, kept current within ``with``; see ``Pools``.")
    register = _opening(
        AsyncClient.register,
        Heartbeat,
        "One pool, kept registered within ``with`` and deregistered at its end; see ``Heartbeat``.",
    )
    deregister = _waiting(AsyncClient.deregister)
    routers = _waiting(AsyncClient.routers)
    explain = _waiting(AsyncClient.explain)
    compare = _waiting(AsyncClient.compare)
