"""The chart with DynamoDB: what pods get, whom they may call, and what is refused before anything is installed."""

from ipaddress import ip_network
from typing import Any

import pytest

from tests.charts.engine import Refused
from tests.charts.rendered import Chart

TABLE = {"registrationStorage": "dynamodb", "dynamodb": {"table": "pools"}}
ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/discovery"}
ARN = "arn:aws:dynamodb:eu-west-1:111122223333:table/pools"


def on_table(**dynamodb: str) -> dict[str, Any]:
    return TABLE | {"dynamodb": TABLE["dynamodb"] | dynamodb}  # type: ignore[operator]


def ways_out(chart: Chart, **dynamodb: str) -> dict[frozenset[str], set[int]]:
    """The ports on which pods may call whom; nobody named is everyone."""
    rules = chart.render(on_table(**dynamodb) | {"networkPolicy": {"enabled": True}}).one("NetworkPolicy")["spec"][
        "egress"
    ]
    found = {}
    for rule in rules:
        if {port["protocol"] for port in rule["ports"]} == {"TCP"}:
            peers = frozenset(peer["ipBlock"]["cidr"] for peer in rule.get("to", ()))
            found[peers] = {port["port"] for port in rule["ports"]}
    return found


def test_pods_get_the_table_as_it_is_named_and_the_region_only_where_one_is_given(chart: Chart) -> None:
    given = chart.render(on_table(region="eu-west-1", endpointUrl="http://dynamodb:8000")).variables
    ours = {name.removeprefix("DISCOVERY_"): text for name, text in given.items() if "DYNAMODB" in name}
    assert ours == {
        "DYNAMODB_TABLE": "pools",
        "DYNAMODB_REGION": "eu-west-1",
        "DYNAMODB_ENDPOINT_URL": "http://dynamodb:8000",
    }
    alone = chart.render(TABLE).variables
    assert [name for name in alone if "DYNAMODB" in name or name.startswith("AWS_")] == ["DISCOVERY_DYNAMODB_TABLE"]


def test_the_role_goes_to_the_account_of_the_pods_which_need_no_other_token(chart: Chart) -> None:
    """What gives a role its credentials puts a token of its own into the pod; that of the cluster's API stays out."""
    rendered = chart.render(TABLE | {"serviceAccount": {"annotations": ROLE}})
    account = rendered.one("ServiceAccount")
    assert account["metadata"]["annotations"] == ROLE
    assert rendered.pod["serviceAccountName"] == account["metadata"]["name"]
    assert rendered.pod["automountServiceAccountToken"] is False


def test_keys_of_a_secret_reach_the_program(chart: Chart) -> None:
    keys = {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "aws", "key": "secret"}}}
    assert keys in chart.render(TABLE | {"extraEnv": [keys]}).container["env"]


def test_no_redis_comes_with_it(chart: Chart) -> None:
    rendered = chart.render(TABLE)
    assert not [name for name in rendered.names() if "redis" in name]
    assert "REDIS" not in " ".join(rendered.variables)
    assert "redis" not in rendered.notes.lower()


@pytest.mark.parametrize(
    ("dynamodb", "by_variable"), [({}, True), ({"region": "eu-west-1"}, False), ({"table": ARN}, False)]
)
def test_the_notes_say_what_the_chart_does_not_make(chart: Chart, dynamodb: dict[str, str], by_variable: bool) -> None:
    notes = " ".join(chart.render(on_table(**dynamodb)).notes.split())
    assert f"Nothing here makes the table {dynamodb.get('table', 'pools')}" in notes
    assert ("AWS_REGION" in notes) is by_variable


def test_pods_may_call_dynamodb_and_the_places_that_give_credentials(chart: Chart) -> None:
    (node,) = (peers for peers in ways_out(chart) if peers)
    assert ways_out(chart) == {frozenset(): {443}, node: {80}}
    assert node == {"169.254.170.23/32", "169.254.169.254/32", "fd00:ec2::23/128", "fd00:ec2::254/128"}
    assert all(ip_network(each).num_addresses == 1 for each in node)


@pytest.mark.parametrize(
    ("endpoint", "ports"),
    [
        ("http://dynamodb:8000", {443, 8000}),
        ("http://dynamodb", {443, 80}),
        ("https://vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com", {443}),
    ],
)
def test_pods_may_call_an_endpoint_of_its_own_on_its_port(chart: Chart, endpoint: str, ports: set[int]) -> None:
    assert ways_out(chart, endpointUrl=endpoint)[frozenset()] == ports


@pytest.mark.parametrize("table", ["pools", "a.b_c-1", "x" * 255, ARN, ARN.replace("aws", "aws-us-gov", 1)])
def test_a_table_is_given_by_name_or_arn(chart: Chart, table: str) -> None:
    assert chart.render(on_table(table=table)).variables["DISCOVERY_DYNAMODB_TABLE"] == table
    assert chart.render(on_table(table=ARN, region="eu-west-1")).variables["DISCOVERY_DYNAMODB_REGION"] == "eu-west-1"


@pytest.mark.parametrize(
    ("dynamodb", "words"),
    [
        ({"table": "ab"}, ["dynamodb/table"]),
        ({"table": "a b"}, ["dynamodb/table"]),
        ({"table": "x" * 256}, ["dynamodb/table"]),
        ({"table": ARN.replace("111122223333", "1")}, ["dynamodb/table"]),
        ({"region": "EU-WEST-1"}, ["dynamodb/region"]),
        ({"region": "eu-west-1b"}, ["dynamodb.region eu-west-1b is a zone", "eu-west-1"]),
        ({"table": ARN, "region": "us-east-1"}, ["dynamodb.table", "eu-west-1", "dynamodb.region is us-east-1"]),
        ({"endpointUrl": "dynamodb:8000"}, ["dynamodb/endpointUrl"]),
        ({"endpointUrl": "http://user:word@dynamodb:8000"}, ["dynamodb/endpointUrl"]),
    ],
)
def test_what_the_program_would_refuse_is_refused(chart: Chart, dynamodb: dict[str, str], words: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        chart.render(on_table(**dynamodb))
    for word in words:
        assert word in str(refused.value)
