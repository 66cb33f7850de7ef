"""EndpointSlices of one cluster as a feed: list, then watch from there, through whatever an API server does.

Upstream of it is ``kube_connection``, downstream ``feed.follow``. Interrupted watches are carried on inside
``kube_watch``, so that a list is asked for again only where a fresh one is the one thing that helps. A list that fails
in any part changes nothing. Knows nothing of what slices mean.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable

import msgspec

from discovery.mcs.endpoint_slice import EndpointSlice, decode_slice
from discovery.mcs.kube_answers import Failure, Refusal
from discovery.mcs.kube_connection import ClusterConnection, open_contexts
from discovery.mcs.kube_objects import Applied, Event, Failing, Heard, Listed, RawList, Removed, decode_list
from discovery.mcs.kube_watch import Pace, Target, Watch

__all__ = [
    "Applied",
    "ClusterConnection",
    "Event",
    "Failing",
    "Failure",
    "Heard",
    "Listed",
    "Pace",
    "Removed",
    "SliceSource",
    "open_contexts",
]

LIST_ATTEMPTS = 3
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class SliceSource:
    """The slices of one cluster that one selector matches, in one namespace or in all. A ``feed.Source``.

    Where several selectors are needed, each has a source of its own, and what they tell is held apart: an object that
    passes from one selector to another is removed from the one and applied in the other, in any order.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        *,
        selector: str,
        namespace: str | None = None,
        pace: Pace | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.connection = connection
        self.selector = selector
        self.namespace = namespace
        self.skipped = 0
        """Objects that were no EndpointSlice, ever."""
        self._pace = pace or Pace()
        self._dice = dice
        within, said = (f"namespaces/{namespace}/", f" in {namespace}") if namespace else ("", "")
        self._target = Target(
            path=f"/apis/discovery.k8s.io/v1/{within}endpointslices",
            what=f"endpointslices.discovery.k8s.io{said}",
            selection={"labelSelector": selector} if selector else {},
        )
        self._not_before = 0.0

    async def list_all(self) -> Listed:
        """Everything at one version, as it is in the server's store and not in a cache that may be behind.

        Raises ``Failure``. After an answer that asked for a pause the next call waits for its end first.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        for _ in range(LIST_ATTEMPTS):
            try:
                return await self._list()
            except Refusal as error:
                if error.code == 410:  # between two pages; the token that comes with it would mix versions
                    continue
                if error.wait_secs is not None:
                    self._not_before = loop.time() + error.wait_secs
                raise
        raise Failure("expired", f"{self.connection.name}: the list of slices expires before it is read to its end")

    def watch(self, listed: Listed) -> AsyncGenerator[Event, None]:
        """What happens after ``listed``, without end.

        It does not end with an interruption: ``Failing`` tells of it while it lasts, any other event of its end, and
        ``Heard`` comes at least once in the time between two bookmarks while all is well. Raises ``Gone`` where only a
        fresh list helps.
        """
        watch = Watch(
            self.connection,
            self._target,
            listed.position,
            pace=self._pace,
            dice=self._dice,
            on_skipped=self._count_skipped,
        )
        return watch.events()

    async def _list(self) -> Listed:
        slices: list[EndpointSlice] = []
        position, token, skipped = "", "", 0
        while True:
            page = await self._page(token)
            # All pages are of one version; should they not be, the first is the one from which nothing is missed.
            position = position or page.metadata.resource_version
            for item in page.items or ():
                try:
                    # A copy: views into the page would keep all of it in memory for as long as one slice is kept.
                    slices.append(decode_slice(bytes(item)))
                except _UNREADABLE:
                    skipped += 1
            if not page.metadata.continue_:  # an empty page alone is no end
                self.skipped += skipped
                return Listed(tuple(slices), position, skipped, asyncio.get_running_loop().time())
            if page.metadata.continue_ == token:
                raise self._no_list("does not come to an end")
            token = page.metadata.continue_

    async def _page(self, token: str) -> RawList:
        query = self._target.selection | {"limit": str(self._pace.page_limit)} | ({"continue": token} if token else {})
        body = await self.connection.read(self._target.path, query, f"list {self._target.what}")
        try:
            page = decode_list(body)
        except _UNREADABLE:
            raise self._no_list("is no JSON of Kubernetes") from None
        # Whatever else answers 200 with JSON would pass for an empty list, and withdraw all that is there.
        if page.kind != "EndpointSliceList" or not page.metadata.resource_version:
            raise self._no_list("is no list of EndpointSlices with a version")
        return page

    def _no_list(self, reason: str) -> Failure:
        return Failure("foreign", f"{self.connection.name}: the answer to list {self._target.what} {reason}")

    def _count_skipped(self) -> None:
        self.skipped += 1
