"""Signatures, compared with those that AWS's own library makes of the same request at the same time."""

import datetime
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.stores.dynamodb.signing import Credentials, sign

AT = 1_796_057_444.9
BODY = '{"TableName":"pools","Item":{"sk":{"S":"é#%23#x"}}}'.encode()
HEADERS = {"content-type": "application/x-amz-json-1.0", "x-amz-target": "DynamoDB_20120810.PutItem"}


def signed_by_the_library(
    monkeypatch: pytest.MonkeyPatch,
    region: str,
    url: str,
    headers: dict[str, str],
    body: bytes,
    secret: str,
    token: str | None,
    at: int,
) -> dict[str, str]:
    """The headers that botocore would send at that time."""

    def then(remove_tzinfo: bool = True) -> Any:
        return datetime.datetime.fromtimestamp(at, datetime.UTC).replace(tzinfo=None)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", then)
    request = botocore.awsrequest.AWSRequest(method="POST", url=url, headers=headers, data=body)
    known = botocore.credentials.Credentials("AKIDEXAMPLE", secret, token)
    botocore.auth.SigV4Auth(known, "dynamodb", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("token", [None, "a/long+token=="])
@pytest.mark.parametrize(
    ("host", "path"),
    [("dynamodb.eu-central-1.amazonaws.com", "/"), ("127.0.0.1:8000", "/"), ("localhost:4566", "/proxied/table")],
)
@pytest.mark.parametrize("region", ["eu-central-1", "us-gov-west-1"])
def test_the_signature_is_the_one_that_the_library_makes(
    monkeypatch: pytest.MonkeyPatch, token: str | None, host: str, path: str, region: str
) -> None:
    url, secret = f"http://{host}{path}", "wJalrXUtnFEMI/K7MDENG"
    theirs = signed_by_the_library(monkeypatch, region, url, HEADERS, BODY, secret, token, int(AT))
    ours = sign(Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token), region, host, path, HEADERS, BODY, AT)
    assert ours["authorization"] == theirs["authorization"]
    assert ours["x-amz-date"] == theirs["x-amz-date"]
    assert ours.get("x-amz-security-token") == theirs.get("x-amz-security-token")


@settings(max_examples=60)
@given(
    body=st.binary(max_size=2000),
    token=st.none() | st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=80),
    secret=st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=60),
    at=st.integers(0, 4_000_000_000),
    operation=st.sampled_from(["PutItem", "DeleteItem", "Query"]),
)
def test_any_request_is_signed_as_the_library_signs_it(
    body: bytes, token: str | None, secret: str, at: int, operation: str
) -> None:
    headers = {**HEADERS, "x-amz-target": f"DynamoDB_20120810.{operation}", "accept-encoding": "identity"}
    with pytest.MonkeyPatch.context() as monkeypatch:
        request = signed_by_the_library(
            monkeypatch, "eu-central-1", "http://localhost:8000/", headers, body, secret, token, at
        )
    ours = sign(
        Credentials("AKIDEXAMPLE", secret, token), "eu-central-1", "localhost:8000", "/", headers, body, at + 0.5
    )
    assert ours["authorization"] == request["authorization"]


def test_the_time_that_is_given_is_the_time_that_is_signed() -> None:
    who = Credentials("id", "secret", None)
    assert sign(who, "r", "h", "/", {}, b"", 0.0)["x-amz-date"] == "19700101T000000Z"
    assert sign(who, "r", "h", "/", {}, b"", 86_399.0)["x-amz-date"] == "19700101T235959Z"


def test_credentials_do_not_show_themselves() -> None:
    assert "secret" not in repr(Credentials("id", "secret", "token"))
    assert "secret" not in f"{Credentials('id', 'secret', 'token')}"
