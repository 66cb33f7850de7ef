"""Where the readings of ``metrics`` come from: each is bound to the part of the replica that knows it.

Called once by ``serve``, which composes the parts. Everything here runs within a scrape, in one turn of the event loop:
nothing may take longer than a pass over all pools.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from discovery import __version__
from discovery.http.renewed_file import RenewedFile
from discovery.http.server import HttpServer
from discovery.http.streams import Streams
from discovery.http.tokens import Identities
from discovery.listing.lists import Lists
from discovery.listing.publisher import Publisher
from discovery.metrics import Counters
from discovery.metrics.readings import REASONS
from discovery.model import Listing, Router
from discovery.settings import ServeSettings
from discovery.stores import Store
from discovery.stores.replica import Replica

FINGERPRINT_HEX = 12
"""48 bits: a double holds them exactly."""


class Parts(NamedTuple):
    """All parts of one replica that are shown."""

    settings: ServeSettings
    store: Store
    replica: Replica
    lists: Lists
    pools: Publisher[Listing]
    routers: Publisher[Router]
    streams: Streams
    server: HttpServer
    watchers: Sequence[Any]
    tokens: RenewedFile[Identities] | None
    stage: Callable[[], tuple[str, str]]


def show(parts: Parts, counters: Counters) -> None:
    """Bind every reading."""
    counters.show_process()
    _show_itself(parts, counters)
    _show_pools(parts, counters)
    _show_lists(parts, counters)
    _show_store(parts, counters)
    _show_watchers(parts, counters)
    _show_readers(parts, counters)
    _show_server(parts, counters)
    if parts.tokens is not None:
        _show_tokens(parts.tokens, counters)


def _show_itself(parts: Parts, counters: Counters) -> None:
    settings = parts.settings
    counters.build.read_by(lambda: {__version__: 1})
    counters.ready.read_by(lambda: parts.stage()[0] == "ready")
    counters.draining.read_by(lambda: parts.stage()[0] == "draining")
    counters.lease.read_by(lambda: settings.lease_duration_secs)
    counters.heartbeat.read_by(lambda: settings.heartbeat_interval_secs)
    counters.limit.read_by(
        lambda: {
            "pools": settings.max_pools,
            "streams": settings.max_streams,
            "connections": parts.server.capacity,
        }
    )


def _show_pools(parts: Parts, counters: Counters) -> None:
    replica = parts.replica
    counters.pools.read_by(lambda: _pools_by_state(parts))
    counters.complete.read_by(lambda: parts.pools.everything.complete)
    counters.incomplete.read_by(lambda: _reasons(parts))
    counters.registered_pools.read_by(lambda: len(replica))
    counters.shared_relays.read_by(lambda: parts.lists.shared_relay_addresses)
    counters.running_out.read_by(lambda: replica.running_out)
    counters.mass_loss_hold.read_by(lambda: replica.keeps_lost_pools)


def _pools_by_state(parts: Parts) -> Mapping[str, float]:
    listed = parts.pools.everything.members.values()
    sides = parts.lists.one_sided_by_side()
    return {
        "listed": len(listed),
        "registered_only": sides["registered"],
        "ready_only": sides["ready"],
        "without_frontends": sum([not fragment.entry.frontends for fragment in listed]),
        "held": parts.replica.held,
    }


def _reasons(parts: Parts) -> Mapping[str, float]:
    missing = parts.replica.missing()
    word = missing.word if missing else "watcher" if parts.lists.incomplete_view() else None
    return {reason: reason == word for reason in REASONS}


def _show_lists(parts: Parts, counters: Counters) -> None:
    def of_each(read: Callable[[Publisher[Any]], float]) -> Callable[[], Mapping[str, float]]:
        both: tuple[Publisher[Any], ...] = (parts.pools, parts.routers)
        return lambda: {each.collection: read(each) for each in both if each.ready}

    pools = parts.pools
    counters.age.read_by(lambda: parts.replica.unconfirmed_secs)
    counters.changed.read_by(of_each(lambda published: published.changed_at))
    counters.bytes.read_by(of_each(lambda published: published.everything.size))
    counters.entries.read_by(of_each(lambda published: len(published.everything.members)))
    counters.fingerprint.read_by(of_each(lambda published: int(published.everything.token[:FINGERPRINT_HEX], 16)))
    counters.members_fingerprint.read_by(lambda: pools.everything.members_sum % (1 << 48) if pools.ready else None)
    counters.members_changed.read_by(lambda: pools.members_changed_at if pools.ready else None)


def _show_store(parts: Parts, counters: Counters) -> None:
    counters.store_up.read_by(lambda: parts.replica.listed and parts.replica.failing() is None)
    counters.store_revision.read_by(lambda: _number(parts.store.describe().get("revision")))


def _number(value: object) -> float | None:
    return value if isinstance(value, int) else None


def _show_watchers(parts: Parts, counters: Counters) -> None:
    watchers = parts.watchers
    counters.watcher_up.read_by(lambda: {watcher.name: watcher.incomplete() is None for watcher in watchers})
    counters.watcher_services.read_by(lambda: {watcher.name: watcher.slices.service_count for watcher in watchers})
    counters.refused_slices.read_by(lambda: _refused_slices(watchers))


def _refused_slices(watchers: Sequence[Any]) -> Mapping[tuple[str, ...], float]:
    return {(watcher.name, cause): number for watcher in watchers for cause, number in watcher.slices.skipped().items()}


def _show_readers(parts: Parts, counters: Counters) -> None:
    streams = parts.streams
    counters.streams.read_by(lambda: streams.streams)
    counters.long_polls.read_by(lambda: streams.parked)
    counters.fell_behind.read_by(lambda: streams.fell_behind)
    counters.resynced.read_by(lambda: streams.resynced)
    counters.streams_refused.read_by(lambda: streams.refused)


def _show_server(parts: Parts, counters: Counters) -> None:
    server = parts.server
    counters.in_flight.read_by(lambda: server.in_flight)
    counters.connections.read_by(lambda: server.connections)
    counters.turned_away.read_by(lambda: server.turned_away)
    counters.dropped.read_by(lambda: server.dropped)
    counters.failed_handshakes.read_by(lambda: server.failed_handshakes)


def _show_tokens(tokens: RenewedFile[Identities], counters: Counters) -> None:
    counters.tokens.read_by(lambda: len(tokens.value))
    counters.token_file_broken.read_by(lambda: tokens.is_broken)
    counters.token_file_renewals.read_by(lambda: {"taken": tokens.taken, "refused": tokens.refused})
