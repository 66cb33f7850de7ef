"""Requests as metrics: over a real server, and by what is told of each."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.errors import Rejected, Unavailable
from discovery.http import openapi
from discovery.http.request_counts import ONE_POOL, ROUTES, WAITS, RequestCounts, counted_access, counted_registrations
from discovery.metrics import METHODS, REFUSALS, STATUSES, Counters
from tests.http.in_process import Rig, fields
from tests.http.sockets import Peer, Served, eventually, served
from tests.http.test_tokens import Guarded

Key = tuple[str, str, str]


class App:
    """Answers by the path: what is not served is 404, and a list of pools waits until it is released."""

    def __init__(self) -> None:
        self.waiting = 0
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/pools/events":
            self.waiting += 1
            heard = asyncio.ensure_future(receive())
            await asyncio.wait((heard, asyncio.ensure_future(self.release.wait())), return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                return
        status = 200 if scope["path"] in ROUTES or scope["path"].startswith("/pools/") else 404
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def counted(**limits: Any) -> Iterator[tuple[Served, Counters]]:
    """A server whose requests are counted."""
    counters = Counters()
    counts = RequestCounts(counters)
    with served(App(), **limits) as server:
        server.server.tell(finished=counts.finished, refused=counts.refused)
        yield server, counters


def requests(counters: Counters) -> dict[Key, float]:
    return {key: number for key, number in counters.http_requests.values() if number}  # type: ignore[misc]


def timed(counters: Counters) -> dict[tuple[str, ...], float]:
    return {key: number for key, number in counters.http_request_seconds.numbers().items() if number}


def asked(peer: Peer, path: str) -> int:
    peer.get(path)
    return peer.answer().status


def test_answers_are_counted_by_route_method_and_class_of_status() -> None:
    with counted() as (server, counters), server.peer() as peer:
        for path in ("/pools", "/pools?model=m", "/pools/c1/n1/p1", "/pools/c2/n1/p1", "/nothing", "/pools2"):
            asked(peer, path)
        eventually(lambda: sum(requests(counters).values()) == 6, "all are counted")
    assert requests(counters) == {
        ("/pools", "GET", "2xx"): 2,
        (ONE_POOL, "GET", "2xx"): 2,
        ("other", "GET", "4xx"): 2,
    }
    assert timed(counters) == {("/pools", "GET"): 2, (ONE_POOL, "GET"): 2, ("other", "GET"): 2}


def test_a_stream_is_counted_at_its_end_without_a_time_and_in_flight_until_then() -> None:
    with counted() as (server, counters):
        with server.peer() as peer:
            peer.get("/pools/events")
            eventually(lambda: server.server.in_flight == 1, "the stream is in flight")
            assert requests(counters) == {}
        eventually(lambda: server.server.in_flight == 0, "nothing is in flight")
        eventually(lambda: requests(counters), "it is counted")
    assert requests(counters) == {("/pools/events", "GET", "other"): 1}, "the client left before any answer"
    assert timed(counters) == {}


def test_what_is_refused_before_any_route_is_counted_by_status() -> None:
    with counted(max_body_bytes=10, request_timeout_secs=0.2) as (server, counters):
        with server.peer() as peer:
            peer.send(b"nonsense\r\n\r\n")
            peer.ended()
        with server.peer() as peer:
            peer.post("/pools", b"x" * 11)
            peer.ended()
        with server.peer() as peer:
            peer.send(b"GET /pools HT")
            peer.ended()
    refused = {status: number for (status,), number in counters.http_refusals.values() if number}
    assert refused == {"400": 1, "413": 1, "408": 1}
    assert counters.registrations_refused.of("too_large").value == 1
    assert requests(counters) == {}


def told(method: str, path: str, status: int, **scope: Any) -> Any:
    return SimpleNamespace(scope={"method": method, "path": path, **scope}, status=status, begun_at=0.0)


def test_a_stream_that_was_answered_has_no_time() -> None:
    counters = Counters()
    RequestCounts(counters).finished(told("GET", "/routers/events", 200))
    assert requests(counters) == {("/routers/events", "GET", "2xx"): 1}
    assert timed(counters) == {}


def test_a_request_that_waited_for_a_change_has_no_time() -> None:
    counters = Counters()
    counts = RequestCounts(counters)
    counts.finished(told("GET", "/pools", 200, **{WAITS: True}))
    assert requests(counters) == {("/pools", "GET", "2xx"): 1}
    assert timed(counters) == {}


@given(st.lists(st.tuples(st.text(), st.text(), st.integers(0, 999)), max_size=30))
def test_labels_stay_bounded_whatever_is_asked_for(told_of: list[tuple[str, str, int]]) -> None:
    counters = Counters()
    counts = RequestCounts(counters)
    for method, path, status in told_of:
        for there in (path, f"/{path}", f"/pools/{path}"):
            counts.finished(told(method, there, status))
            counts.refused(status, None, None, 0)
    for route, method, status in requests(counters):
        assert route in {*ROUTES, ONE_POOL, "other"}
        assert method in {*METHODS, "other"}
        assert status in {*STATUSES, "other"}
    assert sum(requests(counters).values()) == 3 * len(told_of)
    assert len(counts._known) <= sum(path in ROUTES or f"/{path}" in ROUTES for _, path, _ in told_of)
    assert len(list(counters.http_refusals.values())) <= 9


def test_every_path_of_the_document_is_a_route() -> None:
    assert ROUTES | {ONE_POOL} == set(openapi.document()["paths"])


# ---- registrations that are not taken


@pytest.mark.parametrize(
    ("reason", "body", "headers"),
    [
        ("not_json", b"{", None),
        ("invalid", {"cluster_id": "c1"}, None),
        ("wrong_type", b"{}", {"content-type": "text/plain"}),
        ("cluster_full", fields("p2"), None),
        ("full", fields("p2", cluster_id="c2"), None),
        ("forbidden", fields("p1"), {"content-type": "application/json", "sec-fetch-site": "cross-site"}),
    ],
)
def test_a_refused_registration_is_counted_by_its_reason(reason: str, body: Any, headers: Any) -> None:
    most = {"max_pools": 1} if reason == "full" else {"max_pools_per_cluster": 1}
    with Rig(**most).start() as rig:
        assert rig.post(fields("p1")).status == 200
        assert rig.post(body, headers).status >= 400
        assert {word: number for (word,), number in rig.counters.registrations_refused.values() if number} == {
            reason: 1
        }


def test_registrations_that_come_too_often_or_to_a_store_that_is_away_are_counted() -> None:
    with Rig(rate_limit=0.1).start() as rig:
        assert [rig.post(fields("p1")).status for _ in range(2)] == [200, 429]
        assert rig.counters.registrations_refused.of("rate_limited").value == 1
    with Rig().start() as rig:
        rig.store.away = True
        assert rig.post(fields("p1")).status == 503
        assert rig.counters.registrations_refused.of("not_confirmed").value == 1


def test_registrations_are_counted_by_what_they_did() -> None:
    with Rig().start() as rig:
        for body in (fields("p1"), fields("p1"), fields("p1", model="other"), fields("p2"), fields("p2")):
            assert rig.post(body).status == 200
        done = {word: number for (word,), number in rig.counters.registrations.values()}
        assert done == {"created": 2, "changed": 1, "renewed": 2}
        rig.delete("/pools/c1/n1/p1")
        rig.delete("/pools/c1/n1/p2?instance_id=another")
        assert {word: n for (word,), n in rig.counters.deregistrations.values()} == {"done": 1, "kept": 1}
        rig.pass_time(40)
        assert rig.names() == []
        assert rig.counters.leases_expired.of().value == 1


def test_refused_tokens_are_counted_and_registrations_with_them_are_also_not_taken() -> None:
    with Guarded("read", "register:c1").whole() as rig:
        rig.guard._on_refused = counted_access(rig.counters)
        assert rig.get("/pools").status == rig.get("/status").status == rig.register("nobody's").status == 401
        assert rig.register("read").status == rig.register("register:c1", cluster_id="c2").status == 403
        assert rig.register("register:c1").status == 200
        access = {word: number for (word,), number in rig.counters.access_refused.values()}
        assert access == {"unauthenticated": 3, "forbidden": 2}
        refused = {word: number for (word,), number in rig.counters.registrations_refused.values() if number}
        assert refused == {"unauthenticated": 1, "forbidden": 2}


def test_every_reason_is_one_of_the_words() -> None:
    counters = Counters()
    count = counted_registrations(counters)
    for status in range(400, 512):
        count(Rejected(status, "?", "?"))
    count(Unavailable("?"))
    assert {word for (word,), number in counters.registrations_refused.values() if number} <= set(REFUSALS)
    assert counters.registrations_refused.of("other").value == 0
