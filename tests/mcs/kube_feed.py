"""A source on the fake API server, and what it told: for the tests of the feed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from discovery.mcs.kube import Applied, ClusterConnection, Event, Failing, Heard, Listed, Pace, Removed, SliceSource
from discovery.mcs.kube_access import find_clusters
from discovery.mcs.kube_connection import Deadlines
from tests.mcs.api_process import write_kubeconfig
from tests.mcs.api_server import ApiServer

PACE = Pace(page_limit=3, watch_secs=(100, 100), silence_secs=3.0, settle_secs=0.1, backoff_secs=(0.02, 0.1))
IMPATIENT = PACE._replace(silence_secs=0.4)
DEADLINES = Deadlines(connect_secs=1, answer_secs=0.7, read_secs=1.5, credentials_secs=30)
LABEL = "multicluster.kubernetes.io/service-name"


def a_slice(name: str, address: str = "10.0.0.1", labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A manifest."""
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": labels or {LABEL: "a-pool-relay"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "relay", "port": 5561}],
    } | more


def connect(server: ApiServer, directory: Path, deadlines: Deadlines = DEADLINES, **user: Any) -> ClusterConnection:
    """A connection by way of a kubeconfig."""
    path = write_kubeconfig(directory / "kubeconfig", east=(server.url, user))
    return ClusterConnection(find_clusters(str(path), ())[0], deadlines)


class Told:
    """What a watch told so far, and how it ended."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self.events: list[Event] = []
        self.error: Exception | None = None
        self._stream = events
        self._more = asyncio.Condition()

    async def run(self) -> None:
        try:
            async for event in self._stream:
                self.events.append(event)
                await self._wake()
        except Exception as error:
            self.error = error
            await self._wake()

    async def until(self, sign: Callable[["Told"], object], within: float = 5.0) -> None:
        """Wait until ``sign`` is true of it."""
        async with self._more:
            try:
                await asyncio.wait_for(self._more.wait_for(lambda: sign(self)), within)
            except TimeoutError:
                raise AssertionError(f"no sign within {within} s: {self.events}, {self.error!r}") from None

    async def heard(self, number: int = 1) -> None:
        """Wait for so many signs of life."""
        await self.until(lambda told: len(told.of(Heard)) >= number)

    async def applied(self, name: str, within: float = 5.0) -> None:
        """Wait until a slice was told of."""
        await self.until(lambda told: name in told.names(), within)

    async def removed(self, name: str) -> None:
        """Wait until a slice was told to be gone."""
        await self.until(lambda told: name in [event.name.name for event in told.of(Removed)])

    def of(self, kind: type[Any]) -> list[Any]:
        """Events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        """Names of what was applied, in order."""
        return [event.slice.metadata.name for event in self.of(Applied)]

    @property
    def failing(self) -> list[str]:
        """The kinds of failure told of, in order."""
        return [event.kind for event in self.of(Failing)]

    async def _wake(self) -> None:
        async with self._more:
            self._more.notify_all()


@asynccontextmanager
async def watching(source: SliceSource, listed: Listed | None = None) -> AsyncIterator[Told]:
    """Watch from a list."""
    stream = source.watch(listed or await source.list_all())
    told = Told(stream)
    task = asyncio.create_task(told.run())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()


async def eventually(sign: Callable[[], object], within: float = 5.0) -> None:
    """Wait until ``sign`` is true."""
    async with asyncio.timeout(within):
        while not sign():
            await asyncio.sleep(0.005)
