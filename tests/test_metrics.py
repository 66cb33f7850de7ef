"""What is counted, as Prometheus reads it and as people do."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from discovery.errors import Gone, Unavailable
from discovery.metrics import METHODS, STATUSES, Counters
from discovery.metrics.kinds import ANY, OTHER, Counted, Metric, Reading, Tally, Timing


def samples(counters: Counters) -> dict[str, float]:
    """All samples of the exposition by their names with labels."""
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(counters.exposition().decode())
        for sample in family.samples
    }


def every(kind: type[Metric]) -> list[Metric]:
    return [metric for metric in Counters() if isinstance(metric, kind)]


def test_every_counter_with_fixed_words_is_there_from_the_start_and_counts_for_itself() -> None:
    fixed = [metric.name for metric in every(Tally) if ANY not in metric.labels.values()]
    assert len(fixed) > 15
    counters = Counters()
    assert set(samples(counters).values()) == {0}
    tallies = [metric for metric in counters if metric.name in fixed]
    words = [[values[0] for values in metric.labels.values()] for metric in tallies]
    for step, (metric, values) in enumerate(zip(tallies, words, strict=True), 1):
        metric.of(*values).inc(step)
    found = samples(counters)
    for step, (metric, values) in enumerate(zip(tallies, words, strict=True), 1):
        labels = "".join(f"{{{name}={value}}}" for name, value in sorted(zip(metric.labels, values, strict=True)))
        assert found[metric.title + labels] == step
    assert sum(found.values()) == sum(range(1, len(fixed) + 1))


def test_people_are_shown_what_has_no_labels_and_of_the_rest_what_happened() -> None:
    counters = Counters()
    assert counters.values()["feed_connections"] == 0
    assert not [name for name in counters.values() if name.startswith("relists")]
    counters.relisted(Gone("gap", "an announcement is missing"))
    counters.relisted(Gone("gap", "another one"))
    counters.relisted(Unavailable("no answer"))
    counters.resynced.read_by(lambda: 3)
    counters.http_requests.of("/pools", "GET", "2xx").inc()
    found = counters.values()
    assert (found["relists_gap"], found["relists_unavailable"], found["streams_resynced"]) == (2, 1, 3)
    assert not [name for name in found if name.startswith("http_requests")]


def test_what_is_read_is_read_when_it_is_shown_and_not_shown_where_nobody_says_it() -> None:
    counters = Counters()
    assert "discovery_feed_silent_seconds" not in samples(counters)
    silences = iter([0.5, None, 7.0])
    counters.feed_silent.read_by(lambda: next(silences))
    assert samples(counters)["discovery_feed_silent_seconds"] == 0.5
    assert "discovery_feed_silent_seconds" not in samples(counters)
    assert samples(counters)["discovery_feed_silent_seconds"] == 7.0


def test_a_reading_may_have_numbers_by_the_words_of_one_label_or_of_several() -> None:
    counters = Counters()
    counters.complete.read_by(lambda: True)
    counters.watcher_up.read_by(lambda: {"east": True, "west": False})
    counters.refused_slices.read_by(lambda: {("east", "fqdn"): 2})
    found = samples(counters)
    assert found["discovery_complete"] == 1
    assert (found["discovery_watcher_up{watcher=east}"], found["discovery_watcher_up{watcher=west}"]) == (1, 0)
    assert found["discovery_watcher_refused_slices{cause=fqdn}{watcher=east}"] == 2


def test_a_histogram_counts_each_duration_into_the_first_bound_that_holds_it() -> None:
    timing = Timing("lag_seconds", "A lag.", (0.1, 1.0))
    for secs in (0.05, 0.1, 0.5, 5.0):
        timing.observe(secs)
    family = timing.family()
    assert family is not None
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert found == {
        ("discovery_lag_seconds_bucket", "0.1"): 2,
        ("discovery_lag_seconds_bucket", "1"): 3,
        ("discovery_lag_seconds_bucket", "+Inf"): 4,
        ("discovery_lag_seconds_count", None): 4,
        ("discovery_lag_seconds_sum", None): pytest.approx(5.65),
    }


@given(st.lists(st.tuples(st.text(), st.text()), max_size=50))
def test_labels_stay_bounded_whatever_is_counted(words: list[tuple[str, str]]) -> None:
    tally = Tally("things", "Things.", method=METHODS, status=STATUSES)
    timing = Timing("thing_seconds", "Things.", (1.0,), method=METHODS, status=STATUSES)
    for pair in words:
        tally.of(*pair).inc()
        timing.of(*pair).observe(1)
    for metric in (tally, timing):
        family = metric.family()
        assert family is not None
        for sample in family.samples:
            assert sample.labels["method"] in {*METHODS, OTHER}
            assert sample.labels["status"] in {*STATUSES, OTHER}
    assert sum(value for _, value in tally.values()) == len(words)


def test_two_replicas_in_one_process_do_not_share_counters() -> None:
    one, other = Counters(), Counters()
    one.feed_connections.inc()
    assert samples(other)["discovery_feed_connections_total"] == 0


def test_every_metric_has_a_name_of_its_own_and_says_what_it_is() -> None:
    metrics = list(Counters())
    assert len({metric.title for metric in metrics}) == len({metric.name for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert metric.name.startswith("discovery_")
        assert 20 < len(metric.documentation) < 200, metric.name
        assert metric.documentation.endswith("."), metric.name
    assert {type(metric) for metric in metrics} == {Tally, Timing, Reading, Counted}


def test_promtool_finds_nothing_to_say_about_any_metric() -> None:
    counters = Counters()
    counters.show_process()
    for metric in counters:
        words = [values[0] if values else "east" for values in metric.labels.values()]
        if isinstance(metric, Reading):
            metric.read_by({tuple(words): 1.0}.copy)
        elif isinstance(metric, (Tally, Timing)):
            metric.of(*words)
    text = counters.exposition()
    for metric in counters:
        assert f"# TYPE {metric.title} {metric.kind}\n".encode() in text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=20, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
