"""The OpenAPI document by itself: well formed, true to the routes and to the code that judges bodies."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from starlette.applications import Starlette

from discovery import __version__, registrations
from discovery.client import sse
from discovery.client.snapshot import Assembly
from discovery.errors import Rejected
from discovery.http import api, openapi_schemas
from discovery.http.access import RateLimit
from discovery.http.handlers import Service
from discovery.http.openapi import document
from discovery.http.requests import pool_filter
from discovery.listing import snapshot
from discovery.model import Accepted, Listing, Registration
from tests.http.in_process import Rig
from tests.http.openapi_check import METHODS, check_answer, faults, operations, resolved
from tests.http.sockets import served

ONE = "{cluster_id}/{namespace}/{dgd_name}"
STRUCTS = {name: vars(openapi_schemas)[name] for name in vars(openapi_schemas) if name[0].isupper()} | {
    "Listing": Listing,
    "Registration": Registration,
    "Accepted": Accepted,
    "TargetGroups": tuple[openapi_schemas.TargetGroup, ...],
}


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every object of the document with its path, without the insides of examples and defaults."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from parts(item, (*path, index))
    if isinstance(value, dict):
        yield path, value
        for name, item in value.items():
            if name not in ("example", "examples", "default"):
                yield from parts(item, (*path, name))


def component(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


# ---- well formed


def test_the_document_introduces_itself() -> None:
    assert re.fullmatch(r"3\.1\.\d", document()["openapi"])
    info = document()["info"]
    assert info["title"]
    assert info["version"] == __version__
    assert info["license"]["identifier"] == "Apache-2.0"
    assert document() is document(), "made once"
    assert json.loads(json.dumps(document())) == document()


@pytest.mark.parametrize(
    "rule",
    [
        "`complete: true`: replace",
        "`complete: false`: merge",
        "remove nothing",
        "A `delete` event always removes",
        "not shown for 5 minutes",
    ],
)
def test_the_description_has_the_rule_of_complete(rule: str) -> None:
    assert rule in document()["info"]["description"]


def test_every_pointer_leads_to_something_and_every_component_is_used() -> None:
    pointers = {part["$ref"] for _, part in parts(document()) if "$ref" in part}
    assert all(resolved({"$ref": pointer}) for pointer in pointers)
    kinds = {kind: parts for kind, parts in document()["components"].items() if kind != "securitySchemes"}
    assert pointers == {f"#/components/{kind}/{name}" for kind in kinds for name in kinds[kind]}


def test_every_schema_is_a_json_schema() -> None:
    schemas = [part["schema"] for _, part in parts(document()) if "schema" in part]
    schemas += document()["components"]["schemas"].values()
    assert len(schemas) > 50
    for schema in schemas:
        Draft202012Validator.check_schema(schema)


def test_operations_are_whole() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    tags = {tag["name"] for tag in document()["tags"]}
    for method, path, operation in operations():
        assert operation["summary"]
        assert set(operation["tags"]) <= tags
        assert any(200 <= int(status) < 300 for status in operation["responses"]), f"{method} {path} never succeeds"
        for status, answer in operation["responses"].items():
            assert re.fullmatch("[2-5][0-9]{2}", status)
            answer = resolved(answer)
            assert answer["description"]
            assert set(answer) <= {"description", "headers", "content"}
            for media_type, content in answer.get("content", {}).items():
                assert re.fullmatch(r"[a-z]+/[a-z.+-]+", media_type)
                assert "schema" in content


def test_parameters_are_whole_and_those_of_paths_match_the_template() -> None:
    for path, item in document()["paths"].items():
        for method in METHODS:
            if method not in item:
                continue
            listed = [resolved(part) for part in (*item.get("parameters", []), *item[method].get("parameters", []))]
            places = [(parameter["in"], parameter["name"]) for parameter in listed]
            assert len(places) == len(set(places))
            assert all(parameter["in"] in ("path", "query", "header") for parameter in listed)
            assert all(parameter["description"] and parameter["schema"] for parameter in listed)
            in_path = [parameter for parameter in listed if parameter["in"] == "path"]
            assert [parameter["name"] for parameter in in_path] == re.findall(r"{(\w+)}", path)
            assert all(parameter["required"] for parameter in in_path)


def test_head_says_what_get_says_without_bodies() -> None:
    for path, item in document()["paths"].items():
        get, head = item["get"], item["head"]
        assert head.get("parameters") == get.get("parameters"), path
        assert list(head["responses"]) == list(get["responses"])
        for status, answer in get["responses"].items():
            assert head["responses"][status].get("headers") == resolved(answer).get("headers")
            assert "content" not in head["responses"][status]


def test_lists_take_exactly_the_filters_that_the_routes_take() -> None:
    for path in ("/pools", "/pools/events"):
        parameters = [resolved(part) for part in document()["paths"][path]["get"]["parameters"]]
        filters = [parameter for parameter in parameters if parameter["in"] == "query"]
        names = [parameter["name"] for parameter in filters]
        assert names == ["model", "cluster_id", "namespace", "capability", "region"]
        wanted, _ = pool_filter("&".join(f"{name}=x" for name in names).encode())
        assert msgspec.structs.asdict(wanted) == dict.fromkeys(names, frozenset({"x"}))
        assert all(parameter["explode"] and parameter["schema"]["type"] == "array" for parameter in filters)
    for path in ("/routers", "/routers/events"):
        parameters = [resolved(part) for part in document()["paths"][path]["get"]["parameters"]]
        assert all(parameter["in"] == "header" for parameter in parameters)


def test_the_status_takes_the_pools_to_explain_and_nothing_else() -> None:
    (parameter,) = [resolved(part) for part in document()["paths"]["/status"]["get"]["parameters"]]
    assert (parameter["in"], parameter["name"], parameter["explode"]) == ("query", "pool", True)
    with Rig() as rig:
        assert rig.get("/status?pool=*").json()["explained"] == []
        assert b"this path takes pool." in rig.get("/status?pools=*").body


# ---- true to the routes


class Broken:
    """Stands for any part of the service; whatever is asked of it fails."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError("a fault of the service")


def broken_service() -> Service:
    broken: Any = Broken()

    def fail() -> Any:
        raise LookupError("a fault of the service")

    return Service(broken, broken, broken, broken, broken, RateLimit(0), fail, fail, fail, 15, 5, 65536, None)


def test_every_route_and_method_is_in_the_document_and_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes: list[Any] = []

    class Recorded(Starlette):
        def __init__(self, **options: Any) -> None:
            routes.extend(options["routes"])
            super().__init__(**options)

    monkeypatch.setattr(api, "Starlette", Recorded)
    app = api.make_app(broken_service())
    paths = [route.path.replace("{key:path}", ONE) for route in routes]
    real = {(method, path) for path in paths for method in allowed_methods(app, path)}
    assert real == {(method, path) for method, path, _ in operations()}


def allowed_methods(app: Any, path: str) -> list[str]:
    """What the service tells those who come with a method that no path has."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "TRACE",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    asyncio.run(app(scope, None, send))
    assert sent[0]["status"] == 405
    return dict(sent[0]["headers"])[b"allow"].decode().split(", ")


@pytest.mark.parametrize("path", ["/pools", "/sd/prometheus", "/registrations", "/status", "/readyz", "/metrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_fault_of_the_service_is_answered_as_the_document_says(method: str, path: str) -> None:
    with served(api.make_app(broken_service())) as server, server.peer() as peer:
        peer.send(f"{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        answer = peer.answer(to_head=method == "HEAD")
    assert answer.status == 500
    check_answer(method, path, answer.status, answer.headers, answer.body)


# ---- examples


def examples() -> list[Any]:
    found = []
    for path, part in parts(document()):
        values = [part["example"]] if "example" in part else []
        values += [example["value"] for example in part.get("examples", {}).values()] if "content" in path else []
        found += [pytest.param(part["schema"], value, id="/".join(map(str, path[1:]))) for value in values]
        if "examples" in part and isinstance(part["examples"], list):
            schema = {name: value for name, value in part.items() if name != "examples"}
            found += [pytest.param(schema, value, id="/".join(map(str, path[1:]))) for value in part["examples"]]
    return found


@pytest.mark.parametrize(("schema", "example"), examples())
def test_every_example_is_valid_and_decodes_as_the_struct_behind_its_schema(
    schema: dict[str, Any], example: Any
) -> None:
    assert faults(schema, example) == []
    if "$ref" in schema:
        struct = STRUCTS[schema["$ref"].rpartition("/")[2]]
        if struct is Registration:
            taken = registrations.parse(json.dumps(example).encode())
            assert json.loads(registrations.encode(taken)) == example
        elif struct is openapi_schemas.PoolList:
            assert len(example["pools"]) == 1
        else:
            msgspec.convert(example, struct)


def test_there_are_examples_of_every_body() -> None:
    without = {
        path for path, part in parts(document()) if "content" in path[-2:-1] and not {"example", "examples"} & set(part)
    }
    assert {path[1] for path in without} == {"/status", "/openapi.json"}


def test_the_example_of_an_error_in_a_body_is_what_such_a_body_is_answered_with() -> None:
    example = document()["components"]["responses"]["Invalid"]["content"]["application/problem+json"]["example"]
    assert [fault["path"] for fault in example["errors"]] == ["$.model", "$.capacity[0].quantity"]


@pytest.mark.parametrize("path", ["/pools", "/routers"])
def test_the_example_of_a_stream_leads_to_the_state_that_its_last_id_names(path: str) -> None:
    content = document()["paths"][f"{path}/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    parser = sse.Parser()
    events = parser.feed(content["example"].encode())
    assert parser.retry_secs
    assert [event.name for event in events] == ["snapshot", "complete", "put", "delete"]
    assert [event.id is not None for event in events] == [True, False, False, True]
    for event in events:
        assert faults(content["x-event-data"][event.name], json.loads(event.data)) == []
    if path == "/pools":
        assembly = Assembly()
        for event in events:
            assembly.apply(event.name, event.data, 0.0)
        digests = [snapshot.pool_fragment(pool).digest for pool in assembly.pools]
        assert events[-1].id == snapshot.token(sum(digests), assembly.complete)


# ---- schemas judge as the code does

SMALLEST = {"cluster_id": "c", "namespace": "n", "dgd_name": "d", "model": "m"}
GPU = {"resource": "gpu", "quantity": 1}
URL = "http://10.0.0.1:9000"

TAKEN: dict[str, dict[str, Any]] = {
    "smallest": {},
    "longest identifier": {"cluster_id": "c" * 253},
    "identifier of other scripts": {"namespace": "\u540d\U0001f600" * 100},
    "identifier with inner space and slash": {"dgd_name": "a b/c"},
    "three dots": {"dgd_name": "..."},
    "longest model": {"model": "m" * 512},
    "most relays": {"relays": [URL] * 64},
    "most frontends": {"frontends": [URL] * 1024},
    "most metadata": {"metadata": {str(number): "" for number in range(64)}},
    "https, IPv6, path, query": {"relays": ["HTTPS://[2001:db8::1]:1/a@b?c=d#e", "http://host"]},
    "no capacity": {"capacity": [{"resource": "", "quantity": 0, "unit": None}]},
    "fraction": {"capacity": [{"resource": "gpu", "quantity": 0.5, "unit": "share"}]},
    "south pole": {"location": {"latitude": -90, "longitude": 180.0}},
    "north pole": {"location": {"latitude": 90, "longitude": -180}},
    "nulls": {"instance_id": None, "location": {"region": None, "latitude": None}},
    "unknown fields": {"color": "blue", "location": {"planet": 3}, "capacity": [GPU | {"x": 1}]},
    "repeats": {"capabilities": ["chat", "chat"], "relays": [URL, URL]},
}
REFUSED: dict[str, dict[str, Any]] = {
    "empty identifier": {"cluster_id": ""},
    "too long identifier": {"namespace": "n" * 254},
    "identifier that begins with space": {"dgd_name": " d"},
    "identifier that ends with space": {"dgd_name": "d\u3000"},
    "identifier that ends with a line": {"dgd_name": "d\n"},
    "control character": {"cluster_id": "c\u007fc"},
    "later control character": {"cluster_id": "c\u0085c"},
    "dot": {"dgd_name": "."},
    "dots": {"dgd_name": ".."},
    "number as identifier": {"dgd_name": 1},
    "null as identifier": {"dgd_name": None},
    "empty model": {"model": ""},
    "too long model": {"model": "m" * 513},
    "too many relays": {"relays": [URL] * 65},
    "too many frontends": {"frontends": [URL] * 1025},
    "too much metadata": {"metadata": {str(number): "" for number in range(65)}},
    "number in metadata": {"metadata": {"a": 1}},
    "list as metadata": {"metadata": []},
    "other scheme": {"relays": ["ftp://10.0.0.1"]},
    "user info": {"relays": ["http://user@10.0.0.1"]},
    "space in URL": {"frontends": ["http://10.0.0.1/a b"]},
    "control character in URL": {"frontends": ["http://10.0.0.1/a\u0080"]},
    "line after URL": {"frontends": [URL + "\n"]},
    "no host": {"frontends": ["http:///a"]},
    "text as list": {"relays": URL},
    "null as list": {"capabilities": None},
    "null in list": {"capabilities": [None]},
    "negative capacity": {"capacity": [GPU | {"quantity": -0.1}]},
    "capacity without quantity": {"capacity": [{"resource": "gpu"}]},
    "capacity without resource": {"capacity": [{"quantity": 1}]},
    "text as quantity": {"capacity": [GPU | {"quantity": "1"}]},
    "truth as quantity": {"capacity": [GPU | {"quantity": True}]},
    "beyond the north pole": {"location": {"latitude": 90.1}},
    "beyond the south pole": {"location": {"latitude": -90.1}},
    "beyond the date line, eastward": {"location": {"longitude": 180.5}},
    "beyond the date line, westward": {"location": {"longitude": -180.5}},
    "text as location": {"location": "here"},
    "number as instance": {"instance_id": 7},
}


def is_taken(body: Any) -> bool:
    """Whether the code takes the body; what is not taken here is JSON, and so invalid."""
    try:
        registrations.parse(json.dumps(body).encode())
    except Rejected as refused:
        if refused.status != 422:
            raise
        return False
    return True


@pytest.mark.parametrize("change", TAKEN.values(), ids=TAKEN)
def test_the_schema_takes_what_the_code_takes(change: dict[str, Any]) -> None:
    body = SMALLEST | change
    assert is_taken(body)
    assert faults(component("Registration"), body) == []


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_the_schema_refuses_what_the_code_refuses(change: dict[str, Any]) -> None:
    body = SMALLEST | change
    assert not is_taken(body)
    assert faults(component("Registration"), body) != []


@pytest.mark.parametrize("missing", ["cluster_id", "namespace", "dgd_name", "model"])
def test_what_is_required_is_required_by_both(missing: str) -> None:
    body = {name: value for name, value in SMALLEST.items() if name != missing}
    assert not is_taken(body)
    assert faults(component("Registration"), body) != []


def text(*odd: str) -> st.SearchStrategy[Any]:
    return st.one_of(st.sampled_from(odd), st.text(max_size=4))


near_urls = text(
    URL, "https://h", "http://h:0", "http://[::1]/x", "http://a@b", "http://h/\u00e9?q", "http:/h", "http://%"
)
near_numbers = st.one_of(st.integers(-1, 200), st.floats(-200, 200), st.booleans(), st.none())
near_registrations = st.fixed_dictionaries(
    {name: text(".", " a", "a b", "\u00e9") for name in SMALLEST},
    optional={
        "relays": st.lists(near_urls, max_size=2),
        "frontends": st.lists(near_urls, max_size=2),
        "capabilities": st.lists(text("chat"), max_size=2),
        "capacity": st.lists(
            st.fixed_dictionaries({"resource": text("gpu"), "quantity": near_numbers}, optional={"unit": text("GiB")}),
            max_size=2,
        ),
        "location": st.dictionaries(st.sampled_from(["region", "latitude", "longitude"]), near_numbers),
        "instance_id": st.none() | text("i"),
        "metadata": st.dictionaries(text("k"), st.none() | text("v"), max_size=2),
    },
)


@settings(max_examples=150, deadline=None)
@given(near_registrations)
def test_the_schema_never_refuses_what_the_code_takes_and_lists_are_as_described(body: dict[str, Any]) -> None:
    if is_taken(body):
        assert faults(component("Registration"), body) == []
        registration = registrations.parse(json.dumps(body).encode())
        listed = json.loads(snapshot.pool_fragment(registrations.listing(registration)).body)
        assert faults(component("Listing"), listed) == []


@pytest.mark.parametrize("field", [name for name in Listing.__struct_fields__ if name != "instance_id"])
def test_every_field_of_a_listing_but_the_instance_is_always_there(field: str) -> None:
    listed = json.loads(snapshot.pool_fragment(registrations.listing(Registration(**SMALLEST))).body)
    assert faults(component("Listing"), listed) == []
    del listed[field]
    assert faults(component("Listing"), listed) != []
