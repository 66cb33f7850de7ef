"""What an API server's refusals mean, in words for people and in kinds for the loop. Pure.

A refusal is a ``Status`` object as a rule; whoever stands in between may answer with anything else.
"""

from collections.abc import Mapping

import msgspec

from discovery.errors import Unavailable

RETRY_AFTER_LIMIT_SECS = 30.0
_KINDS = {401: "denied", 403: "denied", 404: "missing", 410: "expired", 429: "throttled"}


class Cause(msgspec.Struct, frozen=True):
    """One detail of a ``Status``."""

    reason: str | None = None


class Details(msgspec.Struct, frozen=True, rename="camel"):
    """More about a ``Status``."""

    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, frozen=True):
    """How the API server says no; also the object of an ``ERROR`` event."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: Details | None = None

    @property
    def too_large_version(self) -> bool:
        """Whether the version asked for is from a future that this server does not know."""
        causes = (self.details and self.details.causes) or ()
        return any(cause.reason == "ResourceVersionTooLarge" for cause in causes)


class Failure(Unavailable):
    """The API server could not be asked. ``kind`` is a short fixed word for counters, the text is for people."""

    def __init__(self, kind: str, detail: str, *, retry_after_secs: int = 1) -> None:
        super().__init__(detail, retry_after_secs=retry_after_secs)
        self.kind = kind


class Refusal(Failure):
    """An answer that says no. ``wait_secs`` is what the server asks for before the next attempt, if anything."""

    def __init__(self, detail: str, status: Status, wait_secs: float | None) -> None:
        kind = _KINDS.get(status.code or 0, "error")
        super().__init__(kind, detail, retry_after_secs=max(1, round(wait_secs or 0)))
        self.code = status.code or 0
        self.wait_secs = wait_secs
        # Servers that cannot read a version say 400, 422 or even 500.
        unreadable = self.code in (400, 422) or (self.code == 500 and "resourceVersion" in (status.message or ""))
        self.expired = self.code == 410 or status.too_large_version or unreadable
        """Whether the version asked for is too old for this server, or none of its own: only a fresh list helps."""


def refusal(cluster: str, request: str, status: Status, headers: Mapping[str, str]) -> Refusal:
    """An answer that is not 200, as an error. ``request`` reads such as ``list endpointslices``."""
    return Refusal(_text(cluster, request, status), status, _wait_secs(status, headers))


def read_status(http_status: int, body: bytes) -> Status:
    """What the body says, under the HTTP status; of a foreign body only the HTTP status counts."""
    try:
        said = msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = Status()
    return msgspec.structs.replace(said, code=http_status)


def _text(cluster: str, request: str, status: Status) -> str:
    said = f" (the server says: {_one_line(status.message)})" if status.message else ""
    match status.code:
        case 401:
            return f"{cluster}: the API server does not accept the credentials (401)"
        case 403:
            verb, _, resource = request.partition(" ")
            return f"{cluster}: not allowed to {request} (403): {_rule(verb, resource)}{said}"
        case 404:
            return f"{cluster}: cannot {request}: the server does not have them (404): is it a Kubernetes API server?"
        case code:
            return f"{cluster}: cannot {request}: answer {code}{said}"


def _rule(verb: str, resource: str) -> str:
    plural, _, group = resource.partition(".")
    group, _, namespace = group.partition(" in ")
    kind = f"Role in namespace {namespace}" if namespace else "ClusterRole"
    return f"bind a {kind} with apiGroups: [{group}], resources: [{plural}], verbs: [{verb}]"


def _wait_secs(status: Status, headers: Mapping[str, str]) -> float | None:
    if status.code not in (429, 503, 504):
        return None
    asked = headers.get("Retry-After", "")
    if asked.isascii() and asked.isdecimal():
        return min(float(asked), RETRY_AFTER_LIMIT_SECS)
    secs = status.details.retry_after_seconds if status.details else None
    return None if secs is None else min(max(secs, 0.0), RETRY_AFTER_LIMIT_SECS)


def _one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
