"""The two published lists, kept up to date: what the store tells and what the watchers tell meet here.

Changes go through the join to the publisher; completeness is the conjunction of the store's and every watcher's word.
Nothing is published before both sides were read once; of several watchers, one that cannot list within a lease no
longer holds the rest back. Knows nothing of HTTP or of how a side is read.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from discovery.listing.evidence import Evidence
from discovery.listing.explain import Explanation, explanation, misnamed_local, only_ready, only_registered
from discovery.listing.join import Join, ListChange, Side
from discovery.listing.publisher import Publisher
from discovery.listing.snapshot import router_fragment
from discovery.logs import event
from discovery.mcs.names import Names
from discovery.mcs.slices import Endpoints, ServiceState, Slices, Touched
from discovery.model import Listing, PoolKey, Registration, Router

log = logging.getLogger(__name__)

TICK_SECS = 0.25
FOR_EVER = float("inf")
SERVICES_AT_ONCE = 2000
"""Services that are read for explanations before the loop turns: some 2 ms."""

Item = TypeVar("Item")
InSteps = Iterator[Item | None]
"""What takes long where it is much: None is where the loop may turn."""


class View(Protocol):
    """One watcher, as far as the lists need it."""

    cluster_id: str | None
    namespace: str | None
    """The one namespace that it sees; None where it sees all."""
    warning: str | None

    @property
    def listed(self) -> bool:
        """Whether everything was read once."""

    @property
    def slices(self) -> Slices:
        """The fold of what it sees."""

    def endpoints(self, key: PoolKey) -> Endpoints | None:
        """The pool's addresses."""

    def routers(self) -> tuple[Router, ...]:
        """The Global Routers."""

    def incomplete(self) -> str | None:
        """Why it may be less than the truth."""


class Lists:
    """Pools and routers as they are published. ``views`` is None where addresses come from the registrations.

    ``store_trouble`` is why registrations may be missing at this moment.
    """

    def __init__(
        self,
        pools: Publisher[Listing],
        routers: Publisher[Router],
        *,
        lease_secs: float,
        views: Sequence[View] | None = None,
        names: Names | None = None,
        store_trouble: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools = pools
        self._routers = routers
        self._lease_secs = lease_secs
        self._views = views
        self._names = names
        self._store_trouble = store_trouble
        self._clock = clock
        self._started_at = clock()
        self._patience_over = False
        self._join = Join(
            self._endpoints if views is not None else None,
            lease_secs=lease_secs,
            why=self._why,
            why_bare=self._why_bare,
        )
        self._evidence: Evidence | None = None
        self._store_read = False
        self._store_complete = False
        self._store_until = 0.0
        self._router_ids: frozenset[str] = frozenset()
        self._told: list[tuple[PoolKey, Registration | None]] = []
        pools.before_reading = self._catch_up

    # ---- what the sides tell

    def registrations_changed(
        self, changes: Sequence[tuple[PoolKey, Registration | None]], complete: bool, complete_until: float
    ) -> None:
        """The store's side: see ``Replica``.

        What it tells in one turn of the loop is joined and published together, at the end of it or when somebody reads.
        """
        is_news = complete != self._store_complete
        self._store_read, self._store_complete, self._store_until = True, complete, complete_until
        if changes and not self._told:
            asyncio.get_running_loop().call_soon(self._catch_up)
        self._told += changes
        if is_news or not changes or not self._pools.ready:
            self._publish(self._joined())

    def registrations_found(self, changes: Iterable[tuple[PoolKey, Registration | None]]) -> None:
        """The store's side before it was read once: a part of what it holds."""
        self._publish(self._join.registered(changes, self._clock()))

    def view_changed(self, touched: Touched) -> None:
        """A watcher's side: addresses, or only its health."""
        self._catch_up()
        if touched.routers or not self._routers.ready:
            self._publish_routers()
        self._publish(self._join.seen(touched.keys, self._clock()))

    def set_routers(self, routers: Iterable[Router]) -> None:
        """Routers that are fixed for the life of the process."""
        self._routers.publish([((router.id,), router_fragment(router)) for router in routers], True, FOR_EVER)

    async def run(self) -> None:
        """Say what becomes due, and stop waiting for a watcher that does not come."""
        while self._views is not None:
            self._catch_up()
            # Together with the first list, so that nobody is told that this replica is ready before it has one.
            self._patience_over = self._clock() - self._started_at >= self._lease_secs
            self._say_what_is_due(self._clock())
            if not self._pools.ready:
                self._publish([])
            if not self._routers.ready:
                self._publish_routers()
            await asyncio.sleep(TICK_SECS)

    # ---- what others ask

    def waiting_for_views(self) -> str | None:
        """Why the watchers hold the first list back; None where they do not."""
        if self._views is None or all(view.listed for view in self._views):
            return None
        if self._patience_over and any(view.listed for view in self._views):
            return None
        return next((reason for view in self._views if not view.listed and (reason := view.incomplete())), "a watcher")

    def incomplete_view(self) -> str | None:
        """Why the watchers' side may be less than the truth."""
        return next((reason for view in self._views or () if (reason := view.incomplete())), None)

    @property
    def shared_relay_addresses(self) -> int:
        """Addresses that two listed pools claim."""
        self._catch_up()
        return self._join.shared_relay_addresses

    def one_sided_by_side(self) -> dict[Side, int]:
        """How many pools are known of one side only."""
        self._catch_up()
        sides = Counter(state.side for state in self._join.one_sided.values())
        return {"registered": sides["registered"], "ready": sides["ready"]}

    def one_sided(self) -> InSteps[dict[str, object]]:
        """Pools of which one side is missing, with the likely cause; each made when it is asked for."""
        self._catch_up()
        if not self._join.one_sided:
            return
        evidence = yield from self._gathered_in_steps()
        keys = sorted(self._join.one_sided)
        yield None
        for key in keys:
            state = self._join.one_sided.get(key)
            if state is None:
                continue  # both sides agree by now
            yield {
                **key._asdict(),
                "side": state.side,
                "since_secs": round(self._clock() - state.since, 3),
                "text": _why(evidence, key, state.side),
            }

    def explain(
        self,
        keys: Iterable[PoolKey] | None,
        store_trouble: str | None = None,
        lease_left_secs: Callable[[PoolKey], float | None] = lambda key: None,
    ) -> InSteps[Explanation]:
        """Why these pools are or are not listed, each made when it is asked for; None is every pool of any side.

        ``store_trouble`` is why registrations may be missing; leases are known to the store's side alone.
        """
        members = self._pools.everything.members  # to read it brings all sides up to date, so it comes first
        evidence = yield from self._gathered_in_steps(store_trouble)
        if keys is None:
            pools = evidence.pools()
            yield None
            keys = sorted(pools)
            yield None
        for key in keys:
            member = members.get(key)
            frontends = len(member.entry.frontends) if member else 0
            left = lease_left_secs(key)
            yield explanation(evidence, key, listed=member is not None, frontends=frontends, lease_left_secs=left)

    # ---- publishing

    def _catch_up(self) -> None:
        """Publish what was told and is not published yet."""
        if self._told:
            self._publish(self._joined())

    def _joined(self) -> list[ListChange]:
        told, self._told = self._told, []
        return self._join.registered(told, self._clock())

    def _publish(self, changes: list[ListChange]) -> None:
        if not self._pools.ready:
            self._pools.prepare(changes)
            if not self._store_read or self.waiting_for_views() is not None:
                return
            changes = []
        complete = self._store_complete and self.incomplete_view() is None
        self._pools.publish(changes, complete, self._store_until)
        if self._views is not None and self._routers.ready:
            self._routers.publish([], self.incomplete_view() is None, FOR_EVER)

    def _publish_routers(self) -> None:
        if self._views is None or self.waiting_for_views() is not None:
            return
        found = {router.id: router for view in self._views for router in view.routers()}
        gone = [((router_id,), None) for router_id in self._router_ids - found.keys()]
        self._router_ids = frozenset(found)
        there = [((router.id,), router_fragment(router)) for router in found.values()]
        self._routers.publish([*gone, *there], self.incomplete_view() is None, FOR_EVER)

    def _endpoints(self, key: PoolKey) -> Endpoints | None:
        """A pool's addresses from all views: a cluster that several import from is seen by each of them."""
        seen = [found for view in self._views or () if (found := view.endpoints(key)) is not None]
        if len(seen) < 2:
            return seen[0] if seen else None
        return Endpoints(
            _one_family(relay for endpoints in seen for relay in endpoints.relays),
            _one_family(frontend for endpoints in seen for frontend in endpoints.frontends),
        )

    # ---- what people are told

    def _say_what_is_due(self, now: float) -> None:
        self._evidence = None
        all_read = self._store_read and self.waiting_for_views() is None
        all_called = self._store_complete and now < self._store_until
        for line in [*(self._misnamed_lines(all_called) if all_read else []), *self._join.due(now, all_read=all_read)]:
            event(log, logging.WARNING, "pool.one_sided", "%s", line)

    def _misnamed_lines(self, all_called: bool) -> list[str]:
        """Pools of a watched cluster itself that register under another cluster's name; said at once.

        Until ``all_called`` a cluster that others are imported from has the benefit of the doubt: its pool may have
        called before the local one of the same name did.
        """
        names = {view.cluster_id for view in self._views or () if view.cluster_id}
        one_sided = self._join.one_sided
        lines = []
        for key, state in list(one_sided.items()) if names else ():
            if state.side == "ready" or state.said:
                continue
            # Equal names in many clusters are common: it is misnamed where nobody registers the cluster's own.
            own = [PoolKey(name, key.namespace, key.dgd_name) for name in names]
            ready = [one for one in own if (other := one_sided.get(one)) and other.side == "ready"]
            if not ready or (not all_called and key.cluster_id in self._evidence_now().clusters):
                continue
            if line := misnamed_local(self._evidence_now(), key):
                self._join.told([key, *ready])
                lines.append(line)
        return lines

    def _why(self, key: PoolKey, side: Side) -> str:
        return _why(self._evidence_now(), key, side)

    def _why_bare(self, key: PoolKey) -> str:
        return explanation(self._evidence_now(), key, listed=True, frontends=0).text

    def _evidence_now(self) -> Evidence:
        if self._evidence is None:
            self._evidence = self._gathered()
        return self._evidence

    def _gathered_in_steps(self, store_trouble: str | None = None) -> Generator[None, None, Evidence]:
        states = []
        for view in self._views or ():
            services = view.slices.services()
            while step := list(itertools.islice(services, SERVICES_AT_ONCE)):
                states += step
                yield None
        evidence = self._gathered(states, store_trouble)
        yield None
        return evidence

    def _gathered(self, states: Sequence[ServiceState] | None = None, store_trouble: str | None = None) -> Evidence:
        views = self._views or ()
        return Evidence(
            self._join.registrations,
            [state for view in views for state in view.slices.services()] if states is None else states,
            self._names if self._views is not None else None,
            local_cluster_ids=[view.cluster_id for view in views if view.cluster_id],
            namespaces={view.namespace for view in views if view.namespace},
            troubles=[reason for view in views if (reason := view.incomplete())],
            warnings=[view.warning for view in views if view.warning],
            refused=[notice for view in views for notice in view.slices.refused()],
            store_trouble=store_trouble or self._store_trouble(),
        )


def _why(evidence: Evidence, key: PoolKey, side: Side) -> str:
    return only_registered(evidence, key) if side == "registered" else only_ready(evidence, key)


def _one_family(urls: Iterable[str]) -> tuple[str, ...]:
    """Each URL once, and of a dual-stack Service that one view sees by IPv4 and another by IPv6 the former alone."""
    found = sorted(set(urls))
    return tuple(url for url in found if "://[" not in url) or tuple(found)
