"""``docs/dynamodb.md`` says what the code does: commands, rights, items, numbers and words are held against it.

``python -m tests.test_dynamodb_document --write`` writes what is computed anew: the costs and the limits that follow
from the bytes of one item. What is pasted into terminals is run by ``tests/live/test_dynamodb_document.py``.
"""

import json
import math
import re
import shlex
import sys
from typing import Any

import botocore.session
import pytest

from discovery import registrations, settings
from discovery.http import openapi
from discovery.model import Capacity, Location, PoolKey, Registration
from discovery.stores import CONFIRMED_FOR_SECS, replica
from discovery.stores.dynamodb import access, items, refusals, sightings, store
from tests.aws_command import Request, request_of
from tests.documents import PROJECT, Block, read, replaced, rows, steps
from tests.live.dynamodb_server import SCHEMA, TIME_TO_LIVE
from tests.test_docs import section

PAGE = "docs/dynamodb.md"

MONTH_SECS = 30 * 24 * 3600
READ_UNIT = 4096
WRITE_UNIT = 1024
PAGE_BYTES = 1 << 20
PARTITION_READS = 3000
PARTITION_WRITES = 1000
REPLICAS = 2
SIZES = ((100, 5), (1_000, 5), (10_000, 15))
"""Pools, and the heartbeat that goes with so many."""

TYPICAL = Registration(
    cluster_id="us-east-1",
    namespace="prod",
    dgd_name="llama-70b-00000",
    model="meta-llama/Llama-3.1-70B-Instruct",
    relays=("http://10.0.3.7:9000",),
    frontends=("http://10.0.3.8:8000", "http://10.0.3.9:8000"),
    capabilities=("chat", "tools"),
    capacity=(Capacity("gpu", 16, "H100"),),
    location=Location("us-east-1", "us-east-1a"),
    instance_id="6f1d2c9ab37e",
)


def blocks(*words: str) -> list[str]:
    return [step.text for step in steps(read(PAGE)) if isinstance(step, Block) and step.words == words]


def requests(*words: str) -> list[Request]:
    return [request_of(shlex.split(line)) for text in blocks(*words) for line in text.splitlines()]


# ---- what is computed


def item_bytes(item: dict[str, dict[str, str]]) -> int:
    """The size of an item as DynamoDB counts it: names and texts in UTF-8, of numbers half their digits and one."""
    size = 0
    for name, kind in item.items():
        ((of, text),) = kind.items()
        size += len(name) + (len(text.encode()) if of == "S" else math.ceil(len(text.strip("0")) / 2) + 1)
    return size


def typical_item() -> dict[str, dict[str, str]]:
    value = registrations.encode(registrations.canonical(TYPICAL))
    key = PoolKey(TYPICAL.cluster_id, TYPICAL.namespace, TYPICAL.dgd_name)
    return items.pool_item(key, value, TYPICAL.instance_id, 1_796_025_879_028, 15.0)


def read_units(pools: int, size: int) -> int:
    return math.ceil(pools * size / READ_UNIT)


def cost_table() -> str:
    """Requests and units by the number of pools, as Markdown."""
    size = item_bytes(typical_item())
    lines = [
        f"For {REPLICAS} replicas in one region and one relay for each pool, with items of {size} bytes (a "
        f"registration of {len(typical_item()['registration']['S'])}):",
        "",
        "| pools | heartbeat | queries/s | read units/s | writes/s | write units/s | read units in 30 days | "
        "write units in 30 days |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for pools, heartbeat in SIZES:
        queries = REPLICAS * math.ceil(pools * size / PAGE_BYTES)
        reads = REPLICAS * read_units(pools, size)
        writes = pools / heartbeat
        wrote = writes * math.ceil(size / WRITE_UNIT)
        months = (f"{units * MONTH_SECS / 1e6:,.0f} million" for units in (reads, wrote))
        cells = (
            f"{pools:,}",
            f"{heartbeat} s",
            f"{queries:,}",
            f"{reads:,}",
            f"{writes:,.0f}",
            f"{wrote:,.0f}",
            *months,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def limits_text() -> str:
    """The largest numbers of pools that the limits of one partition key let have, as Markdown."""
    size = item_bytes(typical_item())
    most = PARTITION_WRITES // math.ceil(size / WRITE_UNIT)
    by_heartbeat = "; ".join(f"{most * secs:,} at {secs} s" for secs in (5, 10, 15))
    most_read = PARTITION_READS * READ_UNIT / size
    by_replicas = "; ".join(f"{most_read / replicas:,.0f} for {replicas}" for replicas in (2, 3, 5))
    return "\n".join(
        [
            "- By writes, with one relay for each pool and items below a kilobyte, as many pools as heartbeats fit "
            f"into {PARTITION_WRITES:,} write units a second: {by_heartbeat}. Half of that with two relays for each "
            "pool, or items of one to two kilobytes.",
            f"- By reads, with items of {size} bytes, as many as all replicas of a region can read each second: "
            f"{by_replicas} replicas.",
            f"- Leave a third of both for bursts: from {most * 5 * 2 // 3 // 100 * 100:,} pools on lengthen the "
            "heartbeat (`--heartbeat-interval-secs 10 --lease-duration-secs 30`), which a dead pool then stays longer.",
        ]
    )


def with_numbers(text: str) -> str:
    return replaced(replaced(text, "cost", cost_table()), "limits", limits_text())


def test_the_numbers_are_those_of_an_item_as_it_is_written() -> None:
    text = read(PAGE)
    assert text == with_numbers(text), "run: .venv/bin/python -m tests.test_dynamodb_document --write"


def test_units_are_counted_as_measured() -> None:
    """The numbers of the page's table of measurements, against the formula: an emulator rounds each page up."""
    (table,) = [text for text in re.findall(r"(?:^\|.*\n)+", read(PAGE), re.MULTILINE) if "measured" in text]
    size = item_bytes(typical_item())
    measured = [[int(cell.replace(",", "")) for cell in row] for row in rows(table)]
    assert [pools for pools, *_ in measured] == [100, 1_000, 10_000]
    for pools, pages, units in measured:
        assert pages == math.ceil(pools * size / PAGE_BYTES)
        assert 0 <= units - read_units(pools, size) <= pages


# ---- commands


def test_the_commands_make_the_table_that_the_tests_use() -> None:
    create, time_to_live = requests("sh", "aws")[:2]
    assert (create.operation, create.parameters) == ("CreateTable", {"TableName": "pools", **SCHEMA})
    assert (time_to_live.operation, time_to_live.parameters) == (
        "UpdateTimeToLive",
        {"TableName": "pools", "TimeToLiveSpecification": TIME_TO_LIVE},
    )
    stream, wait, replica = requests("sh", "aws", "global")
    assert stream.parameters["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    assert wait.condition == "table-exists"
    assert replica.parameters == {"TableName": "pools", "ReplicaUpdates": [{"Create": {"RegionName": "us-east-1"}}]}


def test_every_command_is_one_that_aws_takes() -> None:
    looks = requests("sh", "aws")[2:]
    assert [each.operation for each in looks] == ["Query", "Query", "DeleteItem"]
    for each in looks[:2]:
        assert each.parameters["ExpressionAttributeValues"][":pool"] == {"S": items.PARTITION}
    assert looks[2].parameters["Key"]["sk"]["S"] == items.sort_key(PoolKey("us-east-1", "prod", "llama-70b"))
    (association,) = requests("sh", "aws", "eks")
    assert (association.service, association.operation) == ("eks", "CreatePodIdentityAssociation")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("aws dynamodb make-table --table-name pools", "no such operation"),
        ("aws dynamodb query --table-name pools --key-conditoin 'pk = :pool'", "has no --key-conditoin"),
        ("aws dynamodb create-table --table-name pools --billing-mode FREE", "none of"),
        ("aws dynamodb create-table --table-name pools --key-schema AttributeNam=pk,KeyType=HASH", "'AttributeNam'"),
        ("aws dynamodb update-time-to-live --table-name pools", "TimeToLiveSpecification"),
    ],
)
def test_a_mistake_in_a_command_would_be_found(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        request_of(shlex.split(line))


def test_flags_are_read_by_the_program() -> None:
    lines = [line for text in blocks("sh", "flags") for line in text.splitlines()]
    assert len(lines) == 3
    for line in lines:
        program, command, *words = shlex.split(line)
        assert (program, command) == ("discovery", "serve")
        read_settings = settings.read_serve(words, {})
        assert (read_settings.registration_storage, read_settings.warnings) == ("dynamodb", ())
    started = [
        line for step in steps(read(PAGE)) if isinstance(step, Block) and "run" in step.words
        for line in step.text.splitlines() if "discovery serve" in line
    ]  # fmt: skip
    assert len(started) == 2


def test_urls_are_paths_of_the_service() -> None:
    asked = [line.split()[-1].removeprefix("http://127.0.0.1:8080") for line in blocks("sh", "http")[0].splitlines()]
    assert len(asked) == 3
    assert {*asked} <= {*openapi.document()["paths"]}


# ---- rights


def operations_in_use() -> set[str]:
    """Every operation of DynamoDB that the code of the store names."""
    known = botocore.session.Session().get_service_model("dynamodb").operation_names
    sources = [path.read_text() for path in (PROJECT / "discovery/stores/dynamodb").glob("*.py")]
    return {name for name in known if any(f'"{name}"' in text for text in sources)}


def test_the_policy_grants_exactly_what_is_used() -> None:
    (text,) = blocks("json", "policy")
    (statement,) = json.loads(text)["Statement"]
    assert {right.removeprefix("dynamodb:") for right in statement["Action"]} == operations_in_use()
    assert statement["Effect"] == "Allow"
    assert re.fullmatch(r"arn:aws:dynamodb:\*:[0-9]{12}:table/pools", statement["Resource"])
    assert statement["Condition"] == {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [items.PARTITION]}}


def test_roles_are_trusted_for_one_account_and_by_who_hands_out_credentials() -> None:
    web_identity, pod_identity = (json.loads(text)["Statement"][0] for text in blocks("json", "trust"))
    assert web_identity["Action"] == "sts:AssumeRoleWithWebIdentity"
    issuer = web_identity["Principal"]["Federated"].partition(":oidc-provider/")[2]
    assert {*web_identity["Condition"]["StringEquals"]} == {f"{issuer}:sub", f"{issuer}:aud"}
    assert pod_identity["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert pod_identity["Action"] == ["sts:AssumeRole", "sts:TagSession"]


# ---- what lies in the table


def example() -> dict[str, Any]:
    (text,) = blocks("json", "item")
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_item_is_one_that_is_written_and_read() -> None:
    shown = example()
    value = shown["registration"]["S"].encode()
    key = PoolKey("us-east-1", "prod", "llama-70b")
    ends_ms = int(shown["lease_ends_ms"]["N"])
    assert shown == items.pool_item(key, value, None, ends_ms, int(shown["lease_ms"]["N"]) / 1000)
    assert registrations.encode(registrations.decode(value)) == value
    page = items.page(json.dumps({"Items": [shown], "Count": 1}).encode())
    assert page.items == [items.Item(key, value, ends_ms, 15.0)]
    assert page.broken == []


def test_every_attribute_is_explained() -> None:
    (table,) = [text for text in re.findall(r"(?:^\|.*\n)+", read(PAGE), re.MULTILINE) if "| attribute |" in text]
    named = [row[0].strip("`") for row in rows(table)]
    assert named == [name for name in typical_item_order() if name != "pk"]
    assert f"the item `{items.SETTLING}`" in read(PAGE)


def typical_item_order() -> list[str]:
    return ["pk", "sk", "registration", "lease_ends_ms", "lease_ms", "instance_id", "expires_at"]


def test_the_attributes_are_those_of_an_item() -> None:
    assert sorted(typical_item()) == sorted(typical_item_order())


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(read(PAGE).split())
    assert store.READ_SECS == 1.0
    assert round(1 / store.READ_AT_LEAST_SECS) == 3
    assert items.SWEPT_AFTER_SECS == 3600
    for said in (
        "at most three times a second",
        f"a key of {items.MAX_SORT_KEY_BYTES:,} bytes",
        f"an item of {items.MAX_ITEM_BYTES // 1024} KB",
        "pip install 'pool-discovery[server,dynamodb]'",
    ):
        assert said in text, said


def test_the_times_of_outages_are_those_of_the_code() -> None:
    """What people reckon with at night: when a list is complete, what is held, how often is asked again."""
    text = " ".join(read(PAGE).split())
    assert (CONFIRMED_FOR_SECS, replica.REFUSED_FOR_SECS) == (2.0, 2.0)
    assert sightings.DOUBTFUL_SECS == 24 * 3600
    assert access.DOUBT_SECS == (1.0, 30.0)
    assert store.THROTTLED_SECS[1] * 1.25 == 5.0
    for said in (
        "is complete while its last whole read is younger than two seconds",
        "before which no heartbeat was refused for two seconds",
        "at least two ended within the last day",
        "at once and then ever more seldom, at least every 30 s",
        "every five seconds at last",
        f"one key {PARTITION_WRITES:,} write units a second, and {PARTITION_READS:,} read units in each region",
    ):
        assert said in text, said


# ---- what to do


def test_for_each_line_that_may_be_read_there_is_something_to_do() -> None:
    lines = [re.findall(r"`([^`]+)`", row[4])[0] for row in rows(section(read(PAGE), "When it fails"))]
    (table, *_) = re.findall(r"(?:^\|.*\n)+", section(read(PAGE), "What to do"), re.MULTILINE)
    (*told,) = [row[0].strip("`") for row in rows(table)]
    assert [line for line in lines if line not in told] == []
    assert len(told) == len({*told})
    source = " ".join(path.read_text() for path in (PROJECT / "discovery/stores/dynamodb").glob("*.py"))
    assert [line for line in told if line not in lines and line not in source] == []


def test_each_limit_that_throttles_has_its_metric_of_both_kinds() -> None:
    named = re.findall(r"`(Read|Write)(\w+)ThrottleEvents`", section(read(PAGE), "Throttled"))
    of = {kind: {limit for found, limit in named if found == kind} for kind in ("Read", "Write")}
    assert (
        of["Read"]
        == of["Write"]
        == {"KeyRangeThroughput", "ProvisionedThroughput", "MaxOnDemandThroughput", "AccountLimit"}
    )


def test_the_line_about_one_key_says_that_capacity_is_no_cure() -> None:
    (reason,) = {*re.findall(r"`(Table\w+Exceeded)`", section(read(PAGE), "Throttled"))}
    answer = {"__type": "ThrottlingException", "ThrottlingReasons": [{"reason": reason, "resource": "arn:aws:x"}]}
    error = refusals.unavailable(refusals.read(400, json.dumps(answer).encode()), "PutItem", "table pools in eu-west-1")
    assert error.detail.startswith("DynamoDB throttles dynamodb:PutItem on table pools in eu-west-1: one partition key")
    assert error.detail.endswith(f"({reason})")
    assert "capacity" not in error.detail


def test_aws_own_words_are_found_in_the_log_by_those_that_the_page_names() -> None:
    source = (PROJECT / "discovery/stores/dynamodb/table.py").read_text()
    (line,) = {*re.findall(r"`(DynamoDB said to)`", read(PAGE))}
    assert f'"{line} ' in source


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_dynamodb_document --write")
    (PROJECT / PAGE).write_text(with_numbers(read(PAGE)), encoding="utf-8")
