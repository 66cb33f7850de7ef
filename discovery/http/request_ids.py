"""By which name people find one request again: in answers, in the log, and in what other services wrote of it.

Pure. ``connection`` takes an id over from the head; ``answers`` and ``exchange`` ask for one where a request failed,
and only then is one made. Knows no route.
"""

import re
import secrets
from collections.abc import MutableMapping
from typing import Any

REQUEST_ID = "request_id"
"""Where the scope of a request has its id, if it has one; its answer then has it too."""

REQUEST_ID_HEADERS = frozenset({b"x-request-id", b"traceparent"})

_id = re.compile(rb"[0-9A-Za-z._~:@/+=-]{1,128}").fullmatch
_trace_parent = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


def taken_over(name: bytes, value: bytes, before: str | None) -> str | None:
    """The id after one more of the ``REQUEST_ID_HEADERS``: an id goes before a trace, and what is malformed counts not.

    The characters are those that mean nothing in any log, shell or page.
    """
    if name == b"x-request-id":
        return value.decode("ascii") if _id(value) else before
    trace = _trace_parent(value)
    return trace[1].decode("ascii") if trace and before is None else before


def id_of(scope: MutableMapping[str, Any]) -> str:
    """The request's id, which is made here where it came without."""
    known: str | None = scope.get(REQUEST_ID)
    if known is None:
        known = scope[REQUEST_ID] = secrets.token_hex(8)
    return known
