"""What refusals of DynamoDB mean: one line for people, and how much is out of order. Pure.

The line is in our own words: AWS's name accounts, roles and sessions, which not everybody who reads `/readyz` may know.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from discovery.errors import Unavailable

Operation = Literal["PutItem", "DeleteItem", "Query"]

THROTTLING = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "Throttling",
        "TooManyRequestsException",
    }
)
_MOMENTARY = frozenset(
    {
        "InternalServerError",
        "ReplicatedWriteConflictException",
        "ServiceUnavailable",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_SIGNED_AT_ANOTHER_TIME = frozenset({"InvalidSignatureException", "RequestExpired", "RequestTimeTooSkewed"})
_DENIED = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation"})
_UNKNOWN = frozenset(
    {
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
_EXTENTS: dict[Operation, Literal["source", "writes", "item"]] = {
    "PutItem": "writes",
    "DeleteItem": "item",
    "Query": "source",
}


class Throttled(Unavailable):
    """The table answered that it is asked too much."""


class Refusal(NamedTuple):
    """An answer that is no success."""

    status: int
    code: str
    message: str
    reason: str = ""

    @property
    def throttles(self) -> bool:
        """Whether it says to slow down."""
        return self.code in THROTTLING

    @property
    def is_momentary(self) -> bool:
        """Whether the same request may succeed a moment later."""
        return self.throttles or self.status >= 500 or self.code in _MOMENTARY

    @property
    def doubts_time(self) -> bool:
        """Whether it may be about when the request was signed."""
        return self.code in _SIGNED_AT_ANOTHER_TIME

    @property
    def doubts_credentials(self) -> bool:
        """Whether other credentials may be needed."""
        return self.code in _UNKNOWN or self.code.startswith("ExpiredToken")

    @property
    def is_condition(self) -> bool:
        """Whether only the condition of the write did not hold."""
        return self.code == "ConditionalCheckFailedException"

    @property
    def is_size(self) -> bool:
        """Whether the item is larger than any table takes."""
        return self.code == "ValidationException" and "size" in self.message.lower() and "exceed" in self.message


def read(status: int, answer: bytes) -> Refusal:
    """What an answer says that is no success; of one that is not DynamoDB's only the status."""
    try:
        error = msgspec.json.decode(answer)
    except ValueError:
        error = None
    if not isinstance(error, dict):
        return Refusal(status, "", "")
    # What follows repeats the signed request, in which a session's token stands.
    message = str(error.get("message") or error.get("Message") or "").partition("The Canonical String")[0]
    code = error.get("__type")
    code = code.rpartition("#")[2] if isinstance(code, str) else ""
    return Refusal(status, code, " ".join(message.split())[:300], _reason(error))


def _reason(error: dict[str, Any]) -> str:
    """Why it throttles, in AWS's one word for it, where it says so."""
    for reasons in (error.get("throttlingReasons"), error.get("ThrottlingReasons")):
        if isinstance(reasons, list) and reasons and isinstance(reasons[0], dict):
            reason = reasons[0].get("reason")
            return reason if isinstance(reason, str) and reason.isalpha() and reason.isascii() else ""
    return ""


def unavailable(refusal: Refusal, operation: Operation, table: str) -> Unavailable:
    """The error for whoever asked. ``table`` is how people call the table, with its place."""
    extent = _EXTENTS[operation]
    if refusal.throttles:
        text = f"DynamoDB throttles dynamodb:{operation} on {table}: {_remedy(refusal, operation)}"
        return Throttled(text, extent="source" if operation == "Query" else "writes")
    if refusal.code in _DENIED:
        text = f"the right dynamodb:{operation} on {table} is missing: grant it to the service"
        return Unavailable(text, extent=extent)
    return Unavailable(_cause(refusal, table), extent="source")


def _remedy(refusal: Refusal, operation: Operation) -> str:
    said = refusal.reason or refusal.code
    if "KeyRange" not in refusal.reason:
        return f"give it more capacity ({said})"
    relief = "run fewer replicas" if operation == "Query" else "lengthen the heartbeat interval"
    return f"one partition key takes no more, {relief} ({said})"


def _cause(refusal: Refusal, table: str) -> str:
    code, message = refusal.code, refusal.message
    if code == "ResourceNotFoundException":
        return f"there is no {table}: create it, or check --dynamodb-table and --dynamodb-region ({code})"
    if code == "ValidationException" and ("key" in message or "schema" in message):
        return f"the {table} has other keys: it needs the strings pk (partition) and sk (sort) ({code})"
    if code.startswith("ExpiredToken"):
        return f"the credentials for {table} have expired, and there are no newer ones ({code})"
    if code in _UNKNOWN:
        return f"DynamoDB does not accept the credentials for {table}: check keys, role and region ({code})"
    if not code:
        return f"what answers for {table} is not DynamoDB, or is out of order: status {refusal.status}"
    return f"DynamoDB refused a request for {table} ({code})"
