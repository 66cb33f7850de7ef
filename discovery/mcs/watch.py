"""One watcher, of a cluster or of one namespace of it: its feeds folded into a view, and whether that view is whole.

A view that cannot be brought up to date stays as it is and says why. The fold and the feeds are pure or doors of their
own; this module runs them, and logs each change of state once. Knows nothing of registrations.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable

from discovery import feed, problems
from discovery.backoff import Backoff
from discovery.errors import Gone, Unavailable
from discovery.logs import event
from discovery.mcs import cluster_facts
from discovery.mcs.endpoint_slice import EndpointSlice, SliceName
from discovery.mcs.kube import (
    Applied,
    ClusterConnection,
    Event,
    Failing,
    Failure,
    Heard,
    Listed,
    Pace,
    Removed,
    SliceSource,
)
from discovery.mcs.names import Names
from discovery.mcs.origin import Rules
from discovery.mcs.selectors import selectors_for
from discovery.mcs.slices import Endpoints, Reading, Slices, Touched
from discovery.metrics import Counters
from discovery.model import PoolKey, Router

log = logging.getLogger(__name__)

BACKOFF_SECS = (0.2, 4.0)
NAME_BACKOFF_SECS = (1.0, 60.0)
CONFIRMED_FOR_SECS = 2.0
"""How long a view may be called whole while nothing is watched and its fresh list is on its way."""
TURN_SECS = 0.005
"""How long a list is read before the event loop serves others: a long one takes some tenths of a second in all."""
FACTS = "facts"
CONTROL_PLANE_WARNING = (
    "a Karmada control plane has no slices of its MultiClusterServices: watch a member cluster for those"
)


class Watcher:
    """What one cluster imports, in one namespace or in all.

    ``on_change`` hears of every event that changed addresses, health or warnings. Watchers of several namespaces share
    a connection, and nothing else: one without rights takes nothing from the others.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        names: Names,
        rules: Rules,
        *,
        counters: Counters,
        on_change: Callable[[Touched], None],
        namespace: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.name = f"{connection.name}/{namespace}" if namespace else connection.name
        self.namespace = namespace
        self.rules = rules
        self.cluster_id: str | None = rules.local_cluster_id
        self.warning: str | None = None
        self._connection = connection
        self._names = names
        self._counters = counters
        self._on_change = on_change
        self._pace = pace
        self._slices = Slices(names, rules)
        self._sources: dict[str, SliceSource] = {}
        self._listed: set[str] = set()
        self._failing: dict[str, str] = {}
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self._said_kinds: set[str] = set()
        self._all_listed = asyncio.Event()

    # ---- what others ask

    @property
    def slices(self) -> Slices:
        """The view, as last known."""
        return self._slices

    @property
    def listed(self) -> bool:
        """Whether everything was read once."""
        return bool(self._sources) and len(self._listed) == len(self._sources)

    def endpoints(self, key: PoolKey) -> Endpoints | None:
        """The pool's addresses in this view."""
        return self._slices.endpoints(key)

    def routers(self) -> tuple[Router, ...]:
        """The Global Routers in this view."""
        return self._slices.routers()

    def incomplete(self) -> str | None:
        """Why the view may be less than the truth; None where it is whole."""
        if self._failing:
            return next(iter(self._failing.values()))
        return None if self.listed else f"{self.name}: the slices have not been listed yet"

    def problem(self) -> str | None:
        """The same as a sentence."""
        if self._failing:
            return problems.watcher_fails(next(iter(self._failing.values())), listed=self.listed)
        reason = self.incomplete()
        return None if reason is None else problems.not_complete(reason)

    def describe(self) -> dict[str, object]:
        """State for people."""
        return {
            "name": self.name,
            "listed": self.listed,
            "incomplete_because": self.incomplete(),
            "cluster_id": self.cluster_id,
            "warning": self.warning,
            "services": len(self._slices),
            "source_clusters": sorted(self._slices.source_clusters()),
            "unusable_services": self._slices.unusable(),
            "refused_services": [notice.text for notice in self._slices.refused()],
            "skipped": self._slices.skipped() | {"objects": sum(source.skipped for source in self._sources.values())},
        }

    # ---- what runs all the time

    async def run(self) -> None:
        """Watch until cancelled; a cluster that cannot be reached is tried for ever. Can be run again after a fault."""
        if not self._sources:
            await self._prepare()
        async with asyncio.TaskGroup() as tasks:
            for selector, source in self._sources.items():
                tasks.create_task(self._follow(selector, source))
            tasks.create_task(self._learn_name())

    async def close(self) -> None:
        """Close the connections."""
        for selector in list(self._alarms):
            self._quiet(selector)
        await self._connection.close()

    async def _prepare(self) -> None:
        """Learn what has to be known before the first slice can be read."""
        if self.rules.mode == "karmada":
            self.rules = Rules("karmada", self.rules.local_cluster_id, await self._is_control_plane())
            self._slices = Slices(self._names, self.rules)
        if self.rules.is_control_plane and await cluster_facts.has_multi_cluster_services(
            self._connection, self.namespace
        ):
            self.warning = f"{self.name}: {CONTROL_PLANE_WARNING}"
            event(log, logging.WARNING, "watcher.odd", "%s", problems.sees_less(self.warning), watcher=self.name)
        self._sources = {
            selector: SliceSource(self._connection, selector=selector, namespace=self.namespace, pace=self._pace)
            for selector in selectors_for(self.rules)
        }

    async def _is_control_plane(self) -> bool:
        backoff = Backoff(*BACKOFF_SECS)
        while True:
            try:
                found = await cluster_facts.is_karmada_control_plane(self._connection)
            except Failure as error:
                self._fails(FACTS, error.kind, error.detail)
                await asyncio.sleep(backoff.next())
            else:
                self._take(FACTS, Touched())
                return found

    async def _learn_name(self) -> None:
        """Ask what the cluster calls itself: once it answers at all, since it may not be there yet at startup."""
        await self._all_listed.wait()
        backoff = Backoff(*NAME_BACKOFF_SECS)
        while self.cluster_id is None:
            try:
                self.cluster_id = await cluster_facts.cluster_id(self._connection)
                return
            except Failure:  # slices are what counts, and they say by themselves what is wrong
                await asyncio.sleep(backoff.next())

    async def _follow(self, selector: str, source: SliceSource) -> None:
        count = self._counters.watcher_events.of
        listed, applied, removed, heard = (count(self.name, kind) for kind in ("listed", "applied", "removed", "heard"))
        async with contextlib.aclosing(_events(source)) as events:
            async for event in events:
                match event:
                    case Listed():
                        listed.inc()
                        readings = await self._read_in_turns(event.slices)
                        self._quiet(selector)
                        self._listed.add(selector)
                        self._take(selector, self._slices.replace(readings, selector))
                    case Applied():
                        applied.inc()
                        self._take(selector, self._slices.apply(event.slice, selector))
                    case Removed():
                        removed.inc()
                        self._take(selector, self._slices.remove(event.name, event.uid, selector))
                    case Heard():
                        heard.inc()
                        self._take(selector, Touched())
                    case Failing():
                        self._fails(selector, event.kind, event.reason)
                    case feed.Interrupted():
                        self._interrupted(selector, event.error)

    async def _read_in_turns(self, slices: Iterable[EndpointSlice]) -> dict[SliceName, Reading]:
        """All of a list, which is then put into the view at once: nobody may see half of it."""
        readings: dict[SliceName, Reading] = {}
        turn_ends = time.monotonic() + TURN_SECS
        for item in slices:
            readings[item.name] = self._slices.read(item)
            if time.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + TURN_SECS
        return readings

    def _take(self, selector: str, touched: Touched) -> None:
        """All that one event changed, health included, is told at once: nobody may see the one without the other."""
        recovered = self._failing.pop(selector, None) is not None and not self._failing
        if recovered:
            self._said_kinds.clear()
            text = "%s: the watcher is well again"
            event(log, logging.WARNING, "watcher.recovered", text, self.name, watcher=self.name)
        newly_listed = self.listed and not self._all_listed.is_set()
        if newly_listed:
            self._all_listed.set()
        for warning in touched.warnings:
            cause = warning.cause
            event(log, logging.WARNING, "watcher.odd", "%s", warning.text, watcher=self.name, cause=cause)
        if recovered or newly_listed or touched.keys or touched.routers:
            self._on_change(touched)

    def _interrupted(self, selector: str, error: Gone | Unavailable) -> None:
        """The watch cannot go on: a fresh list is next, and that alone is no failure unless it takes long."""
        self._counters.slices_listed(self.name, error)
        if isinstance(error, Failure):
            self._fails(selector, error.kind, error.detail)
        elif selector not in self._alarms:
            loop = asyncio.get_running_loop()
            self._alarms[selector] = loop.call_later(CONFIRMED_FOR_SECS, self._waits, selector)

    def _quiet(self, selector: str) -> None:
        if (alarm := self._alarms.pop(selector, None)) is not None:
            alarm.cancel()

    def _waits(self, selector: str) -> None:
        """A fresh list is long in coming: until it is there nobody knows what happens."""
        if selector not in self._failing:
            self._fails(selector, "slow", f"{self.name}: the slices are being listed again, which takes long")

    def _fails(self, selector: str, kind: str, reason: str) -> None:
        """Count and note it; said once for each kind of failure until all is well again."""
        self._counters.watcher_failures.of(self.name, kind).inc()
        first = not self._failing
        self._failing[selector] = reason
        if kind not in self._said_kinds:
            self._said_kinds.add(kind)
            text = problems.watcher_fails(reason, listed=self.listed)
            event(log, logging.WARNING, "watcher.failing", "%s", text, watcher=self.name, cause=reason)
        if first:
            self._on_change(Touched())


def _events(source: SliceSource) -> AsyncGenerator[Listed | Event | feed.Interrupted, None]:
    return feed.follow(source, Backoff(*BACKOFF_SECS))
