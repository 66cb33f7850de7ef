"""The routes as clients see them: registering, lists, single pools, probes, and everything that is refused."""

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from discovery.errors import Gone
from discovery.model import Router
from tests.http.in_process import LEASE, Rig, fields, pool
from tests.http.sockets import eventually, served

PATHS = {
    "/pools": ["GET", "HEAD", "POST"],
    "/pools/events": ["GET", "HEAD"],
    "/pools/c1/n1/p1": ["DELETE", "GET", "HEAD"],
    "/routers": ["GET", "HEAD"],
    "/routers/events": ["GET", "HEAD"],
    "/sd/prometheus": ["GET", "HEAD"],
    "/registrations": ["GET", "HEAD"],
    "/openapi.json": ["GET", "HEAD"],
    "/status": ["GET", "HEAD"],
    "/healthz": ["GET", "HEAD"],
    "/readyz": ["GET", "HEAD"],
    "/metrics": ["GET", "HEAD"],
    "/": ["GET", "HEAD"],
}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO", "get"]
LISTS = ["/pools", "/routers"]


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A replica that follows its store; not complete before one lease is over."""
    with Rig() as rig:
        yield rig.start()


@pytest.fixture
def whole(rig: Rig) -> Rig:
    """The same with its list complete."""
    rig.pass_time(LEASE + 1)
    assert rig.get("/pools").json() == {"complete": True, "pools": []}
    return rig


@pytest.fixture
def listed() -> Iterator[Rig]:
    """Pools without a store behind them."""
    with Rig() as rig:
        rig.publish(
            pool("p1", model="a", capabilities=["chat"], location={"region": "eu"}),
            pool("p2", model="a", capabilities=["chat", "tools"], location={"region": "us"}),
            pool("p3", model="b", cluster_id="c2", capabilities=["tools"], location={"region": "eu"}),
            pool("p4", model="b & c", namespace="n2"),
        )
        rig.publish_routers(Router("r0", "http://10.0.0.5:9000"))
        rig.settle()
        yield rig


# ---- POST /pools


def test_a_registration_is_answered_with_the_lease_and_listed_at_once(whole: Rig) -> None:
    body = fields(relays=["http://10.0.3.7:5561"], capacity=[{"resource": "gpu", "quantity": 16}], instance_id="i")
    answer = whole.post(body)
    assert answer.status == 200
    assert answer.json() == {"lease_duration_secs": 15, "heartbeat_interval_secs": 5, "created": True}
    [entry] = whole.get("/pools").json()["pools"]
    assert {name: entry[name] for name in body} == body
    assert whole.post(body).json()["created"] is False


def test_a_heartbeat_that_says_the_same_changes_nothing_that_anybody_sees(whole: Rig) -> None:
    whole.post(fields(capabilities=["a", "b"]))
    whole.settle()
    before, stream = whole.get("/pools"), whole.open("/pools/events")
    for _ in range(10):
        whole.pass_time(5)
        assert whole.post(fields(capabilities=["b", "a", "b"], novel=1)).json()["created"] is False
    assert whole.get("/pools") == before
    assert [event.name for event in stream.events()] == ["snapshot"]


def test_a_pool_leaves_when_its_heartbeats_end(whole: Rig) -> None:
    whole.post(fields("p1"))
    whole.post(fields("p2"))
    whole.pass_time(10)
    whole.post(fields("p2"))
    whole.pass_time(4.9)
    assert whole.names() == ["p1", "p2"]
    whole.pass_time(1.1)
    assert whole.names() == ["p2"]
    assert whole.post(fields("p1")).json()["created"] is True


def test_the_latest_registration_wins(whole: Rig) -> None:
    whole.post(fields(model="old"))
    whole.post(fields(model="new"))
    assert [entry["model"] for entry in whole.get("/pools").json()["pools"]] == ["new"]


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/json;v=1"]
)
def test_json_is_taken_however_the_header_is_written(whole: Rig, kind: str) -> None:
    assert whole.post(fields(), {"content-type": kind}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonp"},
        {"content-type": "application/problem+json"},
    ],
)
def test_any_other_body_is_refused_with_the_header_to_send(whole: Rig, headers: dict[str, str]) -> None:
    answer = whole.post(fields(), headers)
    assert answer.status == 415
    assert "Content-Type: application/json" in answer.problem()["detail"]
    assert whole.names() == []


def test_what_is_not_json_is_400_and_what_is_no_registration_is_422_with_every_fault(whole: Rig) -> None:
    assert "not JSON" in whole.post(b"{").problem()["detail"]
    assert whole.post(b"{").status == 400
    answer = whole.post(fields("", cluster_id=5, frontends=["http://a", "x"], capacity=[{"resource": "g"}]))
    assert answer.status == 422
    problem = answer.problem()
    assert [fault["path"] for fault in problem["errors"]] == [
        "$.cluster_id",
        "$.dgd_name",
        "$.frontends[1]",
        "$.capacity[0].quantity",
    ]
    assert all(set(fault) == {"path", "message"} and fault["message"] for fault in problem["errors"])
    assert "4 faults" in problem["detail"]
    assert whole.get("/registrations").json()["registrations"] == []


@pytest.mark.parametrize("nasty", ["\\ud800", "\\udfff"])
def test_f01_a_lone_surrogate_is_refused_and_nothing_is_stored(whole: Rig, nasty: str) -> None:
    raw = json.dumps(fields("pNASTY", metadata={"k": "NASTY"})).replace("NASTY", nasty).encode()
    before = whole.get("/pools")
    assert whole.post(raw).status == 400
    assert whole.get("/pools") == before


@pytest.mark.parametrize("raw", [b"[" * 20_000 + b"]" * 20_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000])
def test_f02_a_small_body_that_nests_deeply_is_the_clients_error(whole: Rig, raw: bytes) -> None:
    assert whole.post(raw).status == 400
    assert whole.post(b'{"x":' + b"9" * 5_000 + b"}").status == 400


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not(whole: Rig) -> None:
    raw = json.dumps(fields(metadata={"k": ""})).encode()
    fill = 65_536 - len(raw)
    assert whole.post(raw.replace(b'"k": ""', b'"k": "%b"' % (b"x" * fill))).status == 200
    answer = whole.post(raw.replace(b'"k": ""', b'"k": "%b"' % (b"x" * (fill + 1))))
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert "65,536" in answer.problem()["detail"]


def test_a_registration_takes_no_parameters(whole: Rig) -> None:
    assert whole.post(fields(), target="/pools?dry_run=1").status == 400
    assert whole.names() == []


def test_a_store_that_is_away_is_503_and_the_list_stays(whole: Rig) -> None:
    whole.post(fields())
    whole.store.away = True
    for answer in (whole.post(fields("p2")), whole.post(fields()), whole.delete("/pools/c1/n1/p1")):
        assert answer.status == 503
        assert answer.headers["retry-after"] in ("1", "2")
        assert answer.headers["connection"] == "close"
        assert answer.problem()["detail"] == "the store does not answer"
    assert whole.names() == ["p1"]
    whole.store.away = False
    assert whole.post(fields("p2")).status == 200


def test_above_the_most_pools_only_new_ones_are_refused() -> None:
    with Rig(max_pools=2) as rig:
        rig.start()
        assert [rig.post(fields(name)).status for name in ("p1", "p2", "p3")] == [200, 200, 507]
        assert "--max-pools" in rig.post(fields("p3")).problem()["detail"]
        assert rig.post(fields("p1", model="changed")).status == 200
        rig.delete("/pools/c1/n1/p1")
        assert rig.post(fields("p3")).status == 200


def test_too_many_registrations_of_one_address_are_429_and_cost_no_other() -> None:
    with Rig(rate_limit=1) as rig:
        rig.start()
        statuses = [rig.post(fields(f"p{number}")).status for number in range(12)]
        assert statuses == [200] * 10 + [429] * 2
        answer = rig.post(fields())
        assert int(answer.headers["retry-after"]) == 1
        assert "--rate-limit" in answer.problem()["detail"]
        assert rig.post(fields("other"), client="10.0.0.2").status == 200
        assert rig.get("/pools").status == 200
        assert rig.delete("/pools/c1/n1/p1").status == 204, "whoever leaves may always say so"
        rig.pass_time(1)
        assert rig.post(fields("p10")).status == 200


# ---- DELETE and GET of one pool


def test_a_pool_that_deregisters_is_gone_at_once_and_may_say_so_twice(whole: Rig) -> None:
    whole.post(fields("p1"))
    whole.post(fields("p2"))
    stream = whole.open("/pools/events")
    for _ in range(2):
        answer = whole.delete("/pools/c1/n1/p1")
        assert (answer.status, answer.body, "content-length" in answer.headers) == (204, b"", False)
        assert whole.names() == ["p2"]
    assert [event.name for event in stream.events()] == ["snapshot", "delete"]
    assert whole.post(fields("p1")).json()["created"] is True


def test_an_instance_takes_away_only_its_own_registration(whole: Rig) -> None:
    whole.post(fields(instance_id="new"))
    assert whole.delete("/pools/c1/n1/p1?instance_id=old").status == 204
    assert whole.names() == ["p1"]
    assert whole.delete("/pools/c1/n1/p1?instance_id=new").status == 204
    assert whole.names() == []
    assert whole.delete("/pools/c1/n1/p1?instance_id=new").status == 204
    whole.post(fields())
    whole.delete("/pools/c1/n1/p1?instance_id=new")
    assert whole.names() == ["p1"], "a registration without an instance is nobody's"


def test_an_empty_instance_is_one_like_any_other(whole: Rig) -> None:
    whole.post(fields(instance_id="new"))
    assert whole.delete("/pools/c1/n1/p1?instance_id=").status == 204
    assert whole.names() == ["p1"]
    whole.post(fields(instance_id=""))
    assert whole.delete("/pools/c1/n1/p1?instance_id=").status == 204
    assert whole.names() == []


@pytest.mark.parametrize("query", ["instance=x", "x", "instance_id=a&instance_id=b", "instance_id=%ff"])
def test_a_delete_with_a_wrong_parameter_deletes_nothing(whole: Rig, query: str) -> None:
    whole.post(fields(instance_id="a"))
    assert whole.delete(f"/pools/c1/n1/p1?{query}").status == 400
    assert whole.names() == ["p1"]


NAMES = ["a/b", "a%2Fb", "ü", "a b", "...", "a?b", "a#b", "events", "%", "a+b", "\U0001f600", "a&b=c"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_reached_by_its_escaped_path(whole: Rig, name: str) -> None:
    body = fields(name, cluster_id=name, namespace=name)
    whole.post(body)
    path = "/pools/" + "/".join([quote(name, safe="")] * 3)
    assert whole.get(path).json()["cluster_id"] == name
    assert whole.delete(path).status == 204
    assert whole.names() == []


def test_an_escaped_slash_is_part_of_a_name_and_no_separator(whole: Rig) -> None:
    whole.post(fields("d", cluster_id="a/b", namespace="c"))
    assert whole.get("/pools/a%2Fb/c/d").status == 200
    assert whole.get("/pools/a%2fb/c/%64").status == 200
    assert whole.get("/pools/a/b%2Fc/d").status == 404
    assert whole.get("/pools/a/b/c/d").status == 404
    assert whole.delete("/pools/a/b%2Fc/d").status == 204
    assert whole.names() == ["d"]


@pytest.mark.parametrize(
    "path",
    ["", "a", "a/b", "a/b/c/d", "a/b/c/", "a//c", "a/b/%ff", "%c3/b/c", "a/b/%00", "a/b/%20", "a/./c", "a/%2e%2e/c"]
    + ["a/b/" + "c" * 254, "a/b/%0A"],
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_path_that_names_no_pool_is_404(whole: Rig, method: str, path: str) -> None:
    assert whole.ask(method, f"/pools/{path}").status == 404
    assert whole.ask(method, f"/pools/{path}").problem()["title"]


def test_one_pool_is_the_entry_of_the_list_with_a_tag_of_its_own(listed: Rig) -> None:
    answer = listed.get("/pools/c1/n1/p1")
    assert answer.status == 200
    assert answer.json() == listed.get("/pools").json()["pools"][0]
    assert b"[%b," % answer.body in listed.get("/pools").body
    tag = answer.headers["etag"]
    assert re.fullmatch(r'W/"[0-9a-f]{32}"', tag)
    assert answer.headers["cache-control"] == "no-cache"
    unchanged = listed.get("/pools/c1/n1/p1", {"if-none-match": f'"x", {tag[2:]}'})
    assert (unchanged.status, unchanged.body, unchanged.headers["etag"]) == (304, b"", tag)
    listed.publish(pool("p9"))
    assert listed.get("/pools/c1/n1/p1").headers["etag"] == tag, "another pool is no change of this one"
    listed.publish(pool("p1", model="changed"))
    assert listed.get("/pools/c1/n1/p1", {"if-none-match": tag}).status == 200


def test_a_pool_that_is_not_listed_is_404_only_where_the_list_is_complete(listed: Rig) -> None:
    assert "c1/n1/none" in listed.get("/pools/c1/n1/none").problem()["detail"]
    assert listed.get("/pools/c1/n1/none").status == 404
    listed.publish(complete=False)
    answer = listed.get("/pools/c1/n1/none")
    assert (answer.status, answer.headers["retry-after"] in ("1", "2")) == (503, True)
    assert listed.get("/pools/c1/n1/p1").status == 200
    assert listed.get("/pools/c1/n1/p1?x=1").status == 400


# ---- GET /pools


@pytest.mark.parametrize("path", ["/pools", "/pools/events", "/pools/c1/n1/p1", "/routers", "/routers/events"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_before_the_first_list_there_is_none_and_never_an_empty_one(method: str, path: str) -> None:
    with Rig() as rig:
        rig.stage = ("store", "the store has not been read yet")
        answer = rig.ask(method, path)
        assert answer.status == 503
        assert answer.headers["retry-after"] in ("1", "2")
        assert "the store has not been read yet" in answer.problem()["detail"]


def test_registrations_are_503_before_the_store_was_read() -> None:
    with Rig() as rig:
        assert rig.get("/registrations").status == 503


def test_a_fresh_replica_lists_what_it_has_and_says_that_it_may_be_less_than_all(rig: Rig) -> None:
    rig.post(fields())
    assert rig.get("/pools").json()["complete"] is False
    assert rig.names() == ["p1"]
    rig.pass_time(5)
    rig.post(fields())
    rig.pass_time(10.5)
    assert rig.get("/pools").json()["complete"] is True


def test_a_list_has_a_weak_tag_and_is_never_taken_from_a_cache_unasked(listed: Rig) -> None:
    answer = listed.get("/pools")
    assert answer.status == 200
    assert re.fullmatch(r'W/"[0-9a-f]{32}"', answer.headers["etag"])
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["vary"] == "accept-encoding"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert list(answer.json()) == ["complete", "pools"]


@pytest.mark.parametrize("path", [*LISTS, "/pools?model=a"])
@pytest.mark.parametrize("form", ['W/"%s"', '"%s"', '"zz", W/"%s" ,"y"', '"zz","%s"', "*"])
def test_f05_what_is_known_already_is_304_without_a_body_and_with_the_same_tag(
    listed: Rig, path: str, form: str
) -> None:
    tag = listed.get(path).headers["etag"]
    answer = listed.get(path, {"if-none-match": form.replace("%s", tag[3:-1])})
    assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["vary"] == "accept-encoding"
    assert "content-length" not in answer.headers
    assert "content-type" not in answer.headers


@pytest.mark.parametrize("value", ['"zz"', 'W/"zz"', "W/", '"unterminated', "", ",,", "\x80\xff", '"' * 5_000])
def test_f05_any_other_condition_is_answered_with_the_list(listed: Rig, value: str) -> None:
    assert listed.get("/pools", {"if-none-match": value}) == listed.get("/pools")


@pytest.mark.parametrize("path", ["/pools", "/pools/c1/n1/p1"])
def test_f05_a_condition_in_several_lines_is_one_list(listed: Rig, path: str) -> None:
    tag = listed.get(path).headers["etag"]
    for values in ((tag, '"zz"'), ('"zz"', tag)):
        assert listed.get(path, [("if-none-match", value) for value in values]).status == 304


def test_the_tag_of_the_list_is_none_of_a_filtered_one(listed: Rig) -> None:
    tag = listed.get("/pools").headers["etag"]
    assert listed.get("/pools?model=a", {"if-none-match": tag}).status == 200


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["p1", "p2", "p4", "p3"]),
        ("model=a", ["p1", "p2"]),
        ("model=a&model=b", ["p1", "p2", "p3"]),
        ("model=b+%26%20c", ["p4"]),
        ("model=A", []),
        ("cluster_id=c2", ["p3"]),
        ("cluster_id=c2&cluster_id=c1", ["p1", "p2", "p4", "p3"]),
        ("namespace=n1", ["p1", "p2", "p3"]),
        ("namespace=n1&namespace=n2", ["p1", "p2", "p4", "p3"]),
        ("capability=chat", ["p1", "p2"]),
        ("capability=chat&capability=tools", ["p2"]),
        ("capability=chat&capability=chat", ["p1", "p2"]),
        ("region=eu", ["p1", "p3"]),
        ("region=eu&region=us", ["p1", "p2", "p3"]),
        ("region=eu&model=a", ["p1"]),
        ("region=eu&model=a&capability=tools", []),
        ("model=a&cluster_id=c1&namespace=n1&capability=chat&region=us", ["p2"]),
        ("mod%65l=a", ["p1", "p2"]),
    ],
)
def test_filters_each_repeated_and_combined(listed: Rig, query: str, names: list[str]) -> None:
    assert listed.names(f"/pools?{query}") == names
    stream = listed.open(f"/pools/events?{query}")
    assert [entry["dgd_name"] for entry in stream.events()[0].data["pools"]] == names
    assert stream.last_event_id == listed.get(f"/pools?{query}").headers["etag"][3:-1]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("modle=a", "'modle'"),
        ("x", "'x'"),
        ("=a", "''"),
        ("model=a&x=1", "'x'"),
        ("Model=a", "'Model'"),
        ("model=", "model is empty"),
        ("model", "model is empty"),
        ("model=a&model=", "model is empty"),
        ("capability=&model=a", "capability is empty"),
        ("model=%ff", "UTF-8"),
        ("%c3=a", "UTF-8"),
        ("model=\xe9", "UTF-8"),
        ("&".join(["model=a"] * 2_000), ""),
    ],
)
@pytest.mark.parametrize("path", ["/pools", "/pools/events"])
def test_a_query_that_is_not_understood_is_400_and_never_lists_everything(
    listed: Rig, path: str, query: str, why: str
) -> None:
    answer = listed.get(f"{path}?{query}")
    assert answer.status == 400
    assert why in answer.problem()["detail"]


@pytest.mark.parametrize("path", ["/routers", "/routers/events", "/registrations"])
def test_lists_without_filters_take_no_parameter(listed: Rig, path: str) -> None:
    listed.start()
    assert listed.get(f"{path}?model=a").status == 400
    assert "takes none" in listed.get(f"{path}?model=a").problem()["detail"]


def test_equal_snapshots_are_equal_bytes_on_every_replica() -> None:
    answers = []
    for order in (("p3", "p1", "p2"), ("p2", "p3", "p1")):
        with Rig() as rig:
            rig.start()
            rig.post(fields("gone"))
            for name in order:
                rig.post(fields(name, capabilities=list(order), metadata=dict.fromkeys(order, "x")))
                rig.pass_time(0.1)
            rig.delete("/pools/c1/n1/gone")
            answers.append(rig.get("/pools"))
    assert answers[0] == answers[1]


# ---- gzip


def long(rig: Rig) -> None:
    rig.publish(*(pool(f"p{number}", metadata={"k": "x" * 300}) for number in range(20)))
    rig.settle()


@pytest.mark.parametrize("value", ["gzip", "GZIP", "br, gzip;q=0.5", "*", "deflate, *;q=0.1"])
def test_a_list_is_compressed_where_that_is_asked_for(listed: Rig, value: str) -> None:
    long(listed)
    plain, packed = listed.get("/pools"), listed.get("/pools", {"accept-encoding": value})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["content-length"] == str(len(packed.body))
    assert len(packed.body) < len(plain.body) / 2
    for name in ("etag", "vary", "cache-control", "content-type"):
        assert packed.headers[name] == plain.headers[name]
    tag = packed.headers["etag"]
    unchanged = listed.get("/pools", {"accept-encoding": value, "if-none-match": tag})
    assert (unchanged.status, unchanged.headers["etag"], unchanged.body) == (304, tag, b"")
    assert "content-encoding" not in unchanged.headers


@pytest.mark.parametrize("value", ["", "identity", "br", "gzip;q=0", "gzip;q=0, *", "*;q=0"])
def test_a_list_is_plain_where_gzip_is_not_wanted(listed: Rig, value: str) -> None:
    long(listed)
    assert listed.get("/pools", {"accept-encoding": value}) == listed.get("/pools")


def test_a_small_list_is_not_worth_compressing(listed: Rig) -> None:
    answer = listed.get("/pools?model=none", {"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert answer.headers["vary"] == "accept-encoding"
    assert answer.json() == {"complete": True, "pools": []}


def test_one_compression_is_shared_by_all_readers_until_the_next_change(listed: Rig) -> None:
    long(listed)
    packed = {"accept-encoding": "gzip"}
    first, second = (listed.open("/pools", packed).writes[0] for _ in range(2))
    assert first is second
    listed.publish(gone=["p7"])
    third = listed.open("/pools", packed).writes[0]
    assert len(json.loads(gzip.decompress(third))["pools"]) == len(json.loads(gzip.decompress(first))["pools"]) - 1


# ---- routers, registrations, probes


def test_routers_are_a_list_as_pools_are(listed: Rig) -> None:
    assert listed.get("/routers").json() == {
        "complete": True,
        "routers": [{"id": "r0", "url": "http://10.0.0.5:9000"}],
    }
    assert listed.get("/routers").headers["vary"] == "accept-encoding"


def test_registrations_are_shown_as_stored_with_what_is_left_of_their_leases(whole: Rig) -> None:
    whole.post(fields("p2", capabilities=["b", "a"]))
    whole.post(fields("p1"))
    whole.pass_time(5)
    document = whole.get("/registrations").json()
    assert (document["complete"], document["reason"]) == (True, None)
    first, second = document["registrations"]
    assert first["registration"] == fields("p1")
    assert second["registration"] == fields("p2", capabilities=["a", "b"])
    assert second["lease_left_secs"] == pytest.approx(10, abs=0.5)


def test_registrations_say_why_they_may_be_less_than_all(rig: Rig) -> None:
    document = rig.get("/registrations").json()
    assert document["complete"] is False
    assert "started less than one lease ago" in document["reason"]


def test_probes_tell_life_from_readiness(listed: Rig) -> None:
    for stage, status in (("starting", 503), ("store", 503), ("watchers", 503), ("ready", 200), ("draining", 503)):
        listed.stage = (stage, "because")
        answer = listed.get("/readyz")
        assert (answer.status, answer.json()) == (status, {"stage": stage, "detail": "because"})
        assert listed.get("/healthz").json() == {"status": "alive"}
        assert listed.get("/healthz").status == 200


def test_metrics_and_status_and_the_document_are_served(listed: Rig) -> None:
    listed.counters.relisted(Gone("gap", "an announcement is missing"))
    answer = listed.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'discovery_relists_total{cause="gap"} 1.0' in answer.body
    assert listed.get("/status").json() == {"version": "test", "one_sided_pools": []}
    assert listed.get("/openapi.json").json()["openapi"].startswith("3.1")


def test_explanations_say_what_is_left_of_the_lease(whole: Rig) -> None:
    whole.post(fields("p1"))
    whole.pass_time(4)
    whole.post(fields("p2"))
    whole.pass_time(1)
    asked = whole.get("/status?pool=c1/n1/p1&pool=c1/n1/p2&pool=c1/n1/p3").json()["explained"]
    assert [one["lease_left_secs"] for one in asked] == [LEASE - 5, LEASE - 1, None]
    assert [one["lease_left_secs"] for one in whole.get("/status?pool=*").json()["explained"]] == [LEASE - 5, LEASE - 1]


# ---- methods and paths


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for path, taken in PATHS.items() for method in METHODS if method not in taken]
)
def test_a_method_that_a_path_does_not_take_is_405_with_those_it_does(listed: Rig, path: str, method: str) -> None:
    answer = listed.ask(method, path)
    assert answer.status == 405
    assert sorted(answer.headers["allow"].split(", ")) == PATHS[path]
    assert answer.headers["allow"] in answer.problem()["detail"]


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith("events")])
def test_head_has_the_status_and_headers_of_get(listed: Rig, path: str) -> None:
    listed.start()
    listed.pass_time(LEASE + 1)
    get, head = listed.get(path), listed.ask("HEAD", path)
    assert (head.status, head.headers) == (get.status, get.headers)
    assert get.status == 200
    tagged = {"if-none-match": get.headers.get("etag", "")}
    assert listed.ask("HEAD", path, tagged).status == listed.get(path, tagged).status


@pytest.mark.parametrize("path", ["/pool", "/pools2", "//pools", "/POOLS", "/favicon.ico", "/%ff", "/../pools"])
def test_where_there_is_nothing_is_404(listed: Rig, path: str) -> None:
    answer = listed.get(path)
    assert answer.status == 404
    assert path.strip("/") not in answer.problem()["detail"]


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/pools"])
def test_a_slash_too_much_is_no_redirect_to_the_host_that_was_named(listed: Rig, path: str) -> None:
    answer = listed.get(path + "/", {"host": "evil.example"})
    assert answer.status == 404
    assert "location" not in answer.headers


@pytest.mark.parametrize("path", ["/status", "/readyz"])
def test_a_fault_of_ours_is_a_problem_that_tells_nothing(path: str) -> None:
    def fail() -> Any:
        raise LookupError("the reason is for the log alone")

    with Rig(status=fail, stage=fail) as rig:
        with pytest.raises(LookupError):  # for the server, which logs it
            rig.get(path)
        answer = rig.last.answer()
        assert answer.status == 500
        assert "reason" not in answer.problem()["detail"]


# ---- another origin's pages


def test_without_a_configured_origin_no_page_may_read(listed: Rig) -> None:
    assert not [name for name in listed.get("/pools", {"origin": "http://ui"}).headers if name.startswith("access-")]
    assert (
        listed.ask("OPTIONS", "/pools", {"origin": "http://ui", "access-control-request-method": "GET"}).status == 405
    )


def test_the_configured_origin_may_read_write_and_stream() -> None:
    with Rig(cors_origin="http://ui") as rig:
        rig.start()
        ours, theirs = {"origin": "http://ui"}, {"origin": "http://other"}
        answer = rig.get("/pools", ours)
        assert answer.headers["access-control-allow-origin"] == "http://ui"
        assert "ETag" in answer.headers["access-control-expose-headers"]
        assert "Retry-After" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers["vary"].lower()
        assert "accept-encoding" in answer.headers["vary"].lower()
        assert rig.get("/pools", theirs).headers.get("access-control-allow-origin") != "http://other"
        assert rig.get("/pools?x=1", ours).headers["access-control-allow-origin"] == "http://ui"
        stream = rig.open("/pools/events", ours)
        rig.post(fields(), {"content-type": "application/json"} | ours)
        rig.settle()
        assert [event.name for event in stream.events()] == ["snapshot", "put"]
        assert stream.headers["access-control-allow-origin"] == "http://ui"
        for method in ("GET", "POST", "DELETE"):
            preflight = rig.ask(
                "OPTIONS",
                "/pools",
                ours | {"access-control-request-method": method, "access-control-request-headers": "content-type"},
            )
            assert preflight.status == 204
            assert method in preflight.headers["access-control-allow-methods"]
            assert "content-type" in preflight.headers["access-control-allow-headers"].lower()
        refused = rig.ask("OPTIONS", "/pools", theirs | {"access-control-request-method": "GET"})
        assert refused.status == 403
        assert "--cors-origin" in refused.problem()["detail"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_write_that_a_page_of_another_origin_sends_changes_nothing(method: str) -> None:
    target = "/pools" if method == "POST" else "/pools/c1/n1/p1"
    body = json.dumps(fields("p2")).encode() if method == "POST" else b""
    for lines in ({"origin": "http://other"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        for cors_origin in (None, "http://ui"):
            with Rig(cors_origin=cors_origin) as rig:
                rig.start()
                assert rig.post(fields("p1")).status == 200
                refused = rig.ask(method, target, {"content-type": "application/json"} | lines, body=body)
                assert refused.status == 403
                assert "--cors-origin" in refused.problem()["detail"]
                rig.pass_time(LEASE / 2)
                assert rig.names() == ["p1"]
                for own in ({}, {"origin": "http://test"}, {"sec-fetch-site": "same-origin"}):
                    headers = {"content-type": "application/json"} | own
                    assert rig.ask(method, target, headers, body=body).status in (200, 204)


# ---- over a real connection


def test_over_a_connection_head_and_304_and_204_have_no_body_and_the_next_request_is_answered(listed: Rig) -> None:
    listed.start()
    with served(listed.app) as server, server.peer() as peer:
        peer.get("/pools")
        whole = peer.answer()
        for path in ("/pools", "/pools/c1/n1/p1", "/routers", "/pools/events", "/none", "/healthz"):
            peer.send(f"HEAD {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            peer.answer(to_head=True)
        peer.get("/pools", f"If-None-Match: {whole.headers['etag']}")
        assert peer.answer().status == 304
        peer.get("/pools")
        assert peer.answer().body == whole.body


def test_over_a_connection_a_poll_whose_client_hangs_up_is_forgotten(listed: Rig) -> None:
    with served(listed.app) as server:
        with server.peer() as peer:
            peer.get("/pools", "If-None-Match: *", "Prefer: wait=300")
            eventually(lambda: listed.streams.parked == 1, "the poll waits")
        eventually(lambda: listed.streams.parked == 0, "its place was given back")


def test_a_long_list_is_answered_with_bytes_that_all_answers_share() -> None:
    with Rig() as rig:
        rig.publish(*(pool(f"p{number:03}", metadata={"k": "x" * 1_000}) for number in range(300)))
        first = rig.open("/pools")
        rig.publish(pool("p150", model="n"))
        second, third = rig.open("/pools"), rig.open("/pools")
        answers = [one.messages[1]["pieces"] for one in (first, second, third)]
        assert len(answers[0]) > 3
        changed = [one is not other for one, other in zip(*answers[:2], strict=True)]
        assert sum(changed[1:-1]) == 1, "more was made anew than the block of the change and the ends of the list"
        assert answers[1] is answers[2]
        for one in (first, second):
            answer = one.answer()
            assert int(answer.headers["content-length"]) == len(answer.body)
            assert len(answer.json()["pools"]) == 300
        assert rig.ask("HEAD", "/pools").headers["content-length"] == str(len(second.answer().body))
