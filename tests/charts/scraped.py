"""What Prometheus scrapes of a deployment while things happen to it: series for ``promtool test rules``.

Three replicas list a hundred pools of four clusters, and nothing is wrong; ``Scraped`` begins with that. What happens
is said by setting a gauge, or by counting faster, from one second on to another, on some replicas or all. Values are
those that the program's own metrics have; which metrics exist is not known here but tested elsewhere.
"""

from collections.abc import Iterator
from typing import NamedTuple

STEP = 30
MINUTES = 50
LE = ("0.01", "0.1", "0.25", "0.5", "1", "2.5", "5", "+Inf")
POOLS = 100
HEARTBEATS = POOLS / 5

GAUGES = {
    'build_info{version="0.1.0"}': 1,
    "ready{}": 1,
    "complete{}": 1,
    "mass_loss_hold{}": 0,
    'pools{state="listed"}': POOLS,
    'pools{state="registered_only"}': 0,
    'pools{state="ready_only"}': 0,
    "registered_pools{}": POOLS,
    "leases_running_out{}": 0,
    'snapshot_fingerprint{list="pools"}': 11,
    'snapshot_changed_timestamp_seconds{list="pools"}': 0,
    "members_fingerprint{}": 22,
    "members_changed_timestamp_seconds{}": 0,
    "store_up{}": 1,
    'watcher_up{watcher="east"}': 1,
    "streams{}": 400,
    "long_polls{}": 100,
    "http_connections{}": 700,
    'limit{limit="streams"}': 10_000,
    'limit{limit="connections"}': 20_000,
    'limit{limit="pools"}': 100_000,
    "tls_certificate_expires_timestamp_seconds{}": 60 * 86_400,
    "token_file_broken{}": 0,
}

COUNTERS = {
    'registrations_total{result="renewed"}': HEARTBEATS / 3,
    'registrations_total{result="changed"}': 0,
    'registrations_refused_total{reason="invalid"}': 0,
    'registrations_refused_total{reason="not_confirmed"}': 0,
    "leases_expired_total{}": 0,
    "mass_losses_total{}": 0,
    "alternating_registrations_total{}": 0,
    "store_outages_total{}": 0,
    "announcements_refused_total{}": 0,
    'watcher_failures_total{watcher="east", kind="unreachable"}': 0,
    'watcher_failures_total{watcher="east", kind="silent"}': 0,
    'http_requests_total{route="/pools", method="GET", status="2xx"}': 50,
    'http_requests_total{route="/pools", method="GET", status="5xx"}': 0,
    "slow_peers_dropped_total{}": 0,
    "certificates_refused_total{}": 0,
}
"""How much each grows in a second."""

TIMES = (
    "publish_lag_seconds",
    "delivery_lag_seconds",
    'store_call_seconds{call="put"}',
    "event_loop_lag_seconds",
)
"""Histograms, each with ten durations a second, all below the smallest bound."""


class Happening(NamedTuple):
    """A value, or a pace of a counter, that is another one for a while."""

    series: str
    value: float
    begin: int
    end: int
    pods: frozenset[str]


class Scraped:
    """A deployment as it is scraped: ``lives`` says from when until when, without it the replicas a, b and c always."""

    def __init__(self, lives: dict[str, tuple[int, int]] | None = None) -> None:
        self.lives = lives if lives is not None else dict.fromkeys("abc", (0, MINUTES * 60))
        self._happened: list[Happening] = []
        self._restarts: dict[str, list[int]] = {}

    def set(
        self, series: str, value: float, *, since: int = 0, until: int = MINUTES * 60, on: str | None = None
    ) -> "Scraped":
        """A gauge has this value, or a counter this pace, from one second on until before another."""
        known = {*GAUGES, *COUNTERS, *(f"{name} slow" for name in TIMES)}
        assert series in known, f"{series} is not among what is scraped"
        self._happened.append(Happening(series, value, since, until, frozenset(on or self.lives)))
        return self

    def slow(self, name: str, secs: float, **when: int) -> "Scraped":
        """A twentieth of a histogram's durations are this long."""
        return self.set(f"{name} slow", secs, **when)

    def restarted(self, pod: str, *at: int) -> "Scraped":
        """The process of a replica was started anew."""
        self._restarts[pod] = list(at)
        return self

    def series(self, minutes: int = MINUTES) -> list[dict[str, str]]:
        """What was scraped in so many minutes, as promtool takes it."""
        count = minutes * 60 // STEP + 1
        return [
            {"series": name, "values": " ".join(values[:count])}
            for pod in self.lives
            for name, values in self._series_of(pod)
        ]

    def _series_of(self, pod: str) -> Iterator[tuple[str, list[str]]]:
        for series in GAUGES:
            yield _named(series, pod), self._values(pod, [self._at(series, pod, GAUGES[series], t) for t in _moments()])
        for series, pace in COUNTERS.items():
            yield _named(series, pod), self._values(pod, self._grown(series, pod, pace))
        for name in TIMES:
            yield from self._buckets(name, pod)
        began = [max([self.lives[pod][0], *(at for at in self._restarts.get(pod, []) if at <= t)]) for t in _moments()]
        yield f"process_start_time_seconds{{{_target(pod)}}}", self._values(pod, began)

    def _at(self, series: str, pod: str, value: float, moment: int) -> float:
        for each in self._happened:
            if each.series == series and pod in each.pods and each.begin <= moment < each.end:
                value = each.value
        return value

    def _grown(self, series: str, pod: str, pace: float) -> list[float]:
        total, totals = 0.0, []
        for moment in _moments():
            totals.append(total)
            if moment >= self.lives[pod][0]:
                total += self._at(series, pod, pace, moment) * STEP
        return totals

    def _buckets(self, name: str, pod: str) -> Iterator[tuple[str, list[str]]]:
        base, _, labels = name.partition("{")
        for le in LE:
            total, totals = 0.0, []
            for moment in _moments():
                totals.append(total)
                slow = self._at(f"{name} slow", pod, 0.0, moment)
                if moment >= self.lives[pod][0]:
                    total += STEP * (10 if slow <= float(le) else 9.5)
            inner = ", ".join(part for part in (labels.rstrip("}"), f'le="{le}"') if part)
            yield _named(f"{base}_bucket{{{inner}}}", pod), self._values(pod, totals)

    def _values(self, pod: str, values: list[float]) -> list[str]:
        """As text; a target that is gone is marked as such, as Prometheus does, or its last values would linger."""
        begin, end = self.lives[pod]
        texts = [f"{value:.12g}" if begin <= t < end else "_" for t, value in zip(_moments(), values, strict=True)]
        return ["stale" if end <= t < end + STEP else text for t, text in zip(_moments(), texts, strict=True)]


def _moments() -> range:
    return range(0, MINUTES * 60 + 1, STEP)


def _target(pod: str) -> str:
    return f'namespace="prod", job="discovery", pod="{pod}", instance="{pod}:8080"'


def _named(series: str, pod: str) -> str:
    name, _, labels = series.partition("{")
    return f"discovery_{name}{{{', '.join(part for part in (labels.rstrip('}'), _target(pod)) if part)}}}"
