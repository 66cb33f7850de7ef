"""The arithmetic of the benchmark: verdicts, the table, what is sent, and what is read from others' reports."""

import argparse
import json
import math

import pytest

from discovery import registrations
from tests.bench.arguments import goals
from tests.bench.expiry import Departures, _events
from tests.bench.goals import NONE_AT_ALL, Bound, Row, table
from tests.bench.load import MARK, REGISTRATION_BYTES, CannotMeasure, mark, parse_wrk, registration
from tests.bench.propagation import percentile

WRK = """Running 3s test @ http://127.0.0.1:18090/pools
  1 threads and 32 connections
  Latency Distribution
     50%    2.10ms
     99%  {late}
  30021 requests in 3.00s, 4.01MB read
{failures}Requests/sec:  10007.00
Transfer/sec:      1.34MB
"""


def row(sign=">=", value=0.6, samples=((60, 100), (80, 100), (40, 100))):
    made = Row("W1", "POST", "req/s", Bound(sign, value), "post")
    for product, reference in samples:
        made.add(product, reference)
    return made


def test_the_figure_is_the_ratio_of_the_medians_and_the_spread_is_that_of_the_rounds():
    made = row(samples=((10, 100), (90, 300), (50, 100)))
    assert made.figure == pytest.approx(0.5)
    assert made.figures == pytest.approx([0.1, 0.3, 0.5])


@pytest.mark.parametrize(
    ("sign", "value", "met"),
    [(">=", 0.6, True), (">=", 0.61, False), ("<=", 0.6, True), ("<=", 0.59, False)],
)
def test_a_goal_is_met_on_the_right_side_of_its_bound_and_exactly_at_it(sign, value, met):
    assert row(sign, value).met is met


def test_one_loss_in_one_round_is_not_met_though_the_median_is_none():
    made = Row("P1", "lost", "writes", NONE_AT_ALL)
    for lost in (0, 0, 1):
        made.add(lost)
    assert made.figure == 0
    assert made.met is False


def test_a_reference_that_did_nothing_meets_no_goal():
    made = row(samples=((60, 0),))
    assert math.isnan(made.figure)
    assert made.met is False


@pytest.mark.parametrize(("reference_name", "reference"), [("post", None), (None, 5.0)])
def test_a_sample_without_its_reference_is_refused(reference_name, reference):
    with pytest.raises(ValueError, match="W1 POST"):
        Row("W1", "POST", "req/s", None, reference_name).add(1.0, reference)


def test_the_table_ends_with_the_count_of_goals_and_leaves_rows_without_a_bound_out_of_it():
    informing = Row("W1", "renewals", "req/s", None, "post")
    informing.add(1, 2)
    text = table([row(), row(">=", 0.9), informing])
    assert text.splitlines()[-1] == "1 of 2 goals met"
    assert text.count("NOT MET") == 1
    header, rule, *lines = text.splitlines()[:5]
    assert {len(header), len(rule), *map(len, lines)} == {len(header)}
    assert "0.60x" in lines[0]
    assert "0.40..0.80" in lines[0]


def test_samples_survive_the_json_file():
    told = json.loads(json.dumps(row().as_json()))
    assert told["product_samples"] == [60, 80, 40]
    assert told["wanted"] == ">= 0.6x post"


@pytest.mark.parametrize(("late", "milliseconds"), [("812.00us", 0.812), ("17.06ms", 17.06), ("1.20s", 1200.0)])
def test_the_report_of_wrk_is_read_in_whatever_unit_it_is_in(late, milliseconds):
    load = parse_wrk(WRK.format(late=late, failures=""))
    assert (load.per_sec, load.requests) == (10007.0, 30021)
    assert load.p99 == pytest.approx(milliseconds)
    assert load.p50 == pytest.approx(2.1)
    assert load.read_mb == pytest.approx(4.01 * 1.048576)


@pytest.mark.parametrize(
    "failures",
    ["  Non-2xx or 3xx responses: 7\n", "  Socket errors: connect 0, read 3, write 0, timeout 0\n"],
)
def test_answers_that_failed_are_never_counted_as_speed(failures):
    with pytest.raises(CannotMeasure, match=r"Non-2xx|Socket errors"):
        parse_wrk(WRK.format(late="1.00ms", failures=failures))


def test_a_report_without_figures_is_told_as_it_is():
    with pytest.raises(CannotMeasure, match="unable to connect"):
        parse_wrk("unable to connect to 127.0.0.1:1 Connection refused")


@pytest.mark.parametrize("index", [0, 9_999, 123_456])
def test_a_registration_is_taken_by_the_service_and_listed_in_the_very_bytes_that_were_sent(index):
    sent = registration(index, 42)
    assert len(sent) == REGISTRATION_BYTES
    assert registrations.encode(registrations.parse(sent)) == sent


def test_a_mark_is_found_again_and_ends_the_registration():
    body = registration(3, 42)
    assert MARK.findall(body) == [b"00000042"]
    assert body.endswith(mark(42) + b"}}")
    assert registration(3, 43) != body


def test_percentiles_are_samples():
    samples = [float(number) for number in range(100, 0, -1)]
    assert percentile(samples, 0.5) == 51
    assert percentile(samples, 0.99) == 100
    assert percentile([7.0], 0.99) == 7


def test_departures_count_what_is_early_and_what_leaves_twice():
    seen = Departures()
    pools = [{"dgd_name": name} for name in ("a", "b", "c")]
    seen.take("snapshot", json.dumps({"pools": pools}).encode(), before_deadline=False)
    seen.take("delete", b'{"dgd_name":"a"}', before_deadline=True)
    seen.take("delete", b'{"dgd_name":"a"}', before_deadline=False)
    seen.take("snapshot", json.dumps({"pools": pools[2:]}).encode(), before_deadline=False)
    assert (seen.early, seen.twice, seen.listed) == (1, 1, {"c"})


class _Cut:
    """A response that comes in the given pieces."""

    def __init__(self, text: bytes, size: int) -> None:
        self._pieces = [text[start : start + size] for start in range(0, len(text), size)]

    def read1(self, _: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_stream_is_cut(size):
    text = b'retry: 1000\n\nevent: snapshot\nid: x\ndata: {"a":1}\n\n:\n\nevent: delete\ndata: {}\n\n'
    events = _events(_Cut(text, size))
    assert [next(events), next(events)] == [("snapshot", b'{"a":1}'), ("delete", b"{}")]
    with pytest.raises(CannotMeasure):
        next(events)


def test_goals_are_named_in_any_case_and_an_unknown_one_is_refused():
    assert goals("r1, W1") == {"R1", "W1"}
    with pytest.raises(argparse.ArgumentTypeError, match="X9"):
        goals("R1,X9")
