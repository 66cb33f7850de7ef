"""Signatures, compared with those that AWS's own library makes of the same request at the same time."""

import datetime
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from discovery.stores.dynamodb.signing import Credentials, sign

AT = 1_796_057_444.9
BODY = '{"TableName":"pools","Item":{"sk":{"S":"é#%23#x"}}}'.encode()
HEADERS = {"content-type": "application/x-amz-json-1.0", "x-amz-target": "DynamoDB_20120810.PutItem"}


@pytest.mark.parametrize("token", [None, "a/long+token=="])
@pytest.mark.parametrize(
    ("host", "path"),
    [("dynamodb.eu-central-1.amazonaws.com", "/"), ("127.0.0.1:8000", "/"), ("localhost:4566", "/proxied/table")],
)
@pytest.mark.parametrize("region", ["eu-central-1", "us-gov-west-1"])
def test_the_signature_is_the_one_that_the_library_makes(
    monkeypatch: pytest.MonkeyPatch, token: str | None, host: str, path: str, region: str
) -> None:
    def then(remove_tzinfo: bool = True) -> Any:
        return datetime.datetime.fromtimestamp(int(AT), datetime.UTC).replace(tzinfo=None)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", then)
    request = botocore.awsrequest.AWSRequest(method="POST", url=f"http://{host}{path}", headers=HEADERS, data=BODY)
    known = botocore.credentials.Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token)
    botocore.auth.SigV4Auth(known, "dynamodb", region).add_auth(request)

    ours = sign(Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token), region, host, path, HEADERS, BODY, AT)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert ours["authorization"] == theirs["authorization"]
    assert ours["x-amz-date"] == theirs["x-amz-date"]
    assert ours.get("x-amz-security-token") == theirs.get("x-amz-security-token")


def test_the_time_that_is_given_is_the_time_that_is_signed() -> None:
    who = Credentials("id", "secret", None)
    assert sign(who, "r", "h", "/", {}, b"", 0.0)["x-amz-date"] == "19700101T000000Z"
    assert sign(who, "r", "h", "/", {}, b"", 86_399.0)["x-amz-date"] == "19700101T235959Z"


def test_credentials_do_not_show_themselves() -> None:
    assert "secret" not in repr(Credentials("id", "secret", "token"))
    assert "secret" not in f"{Credentials('id', 'secret', 'token')}"
