"""The stand-in, the proxy and the copier themselves: a fault that is none would prove nothing."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import botocore.exceptions
import pytest

from tests.live.dynamodb import items
from tests.live.dynamodb.conftest import MakeProxy
from tests.live.dynamodb.copier import Copier, Region
from tests.live.dynamodb_proxy import (
    DynamoDBProxy,
    Fault,
    denies,
    fails,
    late,
    pages,
    throttles,
    torn,
    unheard,
    wants_signatures,
    wants_true_clocks,
)
from tests.live.dynamodb_server import CREDENTIALS, REGION, DynamoDBServer, Table
from tests.live.signs import await_sign

pytestmark = pytest.mark.live

READ = {
    "KeyConditionExpression": "pk = :pk",
    "ExpressionAttributeValues": {":pk": {"S": "POOL"}},
    "ConsistentRead": True,
    "ReturnConsumedCapacity": "TOTAL",
}


def read(table: Table) -> list[dict[str, Any]]:
    """The answers to one read of all items, page by page."""
    answers = [table.client.query(TableName=table.name, **READ)]
    while place := answers[-1].get("LastEvaluatedKey"):
        answers.append(table.client.query(TableName=table.name, ExclusiveStartKey=place, **READ))
    return answers


def through(proxy: DynamoDBProxy, table: Table) -> "contextlib.closing[Table]":
    """The same table by way of the proxy."""
    other = Table(proxy.url, table.region, CREDENTIALS)
    other.name = table.name
    return contextlib.closing(other)


REFUSED: list[tuple[Callable[[], Fault], str]] = [
    (lambda: fails(), "InternalServerError"),
    (lambda: throttles(), "ProvisionedThroughputExceededException"),
    (lambda: throttles("ThrottlingException"), "ThrottlingException"),
    (lambda: denies("Query"), "AccessDeniedException"),
    (lambda: wants_true_clocks(-1), "InvalidSignatureException"),
    (lambda: wants_signatures({**CREDENTIALS, "AWS_SECRET_ACCESS_KEY": "x"}, REGION), "InvalidSignatureException"),
]


def test_the_proxy_passes_everything_on_or_does_what_it_was_told(table: Table, make_proxy: MakeProxy) -> None:
    proxy = make_proxy()
    table.put_items(items.item(f"c1/n1/p{number:02}", lease=20, model="m" * 250) for number in range(50))
    with through(proxy, table) as other:
        proxy.let(wants_signatures(CREDENTIALS, REGION))
        (whole,) = read(other)
        assert whole["Items"] == table.scan()
        # Each item has some 470 bytes: 50 of them are six times 4 KB.
        assert whole["ConsumedCapacity"]["CapacityUnits"] == 6
        proxy.heal()
        for fault, code in REFUSED:
            proxy.let(fault(), "Query")
            with pytest.raises(botocore.exceptions.ClientError, match=code):
                read(other)
            proxy.heal()
        for broken in (torn(), unheard()):
            proxy.let(broken, "Query")
            with pytest.raises((botocore.exceptions.HTTPClientError, botocore.exceptions.ChecksumError)):
                read(other)
            proxy.heal()
        proxy.let(torn(seems_whole=True), "Query")
        assert "Items" not in other.client.query(TableName=table.name, **READ), "botocore takes it for an answer"
        proxy.heal()
        proxy.let(pages(20, empty_between=True), "Query")
        assert [len(page["Items"]) for page in read(other)] == [0, 20, 0, 20, 0, 10]
        proxy.heal()
        proxy.let(fails(), "Query", when=lambda asked: asked.continues)
        proxy.let(pages(20), "Query")
        with pytest.raises(botocore.exceptions.ClientError):
            read(other)
        proxy.heal()
        proxy.clock_secs = 3600
        proxy.let(late(0.3), "Query")
        begun = time.monotonic()
        (answer,) = read(other)
        assert time.monotonic() - begun >= 0.3
        assert answer["ResponseMetadata"]["HTTPHeaders"]["date"] != whole["ResponseMetadata"]["HTTPHeaders"]["date"]
        proxy.refuse()
        with pytest.raises(botocore.exceptions.ConnectionError):
            read(other)
        proxy.heal()
        assert read(other)[0]["Items"] == whole["Items"]


def test_what_is_unheard_was_done(table: Table, make_proxy: MakeProxy) -> None:
    proxy = make_proxy()
    proxy.let(unheard(), "PutItem")
    with through(proxy, table) as other, pytest.raises(botocore.exceptions.HTTPClientError):
        other.put_item(items.item("c1/n1/p1", lease=20))
    assert table.get_item("c1#n1#p1") is not None


def test_every_item_that_is_none_can_lie_in_a_table(table: Table) -> None:
    broken = items.broken(20)
    table.put_items(broken.values())
    assert len(table.scan()) == len(broken) > 20


def test_the_copier_is_late_and_keeps_the_last_word(dynamodb_server: DynamoDBServer, make_proxy: MakeProxy) -> None:
    with contextlib.ExitStack() as stack:
        regions = [Region(dynamodb_server.table(), make_proxy()) for _ in range(2)]
        for region in regions:
            stack.callback(region.table.close)
        copier = stack.enter_context(contextlib.closing(Copier(*regions, lag=(0.02, 0.8))))
        home, away = (stack.enter_context(through(region.proxy, region.table)) for region in regions)
        for number in range(10):
            home.put_item(items.item("c1/n1/p1", lease=20, model=f"m{number}"))
            home.put_item(items.item(f"c1/n1/short{number}", lease=20))
            home.delete_item(f"c1#n1#short{number}")
        away.put_item(items.item("c2/n1/p1", lease=20))
        assert away.get_item("c1#n1#p1") is None or copier.copied
        await_sign(lambda: copier.copied + copier.overtaken == 31, 5, "all have arrived")
        assert regions[0].table.scan() == regions[1].table.scan()
        assert {row["sk"]["S"] for row in away.scan()} == {"c1#n1#p1", "c2#n1#p1"}
        assert copier.overtaken > 0
        copier.losing = True
        away.delete_item("c2#n1#p1")
        await_sign(lambda: copier.lost == 1, 2, "lost")
        assert home.get_item("c2#n1#p1") is not None
