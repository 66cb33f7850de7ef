"""What the document and generated requests get before they are used."""

from typing import Any

import schemathesis


@schemathesis.hook
def before_load_schema(context: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    """In OpenAPI 3.1 a stream has a schema for its whole text alone; Schemathesis asks for one of each event too."""
    for path in raw_schema["paths"].values():
        stream = path["get"]["responses"]["200"].get("content", {}).get("text/event-stream")
        if stream is not None:
            event = {"enum": list(stream["x-event-data"])}
            properties = {"event": event, "data": {"type": "string"}, "id": {"type": "string"}}
            stream["itemSchema"] = {"type": "object", "required": ["event", "data"], "properties": properties}


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """The document's example of a long poll waits for half a minute: here for none."""
    if case.headers and "wait=" in str(case.headers.get("Prefer", "")):
        case.headers["Prefer"] = "wait=0"
