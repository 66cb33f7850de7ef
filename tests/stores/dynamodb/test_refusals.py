"""What refusals mean: as AWS words them."""

import json

import pytest

from discovery.stores.dynamodb.refusals import Operation, Throttled, read, unavailable

TABLE = "table pools in eu-west-1"


def refused(code: str, message: str = "", status: int = 400) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}).encode()


DENIED = "User: arn:aws:sts::1:assumed-role/r/s is not authorized to perform: dynamodb:DeleteItem on resource: arn:x"


@pytest.mark.parametrize(
    ("operation", "code", "extent", "words"),
    [
        ("DeleteItem", "AccessDeniedException", "item", ["dynamodb:DeleteItem", TABLE, "grant"]),
        ("PutItem", "AccessDeniedException", "writes", ["dynamodb:PutItem", TABLE, "grant"]),
        ("Query", "AccessDeniedException", "source", ["dynamodb:Query", TABLE, "grant"]),
        ("Query", "ResourceNotFoundException", "source", ["no table pools", "--dynamodb-table", "--dynamodb-region"]),
        ("Query", "ExpiredTokenException", "source", ["expired"]),
        ("Query", "UnrecognizedClientException", "source", ["credentials"]),
        ("PutItem", "InvalidSignatureException", "source", ["credentials"]),
        ("PutItem", "SomethingNewException", "source", ["SomethingNewException"]),
    ],
)
def test_each_refusal_says_what_is_wrong_and_where(
    operation: Operation, code: str, extent: str, words: list[str]
) -> None:
    error = unavailable(read(400, refused(code, DENIED)), operation, TABLE)
    assert error.extent == extent
    for word in words:
        assert word in error.detail
    assert "\n" not in error.detail
    assert "arn:" not in error.detail, "whoever reads /readyz need not know accounts and roles"


@pytest.mark.parametrize(
    "message",
    [
        "One or more parameter values were invalid: Missing the key id in the item",
        "The provided key element does not match the schema",
        "Query condition missed key schema element: id",
    ],
)
def test_a_table_with_other_keys_is_told_which_it_needs(message: str) -> None:
    error = unavailable(read(400, refused("ValidationException", message)), "Query", TABLE)
    for word in ("pk", "sk", TABLE):
        assert word in error.detail


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "ThrottlingException"])
def test_throttling_is_told_apart_and_may_pass(code: str) -> None:
    refusal = read(400, refused(code))
    assert refusal.throttles
    assert refusal.is_momentary
    assert isinstance(unavailable(refusal, "Query", TABLE), Throttled)
    assert unavailable(refusal, "Query", TABLE).extent == "source"
    assert unavailable(refusal, "PutItem", TABLE).extent == "writes"


@pytest.mark.parametrize(
    ("operation", "reasons", "words"),
    [
        ("Query", [{"reason": "TableReadKeyRangeThroughputExceeded", "resource": "arn:x"}], "run fewer replicas"),
        ("PutItem", [{"reason": "TableWriteKeyRangeThroughputExceeded"}], "lengthen the heartbeat"),
        (
            "PutItem",
            [{"reason": "TableWriteProvisionedThroughputExceeded"}],
            "(TableWriteProvisionedThroughputExceeded)",
        ),
        ("PutItem", [{"reason": "odd text\n"}], "more capacity (ThrottlingException)"),
        ("PutItem", [7], "more capacity (ThrottlingException)"),
        ("PutItem", {}, "more capacity (ThrottlingException)"),
    ],
)
def test_throttling_says_what_is_short(operation: Operation, reasons: object, words: str) -> None:
    answer = json.dumps({"__type": "a#ThrottlingException", "message": "m", "throttlingReasons": reasons}).encode()
    assert words in unavailable(read(400, answer), operation, TABLE).detail


def test_errors_of_the_server_may_pass_and_those_of_the_caller_do_not() -> None:
    assert read(500, refused("InternalServerError")).is_momentary
    assert read(503, b"<html>").is_momentary
    assert not read(400, refused("ValidationException")).is_momentary
    assert not read(400, refused("AccessDeniedException")).is_momentary


def test_a_signed_request_is_never_repeated_with_its_token() -> None:
    told = (
        "The request signature we calculated does not match.\n\nThe Canonical String for this request should have been"
        "\n'POST\n/\n\nx-amz-security-token:SECRET-TOKEN'"
    )
    refusal = read(400, refused("InvalidSignatureException", told))
    assert "SECRET-TOKEN" not in unavailable(refusal, "Query", TABLE).detail


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b'{"__type":5}', b'{"__type":null,"message":null}', b"\xff\xfe"]
)
def test_whatever_is_not_dynamodb_is_told_by_its_status(answer: bytes) -> None:
    assert "status 404" in unavailable(read(404, answer), "Query", TABLE).detail


def test_a_refusal_without_a_message_means_what_its_code_says() -> None:
    for message in (None, 7):
        refusal = read(400, json.dumps({"__type": "a#ThrottlingException", "message": message}).encode())
        assert refusal.throttles


def test_a_size_that_no_table_takes_is_recognised() -> None:
    message = "Item size has exceeded the maximum allowed size"
    assert read(400, refused("ValidationException", message)).is_size
    assert not read(400, refused("ValidationException", "The provided key element does not match")).is_size
