"""What is measured: one ``Counters`` per process, which whoever counts is handed, and which shows all of it.

In the corridor: knows no part of the replica. ``kinds`` says how cheap counting is and how labels stay bounded,
``readings`` what is read only when somebody asks.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from discovery.errors import Gone, Unavailable
from discovery.metrics.kinds import ANY, Counted, Metric, Tally, Timing
from discovery.metrics.readings import Readings

__all__ = ["ANY", "Counters", "Metric", "Tally", "Timing"]

REFUSALS = ("not_json", "bad_request", "too_large", "wrong_type", "invalid", "unauthenticated", "forbidden") + (
    "rate_limited",
    "cluster_full",
    "full",
    "not_confirmed",
    "fault",
)
STORE_CALLS = ("put", "delete", "list", "remaining", "settle", "check")
AWS_CALLS = ("query", "put", "delete")
ERROR_KINDS = ("source", "writes", "item")
RELISTS = ("gap", "feed", "loss", "moved", "silence", "fault", "ended", "unavailable")
SLICE_RELISTS = ("expired", "fruitless", "ended", "unavailable")
WATCHER_FAILURES = (
    "unreachable",
    "tls",
    "silent",
    "broken",
    "denied",
    "missing",
    "expired",
    "throttled",
    "error",
    "foreign",
) + ("credentials", "slow", "brief")
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
STATUSES = ("2xx", "3xx", "4xx", "5xx")
FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Counters(Readings):
    """All metrics of one replica; made once by ``serve``."""

    def __init__(self) -> None:
        super().__init__()
        self._count_registrations()
        self._count_store()
        self._count_dynamodb()
        self._count_watchers()
        self._count_http()
        self.registry = CollectorRegistry()
        self.registry.register(_All(self))

    def _count_registrations(self) -> None:
        self.registrations = Tally(
            "registrations",
            "Registrations that this replica took, by what they did; a heartbeat renews.",
            result=("created", "changed", "renewed"),
        )
        self.registrations_refused = Tally(
            "registrations_refused", "Registrations that were not taken, by reason.", reason=REFUSALS
        )
        self.deregistrations = Tally(
            "deregistrations",
            "Deregistrations that this replica took: done, or the pool kept for another instance registered it.",
            result=("done", "kept"),
        )
        self.leases_expired = Tally("leases_expired", "Pools that left because their lease was over.")
        self.near_misses = Tally(
            "lease_near_misses",
            "Leases found with less left than a pool's that lost one heartbeat, whenever the store told of leases.",
        )
        self.mass_losses = Tally("mass_losses", "Holds begun because most pools of all clusters ended at once.")
        self.alternating_registrations = Tally(
            "alternating_registrations",
            "Changes back to the registration before: a pool's relays say different things.",
        )
        self.registrations_ignored = Tally(
            "registrations_ignored", "Stored or announced values skipped because they are no registration."
        )
        self.publish_lag = Timing(
            "publish_lag_seconds",
            "From the moment a change of pools is known here to its publication, for the oldest change of each round.",
            FAST,
        )
        self.delivery_lag = Timing(
            "delivery_lag_seconds",
            "From a publication of pools until every stream that keeps up has been written to, once for each round.",
            FAST,
        )

    def _count_store(self) -> None:
        self.store_errors = Tally(
            "store_errors",
            "Calls of the store that failed: all of it, its writes alone, or the one registration that was written.",
            call=(*STORE_CALLS, "watch"),
            kind=ERROR_KINDS,
        )
        self.store_call_seconds = Timing(
            "store_call_seconds", "How long calls of the store took that were answered.", FAST, call=STORE_CALLS
        )
        self.store_calls = Counted("store_calls", "Calls of the store that were answered.", call=STORE_CALLS)
        self.store_calls.read_by(self.store_call_seconds.numbers)
        self.store_outages = Tally("store_outages", "Times that calls of the store began to fail.")
        self._relists = Tally("relists", "Full lists read from the store again, by cause.", cause=RELISTS)
        self.feed_connections = Tally("feed_connections", "Subscriptions made to the store's announcements.")
        self.announcements_ignored = Tally(
            "announcements_ignored", "Announcements skipped because they were broken, foreign or of another epoch."
        )
        self.announcements_refused = Tally(
            "announcements_refused", "Announcements and subscriptions that the store refused; writes were taken."
        )

    def _count_dynamodb(self) -> None:
        self.dynamodb_read_units = Tally(
            "dynamodb_read_units", "Read capacity units that DynamoDB counted for this replica's reads."
        )
        self.dynamodb_write_units = Tally(
            "dynamodb_write_units", "Write capacity units that DynamoDB counted for this replica's writes."
        )
        self.dynamodb_throttled = Tally(
            "dynamodb_throttled", "Answers of DynamoDB that said to slow down, by call.", call=AWS_CALLS
        )

    def _count_watchers(self) -> None:
        self.watcher_events = Tally(
            "watcher_events",
            "What watches of slices brought, by type.",
            watcher=ANY,
            type=("listed", "applied", "removed", "heard"),
        )
        self.watcher_relists = Tally(
            "watcher_relists", "Full lists of slices read again, by cause.", watcher=ANY, cause=SLICE_RELISTS
        )
        self.watcher_failures = Tally(
            "watcher_failures",
            "Lists and watches of slices that failed, by kind.",
            watcher=ANY,
            kind=WATCHER_FAILURES,
        )

    def _count_http(self) -> None:
        self.http_requests = Tally(
            "http_requests",
            "Answers that were begun, by route (paths that do not exist are other), method and class of status.",
            route=ANY,
            method=METHODS,
            status=STATUSES,
        )
        self.http_request_seconds = Timing(
            "http_request_seconds",
            "From a request's last byte to the head of its answer; long polls are left out.",
            FAST,
            route=ANY,
            method=METHODS,
        )
        self.http_refusals = Tally(
            "http_refusals",
            "Requests refused before any route: malformed, too large or too slow, by status.",
            status=("400", "408", "413", "414", "415", "431", "501", "503"),
        )
        self.access_refused = Tally(
            "access_refused",
            "Requests refused for their token: none that is known, or without the scope.",
            reason=("unauthenticated", "forbidden"),
        )
        self.loop_lag = Timing(
            "event_loop_lag_seconds", "How late the event loop came to a timer, four samples a second.", FAST
        )
        self.certificates_refused = Tally(
            "certificates_refused", "Renewed certificate files that were not used; those before stayed in use."
        )

    # ---- counting that needs a thought

    def relisted(self, error: Gone | Unavailable) -> None:
        """Count one full list of the store that is needed after its watch could not go on."""
        self._relists.of(_cause(error)).inc()

    def slices_listed(self, watcher: str, error: Gone | Unavailable) -> None:
        """Count one full list of slices that a watcher needs after its watch could not go on."""
        self.watcher_relists.of(watcher, _cause(error)).inc()

    # ---- showing

    def show_process(self) -> None:
        """Also show what Prometheus knows of every process: its memory, processor time, descriptors and collections."""
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def exposition(self) -> bytes:
        """All of it as Prometheus text."""
        return generate_latest(self.registry)

    def values(self) -> dict[str, float]:
        """What was counted as plain numbers, for people: all that has no labels, and of the rest what happened."""
        return {
            "_".join([metric.name.removeprefix("discovery_"), *values]): value
            for metric in self
            if metric is not self.http_requests
            for values, value in metric.values()
        }


class _All(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        """What every metric shows now."""
        return (family for metric in self._metrics if (family := metric.family()) is not None)

    def describe(self) -> Iterable[Family]:
        """Nothing: who registers this need not read everything."""
        return []


def _cause(error: Gone | Unavailable) -> str:
    return error.cause if isinstance(error, Gone) else "unavailable"
