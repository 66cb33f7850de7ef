"""What operations of the OpenAPI document share: headers, parameters, and the answers that are errors.

Pure, used by ``openapi`` alone. Texts of errors come from the modules that give them, where
these hold them as values.
"""

from typing import Any, NamedTuple

from discovery import registrations
from discovery.errors import Fault, Rejected
from discovery.http.answers import problem_document
from discovery.http.limits import INTERNAL_ERROR, NOT_HTTP, UNKNOWN_CONTENT_ENCODING, UNKNOWN_TRANSFER_ENCODING, Limits
from discovery.http.openapi_schemas import IDENTIFIER, Schema
from discovery.http.requests import MAX_WAIT_SECS
from discovery.listing.scrape_targets import ROLES
from discovery.listing.snapshot import Filter

Part = dict[str, Any]


class _Error(NamedTuple):
    """One kind of error: what it means, and what such an answer says."""

    status: int
    description: str
    detail: str
    headers: tuple[str, ...] = ()
    title: str | None = None
    faults: tuple[Fault, ...] = ()


EXAMPLE_TOKEN = "5d4cf3c1f5bd7bd0c62cc92a37da8eb2"  # noqa: S105
_DEFAULTS = Limits()

_COMMON = (
    "BadRequest",
    "RequestTimeout",
    "ContentTooLarge",
    "TargetTooLong",
    "UnsupportedMediaType",
    "HeadTooLarge",
    "InternalError",
    "NotImplemented",
)
"""Errors that any request can meet, whatever it asks for."""


def reference(kind: str, name: str, **extra: str) -> Part:
    """A pointer to a component; ``description`` may be told anew."""
    return {"$ref": f"#/components/{kind}/{name}", **extra}


def headers(*names: str) -> Part:
    """Headers of an answer, by their names on the wire."""
    return {name: reference("headers", name) for name in names}


def errors(*names: str, **descriptions: str) -> Part:
    """Answers that are errors, by status: those of every request, these, and what is special about some of them."""
    ordered = sorted({*_COMMON, *names, *descriptions}, key=lambda name: _ERRORS[name].status)
    return {
        str(_ERRORS[name].status): reference(
            "responses", name, **({"description": descriptions[name]} if name in descriptions else {})
        )
        for name in ordered
    }


def header_components() -> dict[str, Part]:
    """Every header that an answer can carry beside the usual ones of HTTP."""
    return {
        "ETag": _header(
            "Derived from the content alone, `complete` included: equal on every replica. Weak, since proxies "
            "compress; compared weakly.",
            {"type": "string", "pattern": '^W/"[0-9a-f]{32}"$', "examples": [f'W/"{EXAMPLE_TOKEN}"']},
            required=True,
        ),
        "Cache-Control": _header("Ask again before use.", {"const": "no-cache"}, required=True),
        "Vary": _header("The answer may be compressed.", {"type": "string", "examples": ["accept-encoding"]}),
        "Content-Encoding": _header("There where the answer is compressed.", {"const": "gzip"}),
        "Preference-Applied": _header(
            "There where the service waited, with the seconds that it was ready to wait.",
            {"type": "string", "pattern": "^wait=[1-9][0-9]{0,2}$", "examples": ["wait=30"]},
        ),
        "Retry-After": _header(
            "Seconds after which to try again; spread by chance, so that callers do not come back in step.",
            {"type": "integer", "minimum": 1},
            required=True,
        ),
        "Connection": _header(
            "There where the connection ends with this answer: the next request goes over a new one, perhaps to "
            "another replica. While a replica shuts down, every answer has it.",
            {"const": "close"},
        ),
        "WWW-Authenticate": _header(
            "There where a token is wanted: why, and the scope that is missing.",
            {
                "type": "string",
                "examples": ['Bearer realm="discovery", error="insufficient_scope", scope="read"'],
            },
        ),
        "Allow": _header(
            "The methods of this path, in any order.", {"type": "string", "examples": ["GET, HEAD"]}, required=True
        ),
        "Accept-Encoding": _header("There where the body was encoded.", {"const": "identity"}),
        "Referrer-Policy": _header("Where people go next does not learn where they were.", {"const": "no-referrer"}),
        "X-Accel-Buffering": _header("Keeps proxies from holding events back.", {"const": "no"}, required=True),
    }


def parameter_components() -> dict[str, Part]:
    """Every parameter: the parts of a pool key, the filters, and the headers that change an answer."""
    parts = {
        name: {
            "name": name,
            "in": "path",
            "required": True,
            "description": "Percent-encoded as one segment, a slash in it as `%2F`.",
            "schema": IDENTIFIER,
        }
        for name in ("cluster_id", "namespace", "dgd_name")
    }
    filters = {f"filter_{name}": _filter(name) for name in Filter.__struct_fields__}
    return parts | filters | _REQUEST_HEADERS


def response_components() -> dict[str, Part]:
    """Every answer that is an error, as `application/problem+json`."""
    return {name: _response(error) for name, error in _ERRORS.items()}


_REQUEST_HEADERS: dict[str, Part] = {
    "If-None-Match": {
        "name": "If-None-Match",
        "in": "header",
        "description": "The `ETag` of the list that the reader has: 304 while it is still the same. A list of tags, "
        "weak or strong, or `*`; what is malformed matches nothing.",
        "schema": {"type": "string"},
        "example": f'W/"{EXAMPLE_TOKEN}"',
    },
    "Prefer": {
        "name": "Prefer",
        "in": "header",
        "description": "`wait=<seconds>` (RFC 7240), with `If-None-Match`: a long poll. Answers as soon as the `ETag` "
        f"is another, else 304 when the time is over; at most {MAX_WAIT_SECS} s. Anything else is ignored.",
        "schema": {"type": "string"},
        "example": "wait=30",
    },
    "Accept-Encoding": {
        "name": "Accept-Encoding",
        "in": "header",
        "description": "With `gzip`, all but short lists come compressed.",
        "schema": {"type": "string"},
        "example": "gzip",
    },
    "Last-Event-ID": {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The last `id` that the subscriber got, from this or any other replica, with the same filters.",
        "schema": {"type": "string"},
        "example": EXAMPLE_TOKEN,
    },
    "instance_id": {
        "name": "instance_id",
        "in": "query",
        "description": "Removes the pool only while the registration of this instance is the stored one. At most once.",
        "schema": {"type": "string"},
        "example": "relay-7d9f",
    },
    "role": {
        "name": "role",
        "in": "query",
        "description": "Only these targets of the pools. May be given several times.",
        "style": "form",
        "explode": True,
        "schema": {"type": "array", "minItems": 1, "items": {"enum": list(ROLES)}},
    },
    "incomplete": {
        "name": "incomplete",
        "in": "query",
        "description": "Whether targets may be missing; 503 while some may, where it is not `true`. At most once.",
        "schema": {"enum": ["true", "false"], "default": "false"},
    },
    "pool": {
        "name": "pool",
        "in": "query",
        "description": "Explain why this pool is or is not listed. `cluster_id/namespace/dgd_name`, each part "
        "percent-encoded by itself, as in paths, and the whole once more as part of the query; or `*` for every pool "
        "that any side knows. May be given several times.",
        "style": "form",
        "explode": True,
        "schema": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": r"^(\*|[^/]+/[^/]+/[^/]+)$"}},
        "example": ["us-east-1/prod/llama-70b"],
    },
}


def _header(description: str, schema: Schema, *, required: bool = False) -> Part:
    return {"description": description, "required": required, "schema": schema}


def _filter(name: str) -> Part:
    rule = "all of them must be there" if name == "capability" else "they are alternatives"
    return {
        "name": name,
        "in": "query",
        "description": f"Only pools with this {name.replace('_id', '')}. May be given several times: {rule}.",
        "style": "form",
        "explode": True,
        "schema": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    }


def _response(error: _Error) -> Part:
    content = {
        "schema": reference("schemas", "Problem"),
        "example": problem_document(error.status, error.detail, error.title, error.faults),
    }
    return {
        "description": error.description,
        **({"headers": headers(*error.headers)} if error.headers else {}),
        "content": {"application/problem+json": content},
    }


def _invalid() -> _Error:
    """What becomes of a body with two faults, from the very code that judges bodies."""
    body = (
        b'{"cluster_id": "us-east-1", "namespace": "prod", "dgd_name": "llama-70b", "capacity": [{"resource": "gpu"}]}'
    )
    try:
        registrations.parse(body)
    except Rejected as refused:
        return _Error(
            refused.status,
            "JSON, but no registration; `errors` has every fault at once.",
            refused.detail,
            title=refused.title,
            faults=refused.faults,
        )
    raise AssertionError("a registration without a model was taken")


_ERRORS: dict[str, _Error] = {
    "BadRequest": _Error(
        400, "The query, the body or the HTTP itself cannot be read.", NOT_HTTP.detail, ("Connection",)
    ),
    "NotFound": _Error(
        404, "There is no such pool.", "The pool us-east-1/prod/llama-70b is not listed.", title="Not listed"
    ),
    "Unauthorized": _Error(
        401,
        "No token, or none that the service knows, where it has a file of tokens (`--auth-tokens-path`).",
        "Send a token that the service knows, in the header Authorization: Bearer TOKEN.",
        ("WWW-Authenticate",),
    ),
    "Forbidden": _Error(
        403,
        "The token lacks a scope, which detail and header name (`--auth-tokens-path`).",
        "The token relays-east lacks the scope read.",
        ("WWW-Authenticate",),
    ),
    "MethodNotAllowed": _Error(405, "The path is there, for other methods.", "This path takes GET, HEAD.", ("Allow",)),
    "RequestTimeout": _Error(
        408,
        "Head and body did not arrive in time (`--request-timeout-secs`).",
        _DEFAULTS.too_slow.detail,
        ("Connection",),
    ),
    "ContentTooLarge": _Error(
        413,
        f"The body is longer than the service takes (`--max-body-bytes`, {_DEFAULTS.max_body_bytes:,} by default).",
        _DEFAULTS.body_too_large.detail,
        ("Connection",),
    ),
    "TargetTooLong": _Error(
        414,
        "Path and query are longer than the service takes (`--max-header-bytes`).",
        _DEFAULTS.request_line_too_long.detail,
        ("Connection",),
    ),
    "UnsupportedMediaType": _Error(
        415,
        "The body does not come as plain JSON; the detail names the header to change.",
        UNKNOWN_CONTENT_ENCODING.detail,
        ("Connection", "Accept-Encoding"),
    ),
    "Invalid": _invalid(),
    "TooManyRequests": _Error(
        429,
        "Too many registrations from this sender (`--rate-limit`).",
        "More than 100 registrations a second came from 10.0.3.7 (--rate-limit).",
        ("Retry-After",),
    ),
    "HeadTooLarge": _Error(
        431,
        "Request line and headers are longer than the service takes (`--max-header-bytes`, "
        f"{_DEFAULTS.max_header_bytes:,} by default).",
        _DEFAULTS.head_too_large.detail,
        ("Connection",),
    ),
    "InternalError": _Error(500, "A fault of the service; its log has more.", INTERNAL_ERROR.detail, ("Connection",)),
    "NotImplemented": _Error(
        501, "A transfer coding that the service does not take.", UNKNOWN_TRANSFER_ENCODING.detail, ("Connection",)
    ),
    "Unavailable": _Error(
        503,
        "Not now; try again after `Retry-After`, over a new connection where `Connection: close` says so.",
        "There is no list yet: the store has not been read yet.",
        ("Retry-After", "Connection"),
    ),
    "TooManyPools": _Error(
        507,
        "The service keeps no more pools (`--max-pools`); those that it has can still be renewed.",
        "This service keeps at most 100,000 pools (--max-pools).",
        title="Too many pools",
    ),
}
