"""What is counted: one registry per process, bound counters in the hot paths, label values from fixed sets only."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from discovery.errors import Gone, Unavailable


class Counters:
    """The counters of one replica; made once by ``serve`` and handed to whoever counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.feed_connections = self._counter("feed_connections", "Subscriptions made to the store's announcements.")
        self.announcements_ignored = self._counter(
            "announcements_ignored", "Announcements skipped because they were broken, foreign or of another epoch."
        )
        self.announcements_refused = self._counter(
            "announcements_refused", "Announcements and subscriptions that the store refused; writes were taken."
        )
        self.registrations_ignored = self._counter(
            "registrations_ignored", "Stored or announced values skipped because they are no registration."
        )
        self.alternating_registrations = self._counter(
            "alternating_registrations",
            "Changes back to the registration before: a pool's relays say different things.",
        )
        self.certificates_refused = self._counter(
            "certificates_refused", "Renewed certificate files that were not used; those before stayed in use."
        )
        self.mass_losses = self._counter("mass_losses", "Holds begun because most pools of all clusters ended at once.")
        self._relists = Counter(
            "discovery_relists", "Full lists read from the store, by cause.", ["cause"], registry=self.registry
        )
        self._slice_relists = Counter(
            "discovery_slice_relists", "Full lists of slices read again, by cause.", ["cause"], registry=self.registry
        )
        self._watcher_failures = Counter(
            "discovery_watcher_failures",
            "Lists and watches of slices that failed, by kind.",
            ["kind"],
            registry=self.registry,
        )

    def watch_silence(self, silent_secs: Callable[[], float]) -> None:
        """Show the time since the feed's last sign of life, which ``silent_secs`` tells whenever it is asked."""
        Gauge(
            "discovery_feed_silent_seconds",
            "Seconds since the last sign of life on the store's announcements.",
            registry=self.registry,
        ).set_function(silent_secs)

    def watch_certificate(self, not_after: Callable[[], float]) -> None:
        """Show when the certificate that is served ends, which ``not_after`` tells whenever it is asked."""
        Gauge(
            "discovery_certificate_not_after_seconds",
            "When the certificate in use ends, in seconds since 1970.",
            registry=self.registry,
        ).set_function(not_after)

    def slices_listed(self, error: Gone | Unavailable) -> None:
        """Count one full list of slices that a watcher needs after its watch could not go on."""
        self._slice_relists.labels(error.cause if isinstance(error, Gone) else "unavailable").inc()

    def watcher_failed(self, kind: str) -> None:
        """Count one failed list or watch of slices; ``kind`` is one of the fixed words of a watcher's failures."""
        self._watcher_failures.labels(kind).inc()

    def relisted(self, cause: str) -> None:
        """Count one full list; ``cause`` is one of the fixed words of ``Gone``, or ``unavailable``."""
        self._relists.labels(cause).inc()

    def exposition(self) -> bytes:
        """All of it as Prometheus text."""
        return generate_latest(self.registry)

    def values(self) -> dict[str, float]:
        """All of it as plain numbers, for people."""
        return {
            sample.name.removeprefix("discovery_").removesuffix("_total")
            + "".join(f"_{value}" for value in sample.labels.values()): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"discovery_{name}", documentation, registry=self.registry)
