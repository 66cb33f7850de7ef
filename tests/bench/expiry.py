"""E1: many leases that end at one moment, until the last is out of the list.

Registrations are made through one replica, all keys then get one deadline by hand, and a second replica that was
started after that is watched. Beside it Redis itself: the ``expired`` events of as many keys with one deadline.
"""

import http.client
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import redis

from tests.bench import etcd
from tests.bench.goals import NONE_AT_ALL, Bound, Row
from tests.bench.load import CannotMeasure, Peer, get_request, register_all, registration
from tests.bench.plan import Plan
from tests.bench.reads import fill
from tests.bench.servers import product, redis_server
from tests.bench.watchers import watched
from tests.live.redis_server import RedisServer

LEASE_SECS = 60.0
NOTICE_SECS = (3.0, 6.0, 12.0)  # how long everything may take to be in place, at the first attempt and after
PATIENCE_SECS = 30.0
ETCD_LEASE_SECS = 5

Measured = TypeVar("Measured")


def measure(plan: Plan) -> Iterator[Row]:
    """E1."""
    goal = Row("E1", f"last of {plan.leases:,} leases late by", "ms", Bound("<=", 0.5), "redis expired")
    early = Row("E1", "gone before their deadline", "pools", NONE_AT_ALL)
    twice = Row("E1", "gone twice", "pools", NONE_AT_ALL)
    # A round of etcd takes half a minute.
    absent = etcd.absent() if plan.slow_peers else "a quick run has no time"
    ends = Row("E1", f"last of {plan.leases:,} leases late by", "ms", Bound("<=", 0.05), "etcd leases", absent)
    bodies = [registration(index) for index in range(plan.leases)]
    for _ in plan.rounds():
        limit = _in_time(_announced_by_redis, bodies)
        seen = _in_time(_left_the_list, bodies)
        goal.add(seen.late_ms, limit)
        early.add(seen.early)
        twice.add(seen.twice)
        if ends.absent is None:
            ends.add(seen.late_ms, _ended_by_etcd(plan.leases))
        plan.tell(goal, ends, early, twice)
    yield from (goal, *([ends] if plan.slow_peers else []), early, twice)


class _TooSlow(Exception):
    """The deadline came before everything was in place."""


def _in_time(attempt: Callable[[list[bytes], float], Measured], bodies: list[bytes]) -> Measured:
    for notice_secs in NOTICE_SECS:
        try:
            return attempt(bodies, notice_secs)
        except _TooSlow:
            continue
    raise CannotMeasure("this machine is too slow now: the deadline came before everything was in place")


def _announced_by_redis(bodies: list[bytes], notice_secs: float) -> float:
    with redis_server("--notify-keyspace-events", "Ex") as server:
        client: Any = redis.Redis(port=server.port)
        events = client.pubsub(ignore_subscribe_messages=True)
        events.subscribe("__keyevent@0__:expired")
        events.get_message(timeout=1)
        deadline_ms = round((time.time() + notice_secs) * 1000)
        fill(server.port, bodies, deadline_ms)
        _check_time_left(deadline_ms)
        missing, patience = len(bodies), time.monotonic() + notice_secs + PATIENCE_SECS
        while missing:
            if events.get_message(timeout=1) is not None:
                missing -= 1
            elif time.monotonic() > patience:
                raise CannotMeasure(f"Redis announced no end of {missing} keys")
        late = time.time() * 1000 - deadline_ms
        client.close()
        return late


def _ended_by_etcd(count: int) -> float:
    """Each key has a lease of its own, granted as fast as etcd does; each deadline counts from the grant's answer."""
    with etcd.etcd() as member, watched(member.port, etcd.watch_greeting(), marks=etcd.GONE_MARKS) as watcher:
        due_ns = etcd.put_with_leases(member.port, count, ETCD_LEASE_SECS)
        gone = watcher.stop(due_ns, within=ETCD_LEASE_SECS + PATIENCE_SECS)
    if missing := due_ns.keys() - gone.keys():
        raise CannotMeasure(f"etcd announced no end of {len(missing)} leases")
    return max(gone[number] - due for number, due in due_ns.items()) / 1e6


@dataclass
class Departures:
    """What the stream and the list of a replica said about the end of many leases."""

    late_ms: float = 0.0
    early: int = 0
    twice: int = 0
    listed: set[str] = field(default_factory=set)

    def take(self, event: str, data: bytes, before_deadline: bool) -> None:
        """Count one event of the stream."""
        if event == "delete":
            self.drop({msgspec.json.decode(data)["dgd_name"]}, before_deadline)
        elif event == "snapshot":
            names = {pool["dgd_name"] for pool in msgspec.json.decode(data)["pools"]}
            self.drop(self.listed - names, before_deadline)
            self.listed |= names

    def drop(self, names: set[str], before_deadline: bool) -> None:
        """These pools have left."""
        self.twice += len(names - self.listed)
        self.early += len(names) if before_deadline else 0
        self.listed -= names


def _left_the_list(bodies: list[bytes], notice_secs: float) -> Departures:
    flags = ("--mass-loss-hold-secs", "0")
    with redis_server() as server:
        with product(server.url, *flags, lease=LEASE_SECS) as first:
            register_all(first.port, bodies)
        deadline_ms = round((time.time() + notice_secs) * 1000)
        _end_all_at(server, deadline_ms, len(bodies))
        with product(server.url, *flags, lease=LEASE_SECS) as second:
            return _follow(second.port, deadline_ms, len(bodies))


def _end_all_at(server: RedisServer, deadline_ms: int, expected: int) -> None:
    client = redis.Redis(port=server.port)
    names = list(client.scan_iter("{discovery}:pool:*", count=1000))
    if len(names) != expected:
        raise CannotMeasure(f"Redis holds {len(names)} registrations, not {expected}")
    batch = client.pipeline(transaction=False)
    for name in names:
        batch.pexpireat(name, deadline_ms)
    batch.execute()
    client.close()


def _follow(port: int, deadline_ms: int, expected: int) -> Departures:
    seen = Departures()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=max(NOTICE_SECS) + PATIENCE_SECS)
    connection.request("GET", "/pools/events")
    events = _events(connection.getresponse())
    seen.take(*next(events), False)
    _check_time_left(deadline_ms)  # else some may have left the list before it was first read
    if len(seen.listed) != expected:
        raise CannotMeasure(f"the replica lists {len(seen.listed)} pools at the start, not {expected}")
    peer = Peer(port)
    while seen.listed:
        event, data = next(events)
        seen.take(event, data, time.time() * 1000 < deadline_ms)
    listed = msgspec.json.decode(peer.ask(get_request("/pools")))["pools"]
    seen.late_ms = time.time() * 1000 - deadline_ms
    if listed:
        raise CannotMeasure(f"the stream said that all pools are gone, but {len(listed)} are listed")
    connection.close()
    peer.close()
    return seen


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, bytes]]:
    """Name and data of each event of a stream."""
    pieces: list[bytes] = []  # joined only where an event ends: a snapshot of many pools comes in many pieces
    while data := response.read1(1 << 20):
        pieces.append(data)
        if b"\n\n" not in pieces[-1] and not data.startswith(b"\n"):
            continue
        *events, rest = b"".join(pieces).split(b"\n\n")
        pieces = [rest]
        for event in events:
            fields = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
            if b"data" in fields:
                yield fields[b"event"].decode(), fields[b"data"]
    raise CannotMeasure("the stream ended")


def _check_time_left(deadline_ms: int) -> None:
    if time.time() * 1000 > deadline_ms - 200:
        raise _TooSlow
