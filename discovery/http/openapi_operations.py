"""The operations of the OpenAPI document: what each takes, what it answers, and an example of that.

Examples are made by the code that makes the real answers. Pure, used by ``openapi`` alone.
"""

from typing import Any

import msgspec

from discovery.http.openapi_answers import Part, errors, headers, reference
from discovery.listing import scrape_targets, snapshot
from discovery.listing.snapshot import Filter, Fragment
from discovery.model import Accepted, Capacity, Location, Registration, Router
from discovery.registrations import listing

REGISTRATION = Registration(
    cluster_id="us-east-1",
    namespace="prod",
    dgd_name="llama-70b",
    model="meta-llama/Llama-3.1-70B-Instruct",
    relays=("http://10.0.3.7:5561",),
    frontends=("http://10.0.3.8:8000", "http://10.0.3.9:8000"),
    capabilities=("chat", "tools"),
    capacity=(Capacity("nvidia.com/gpu", 16),),
    location=Location(region="us-east-1", zone="use1-az2"),
    instance_id="relay-7d9f",
)
ROUTER = Router("router-0", "http://10.0.1.5:9000")

_EVENTS = """\
Server-sent events. The state that a subscriber assembles from them always equals what {path} says at that moment.

| event | data | when |
| --- | --- | --- |
| `snapshot` | as {path} | first, and whenever the other events cannot lead on from what the reader has |
| `put` | one {thing} | it appeared or changed |
| `delete` | its key | it left: final, also while `complete` is false |
| `complete` | `{{"complete": …}}` | completeness changed |

- `id`: only the last of the events that come together has one. It names the state after it, on every replica, and is
  the `ETag` of {path} (without `W/` and quotes) with the same filters. A subscriber that is cut off sends it as
  `Last-Event-ID`, to this or another replica: where the id is known, what happened since then follows, and no
  `snapshot`. One that was cut off after events without an id holds part of a change: it goes back to what it held at
  the id, or asks without `Last-Event-ID`.
- `retry`: comes first, and once more before the service ends the stream; each is drawn by chance, so that subscribers
  do not come back in step.
- A comment line every 15 s keeps proxies from closing the stream.
- A subscriber that reads slowly skips to the newest state with a `snapshot`; none sees a torn or old one.
"""


_FORBIDDEN = (
    "The token may not register this pool (`--auth-tokens-path`), or a browser sent it for a page of another origin "
    "(`--cors-origin`)."
)


# ---- relays


def register_pool() -> Part:
    """``POST /pools``."""
    return {
        "operationId": "registerPool",
        "tags": ["relays"],
        "summary": "Register a pool, and every heartbeat after",
        "description": "The latest registration wins. One that says the same as the one before (lists that are sets "
        "compared as sets) renews the lease and is no change. All relays of a pool send equal bodies. Identifiers have "
        "1 to 253 characters, no white space at the ends, no control characters, and are not `.` or `..`. Unknown "
        "fields are ignored. The answer comes after the store took the registration; this replica lists the pool at "
        "once.",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": reference("schemas", "Registration"),
                    "examples": {
                        "whole": {"value": _plain(REGISTRATION)},
                        "smallest": {"value": _plain(Registration("us-east-1", "prod", "llama-70b", "llama"))},
                    },
                }
            },
        },
        "responses": {
            "200": _json("Stored.", "Accepted", _plain(Accepted(15, 5, True))),
            **errors(
                "Invalid",
                "TooManyRequests",
                "Unavailable",
                "TooManyPools",
                BadRequest="Not JSON in UTF-8, a query parameter, or no HTTP.",
                Forbidden=_FORBIDDEN,
            ),
        },
    }


def deregister_pool() -> Part:
    """``DELETE`` of one pool."""
    return {
        "operationId": "deregisterPool",
        "tags": ["relays"],
        "summary": "Take a pool out of every list at once",
        "description": "204 also when the pool was not there, or when another instance's registration stays. A relay "
        "ends its own registrations in flight first: one that arrives later registers anew.",
        "parameters": [reference("parameters", "instance_id")],
        "responses": {
            "204": {"description": "The store holds no such registration any more."},
            **errors("Unavailable", NotFound="The path names no pool.", Forbidden=_FORBIDDEN),
        },
    }


def list_routers() -> Part:
    """``GET /routers``."""
    example = msgspec.json.decode(snapshot.body("routers", True, [snapshot.router_fragment(ROUTER).body]))
    return _list("listRouters", "relays", "The Global Routers", "RouterList", example, [])


def follow_routers() -> Part:
    """``GET /routers/events``."""
    other = snapshot.router_fragment(Router("router-1", "http://10.0.1.6:9000"))
    data = {"snapshot": "RouterList", "put": "Router", "delete": "RouterKey", "complete": "Completeness"}
    text = _EVENTS.format(path="GET /routers", thing="router")
    stream = _stream("routers", snapshot.router_fragment(ROUTER), other)
    return _events("followRouters", "relays", "The Global Routers, as events", text, data, stream, [])


# ---- routers


def _filters() -> list[Part]:
    return [reference("parameters", f"filter_{name}") for name in Filter.__struct_fields__]


def list_pools() -> Part:
    """``GET /pools``."""
    fragment = snapshot.pool_fragment(listing(REGISTRATION))
    example = msgspec.json.decode(snapshot.body("pools", True, [fragment.body]))
    return _list("listPools", "routers", "The pools", "PoolList", example, _filters())


def follow_pools() -> Part:
    """``GET /pools/events``."""
    other = Registration("us-east-1", "prod", "llama-8b", "meta-llama/Llama-3.1-8B-Instruct")
    stream = _stream("pools", snapshot.pool_fragment(listing(other)), snapshot.pool_fragment(listing(REGISTRATION)))
    data = {"snapshot": "PoolList", "put": "Listing", "delete": "PoolKey", "complete": "Completeness"}
    text = _EVENTS.format(path="GET /pools", thing="listing") + (
        "- With filters, a pool that stops matching is a `delete`, one that starts to match is a `put`.\n"
    )
    return _events("followPools", "routers", "The pools, as events", text, data, stream, _filters())


def get_pool() -> Part:
    """``GET`` of one pool."""
    return {
        "operationId": "getPool",
        "tags": ["routers"],
        "summary": "One pool",
        "parameters": [reference("parameters", "If-None-Match")],
        "responses": {
            "200": _json("The listing.", "Listing", _plain(listing(REGISTRATION)), "ETag", "Cache-Control"),
            "304": {"description": "It is still the same.", "headers": headers("ETag", "Cache-Control")},
            **errors(
                NotFound="The pool is not listed while the list is complete, or the path names no pool.",
                Unavailable="The pool is not listed, but the list is not complete, or there is none yet.",
            ),
        },
    }


# ---- operation


def list_targets() -> Part:
    """``GET /sd/prometheus``."""
    told = ("ETag", "Cache-Control", "Vary")
    example = msgspec.json.decode(scrape_targets.body([scrape_targets.target_groups(listing(REGISTRATION))]))
    own = [reference("parameters", name) for name in ("role", "incomplete", "If-None-Match", "Accept-Encoding")]
    return {
        "operationId": "listTargets",
        "tags": ["operation"],
        "summary": "The frontends and relays as targets for Prometheus",
        "description": "For `http_sd_configs` and all that read the same format. Prometheus drops what a 200 does not "
        "name and keeps its targets on an error, so a list that is not complete is answered with 503, unless "
        "`incomplete=true` asks for what is known. Labels without `__` are those of the series; `__meta_discovery_*` "
        "are there for relabelling.",
        "parameters": [*_filters(), *own],
        "responses": {
            "200": _json("The targets.", "TargetGroups", example, *told, "Content-Encoding"),
            "304": {"description": "They are still the same.", "headers": headers(*told)},
            **errors(
                BadRequest="An unknown or empty query parameter, another role or value, or no HTTP.",
                Unavailable="There is no list yet, it is not complete, or slow readers hold too much of what was made "
                "for them.",
            ),
        },
    }


def list_registrations() -> Part:
    """``GET /registrations``."""
    example = {
        "complete": True,
        "reason": None,
        "registrations": [{"registration": _plain(REGISTRATION), "lease_left_secs": 12.5}],
    }
    return {
        "operationId": "listRegistrations",
        "tags": ["operation"],
        "summary": "The registrations alone, before addresses are joined in",
        "description": "What this replica knows of the store, for people. Routers read `/pools`.",
        "responses": {
            "200": _json("The registrations.", "RegistrationList", example, "Cache-Control"),
            **errors(
                Unavailable="The store has not been read yet, or slow readers hold too much of what was made for them."
            ),
        },
    }


def is_alive() -> Part:
    """``GET /healthz``."""
    return {
        "operationId": "isAlive",
        "tags": ["operation"],
        "summary": "Liveness: whether the event loop turns",
        "responses": {"200": _json("It does.", "Liveness", {"status": "alive"}), **errors()},
    }


def is_ready() -> Part:
    """``GET /readyz``."""
    ready = {"stage": "ready", "detail": "the list is complete"}
    starting = {"stage": "store", "detail": "the store has not been read yet"}
    return {
        "operationId": "isReady",
        "tags": ["operation"],
        "summary": "Readiness: whether this replica has a list to serve and is not shutting down",
        "description": "Stays 200 when the store fails later: the last list is still served, and the detail says "
        "what is wrong.",
        "responses": {
            "200": _json("Ready.", "Readiness", ready, "Cache-Control"),
            "503": _json("Not ready; the stage says what it waits for.", "Readiness", starting, "Cache-Control"),
            **errors(),
        },
    }


def get_metrics() -> Part:
    """``GET /metrics``."""
    text = {
        "schema": {"type": "string"},
        "example": "# HELP discovery_relists_total Full lists read from the store, by cause.\n"
        "# TYPE discovery_relists_total counter\n"
        'discovery_relists_total{cause="unavailable"} 1.0\n',
    }
    return {
        "operationId": "getMetrics",
        "tags": ["operation"],
        "summary": "Metrics for Prometheus",
        "responses": {
            "200": {"description": "The text format, version 0.0.4.", "content": {"text/plain": text}},
            **errors(),
        },
    }


def get_status() -> Part:
    """``GET /status``."""
    return {
        "operationId": "getStatus",
        "tags": ["operation"],
        "summary": "The state of this replica, for people and for diagnosis",
        "description": "With `pool` also why those pools are or are not listed: what `discovery doctor` asks for.",
        "parameters": [reference("parameters", "pool")],
        "responses": {
            "200": _json("The state.", "Status", None, "Cache-Control"),
            **errors(
                BadRequest="An unknown query parameter, a `pool` that names none, or no HTTP.",
                Unavailable="Slow readers have not taken the long answers yet that were made for them.",
            ),
        },
    }


def get_openapi() -> Part:
    """``GET /openapi.json``."""
    content = {"application/json": {"schema": {"type": "object", "required": ["openapi", "info", "paths"]}}}
    return {
        "operationId": "getOpenApi",
        "tags": ["operation"],
        "summary": "This document",
        "responses": {
            "200": {"description": "The document.", "headers": headers("Cache-Control"), "content": content},
            **errors(),
        },
    }


def get_page() -> Part:
    """``GET /``."""
    html = {"schema": {"type": "string"}, "example": '<!doctype html>\n<html lang="en">'}
    told = headers("ETag", "Cache-Control", "Referrer-Policy")
    return {
        "operationId": "getPage",
        "tags": ["operation"],
        "summary": "A live page for people",
        "description": "It holds no data, and asks for a token where the service wants one. Any query is taken: the "
        "page keeps in it what was searched for.",
        "parameters": [reference("parameters", "If-None-Match")],
        "responses": {
            "200": {"description": "The page.", "headers": told, "content": {"text/html": html}},
            "304": {"description": "It is still the same.", "headers": told},
            **errors(),
        },
    }


# ---- what both lists share


def _list(name: str, tag: str, summary: str, schema: str, example: Any, filters: list[Part]) -> Part:
    conditional = ("ETag", "Cache-Control", "Vary", "Preference-Applied")
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "description": "Equal lists are equal bytes on every replica: sorted, and every list in them too. Poll with "
        "`If-None-Match`, wait with `Prefer`, or subscribe to the events.",
        "parameters": [*filters, *(reference("parameters", n) for n in ("If-None-Match", "Prefer", "Accept-Encoding"))],
        "responses": {
            "200": _json("The list.", schema, example, *conditional, "Content-Encoding"),
            "304": {"description": "It is still the same.", "headers": headers(*conditional)},
            **errors(
                BadRequest="An unknown or empty query parameter, or no HTTP.",
                Unavailable="There is no list yet, or more readers wait than this replica serves (`--max-streams`).",
            ),
        },
    }


def _events(
    name: str, tag: str, summary: str, description: str, data: dict[str, str], example: str, filters: list[Part]
) -> Part:
    content = {
        "schema": {"type": "string"},
        "example": example,
        "x-event-data": {event: reference("schemas", schema) for event, schema in data.items()},
    }
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "description": description,
        "parameters": [*filters, reference("parameters", "Last-Event-ID")],
        "responses": {
            "200": {
                "description": "The events, until one of the two sides ends the stream. `x-event-data` has the schema "
                "of each event's data.",
                "headers": headers("Cache-Control", "X-Accel-Buffering"),
                "content": {"text/event-stream": content},
            },
            **errors(
                BadRequest="An unknown or empty query parameter, or no HTTP.",
                Unavailable="There is no list yet, or more streams are open than this replica serves "
                "(`--max-streams`).",
            ),
        },
    }


def _stream(collection: str, old: Fragment[Any], new: Fragment[Any]) -> str:
    """The beginning of a stream: one entry is listed, then another is in its place and the list is not complete."""
    before, after = snapshot.token(old.digest, True), snapshot.token(new.digest, False)
    first = snapshot.body(collection, True, [old.body]).decode()
    frames = [snapshot.complete_frame(False), snapshot.put_frame(new), snapshot.delete_frame(old.key)]
    begin = f"retry: 1934\n\nevent: snapshot\nid: {before}\ndata: {first}\n\n:\n\n"
    return begin + snapshot.join_frames(frames, after).decode()


def _json(description: str, schema: str, example: Any, *names: str) -> Part:
    content = {"schema": reference("schemas", schema)} | ({} if example is None else {"example": example})
    return {
        "description": description,
        **({"headers": headers(*names)} if names else {}),
        "content": {"application/json": content},
    }


def _plain(value: msgspec.Struct) -> Any:
    """What the JSON of a struct says."""
    return msgspec.json.decode(msgspec.json.encode(value))
