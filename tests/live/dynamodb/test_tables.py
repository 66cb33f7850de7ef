"""Two replicas on one table without anything in between: on moto's server, and on a real DynamoDB where one is named.

``DYNAMODB_LIVE_URL`` names it: the endpoint of DynamoDB Local, or of AWS (``https://dynamodb.eu-west-1.amazonaws.com``)
with credentials from the usual chain. Each test makes a table of its own there and deletes it.
"""

import json
import os
import re
import statistics
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.live import verdict
from tests.live.dynamodb import items
from tests.live.dynamodb.conftest import MakeReplica, StartReplicas
from tests.live.dynamodb.replicas import TableReplica, await_agreed, await_listed, first_list
from tests.live.dynamodb_server import CREDENTIALS, REGION, DynamoDBServer, Table
from tests.live.relay import Relay
from tests.live.replica import pool
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LEASE = 3.0
LIVE_URL = os.environ.get("DYNAMODB_LIVE_URL", "")


@pytest.fixture(params=["moto", "live"])
def table(request: pytest.FixtureRequest, dynamodb_server: DynamoDBServer) -> Iterator[Table]:
    """A fresh table, on moto's server or on the one that DYNAMODB_LIVE_URL names."""
    if request.param == "live" and not LIVE_URL:
        pytest.skip("not run: DYNAMODB_LIVE_URL names no DynamoDB")
    made = dynamodb_server.table() if request.param == "moto" else _live_table()
    yield made
    made.delete()
    made.close()


def _live_table() -> Table:
    host = urllib.parse.urlsplit(LIVE_URL).hostname or ""
    named = re.fullmatch(r"dynamodb\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?", host)
    # DynamoDB Local takes every credential, but none at all it does not take.
    return (Table(LIVE_URL, named[1]) if named else Table(LIVE_URL, REGION, CREDENTIALS)).create()


def test_what_one_replica_is_told_the_other_lists_within_a_second_and_a_half(
    start_replicas: StartReplicas, traffic: Traffic
) -> None:
    a, b = start_replicas(lease=20, heartbeat=5)
    stream = Subscriber(traffic, [b])
    await_sign(lambda: stream.connected, 5, "the stream of b")
    came, left = [], []
    names = [f"c1/n1/p{number}" for number in range(3)]
    for name in names:
        sent = a.register(name, instance_id="i1")
        assert a.lists(name), "the replica that took it lists it at once"
        await_sign(lambda name=name: b.lists(name), 5, f"{name} on b")
        came.append(time.monotonic() - sent)
    await_agreed((a, b))
    for name in names[:2]:
        sent = time.monotonic()
        assert a.delete(name).status == 204
        assert not a.lists(name)
        await_sign(lambda name=name: not b.lists(name), 5, f"{name} has left b")
        left.append(time.monotonic() - sent)
    # A busy machine delays some; what is wrong with reading delays all.
    assert statistics.median(came) < 1.5, came
    assert min(left) < 1.5, left
    assert a.delete(names[0]).status == b.delete(names[0]).status == 204
    await_agreed((a, b))
    await_sign(lambda: stream.agrees_with(b.pools().json), 2, "the stream agrees with GET")
    told = [event.name for name in names for event in stream.told_of(name)]
    assert (told, stream.faults) == (["put", "delete", "put", "delete", "put"], [])
    _only_the_named_instance_is_deregistered(a, b, names[2])
    _whoever_takes_it_lists_it_at_once(a, b, names[0])


def _whoever_takes_it_lists_it_at_once(a: TableReplica, b: TableReplica, name: str) -> None:
    a.register(name)
    for _ in range(2):
        assert b.delete(name).status == 204
        await_sign(lambda: not a.lists(name), 3, "a has read that it left")
        b.register(name)
        # Before a's next read.
        a.register(name)
        assert a.lists(name), "a took it, too"


def _only_the_named_instance_is_deregistered(a: TableReplica, b: TableReplica, name: str) -> None:
    a.register(name, instance_id="i2")
    # What b has read last is the registration of before.
    assert b.request("DELETE", f"/pools/{name}?instance_id=i1").status == 204
    hold_for(1.2, lambda: a.lists(name) and b.lists(name), "the new instance stays")
    assert b.pools().pools[name]["instance_id"] == "i2"
    assert b.request("DELETE", f"/pools/{name}?instance_id=i2").status == 204
    for replica in (b, a):
        await_sign(lambda r=replica: not r.lists(name), 3, f"it has left {replica.name}")


def test_f44_a_dead_pool_leaves_after_its_lease_though_nobody_sweeps(
    table: Table, start_replicas: StartReplicas, make_replica: MakeReplica, traffic: Traffic
) -> None:
    a, b = start_replicas(lease=LEASE)
    table.put_item(items.item("c1/n1/ancient", lease=LEASE, lease_ends=time.time() - 86_400))
    staying = Relay(traffic, [a, b], "c1/n1/staying")
    sent = a.register("c1/n1/silent")
    answered = time.monotonic()
    await_listed((a, b), ["c1/n1/silent", staying.name])
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    for replica in (a, b):
        await_sign(lambda r=replica: not r.lists("c1/n1/silent"), LEASE + 4, f"it has left {replica.name}")
    for stream in streams:
        await_sign(lambda stream=stream: stream.told_of("c1/n1/silent"), 2, "a delete on the stream")
    for poller in pollers:
        await_sign(lambda poller=poller: "c1/n1/silent" not in poller.polls[-1].names, 2, "it has left the lists")
        gone = next(poll for poll in poller.polls if "c1/n1/silent" not in poll.names)
        assert gone.answered >= sent + LEASE, f"{gone.replica} dropped it {sent + LEASE - gone.answered:.3f} s early"
        # The lease, the interval between reads, and a second.
        assert gone.sent <= answered + LEASE + 2, f"{gone.replica} dropped it {gone.sent - answered - LEASE:.3f} s late"
    stored = {row["sk"]["S"]: row for row in table.scan()}
    assert set(stored) == {f"c1#n1#{name}" for name in ("ancient", "silent", "staying")}, "nothing was swept"

    c = make_replica("c", lease=LEASE).launch()
    assert first_list(c).names == [staying.name]
    b.register("c1/n1/ancient")
    await_listed((a, b, c), ["c1/n1/ancient"], 3)
    # Leases that ended a moment ago may be those of an outage: c waits for a lease before it is sure.
    await_agreed((a, b))
    for poller in pollers:
        polls = poller.stop()
        assert verdict.missing(polls, [staying]) == []
        assert all(poll.complete for poll in polls)
        assert not any("c1/n1/ancient" in poll.names for poll in polls if poll.answered < gone.answered)
    assert all(stream.faults == [] and len(stream.told_of("c1/n1/silent")) == 1 for stream in streams)


def test_an_item_can_be_read_by_people_and_what_makes_none_is_refused_for_good(
    table: Table, start_replicas: StartReplicas
) -> None:
    (a,) = start_replicas("a", lease=15, heartbeat=5, flags=("--max-body-bytes", "1000000"))
    a.register("us#east/100%/llama", model="m", capabilities=["tools", "chat"], metadata={"team": "search"})
    (stored,) = table.scan()
    assert (stored["pk"], stored["sk"]) == ({"S": "POOL"}, {"S": "us%23east#100%25#llama"})
    assert json.loads(stored["registration"]["S"]) == {
        **pool("us#east/100%/llama", metadata={"team": "search"}),
        "capabilities": ["chat", "tools"],
    }
    ends = int(stored["lease_ends_ms"]["N"]) / 1000
    assert abs(ends - time.time() - 15) < 3
    # Seconds, since a time to live in milliseconds would be thousands of years away, and never swept.
    assert abs(int(stored["expires_at"]["N"]) - ends - items.HOUR_SECS) < 2
    a.register("us#east/100%/llama", model="m", capabilities=["chat", "tools"], metadata={"team": "search"})
    (renewed,) = table.scan()
    assert renewed["registration"] == stored["registration"]
    assert renewed["lease_ends_ms"] != stored["lease_ends_ms"], "a change is what others see of a renewal"
    assert a.lists("us#east/100%/llama")
    assert a.delete("us#east/100%/llama").status == 204
    _what_can_never_be_stored_is_refused_for_good(a)


def _what_can_never_be_stored_is_refused_for_good(a: TableReplica) -> None:
    # Two bytes for each letter: the key has 1,024 bytes, then one more.
    parts = ["ü" * 253, "ü" * 253]
    longest = "/".join([*parts, "x" * (1024 - 2 - 2 * 2 * 253)])
    assert a.post(pool(longest)).status == 200
    refused = a.post(pool(longest + "x"))
    assert (refused.status, refused.headers["content-type"]) == (422, "application/problem+json")
    assert b"1024" in refused.body.replace(b",", b"")
    text = "x" * 7000
    # 400 KB are the sum of names and values.
    huge = a.post(pool(metadata={f"k{number}": text for number in range(60)}))
    assert (huge.status, huge.headers["content-type"]) == (422, "application/problem+json"), huge.body[:300]
    assert b"409,600" in huge.body
    assert a.post(pool(metadata={f"k{number}": text for number in range(50)})).status == 200
    assert a.pools().complete
    assert sorted(a.pools().names) == sorted([longest, "c1/n1/p1"])
    assert a.delete(longest + "x").status == 204
