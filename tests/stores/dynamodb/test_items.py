"""Items: keys, sizes, and what is made of whatever lies in a table."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.errors import Rejected
from discovery.model import PoolKey
from discovery.stores.dynamodb import items
from discovery.stores.dynamodb.items import Item, Word

KEY = PoolKey("us-east-1", "prod", "llama-70b")
VALUE = b'{"cluster_id":"us-east-1","namespace":"prod","dgd_name":"llama-70b","model":"m\\u00e9"}'
Attributes = dict[str, Any]


def page(*found: Attributes, **more: Any) -> bytes:
    return json.dumps({"Items": found, "Count": len(found), "ScannedCount": len(found), **more}).encode()


def pool_item(**changed: Any) -> Attributes:
    item = items.pool_item(KEY, VALUE, None, 1_796_057_444_123, 15.0) | changed
    return {name: value for name, value in item.items() if value is not None}


# ---- keys

PARTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(PARTS, PARTS, PARTS)
def test_a_sort_key_names_its_pool_and_no_other(cluster_id: str, namespace: str, name: str) -> None:
    key = PoolKey(cluster_id, namespace, name)
    text = items.sort_key(key)
    assert items.pool_key(text) == key
    assert text.count("#") == 2
    assert not text.startswith("#")


@given(st.text(st.sampled_from("#%25a3"), max_size=14))
def test_whatever_names_a_pool_is_how_that_pool_is_written(text: str) -> None:
    try:
        key = items.pool_key(text)
    except ValueError:
        return
    assert items.sort_key(key) == text


@pytest.mark.parametrize(
    "text", ["", "a", "a#b", "a#b#c#d", "#b#c", "a##c", "a#b#", "a#b#c%", "a#b#%2", "a%65#b#c", "a#b#%2f", "#settling"]
)
def test_other_texts_name_no_pool(text: str) -> None:
    with pytest.raises(ValueError, match="sort key"):
        items.pool_key(text)


# ---- what is written


def test_an_item_is_what_the_documents_say() -> None:
    assert items.pool_item(KEY, VALUE, "relay-7d9f", 1_796_057_444_123, 15.0) == {
        "pk": {"S": "POOL"},
        "sk": {"S": "us-east-1#prod#llama-70b"},
        "registration": {"S": VALUE.decode()},
        "lease_ends_ms": {"N": "1796057444123"},
        "lease_ms": {"N": "15000"},
        "expires_at": {"N": "1796061044"},
        "instance_id": {"S": "relay-7d9f"},
    }


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (PoolKey("c" * 253, "€" * 253, "n" * 253), "$.namespace"),
        (PoolKey("c" * 10, "n", "\U0001f600" * 253), "$.dgd_name"),
        (PoolKey("c" * 253, "n" * 253, "#" * 253), "$.dgd_name"),
    ],
)
def test_a_key_that_no_table_takes_is_refused_for_good(key: PoolKey, path: str) -> None:
    with pytest.raises(Rejected) as refused:
        items.check_key(key)
    assert refused.value.status == 422
    assert [fault.path for fault in refused.value.faults] == [path]
    assert "1,024" in refused.value.faults[0].message
    assert items.pool_item_key(key) is None


def test_the_longest_key_that_a_table_takes_is_taken() -> None:
    key = PoolKey("c" * 253, "n" * 253, "é" * 253 + "d" * (1024 - 2 * 253 - 506 - 2))
    assert len(items.check_key(key).encode()) == 1024
    with pytest.raises(Rejected):
        items.check_key(key._replace(dgd_name=key.dgd_name + "d"))


def test_an_item_larger_than_a_table_takes_is_refused_for_good() -> None:
    room = items.MAX_ITEM_BYTES - _size(items.pool_item(KEY, b"", None, 1, 15.0))
    assert _size(items.pool_item(KEY, b"v" * room, None, 1, 15.0)) == 400 * 1024
    with pytest.raises(Rejected) as refused:
        items.pool_item(KEY, b"v" * (room + 1), None, 1, 15.0)
    assert (refused.value.status, [fault.path for fault in refused.value.faults]) == (422, ["$"])


def _size(item: Attributes) -> int:
    return sum(len(name) + len(text.encode()) for name, kind in item.items() for text in kind.values())


# ---- what is read


def test_what_was_written_is_read_again() -> None:
    found = items.page(page(pool_item(), items.settling_item(Word("an outage", 5000, 4000))))
    assert found.items == [Item(KEY, VALUE, 1_796_057_444_123, 15.0)]
    assert found.word == Word("an outage", 5000, 4000)
    assert (found.broken, found.next_from) == ([], None)
    assert items.page(page(items.settling_item(Word("a hold", 5000)))).word == Word("a hold", 5000)


def test_where_a_page_ends_and_what_it_cost_is_told() -> None:
    start = {"pk": {"S": "POOL"}, "sk": {"S": "a#b#c"}}
    found = items.page(page(LastEvaluatedKey=start, ConsumedCapacity={"TableName": "t", "CapacityUnits": 12.5}))
    assert (found.items, found.next_from, found.read_units) == ([], start, 12.5)


@pytest.mark.parametrize(
    ("text", "ends_ms"), [("1796057444123", 1796057444123), ("-5", -5), ("1.5", 1), ("1.796057E+12", 1796057000000)]
)
def test_numbers_are_read_however_they_are_written(text: str, ends_ms: int) -> None:
    (found,) = items.page(page(pool_item(lease_ends_ms={"N": text}, lease_ms=None))).items
    assert (found.lease_ends_ms, found.lease_secs) == (ends_ms, None)


def test_a_lease_longer_than_any_flag_allows_is_cut() -> None:
    (found,) = items.page(page(pool_item(lease_ms={"N": "999999999999"}))).items
    assert found.lease_secs == 86_400


BROKEN: list[Attributes] = [
    {"sk": None},
    {"sk": {"N": "7"}},
    {"sk": {"S": "a#b"}},
    {"sk": {"S": "#settling"}, "registration": None},
    {"registration": None},
    {"registration": {"N": "5"}},
    {"registration": {"L": [{"S": "x"}]}},
    {"registration": {"NULL": True}},
    {"lease_ends_ms": None},
    {"lease_ends_ms": {"S": "5"}},
    {"lease_ends_ms": {"N": "soon"}},
    {"lease_ends_ms": {"N": "1E+125"}},
    {"lease_ends_ms": {"N": "-1E+125"}},
    {"lease_ms": {"N": "9" * 38}},
    {"lease_ms": {"BOOL": True}},
]


@pytest.mark.parametrize("changed", BROKEN)
def test_a_broken_item_costs_itself_alone_and_says_what_is_wrong(changed: Attributes) -> None:
    found = items.page(page(pool_item(**changed), pool_item()))
    assert [item.key for item in found.items] == [KEY]
    ((_, fault),) = found.broken
    assert fault


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b'{"Items":[]}',
        b'{"Count":0}',
        b'{"Items":null,"Count":0}',
        b'{"message":"Internal error"}',
        page(pool_item())[:-20],
        page(pool_item()).replace(b'"Count": 1', b'"Count": 2'),
        page(LastEvaluatedKey="a#b#c"),
        b"<html>504</html>",
    ],
)
def test_an_answer_that_is_no_page_is_never_an_empty_one(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        items.page(answer)


def test_a_write_tells_what_was_there_before() -> None:
    answer = json.dumps({"Attributes": pool_item(), "ConsumedCapacity": {"CapacityUnits": 1.0}}).encode()
    assert items.written(answer) == (Item(KEY, VALUE, 1_796_057_444_123, 15.0), 1.0)
    assert items.written(b"{}") == (None, 0.0)
    assert items.written(json.dumps({"Attributes": {"sk": {"S": "broken"}}}).encode()) == (None, 0.0)
    with pytest.raises(ValueError, match=r"."):
        items.written(b"nothing")
