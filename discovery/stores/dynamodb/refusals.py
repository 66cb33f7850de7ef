"""What refusals of DynamoDB mean: one line for people, and how much is out of order. Pure.

The line is in our own words: AWS's name accounts, roles and sessions, which not everybody who reads `/readyz` may know.
"""

from typing import Literal, NamedTuple

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
    return Refusal(status, code.rpartition("#")[2] if isinstance(code, str) else "", " ".join(message.split())[:300])


def unavailable(refusal: Refusal, operation: Operation, table: str) -> Unavailable:
    """The error for whoever asked. ``table`` is how people call the table, with its place."""
    extent = _EXTENTS[operation]
    if refusal.throttles:
        text = f"DynamoDB throttles dynamodb:{operation} on {table}: give it more capacity ({refusal.code})"
        return Throttled(text, extent="source" if operation == "Query" else "writes")
    if refusal.code in _DENIED:
        text = f"the right dynamodb:{operation} on {table} is missing: grant it to the service"
        return Unavailable(text, extent=extent)
    return Unavailable(_cause(refusal, table), extent="source")


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
