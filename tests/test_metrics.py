"""What is counted, as Prometheus reads it and as people do."""

from prometheus_client.parser import text_string_to_metric_families

from discovery.metrics import Counters

COUNTERS = (
    "feed_connections",
    "announcements_ignored",
    "announcements_refused",
    "registrations_ignored",
    "alternating_registrations",
    "certificates_refused",
    "mass_losses",
)


def samples(counters: Counters) -> dict[str, float]:
    """All samples of the exposition but the times of creation."""
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(counters.exposition().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_every_counter_is_there_from_the_start_and_counts_for_itself() -> None:
    counters = Counters()
    assert samples(counters) == {f"discovery_{name}_total": 0 for name in COUNTERS}
    for step, name in enumerate(COUNTERS, 1):
        getattr(counters, name).inc(step)
    assert samples(counters) == {f"discovery_{name}_total": step for step, name in enumerate(COUNTERS, 1)}
    assert counters.values() == {name: step for step, name in enumerate(COUNTERS, 1)}


def test_the_end_of_the_certificate_is_shown_where_there_is_one() -> None:
    counters = Counters()
    assert "discovery_certificate_not_after_seconds" not in samples(counters)
    counters.watch_certificate(lambda: 1.8e9)
    assert samples(counters)["discovery_certificate_not_after_seconds"] == 1.8e9


def test_the_silence_of_the_feed_is_asked_for_when_it_is_shown() -> None:
    counters = Counters()
    silences = iter([0.5, 7.0])
    counters.watch_silence(lambda: next(silences))
    assert samples(counters)["discovery_feed_silent_seconds"] == 0.5
    assert samples(counters)["discovery_feed_silent_seconds"] == 7.0


def test_lists_are_counted_by_cause() -> None:
    counters = Counters()
    counters.relisted("gap")
    counters.relisted("gap")
    counters.relisted("unavailable")
    found = samples(counters)
    assert found["discovery_relists_total{cause=gap}"] == 2
    assert found["discovery_relists_total{cause=unavailable}"] == 1
    assert counters.values()["relists_gap"] == 2


def test_two_replicas_in_one_process_do_not_share_counters() -> None:
    one, other = Counters(), Counters()
    one.feed_connections.inc()
    assert samples(other)["discovery_feed_connections_total"] == 0


def test_every_metric_says_what_it_counts() -> None:
    families = list(text_string_to_metric_families(Counters().exposition().decode()))
    assert families
    for family in families:
        assert family.name.startswith("discovery_")
        assert len(family.documentation) > 20, family.name
