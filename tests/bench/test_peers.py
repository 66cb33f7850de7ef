"""What is said to the peers, and what is read from the reports about them."""

import base64
import json

import pytest

from tests.bench import consul, etcd
from tests.bench.goals import Bound, Row, table, verdict
from tests.bench.load import CannotMeasure, registration

REPORT = """finished in 1.00s, 5857.00 req/s, 1.23MB/s
requests: 5900 total, 5889 started, 5857 done, 5857 succeeded, {failed} failed, 0 errored, 0 timeout
status codes: 5857 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 1.10MB (1153433) total, 400.00KB (409600) headers (space savings 90%), 572.00KB (585700) data
"""
LOG = "".join(f"1000\t200\t{took}\n" for took in range(1000, 2000, 10)) + "1000\t-1\t5\n"


def test_the_number_of_a_key_can_be_read_where_etcd_shows_it_in_base64():
    shown = json.dumps({"kv": {"key": etcd.key(42)}}, separators=(",", ":")).encode()
    assert etcd.KEY_MARKS.findall(shown) == [b"00000042"]
    assert base64.b64encode(base64.b64decode(etcd.key(42))).decode() == etcd.key(42)


def test_a_key_that_went_is_told_from_one_that_was_put():
    event = b'{%s"kv":{"key":"pool00000007","mod_revision":"3"}}'
    assert etcd.GONE_MARKS.findall(event % b'"type":"DELETE",') == [b"00000007"]
    assert etcd.GONE_MARKS.findall(event % b"") == []


def test_messages_are_what_protobuf_says():
    # From the description of the encoding: field 1 of 150, field 2 of "testing".
    assert etcd.message((1, 150), (2, b"testing")) == bytes.fromhex("089601120774657374696e67")
    assert etcd.grpc_frame(b"abc") == b"\0\0\0\0\x03abc"


def test_a_watch_by_grpc_is_whole_frames_after_the_preface():
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    text = etcd.grpc_watch_greeting()
    assert text.startswith(preface)
    rest, kinds = text[len(preface) :], []
    while rest:
        length = int.from_bytes(rest[:3], "big")
        kinds.append((rest[3], int.from_bytes(rest[5:9], "big")))
        rest = rest[9 + length :]
    assert kinds == [(4, 0), (4, 0), (8, 0), (1, 1), (0, 1)]


def test_the_report_of_h2load_is_read():
    load = etcd.parse_h2load(REPORT.format(failed=0), LOG, 100)
    assert (load.per_sec, load.requests) == (5857.0, 5857)
    assert (load.p50, load.p99) == pytest.approx((1.5, 1.99))


@pytest.mark.parametrize(("failed", "least_bytes"), [(1, 0), (0, 101)])
def test_calls_that_failed_or_gave_too_little_are_never_counted_as_speed(failed, least_bytes):
    with pytest.raises(CannotMeasure, match="h2load saw"):
        etcd.parse_h2load(REPORT.format(failed=failed), LOG, least_bytes)


def test_a_report_of_h2load_without_figures_is_told_as_it_is():
    with pytest.raises(CannotMeasure, match="could not connect"):
        etcd.parse_h2load("could not connect to host", "", 0)


def test_a_catalog_entry_carries_the_whole_registration_in_values_of_a_length_that_consul_takes():
    body = registration(3)
    parts = json.loads(consul.service(3, body))["Service"]["Meta"].values()
    assert "".join(parts).encode() == body
    assert max(map(len, parts)) <= 512


def test_programs_that_are_not_there_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert etcd.absent() == "no etcd here"
    assert consul.absent() == "no consul here"
    for name in ("etcd", "consul"):
        program = tmp_path / f"{name}-of-another-place"
        program.touch(mode=0o755)
        monkeypatch.setenv(f"BIN_{name.upper()}", str(program))
    assert etcd.absent() is None
    assert etcd.absent("h2load") == "no h2load here"
    assert consul.absent() is None


def test_a_row_without_its_peer_counts_as_a_goal_that_is_not_met_and_says_why():
    row = Row("R2", "GET", "req/s", Bound(">=", 10), "consul-health", "no consul here")
    row.add(1.0)
    assert row.met is None
    assert verdict(row) == "not measured: no consul here"
    assert table([row]).splitlines()[-2:] == ["not measured: 1 (no consul here)", "0 of 1 goals met"]
    assert json.loads(json.dumps(row.as_json(), allow_nan=False))["absent"] == "no consul here"


def test_a_goal_that_a_short_run_nearly_reaches_is_said_to_be_so():
    row = Row("W1", "POST", "req/s", Bound(">=", 0.6), "post")
    row.add(55, 100)
    assert verdict(row) == "NOT MET"
    assert verdict(row, 0.9) == "met at 0.9 of it"
    assert table([row], 0.9).splitlines()[-1] == "1 of 1 goals met"
