"""Tokens in front of the whole app: every route with every scope, and what becomes of those who wait."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from discovery.http import access, api
from discovery.http.access import OPEN_PATHS, STREAMS, Guard
from discovery.http.openapi import document
from discovery.http.token_file import read_tokens
from discovery.http.tokens import Identities
from tests.http.in_process import LEASE, Answer, Exchange, Rig, fields, pool
from tests.http.tokens_file import bearer, content, entry

JSON = {"content-type": "application/json"}
ONE = "/pools/{key:path}"
TARGETS = {ONE: "/pools/c1/n1/p1"}
PLAIN_CHALLENGE = 'Bearer realm="discovery"'
INVALID = 'Bearer realm="discovery", error="invalid_token"'
EVENTS = sorted(STREAMS)


class File:
    """A file of tokens without a file."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.value: Identities = read_tokens(content(*entries))
        self._listeners: list[Callable[[Identities, Identities], None]] = []

    def on_renewal(self, listener: Callable[[Identities, Identities], None]) -> None:
        self._listeners.append(listener)

    def renew(self, *entries: dict[str, Any]) -> None:
        before, self.value = self.value, read_tokens(content(*entries))
        for listener in self._listeners:
            listener(before, self.value)


class Guarded(Rig):
    """A replica with tokens; each is called as its scopes are."""

    def __init__(self, *scopes: str, **options: Any) -> None:
        entries = [entry(scope, *scope.split(), name=f"n{number}") for number, scope in enumerate(scopes)]
        self.file = File(*entries)
        file: Any = self.file
        self.guard = Guard(file)
        super().__init__(guard=self.guard, **options)

    def renew(self, *entries: dict[str, Any]) -> None:
        self.call(lambda: self.file.renew(*entries))
        self.settle()

    def register(self, token: str, **named: Any) -> Answer:
        return self.post(fields(**named), JSON | bearer(token))

    def whole(self) -> "Guarded":
        self.start()
        self.pass_time(LEASE + 1)
        return self


# ---- every route with every scope

HERE = {"register:c1", "register:c1/n1", "register:*", "register:*/n1", "register:c1/*", "*"}
ELSEWHERE = {"register:c2", "register:c1/n2", "register:*/n2", "register:c1%2Fn1", "register:%2A", "register:C1"}
SCOPES = sorted({"read", "metrics", "read metrics", *HERE, *ELSEWHERE})
READERS = {"read", "read metrics", "*"}
SCRAPERS = {"metrics", "read metrics", "*"}
ANY_TOKEN = set(SCOPES)
NO_TOKEN = {"", "nobody's"}
EVERYBODY = ANY_TOKEN | NO_TOKEN

MAY: dict[str, dict[str, set[str]]] = {
    "/pools": {"GET": READERS, "HEAD": READERS, "POST": HERE},
    "/pools/events": {"GET": READERS, "HEAD": READERS},
    ONE: {"GET": READERS, "HEAD": READERS, "DELETE": HERE},
    "/routers": {"GET": READERS, "HEAD": READERS},
    "/routers/events": {"GET": READERS, "HEAD": READERS},
    "/sd/prometheus": {"GET": READERS, "HEAD": READERS},
    "/registrations": {"GET": READERS, "HEAD": READERS},
    "/status": {"GET": READERS, "HEAD": READERS},
    "/openapi.json": {"GET": ANY_TOKEN, "HEAD": ANY_TOKEN},
    "/metrics": {"GET": SCRAPERS, "HEAD": SCRAPERS},
    "/healthz": {"GET": EVERYBODY, "HEAD": EVERYBODY},
    "/readyz": {"GET": EVERYBODY, "HEAD": EVERYBODY},
    "/": {"GET": EVERYBODY, "HEAD": EVERYBODY},
}
"""Who may do what. A route that is not here yet fails the tests: decide who may, and say so in the documents."""


def routes() -> dict[str, set[str]]:
    """The methods of every path that the app has, as its own table says."""
    found: list[Any] = []

    class Recorded(Starlette):
        def __init__(self, **options: Any) -> None:
            found.extend(options["routes"])
            super().__init__(**options)

    with pytest.MonkeyPatch.context() as patch, Rig() as rig:
        patch.setattr(api, "Starlette", Recorded)
        rig.app = api.make_app(rig.service)
        return {route.path: _allowed(rig, TARGETS.get(route.path, route.path)) for route in found}


def _allowed(rig: Rig, target: str) -> set[str]:
    answer = rig.ask("FOO", target)
    assert answer.status == 405
    return set(answer.headers["allow"].split(", "))


def test_every_route_and_method_has_its_place() -> None:
    assert routes() == {path: set(methods) for path, methods in MAY.items()}
    in_document = {path for path, item in document()["paths"].items() if "text/event-stream" in json.dumps(item["get"])}
    assert in_document == STREAMS
    assert {path for path, methods in MAY.items() if methods["GET"] == EVERYBODY} == OPEN_PATHS


@pytest.fixture(scope="module")
def matrix() -> Iterator[Guarded]:
    with Guarded(*SCOPES, max_pools=10**6) as rig:
        yield rig.whole()


def headers_of(token: str) -> dict[str, str]:
    return bearer(token) if token else {}


def request(rig: Rig, method: str, path: str, token: str) -> Exchange:
    headers, body = headers_of(token), b""
    if method == "POST":
        headers |= JSON
        body = json.dumps(fields()).encode()
    exchange = rig.open(TARGETS.get(path, path), headers, method=method, body=body)
    exchange.leave()
    rig.settle()
    return exchange


@pytest.mark.parametrize("token", ["", "nobody's", *SCOPES])
@pytest.mark.parametrize(("path", "method"), [(path, method) for path in MAY for method in MAY[path]])
def test_who_may_do_what(matrix: Guarded, path: str, method: str, token: str) -> None:
    exchange = request(matrix, method, path, token)
    if token in MAY[path][method]:
        assert exchange.status in (200, 204, 404, 503), exchange.body
        assert (exchange.status in (404, 503)) <= (path == ONE or path == "/routers" or path == "/routers/events")
        assert "www-authenticate" not in exchange.headers
        return
    answer = exchange.answer()
    problem, challenge = answer.problem(), answer.headers["www-authenticate"]
    if token in NO_TOKEN:
        assert answer.status == 401
        assert challenge == (INVALID if token else PLAIN_CHALLENGE)
    else:
        assert answer.status == 403
        missing = missing_scope(method, path, token)
        assert challenge == f'{PLAIN_CHALLENGE}, error="insufficient_scope", scope="{missing}"'
        assert problem["detail"] == f"The token n{SCOPES.index(token)} lacks the scope {missing}."


def missing_scope(method: str, path: str, token: str) -> str:
    if method in ("POST", "DELETE"):
        return "register:c1/n1" if token in ELSEWHERE else "register:<cluster_id>"
    return "metrics" if path == "/metrics" else "read"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "FOO", "get"])
@pytest.mark.parametrize("path", [path for path in MAY if path not in OPEN_PATHS])
def test_other_methods_tell_nothing_to_those_without_a_token(matrix: Guarded, path: str, method: str) -> None:
    target = TARGETS.get(path, path)
    assert matrix.ask(method, target).status == 401
    assert matrix.ask(method, target, bearer("nobody's")).status == 401
    assert matrix.ask(method, target, bearer("read")).status == 403
    assert matrix.ask(method, target, bearer("*")).status == 405


@pytest.mark.parametrize(
    "target",
    [
        "/nothing", "/pools/", "/healthz/", "//healthz", "/%2Fhealthz", "/healthz/../pools", "/healthz/%2e%2e/pools",
        "/pools/../healthz", "/HEALTHZ", "/healthz%00", "/readyz;x", "/docs", "/status/", "/metrics/", "/openapi.json/",
        "/pools?x=/healthz", "/pools%3F/healthz", "/pools/c1", "/pools/c1/n1/p1/x",
    ],
)  # fmt: skip
def test_what_is_not_there_and_what_looks_open_needs_a_token_too(matrix: Guarded, target: str) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
        assert matrix.ask(method, target).status == 401
    assert matrix.get(target, bearer("register:c1")).status == 403
    assert matrix.get(target, bearer("read")).status != 401


def test_probes_of_their_own_address_are_open_and_metrics_there_are_not(matrix: Guarded) -> None:
    app, matrix.app = matrix.app, api.make_probe_app(matrix.service)
    try:
        assert matrix.get("/healthz").status == 200
        assert matrix.get("/readyz", bearer("nobody's")).status == 200
        assert matrix.get("/metrics").status == 401
        assert matrix.get("/metrics", bearer("read")).status == 403
        assert matrix.get("/metrics", bearer("metrics")).status == 200
        assert matrix.get("/pools").status == 401
        assert matrix.get("/pools", bearer("read")).status == 404
    finally:
        matrix.app = app


# ---- how a token is sent


@pytest.mark.parametrize("value", ["Bearer read", "bearer read", "BEARER read", "Bearer   read  ", "Bearer \tread"])
def test_the_scheme_has_no_case_and_space_does_not_count(matrix: Guarded, value: str) -> None:
    assert matrix.get("/pools", {"authorization": value}).status == 200


@pytest.mark.parametrize(
    ("value", "challenge"),
    [
        ("read", PLAIN_CHALLENGE),
        ("Bearer", PLAIN_CHALLENGE),
        ("Basic read", PLAIN_CHALLENGE),
        ("Bearerread", PLAIN_CHALLENGE),
        ("Bearer ", INVALID),
        ("Bearer READ", INVALID),
        ("Bearer read read", INVALID),
        ("Bearer read,read", INVALID),
        ('Bearer "read"', INVALID),
        ("Bearer re\xffad", INVALID),
        (f"Bearer {'x' * 10_000}", INVALID),
    ],
)
def test_what_is_no_token_is_none(matrix: Guarded, value: str, challenge: str) -> None:
    answer = matrix.get("/pools", {"authorization": value})
    assert (answer.status, answer.headers["www-authenticate"]) == (401, challenge)
    assert b"x" * 100 not in answer.body


def test_two_tokens_are_none(matrix: Guarded) -> None:
    two = [("authorization", "Bearer read"), ("authorization", "Bearer read")]
    assert matrix.get("/pools", two).status == 401


@given(st.text("abcXYZ019-_+/=.~", min_size=20, max_size=60))
def test_a_token_is_in_no_answer(token: str) -> None:
    with Guarded("read") as rig:
        rig.start()
        for target in ("/pools", "/nothing", "/metrics"):
            answer = rig.get(target, bearer(token))
            assert answer.status == 401
            assert token.encode() not in answer.body
            assert token not in str(answer.headers)


# ---- what is looked at before what


def test_the_token_comes_before_everything_else_of_the_request(matrix: Guarded) -> None:
    for body in (b"{", b"x" * 100_000):
        assert matrix.post(body, {}).status == 401
        assert matrix.post(body, bearer("read")).status == 403
    assert matrix.post(b"{", bearer("register:c2")).status == 415
    assert matrix.post(b"{", JSON | bearer("register:c2")).status == 400
    assert matrix.get("/pools?typo=1").status == 401


def test_browsers_ask_beforehand_without_a_token_and_see_refusals() -> None:
    with Guarded("read", cors_origin="https://ui.example.com") as rig:
        asked = {
            "origin": "https://ui.example.com",
            "access-control-request-method": "GET",
            "access-control-request-headers": "authorization",
        }
        answer = rig.ask("OPTIONS", "/pools", asked)
        assert answer.status in (200, 204)
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        refused = rig.get("/pools", {"origin": "https://ui.example.com"})
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://ui.example.com"


# ---- one cluster and the pools of another


@pytest.fixture
def two() -> Iterator[Guarded]:
    """A relay for c1, and a pool of each of two clusters."""
    with Guarded("register:c1", "register:c1/n1", "*") as rig:
        rig.whole()
        for cluster_id in ("c1", "c2"):
            assert rig.register("*", cluster_id=cluster_id).status == 200
        yield rig


@pytest.mark.parametrize(
    "path",
    [
        "c2/n1/p1", "%63%32/n1/p1", "c1/../c2/n1/p1", "../pools/c2/n1/p1", "c1%2F..%2Fc2/n1/p1", "c1%252F/n1/p1",
        "c1%00/n1/p1", "%00c2/n1/p1", "c1%20/n1/p1", "/c2/n1/p1", "c2//p1", "c1/n1/p1/..%2F..%2F..%2Fc2/n1/p1",
        "C2/n1/p1", "%EF%BD%832/n1/p1", "*/n1/p1", "%2A/n1/p1", "c1;c2/n1/p1", "c1%3Fc2/n1/p1", "%ff/n1/p1",
        "c1%0Ac2/n1/p1", "./c2/n1/p1", "%2e/n1/p1",
    ],
)  # fmt: skip
def test_a_relay_of_one_cluster_deletes_no_pool_of_another_however_it_is_written(two: Guarded, path: str) -> None:
    for token in ("register:c1", "register:c1/n1"):
        answer = two.ask("DELETE", f"/pools/{path}", bearer(token))
        assert answer.status in (403, 404)
        assert [pool["cluster_id"] for pool in two.get("/pools", bearer("*")).json()["pools"]] == ["c1", "c2"]


def test_its_own_pool_it_deletes_however_that_is_written(two: Guarded) -> None:
    assert two.ask("DELETE", "/pools/%631/n%31/p1?instance_id=other", bearer("register:c1")).status == 204
    assert two.ask("DELETE", "/pools/%631/n%31/p1", bearer("register:c1/n1")).status == 204
    assert [pool["cluster_id"] for pool in two.get("/pools", bearer("*")).json()["pools"]] == ["c2"]


@pytest.mark.parametrize(
    "cluster_id", ["c2", "C1", "c1/n1", "c1 x", "*", "%63%31", "c1%", "c\u2081", "ｃ１", "c1\u200b"]
)
def test_a_relay_of_one_cluster_registers_no_pool_of_another(two: Guarded, cluster_id: str) -> None:
    answer = two.register("register:c1", cluster_id=cluster_id, name="intruder")
    assert answer.status == 403
    escaped = f"register:{quote(cluster_id, safe='')}/n1"
    assert answer.problem()["detail"] == f"The token n0 lacks the scope {escaped}."
    listed = two.get("/pools", bearer("*")).json()["pools"]
    assert [entry["dgd_name"] for entry in listed] == ["p1", "p1"]


def test_of_a_key_that_stands_twice_the_one_that_is_stored_counts(two: Guarded) -> None:
    for first, second, status in (("c1", "c2", 403), ("c2", "c1", 200)):
        body = f'{{"cluster_id":"{first}","cluster_id":"{second}","namespace":"n1","dgd_name":"twice","model":"m"}}'
        assert two.post(body.encode(), JSON | bearer("register:c1")).status == status
    listed = two.get("/pools", bearer("*")).json()["pools"]
    assert [entry["cluster_id"] for entry in listed if entry["dgd_name"] == "twice"] == ["c1"]


def test_a_heartbeat_that_another_token_made_known_is_refused_all_the_same(two: Guarded) -> None:
    for _ in range(2):
        assert two.register("*", cluster_id="c2").status == 200
        assert two.register("register:c1", cluster_id="c2").status == 403


def test_a_scope_of_a_namespace_ends_at_the_namespace(two: Guarded) -> None:
    assert two.register("register:c1/n1", namespace="n1", name="p2").status == 200
    assert two.register("register:c1/n1", namespace="n2", name="p2").status == 403
    assert two.register("register:c1", namespace="n2", name="p2").status == 200


# ---- how much


def test_each_token_has_a_rate_of_its_own_wherever_it_comes_from() -> None:
    with Guarded("register:c1", "register:*", rate_limit=0.1) as rig:
        rig.whole()
        asked = [("register:c1", "10.0.0.1"), ("register:*", "10.0.0.1"), ("register:c1", "10.0.0.2")]
        answers = [rig.post(fields(), JSON | bearer(token), client=address) for token, address in asked]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert "came from n0" in answers[2].problem()["detail"]


# ---- those who wait


@pytest.fixture
def waiting() -> Iterator[Guarded]:
    with Guarded("read", "read metrics") as rig:
        rig.publish(pool("p1"))
        yield rig


@pytest.mark.parametrize("path", EVENTS)
@pytest.mark.parametrize("left", [[], [entry("read", "metrics", "register:*")]])
def test_a_stream_ends_with_its_token_or_its_right_to_read(waiting: Guarded, path: str, left: list[Any]) -> None:
    waiting.publish_routers()
    stream, other = waiting.open(path, bearer("read")), waiting.open(path, bearer("read metrics"))
    assert stream.events()
    waiting.renew(entry("read metrics", "read"), *left)
    assert stream.ended
    assert stream.task.done()
    assert not other.ended
    assert waiting.streams.streams == 1
    before = other.body
    waiting.publish(pool("p2"))
    waiting.settle()
    assert (other.body != before) == (path == "/pools/events")
    assert waiting.get("/pools", bearer("read")).status == (403 if left else 401)


def test_a_stream_outlives_a_renewal_that_leaves_it_its_right(waiting: Guarded) -> None:
    stream = waiting.open("/pools/events", bearer("read"))
    waiting.renew(entry("read", "read", "metrics", name="renamed"))
    waiting.renew(entry("more", "read"), entry("read", "*", name="again"))
    waiting.publish(pool("p2"))
    waiting.settle()
    assert [event.name for event in stream.events()] == ["snapshot", "put"]
    waiting.renew()
    assert stream.ended


def test_a_reader_that_takes_nothing_is_cut_off_in_the_middle(waiting: Guarded) -> None:
    waiting.publish(pool("p2", metadata={"note": "x" * 4000}))
    stream = waiting.open("/pools/events", bearer("read"), room=10)
    assert not stream.ended
    taken = len(stream.body)
    waiting.renew()
    assert waiting.streams.streams == 0
    stream.read()
    waiting.settle()
    assert stream.ended
    assert len(stream.body) == taken


def test_a_long_poll_ends_with_401_when_its_token_does(waiting: Guarded) -> None:
    etag = waiting.get("/pools", bearer("read")).headers["etag"]
    wait = {"if-none-match": etag, "prefer": "wait=300"}
    poll, other = (waiting.open("/pools", bearer(token) | wait) for token in ("read", "read metrics"))
    assert not poll.answered
    waiting.renew(entry("read metrics", "read"))
    assert poll.answer().status == 401
    assert poll.answer().headers["www-authenticate"] == INVALID
    assert not other.answered
    waiting.publish(pool("p2"))
    waiting.settle()
    assert other.answer().status == 200
    assert waiting.streams.parked == 0


def test_an_answer_to_a_poll_that_is_under_way_is_finished(waiting: Guarded) -> None:
    waiting.publish(pool("p2", metadata={"note": "x" * 4000}))
    etag = waiting.get("/pools", bearer("read")).headers["etag"]
    wait = {"if-none-match": etag, "prefer": "wait=300"}
    poll = waiting.open("/pools", bearer("read") | wait)
    poll.stop_reading()
    waiting.publish(pool("p3"))
    waiting.settle()
    waiting.renew()
    poll.read()
    waiting.settle()
    assert poll.answer().status == 200


def test_those_who_leave_or_end_by_themselves_are_forgotten(waiting: Guarded) -> None:
    etag = waiting.get("/pools", bearer("read")).headers["etag"]
    wait = {"if-none-match": etag, "prefer": "wait=5"}
    stream, poll, gone = (
        waiting.open("/pools/events", bearer("read")),
        waiting.open("/pools", bearer("read") | wait),
        waiting.open("/pools", bearer("read") | wait),
    )
    assert len(waiting.guard._waiting) == 3
    stream.leave()
    gone.leave()
    waiting.settle()
    assert len(waiting.guard._waiting) == 1
    waiting.pass_time(6)
    assert poll.answer().status == 304
    assert waiting.guard._waiting == {}
    waiting.renew()


def test_the_log_says_how_many_tokens_are_valid_and_warns_of_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, access.__name__)
    file: Any = File(entry("a secret", "read", name="reader"))
    Guard(file)
    file.renew(entry("another", "read", name="scraper"))
    file.renew()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "requests need a token: 1 valid"),
        ("INFO", "the tokens were renewed: 1 valid; new: scraper; gone: reader"),
        ("WARNING", "the tokens were renewed: 0 valid; gone: scraper"),
    ]


def test_streams_end_at_shutdown_as_without_tokens(waiting: Guarded) -> None:
    stream = waiting.open("/pools/events", bearer("read"))
    waiting.close()
    assert stream.ended
    stream.leave()
    waiting.settle()
    assert stream.task.done()
    assert "retry" in stream.blocks()[-1]


def test_a_fault_of_the_service_is_passed_on(waiting: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise LookupError("a fault")

    guarded: Any = waiting.guard.around(fail)
    waiting.app = guarded
    for headers in (bearer("read"), bearer("read") | {"prefer": "wait=1"}):
        with pytest.raises(LookupError):
            waiting.open("/pools", headers)
