"""What is read when somebody asks: states of the replica's parts, each declared here and given its source later.

Beside ``Counters``, which holds these too. Nothing of it costs anything between two scrapes. Knows no part of the
replica: ``exposition`` binds them.
"""

from collections.abc import Iterator

from discovery.metrics.kinds import ANY, Counted, Metric, Reading

STATES = ("listed", "registered_only", "ready_only", "without_frontends", "held")
REASONS = ("unread", "unconfirmed", "mass_loss", "settling", "data_loss", "held", "watcher")
LISTS = ("pools", "routers")
LIMITS = ("pools", "streams", "connections")
REFUSED_SLICES = ("no_source_cluster", "unreadable_name", "no_service", "fqdn", "bad_address", "bad_port", "no_port")


class Readings:
    """Every reading, in the order in which they are shown."""

    def __init__(self) -> None:
        # What it is, and whether it serves.
        self.build = Reading("build_info", "1, with the version that runs.", version=ANY)
        self.ready = Reading("ready", "1 while /readyz answers 200, else 0.")
        self.draining = Reading("draining", "1 from the signal to stop on, else 0.")
        self.complete = Reading("complete", "1 while the list of pools says complete, else 0.")
        self.incomplete = Reading(
            "incomplete", "1 for the reason for which the list of pools is not complete, else 0.", reason=REASONS
        )
        self.limit = Reading("limit", "The most that this replica takes, by what is limited.", limit=LIMITS)
        self.lease = Reading("lease_duration_seconds", "How long a registration lives without a heartbeat.")
        self.heartbeat = Reading("heartbeat_interval_seconds", "How often relays are asked to register.")
        # Pools.
        self.pools = Reading(
            "pools",
            "Pools by state: listed; known of one side only; listed without frontends; listed over the end of their"
            " lease. One pool may be in several.",
            state=STATES,
        )
        self.registered_pools = Reading("registered_pools", "Registrations that this replica knows, before any join.")
        self.shared_relays = Reading("shared_relay_addresses", "Addresses of relays that two listed pools claim.")
        self.running_out = Reading(
            "leases_running_out",
            "Leases with less left than a pool's that lost one heartbeat, when all were last read (of Redis once in a"
            " lease).",
        )
        self.mass_loss_hold = Reading("mass_loss_hold", "1 while ended pools are kept because most ended at once.")
        # The published lists.
        self.age = Reading(
            "snapshot_age_seconds",
            "Seconds since the store last confirmed the registrations behind the list: it grows in an outage.",
        )
        self.changed = Reading(
            "snapshot_changed_timestamp_seconds", "When the list's content last changed, since 1970.", list=LISTS
        )
        self.bytes = Reading("snapshot_bytes", "The size of the list as JSON without its frame.", list=LISTS)
        self.entries = Reading("snapshot_entries", "How many entries the list has.", list=LISTS)
        self.fingerprint = Reading(
            "snapshot_fingerprint",
            "The first 48 bits of the list's ETag as a number: equal on replicas that agree.",
            list=LISTS,
        )
        self.members_fingerprint = Reading(
            "members_fingerprint", "The same of the keys of the listed pools alone, whatever they say of themselves."
        )
        self.members_changed = Reading(
            "members_changed_timestamp_seconds", "When a pool was last listed or left, since 1970."
        )
        # The store.
        self.store_up = Reading("store_up", "1 while the store answers, 0 while its calls fail.")
        self.store_revision = Reading("store_revision", "The store's revision as this replica knows it.")
        self.feed_silent = Reading(
            "feed_silent_seconds", "Seconds since the last sign of life on the store's announcements (Redis)."
        )
        # Watchers.
        self.watcher_up = Reading("watcher_up", "1 while the watcher's view is whole, else 0.", watcher=ANY)
        self.watcher_services = Reading(
            "watcher_services", "Services of pools and routers in the watcher's view.", watcher=ANY
        )
        self.refused_slices = Reading(
            "watcher_refused_slices",
            "Slices, addresses and ports in the watcher's view that cannot be used now, by cause.",
            watcher=ANY,
            cause=REFUSED_SLICES,
        )
        # Readers.
        self.streams = Reading("streams", "Open streams of events.")
        self.long_polls = Reading("long_polls", "Long polls that wait for a change.")
        self.fell_behind = Counted(
            "streams_fell_behind", "Times that a stream's reader took too little and was left to catch up by itself."
        )
        self.resynced = Counted(
            "streams_resynced", "Times that a reader was so far behind that it was sent a whole list again."
        )
        self.streams_refused = Counted("streams_refused", "Streams and long polls refused because of --max-streams.")
        # The HTTP server.
        self.in_flight = Reading(
            "http_requests_in_flight", "Requests that wait for something, open streams and long polls included."
        )
        self.connections = Reading("http_connections", "Open connections of the main address.")
        self.turned_away = Counted(
            "http_connections_turned_away", "Connections above --max-connections that were refused or closed."
        )
        self.dropped = Counted(
            "slow_peers_dropped", "Connections reset because the peer did not take what was written to it in time."
        )
        self.failed_handshakes = Counted("tls_handshake_failures", "TLS handshakes that failed.")
        # Files.
        self.certificate_expires = Reading(
            "tls_certificate_expires_timestamp_seconds", "When the certificate in use ends, since 1970."
        )
        self.tokens = Reading("tokens", "Tokens that are valid now (--auth-tokens-path).")
        self.token_file_broken = Reading(
            "token_file_broken", "1 while the file of tokens cannot be used, and what it held before stays in force."
        )
        self.token_file_renewals = Counted(
            "token_file_renewals", "Changed files of tokens, by whether they were taken.", result=("taken", "refused")
        )

    def __iter__(self) -> Iterator[Metric]:
        return (value for value in vars(self).values() if isinstance(value, Metric))
