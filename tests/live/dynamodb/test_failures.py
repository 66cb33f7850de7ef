"""What ``docs/dynamodb.md`` says of each failure, tried all at once: for each row a replica and a way to the table."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest

from discovery.errors import Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.registrations import Heartbeat, encode
from discovery.stores.dynamodb.store import DynamoStore
from discovery.stores.replica import Replica
from tests.documents import read, rows
from tests.live.dynamodb.conftest import MakeProxy
from tests.live.dynamodb_proxy import DynamoDBProxy, Fault, denies, fails, silent, throttles
from tests.live.dynamodb_server import Table
from tests.test_docs import section

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE_SECS = 30.0
READ_SECS = 10.0
"""Far more than a busy machine needs for a read."""
SILENT_SECS = 2.5
"""Longer than a store may be silent before lists say so; in it a whole list stays whole."""


class Row(NamedTuple):
    """One row of the table."""

    heartbeat: int
    delete: int
    complete: bool
    said: str


def refuse(proxy: DynamoDBProxy) -> None:
    proxy.refuse()


def meeting(fault: Fault, *operations: str) -> Callable[[DynamoDBProxy], None]:
    return lambda proxy: proxy.let(fault, *operations)


FAILURES: dict[str, Callable[[DynamoDBProxy], None]] = {
    "DynamoDB cannot be reached": refuse,
    "DynamoDB does not answer": meeting(silent()),
    "DynamoDB answers with errors of its own": meeting(fails()),
    "reads are throttled": meeting(throttles(), "Query"),
    "writes are throttled": meeting(throttles("ThrottlingException"), "PutItem", "DeleteItem"),
    "no right to Query": meeting(denies("Query"), "Query"),
    "no right to PutItem": meeting(denies("PutItem"), "PutItem"),
    "no right to DeleteItem": meeting(denies("DeleteItem"), "DeleteItem"),
    "credentials that have expired, and no newer ones": meeting(
        fails(400, "com.amazon.coral.service#ExpiredTokenException", "The security token in the request is expired")
    ),
    "credentials that nobody knows": meeting(
        fails(400, "UnrecognizedClientException", "The security token included in the request is invalid.")
    ),
    "no such table, or another region": meeting(
        fails(400, "ResourceNotFoundException", "Requested resource not found")
    ),
    "a table with other keys": meeting(
        fails(400, "ValidationException", "The provided key element does not match the schema")
    ),
}


def table_of_failures() -> dict[str, Row]:
    found = {}
    for what, heartbeat, delete, complete, said in rows(section(read("docs/dynamodb.md"), "When it fails")):
        assert complete in ("true", "false")
        (words,) = re.findall(r"`([^`]+)`", said)
        found[what.replace("`", "")] = Row(int(heartbeat), int(delete), complete == "true", words)
    return found


def heartbeat_of(name: str) -> Heartbeat:
    registration = Registration(cluster_id="c1", namespace="n1", dgd_name=name, model="m")
    return Heartbeat(PoolKey("c1", "n1", name), encode(registration), registration)


async def until(holds: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(READ_SECS):
        while not holds():
            await asyncio.sleep(0.02)
    assert holds(), what


@contextlib.asynccontextmanager
async def replica_on(table: Table, proxy: DynamoDBProxy) -> AsyncIterator[Replica]:
    """A replica that has read the table by way of the proxy and is whole."""
    counters = Counters()
    store = DynamoStore(
        table=table.name,
        region=table.region,
        endpoint_url=proxy.url,
        lease_secs=LEASE_SECS,
        timeout_secs=1.5,
        counters=counters,
    )
    replica = Replica(
        store,
        lease_secs=LEASE_SECS,
        heartbeat_secs=10.0,
        max_pools=100,
        counters=counters,
        on_change=lambda changes, complete, until: None,
    )
    running = asyncio.create_task(replica.run())
    try:
        await until(lambda: replica.incomplete() is None, "it is whole")
        yield replica
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()


async def status_of(call: Awaitable[object], done: int) -> tuple[int, str]:
    """The status that a relay hears, and the words that come with a refusal."""
    try:
        await call
    except Unavailable as error:
        return 503, error.detail
    return done, ""


async def what_happens(table: Table, proxy: DynamoDBProxy, begin: Callable[[DynamoDBProxy], None]) -> Row:
    """What is seen of one failure; of the words all that was said."""
    async with replica_on(table, proxy) as replica:
        kept, leaving = heartbeat_of("kept"), heartbeat_of(f"of-{proxy.port}")
        await replica.put(kept)
        await replica.put(leaving)
        await asyncio.to_thread(begin, proxy)
        taken, said = await status_of(replica.put(kept), 200)
        removed, also = await status_of(replica.delete(leaving.key, None), 204)
        words = {said, also}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_SECS):
                while replica.incomplete() is None:
                    await asyncio.sleep(0.02)
        reason = replica.incomplete()
        words |= {str(reason), str(replica.failing())}
        assert "kept" in {known.key.dgd_name for known in replica.known()}, "the last list stays"
        return Row(taken, removed, reason is None, " ".join(words))


async def test_each_failure_does_what_the_page_says(
    table: Table, make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in table.credentials.items():
        monkeypatch.setenv(name, text)
    told = table_of_failures()
    assert told.keys() == FAILURES.keys()
    seen = await asyncio.gather(*(what_happens(table, make_proxy(), begin) for begin in FAILURES.values()))
    found = dict(zip(FAILURES, seen, strict=True))
    assert {what: row[:3] for what, row in found.items()} == {what: row[:3] for what, row in told.items()}
    assert [what for what, row in told.items() if not re.search(pattern(row.said, table), found[what].said)] == []


def pattern(said: str, table: Table) -> str:
    """What the page quotes, with this table and region for those of its examples, and anything for … in it."""
    here = said.replace("table pools in eu-west-1", f"table {table.name} in {table.region}")
    return ".*".join(map(re.escape, here.split("…")))
