"""The OpenAPI 3.1 document of the service, as ``/openapi.json`` gives it.

Made from the structs that the routes decode and encode, so that it cannot drift from them. Pure: knows no request and
no state.
"""

from functools import cache
from typing import Any

import msgspec

from discovery import __version__
from discovery.model import Accepted, Listing, Registration, Router


@cache
def document() -> dict[str, Any]:
    """The whole document; shared by all callers, not to be changed."""
    _, schemas = msgspec.json.schema_components(
        (Registration, Listing, Router, Accepted), ref_template="#/components/schemas/{name}"
    )
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("cluster_id", "namespace", "dgd_name")
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pool discovery", "version": __version__},
        "paths": {
            "/pools": _path("get", "post"),
            "/pools/events": _path("get"),
            "/pools/{cluster_id}/{namespace}/{dgd_name}": _path("get", "delete") | {"parameters": parameters},
            "/routers": _path("get"),
            "/routers/events": _path("get"),
            "/registrations": _path("get"),
            "/healthz": _path("get"),
            "/readyz": _path("get"),
            "/metrics": _path("get"),
            "/status": _path("get"),
            "/openapi.json": _path("get"),
        },
        "components": {"schemas": schemas},
    }


def _path(*methods: str) -> dict[str, Any]:
    return {method: {"responses": {"default": {"description": "The answer."}}} for method in methods}
