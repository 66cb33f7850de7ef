"""The OpenAPI 3.1 document of the service, as ``/openapi.json`` gives it.

Made from the structs that the routes decode and encode, and from the code that makes their bytes, so that it cannot
drift from them. Pure: knows no request and no state, and is the same whatever flags the service has.
"""

from functools import cache
from typing import Any

from discovery import __version__
from discovery.http import openapi_operations as operations
from discovery.http.access import OPEN_PATHS
from discovery.http.openapi_answers import (
    Part,
    header_components,
    parameter_components,
    reference,
    response_components,
)
from discovery.http.openapi_schemas import schemas

_DESCRIPTION = """\
Which pools of language-model servers are alive, which model each serves, how big it is, and where its frontends answer.
Relays register their pools and go on registering (the heartbeat); routers read the list, poll it or subscribe to it.
All replicas of the service give the same answer: the same bytes and the same `ETag`.

## `complete`: merge or replace

Every list says whether it is the whole truth.

- `complete: true`: replace. Pools that are not in the list are gone.
- `complete: false`: merge. Pools may be missing from the list, so add and update what it has and remove nothing.
- A `delete` event always removes its pool, whatever `complete` says.
- A client drops a pool that incomplete lists have not shown for 5 minutes.

An empty list with `complete: false` therefore means "nothing is known yet", and never "there are no pools".

## Tokens

Where the service has a file of tokens (`--auth-tokens-path`) all but the probes and the page at `/` want
`Authorization: Bearer`, also paths that do not exist. The operations say which scope they want; `register` is
`register:<cluster_id>` or `register:<cluster_id>/<namespace>` for the pool in question.

## Errors

Errors are `application/problem+json` (RFC 9457). Another path than those below is answered with 404, another method
with 405 and `Allow` (with `--cors-origin`, the preflight requests of browsers are answered too). 503 means not now:
whoever gets it tries again after `Retry-After`; of a registration or a deregistration it also means that the request
was not confirmed, and may still take effect. Unknown query parameters of lists, targets, pools and registrations are
answered with 400, since a typo must not list everything. While a replica shuts down, each of its answers has
`Connection: close`.

A request may bring an id as `X-Request-Id` (1 to 128 characters out of A-Z a-z 0-9 . _ ~ : @ / + = -) or as the trace
of a `traceparent`; what is malformed is ignored. Its answer then has it as `X-Request-Id`. Answers with a status from
500 on always have one, also as `request_id` in the document: so the log of the service calls the request.
"""


OTHER_SCOPES = {"/openapi.json": "", "/metrics": "metrics"}
"""What those who read the lists may not, or others may too; of ``""`` every valid token is enough."""


@cache
def document() -> dict[str, Any]:
    """The whole document; shared by all callers, not to be changed."""
    responses = response_components()
    paths: dict[str, Part] = {
        "/pools": {"get": operations.list_pools(), "post": operations.register_pool()},
        "/pools/events": {"get": operations.follow_pools()},
        "/pools/{cluster_id}/{namespace}/{dgd_name}": {
            "parameters": [reference("parameters", name) for name in ("cluster_id", "namespace", "dgd_name")],
            "get": operations.get_pool(),
            "delete": operations.deregister_pool(),
        },
        "/routers": {"get": operations.list_routers()},
        "/routers/events": {"get": operations.follow_routers()},
        "/sd/prometheus": {"get": operations.list_targets()},
        "/registrations": {"get": operations.list_registrations()},
        "/healthz": {"get": operations.is_alive()},
        "/readyz": {"get": operations.is_ready()},
        "/metrics": {"get": operations.get_metrics()},
        "/status": {"get": operations.get_status()},
        "/openapi.json": {"get": operations.get_openapi()},
        "/": {"get": operations.get_page()},
    }
    for name, path in paths.items():
        for method in ("get", "post", "delete"):
            if method in path:
                _say_who_may(path[method], name, "read" if method == "get" else "register")
        path["head"] = _head(path["get"], responses)
        path["x-other-methods"] = {"405": reference("responses", "MethodNotAllowed")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pool discovery",
            "version": __version__,
            "summary": "Which pools of language-model servers are alive, and where they answer.",
            "description": _DESCRIPTION,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "tags": [
            {"name": "relays", "description": "For those who say that a pool is there."},
            {"name": "routers", "description": "For those who choose a pool."},
            {"name": "operation", "description": "For those who run the service."},
        ],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "parameters": parameter_components(),
            "headers": header_components(),
            "responses": responses,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Wanted where the service has a file of tokens (`--auth-tokens-path`). The roles of "
                    "an operation are the scopes of tokens, of which `*` has all.",
                }
            },
        },
    }


def _say_who_may(operation: Part, path: str, scope: str) -> None:
    """What a service with tokens wants here: a token with this scope, but where the path has a rule of its own."""
    if path in OPEN_PATHS:
        operation["security"] = []
        return
    scope = OTHER_SCOPES.get(path, scope)
    operation["security"] = [{}, {"token": [scope] if scope else []}]
    answers = operation["responses"]
    answers["401"] = reference("responses", "Unauthorized")
    if scope:
        answers.setdefault("403", reference("responses", "Forbidden"))
    operation["responses"] = dict(sorted(answers.items()))


def _head(get: Part, responses: Part) -> Part:
    """The same operation without bodies."""
    answers = {}
    for status, answer in get["responses"].items():
        whole = responses[answer["$ref"].rpartition("/")[2]] | answer if "$ref" in answer else answer
        answers[status] = {name: value for name, value in whole.items() if name not in ("content", "$ref")}
    operation_id = get["operationId"] + "Head"
    summary = f"{get['summary']}: the headers alone"
    kept = {name: value for name, value in get.items() if name != "description"}
    return kept | {"operationId": operation_id, "summary": summary, "responses": answers}
