"""``discovery serve``: composes every part, and ends them in the order in which readers are told first.

    registrations ─→ replica ─→ join ─→ publisher ─→ routes and streams ─→ HTTP server

The end: not ready → drain delay → streams end → server → replica → store. No part knows of another beyond its
arguments.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from discovery import __version__, problems
from discovery.ending import Ending
from discovery.errors import Misconfigured
from discovery.exposition import Parts, show
from discovery.http import access_log
from discovery.http.access import Guard, RateLimit
from discovery.http.answers import App
from discovery.http.api import make_app, make_probe_app
from discovery.http.certificates import Certificates, TlsFiles
from discovery.http.exchange import Exchange
from discovery.http.handlers import Service
from discovery.http.renewed_file import RenewedFile
from discovery.http.request_counts import RequestCounts, counted_access
from discovery.http.server import CannotListen, HttpServer, Limits, run_async
from discovery.http.streams import Streams
from discovery.http.tokens import Identities
from discovery.listing.lists import Lists
from discovery.listing.publisher import Publisher
from discovery.logs import event, name_replica, say_left_out
from discovery.mcs.names import Names, RouterService
from discovery.mcs.origin import Rules
from discovery.mcs.slices import Touched
from discovery.metrics import Counters
from discovery.model import Listing, Router
from discovery.process_memory import keep_giving_back, make_collections_rare
from discovery.settings import Address, ServeSettings
from discovery.start_line import Facts, start_line
from discovery.stores import Store
from discovery.stores.measured import MeasuredStore
from discovery.stores.memory import MemoryStore
from discovery.stores.replica import Replica

if TYPE_CHECKING:
    from discovery.mcs.watch import Watcher
    from discovery.tracing import Tracing

log = logging.getLogger(__name__)

RESTART_SECS = 0.5
LAG_TICK_SECS = 0.25
MAX_PROBE_CONNECTIONS = 256
PROBED = frozenset({b"/healthz", b"/readyz"})
LAST_GRACE_SECS = 1.0
"""What requests in flight have after a second signal."""
LAST_SPANS_SECS = 2.0
"""What the last spans have to reach their collector, when everything else has ended."""


def run(settings: ServeSettings) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean end, 1 where an address cannot be listened on."""
    for warning in settings.warnings:
        event(log, logging.WARNING, "service.doubtful", "%s", warning)
    try:
        return run_async(_Process(settings).run())
    except CannotListen as error:
        event(log, logging.ERROR, "service.cannot_listen", "%s", error)
        return 1


class _Process:
    """All parts of one replica."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._id = uuid.uuid4().hex[:8]
        name_replica(self._id)
        self._started_at = time.monotonic()
        self._draining = False
        self._lag_secs = 0.0
        self._ending = Ending()
        self._counters = Counters()
        # Ahead of the store, which takes the long import of the library for a pause of the process.
        self._tracing = _open_tracing(settings, self._id)
        self._store = MeasuredStore(_open_store(settings, self._counters), self._counters)
        self._pools: Publisher[Listing] = Publisher(
            "pools",
            on_published=self._counters.publish_lag.observe,
            on_delivered=self._counters.delivery_lag.observe,
        )
        self._routers: Publisher[Router] = Publisher("routers")
        self._streams = Streams(settings.max_streams)
        names = _names(settings)
        self._watchers = _watchers(settings, names, self._counters, self._on_view_change)
        self._lists = Lists(
            self._pools,
            self._routers,
            lease_secs=settings.lease_duration_secs,
            views=None if settings.pool_discovery == "registrations" else self._watchers,
            names=names,
            store_trouble=lambda: self._replica.incomplete(),
        )
        tracing, registered = self._tracing, self._lists.registrations_changed
        self._replica = Replica(
            self._store if tracing is None else tracing.store(self._store),
            lease_secs=settings.lease_duration_secs,
            heartbeat_secs=settings.heartbeat_interval_secs,
            max_pools=settings.max_pools,
            max_pools_per_cluster=settings.max_pools_per_cluster,
            counters=self._counters,
            on_change=registered if tracing is None else tracing.published(registered),
            on_found=self._lists.registrations_found,
            mass_loss_hold_secs=settings.mass_loss_hold_secs,
            local_cluster_id=settings.local_cluster_id,
        )
        self._requests = RequestCounts(self._counters)
        self._tokens = _open_tokens(settings)
        service = Service(
            replica=self._replica,
            pools=self._pools,
            routers=self._routers,
            streams=self._streams,
            counters=self._counters,
            rate_limit=RateLimit(settings.rate_limit),
            stage=self._stage,
            status=self._status,
            explain=self._lists.explain,
            one_sided=self._lists.one_sided,
            lease_duration_secs=settings.lease_duration_secs,
            heartbeat_interval_secs=settings.heartbeat_interval_secs,
            max_body_bytes=settings.max_body_bytes,
            cors_origin=settings.cors_origin,
            guard=Guard(self._tokens, counted_access(self._counters)) if self._tokens is not None else None,
        )
        self._certificates = _open_certificates(settings, self._counters)
        app = make_app(service) if tracing is None else tracing.app(make_app(service))
        self._server = self._listener(app, settings.listen, settings.max_connections, self._certificates)
        self._probe_server = (
            self._listener(make_probe_app(service), settings.health_listen, MAX_PROBE_CONNECTIONS, None)
            if settings.health_listen
            else None
        )
        self._show()

    def _show(self) -> None:
        parts = Parts(
            settings=self._settings,
            store=self._store,
            replica=self._replica,
            lists=self._lists,
            pools=self._pools,
            routers=self._routers,
            streams=self._streams,
            server=self._server,
            watchers=self._watchers,
            tokens=self._tokens,
            stage=self._stage,
        )
        show(parts, self._counters)

    def _listener(
        self, app: App, address: Address, max_connections: int, certificates: Certificates | None
    ) -> HttpServer:
        settings = self._settings
        limits = Limits(
            max_connections=max_connections,
            max_header_bytes=settings.max_header_bytes,
            max_body_bytes=settings.max_body_bytes,
            request_timeout_secs=settings.request_timeout_secs,
            write_stall_timeout_secs=settings.write_stall_timeout_secs,
            transfer_timeout_secs=settings.transfer_timeout_secs,
            keep_alive_secs=settings.keep_alive_secs,
            always_answered=PROBED,
        )
        server = HttpServer(
            app,
            host=address.host,
            port=address.port,
            limits=limits,
            certificates=certificates,
            exchange=access_log.CountedExchange if settings.access_log else Exchange,
        )
        server.tell(finished=self._requests.finished, refused=self._requests.refused)
        if settings.access_log:
            server.tell(finished=access_log.finished, refused=access_log.refused)
        return server

    # ---- from start to end

    async def run(self) -> int:
        """Serve until told to stop."""
        make_collections_rare()
        self._ending.heed_signals()
        if not self._watchers:
            self._lists.set_routers(self._settings.router)
        servers = [server for server in (self._server, self._probe_server) if server is not None]
        for server in servers:
            await server.start()
        self._announce_start()
        tasks = [
            asyncio.create_task(_kept_running("the store's feed", self._replica.run)),
            asyncio.create_task(self._measure_lag()),
            asyncio.create_task(keep_giving_back()),
            *([asyncio.create_task(_kept_running("the tokens", self._tokens.run))] if self._tokens else []),
            *([asyncio.create_task(_kept_running("TLS", self._certificates.follow))] if self._certificates else []),
            *([asyncio.create_task(_kept_running("the lists", self._lists.run))] if self._watchers else []),
            *(asyncio.create_task(_kept_running(f"the watcher of {w.name}", w.run)) for w in self._watchers),
        ]
        await self._ending.told()
        await self._end(servers, tasks)
        return 0

    async def _end(self, servers: Sequence[HttpServer], tasks: Sequence[asyncio.Task[None]]) -> None:
        text = "%s: not ready any more, drains for %g s"
        event(log, logging.INFO, "service.draining", text, problems.DRAINING, self._settings.drain_delay_secs)
        self._draining = True
        for server in servers:
            server.drain()
        await self._ending.pause(self._settings.drain_delay_secs)
        self._streams.close()
        self._pools.close()
        self._routers.close()
        await self._stop(servers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(watcher.close() for watcher in self._watchers))
        await self._store.close()
        if self._tracing is not None:
            await self._tracing.close(min(self._settings.shutdown_grace_secs, LAST_SPANS_SECS))
        say_left_out(all_of_it=True)
        event(log, logging.INFO, "service.stopped", "stopped")
        self._ending.heed_nothing()

    async def _stop(self, servers: Sequence[HttpServer]) -> None:
        """Stop within the grace, and from a second signal on within what a request with the app may still need."""
        grace = self._settings.shutdown_grace_secs
        stops = asyncio.gather(*(server.stop(grace) for server in servers))
        hurry = asyncio.create_task(self._ending.until_hurried())
        await asyncio.wait((stops, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stops.done():
            text = "told again to stop: what is not done within %g s is cut off"
            event(log, logging.INFO, "service.hurried", text, min(grace, LAST_GRACE_SECS))
            await asyncio.gather(*(server.stop(min(grace, LAST_GRACE_SECS)) for server in servers))
        await stops

    def _announce_start(self) -> None:
        described = self._store.describe()
        store = " at ".join(str(described[part]) for part in ("kind", "address") if part in described)
        text, fields = start_line(self._settings, Facts(__version__, self._id, self._server.port, store))
        event(log, logging.INFO, "service.started", "%s", text, **fields)

    def _on_view_change(self, touched: Touched) -> None:
        self._lists.view_changed(touched)

    async def _measure_lag(self) -> None:
        while True:
            expected = time.monotonic() + LAG_TICK_SECS
            await asyncio.sleep(LAG_TICK_SECS)
            self._lag_secs = max(0.0, time.monotonic() - expected)
            self._counters.loop_lag.observe(self._lag_secs)
            say_left_out()

    # ---- what people ask

    def _stage(self) -> tuple[str, str]:
        if self._draining:
            return "draining", problems.DRAINING
        if not self._replica.listed:
            return "store", str(self._replica.incomplete())
        if waiting := self._lists.waiting_for_views():
            unlisted = (watcher.problem() for watcher in self._watchers if not watcher.listed)
            return "watchers", next(filter(None, unlisted), waiting)
        return "ready", next(self._faults(), problems.WHOLE)

    def _faults(self) -> Iterator[str]:
        """What is wrong, one sentence each; what every part says of itself where it logs."""
        if self._draining:
            yield problems.DRAINING
        reason, failing = self._replica.incomplete(), self._replica.failing()
        if failing and self._replica.listed:
            yield problems.store_fails(failing)
        if reason:
            yield problems.not_complete(reason) if self._replica.listed else reason
        yield from filter(None, (watcher.problem() for watcher in self._watchers))

    def _problems(self) -> list[str]:
        return [*self._faults(), *(problems.sees_less(each.warning) for each in self._watchers if each.warning)]

    def _status(self) -> dict[str, Any]:
        stage, detail = self._stage()
        everything = self._pools.everything
        pools: Counter[str] = Counter()
        frontends: Counter[str] = Counter()
        for fragment in everything.members.values():
            pools[fragment.entry.model] += 1
            frontends[fragment.entry.model] += len(fragment.entry.frontends)
        return {
            "version": __version__,
            "replica_id": self._id,
            "uptime_secs": round(time.monotonic() - self._started_at, 3),
            "stage": stage,
            "detail": detail,
            "complete": everything.complete,
            "problems": self._problems(),
            "etag": everything.token if self._pools.ready else None,
            "incomplete_because": self._replica.incomplete() or self._lists.incomplete_view(),
            "store": self._store.describe() | {"failing_because": self._replica.failing()},
            "watchers": [watcher.describe() for watcher in self._watchers],
            "registrations": len(self._replica),
            "pools": len(everything.members),
            "models": {model: {"pools": pools[model], "frontends": frontends[model]} for model in sorted(pools)},
            "shared_relay_addresses": self._lists.shared_relay_addresses,
            "streams": self._streams.streams,
            "long_polls": self._streams.parked,
            "streams_fell_behind": self._streams.fell_behind,
            "connections": self._server.connections,
            "requests_in_flight": self._server.in_flight,
            "event_loop_lag_secs": round(self._lag_secs, 6),
            "counters": self._counters.values(),
        }


def _open_tokens(settings: ServeSettings) -> RenewedFile[Identities] | None:
    if settings.auth_tokens_path is None:
        return None
    from discovery.http.token_file import read_tokens  # who serves without tokens does without YAML

    try:
        return RenewedFile(settings.auth_tokens_path, "the file of --auth-tokens-path", read_tokens)
    except OSError as error:
        raise Misconfigured(f"the file of --auth-tokens-path cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Misconfigured(f"the file of --auth-tokens-path cannot be used: {error}") from None


def _open_tracing(settings: ServeSettings, replica: str) -> "Tracing | None":
    if settings.otlp_endpoint is None:
        return None
    try:
        from discovery.tracing import Tracing  # an optional part is imported when it is chosen
    except ImportError as error:
        install = "needs the tracing extra: pip install 'pool-discovery[server,tracing]'"
        raise _not_loaded("--otlp-endpoint", install, error, {"opentelemetry"}) from None
    return Tracing(settings.otlp_endpoint, version=__version__, replica=replica)


def _not_loaded(flag: str, install: str, error: ImportError, libraries: set[str]) -> Misconfigured:
    """Why an optional part did not load: its extra is not there, or what is there is broken."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in libraries:
        return Misconfigured(f"{flag} {install}")
    return Misconfigured(f"{flag} cannot be used, its installation is broken: {type(error).__name__}: {error}")


def _open_certificates(settings: ServeSettings, counters: Counters) -> Certificates | None:
    if settings.tls_cert_path is None or settings.tls_key_path is None:
        return None
    files = TlsFiles(settings.tls_cert_path, settings.tls_key_path, settings.tls_client_ca_path)
    certificates = Certificates(files, on_refused=counters.certificates_refused.inc)
    counters.certificate_expires.read_by(lambda: certificates.not_after)
    return certificates


def _open_store(settings: ServeSettings, counters: Counters) -> Store:
    if settings.registration_storage == "memory":
        return MemoryStore(settings.lease_duration_secs)
    opened = _open_redis if settings.registration_storage == "redis" else _open_dynamodb
    return opened(settings, counters)


def _open_redis(settings: ServeSettings, counters: Counters) -> Store:
    from discovery.stores.redis.address import Access
    from discovery.stores.redis.store import RedisStore  # an optional store is imported when it is chosen

    access = Access(
        url=settings.redis_url or "",
        password_path=settings.redis_password_path,
        sentinel_user=settings.redis_sentinel_user,
        sentinel_password_path=settings.redis_sentinel_password_path,
        tls_ca_path=settings.redis_tls_ca_path,
        tls_cert_path=settings.redis_tls_cert_path,
        tls_key_path=settings.redis_tls_key_path,
    )
    return RedisStore(
        access,
        prefix=settings.redis_prefix,
        lease_secs=settings.lease_duration_secs,
        timeout_secs=settings.store_timeout_ms / 1000,
        counters=counters,
    )


def _open_dynamodb(settings: ServeSettings, counters: Counters) -> Store:
    try:
        from discovery.stores.dynamodb.store import DynamoStore  # its library is an extra
    except ImportError as error:
        install = "needs the dynamodb extra: pip install 'pool-discovery[dynamodb]'"
        libraries = {"aiobotocore", "botocore"}
        raise _not_loaded("--registration-storage dynamodb", install, error, libraries) from None
    return DynamoStore(
        table=settings.dynamodb_table or "",
        region=settings.dynamodb_region,
        endpoint_url=settings.dynamodb_endpoint_url,
        lease_secs=settings.lease_duration_secs,
        timeout_secs=settings.store_timeout_ms / 1000,
        counters=counters,
    )


def _names(settings: ServeSettings) -> Names:
    router = None
    if settings.router_namespace and settings.router_service:
        router = RouterService(settings.router_namespace, settings.router_service, settings.router_port_name)
    return Names(
        relay_suffix=settings.relay_service_suffix,
        frontend_suffix=settings.frontend_service_suffix,
        relay_port_name=settings.relay_port_name,
        frontend_port_name=settings.frontend_port_name,
        router=router,
    )


def _watchers(
    settings: ServeSettings, names: Names, counters: Counters, on_change: Callable[[Touched], None]
) -> "list[Watcher]":
    """One watcher for each context and namespace; the local cluster's name belongs to the first context."""
    if settings.pool_discovery == "registrations":
        return []
    from discovery.mcs.kube import open_contexts  # the Kubernetes client takes long to import
    from discovery.mcs.watch import Watcher

    mode: Literal["mcs", "karmada"] = "mcs" if settings.pool_discovery == "mcs" else "karmada"
    return [
        Watcher(
            connection,
            names,
            Rules(mode, settings.local_cluster_id if number == 0 else None),
            counters=counters,
            on_change=on_change,
            namespace=namespace,
        )
        for number, connection in enumerate(open_contexts(settings.kubeconfig, settings.kube_context))
        for namespace in settings.kube_namespace or (None,)
    ]


async def _kept_running(what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run for ever what must never end: a fault of ours is logged whole, and the work begins anew."""
    while True:
        try:
            await work()
        except Exception:
            event(log, logging.ERROR, "service.fault", "%s ended by a fault and begins again", what, exc_info=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.sleep(RESTART_SECS)
