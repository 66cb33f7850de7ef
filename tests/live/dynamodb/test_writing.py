"""What relays are told when the table does not take what they say: in time, why, and when to come again."""

from collections.abc import Callable

import pytest

from tests.live.dynamodb.conftest import MakeProxy, MakeReplica, StartReplicas
from tests.live.dynamodb_proxy import Fault, denies, fails, late, silent, throttles, torn, unheard
from tests.live.dynamodb_server import Table
from tests.live.replica import pool
from tests.live.signs import await_sign, hold_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

DEADLINE_SECS = 1.5
BUSY_SECS = 1.0
"""What a busy machine may add."""

UNTAKEN: dict[str, Callable[[], Fault]] = {
    "500": lambda: fails(),
    "503": lambda: fails(503, "ServiceUnavailable", "try again"),
    "throttled": lambda: throttles(),
    "throttled by the account": lambda: throttles("RequestLimitExceeded"),
    "denied": lambda: denies("PutItem"),
    "silent": lambda: silent(),
    "late": lambda: late(5.0),
    "cut": lambda: unheard(),
    "torn": lambda: torn(),
    "no table": lambda: fails(400, "ResourceNotFoundException", "Requested resource not found"),
    "expired token": lambda: fails(400, "ExpiredTokenException", "The security token included is expired"),
    "a key of nobody": lambda: fails(400, "UnrecognizedClientException", "The security token is invalid"),
}


def test_a_registration_that_is_not_confirmed_is_a_503_in_time(
    start_replicas: StartReplicas, make_proxy: MakeProxy
) -> None:
    proxy = make_proxy()
    (a,) = start_replicas("a", through=proxy, lease=30, heartbeat=10)
    a.register("c1/n1/before")
    for what, fault in UNTAKEN.items():
        proxy.let(fault(), "PutItem")
        answer = a.post(pool(f"c1/n1/{what}"))
        assert answer.status == 503, f"{what}: {answer.status} {answer.body!r}"
        assert answer.headers["retry-after"] in ("1", "2"), what
        assert answer.headers["connection"] == "close", what
        assert answer.headers["content-type"] == "application/problem+json", what
        assert answer.secs < DEADLINE_SECS + BUSY_SECS, f"{what}: {answer.secs:.2f} s"
        if what == "denied":
            assert b"dynamodb:PutItem" in answer.body, answer.body
        proxy.heal()
        await_sign(lambda what=what: a.post(pool("c1/n1/before")).status == 200, 3, f"taken again after {what}")
    assert a.lists("c1/n1/before")
    turns = iter([True])
    proxy.let(unheard(), "PutItem", when=lambda _: next(turns, False))
    answer = a.post(pool("c1/n1/sent-twice"))
    assert (answer.status, answer.json["created"]) == (200, True), "its first answer was lost on the way"
    assert a.lists("c1/n1/sent-twice")
    await_sign(lambda: a.pools().complete, 3, "complete")
    assert "Traceback" not in a.log
    assert "dummysecretkey" not in a.log


def test_without_the_right_to_delete_only_a_deregistration_is_refused(
    start_replicas: StartReplicas, make_proxy: MakeProxy
) -> None:
    proxy = make_proxy()
    a, b = start_replicas(through=proxy, lease=20, heartbeat=5)
    proxy.let(denies("DeleteItem"), "DeleteItem")
    a.register(instance_id="i1")
    await_sign(lambda: b.lists("c1/n1/p1"), 3, "on b")
    for query in ("", "?instance_id=i1"):
        refused = a.request("DELETE", f"/pools/c1/n1/p1{query}")
        assert (refused.status, refused.headers["content-type"]) == (503, "application/problem+json")
        assert b"dynamodb:DeleteItem" in refused.body, refused.body
        assert "retry-after" in refused.headers
    a.register("c1/n1/p2")
    await_sign(lambda: b.lists("c1/n1/p2"), 3, "registrations go on")
    hold_for(1.2, lambda: a.lists("c1/n1/p1", "c1/n1/p2") and b.lists("c1/n1/p1"), "nothing has left")
    assert a.pools().complete
    assert b.pools().complete
    proxy.heal()
    turns = iter([True])
    proxy.let(unheard(), "DeleteItem", when=lambda _: next(turns, False))
    assert a.request("DELETE", "/pools/c1/n1/p1?instance_id=i1").status == 204, "its first answer was lost on the way"
    for replica in (a, b):
        await_sign(lambda r=replica: not r.lists("c1/n1/p1"), 3, f"it has left {replica.name}")


def test_a_start_without_rights_or_table_says_what_is_missing_and_waits(
    table: Table, make_replica: MakeReplica, make_proxy: MakeProxy
) -> None:
    table.delete()
    proxy = make_proxy()
    proxy.let(denies("Query"), "Query")
    a = make_replica("a", through=proxy, lease=3).start(sign="/healthz")
    await_sign(lambda: b"dynamodb:Query" in a.get("/readyz").body, 5, "/readyz names the right")
    assert a.get("/readyz").status == 503
    assert a.get("/pools").status == 503
    hold_for(1, lambda: a.says("/healthz", 200), "it tries again and does not end")
    assert sum("dynamodb:Query" in line for line in a.log.splitlines()) <= 2, a.log
    proxy.heal()
    await_sign(lambda: table.name.encode() in a.get("/readyz").body, 5, "/readyz names the table")
    refused = a.post(pool())
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    table.create()
    await_sign(lambda: a.says("/readyz", 200), 5, "ready by itself")
    await_sign(lambda: a.post(pool()).status == 200, 3, "registrations are taken")
    await_sign(lambda: a.pools().complete, 6, "complete")
