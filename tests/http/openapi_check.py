"""What tests hold against the OpenAPI document: values against its schemas, answers against its operations."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from discovery.http.openapi import document

METHODS = ("get", "head", "post", "delete", "put", "patch", "options", "trace")
# What HTTP itself adds to an answer, what browsers are told with each, and the id that a request brought; the document
# speaks of the media type in its own way, and of the id in its introduction.
PLAIN_HEADERS = {"date", "content-length", "content-type", "transfer-encoding"}
PLAIN_HEADERS |= {"x-content-type-options", "content-security-policy", "x-request-id"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation of the document: method in upper case, path, and what is said of it."""
    for path, item in document()["paths"].items():
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item[method]


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """A part of the document, or what it points to."""
    if "$ref" not in part:
        return part
    target: Any = document()
    for step in part["$ref"].removeprefix("#/").split("/"):
        target = target[step.replace("~1", "/").replace("~0", "~")]
    return {**target, **{name: value for name, value in part.items() if name != "$ref"}}


def faults(schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with a value by a schema of the document."""
    validator = _validator(json.dumps(schema))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def check_answer(
    method: str, path: str, status: int, headers: Mapping[str, str], body: bytes | None
) -> dict[str, Any] | None:
    """Fail where an answer is not as the document says; gives the content that the document has for it.

    ``headers`` by lower-case name; a ``body`` of None stands for one that is not looked at.
    """
    operation = document()["paths"][path][method.lower()]
    assert str(status) in operation["responses"], f"{method} {path} answered {status}, which is not listed: {body!r}"
    response = resolved(operation["responses"][str(status)])
    _check_headers(response.get("headers", {}), headers)
    content = response.get("content")
    if method == "HEAD":
        assert content is None
    if body is None or method == "HEAD":
        return None
    if content is None:
        assert body == b""
        return None
    media_type = headers["content-type"].partition(";")[0]
    assert media_type in content, f"{method} {path} {status} came as {media_type}, the document has {list(content)}"
    value = json.loads(body) if media_type.endswith("json") else body.decode()
    assert faults(content[media_type]["schema"], value) == []
    if media_type == "application/problem+json":
        assert value["status"] == status
    return content[media_type]


def _check_headers(described: dict[str, Any], sent: Mapping[str, str]) -> None:
    known = {name.lower(): resolved(part) for name, part in described.items()}
    unknown = set(sent) - set(known) - PLAIN_HEADERS
    assert not unknown, f"headers that the document does not know: {unknown}"
    for name, header in known.items():
        if name not in sent:
            assert not header["required"], f"the header {name} is missing"
            continue
        integer = header["schema"].get("type") == "integer"
        value: Any = int(sent[name]) if integer and re.fullmatch("[0-9]+", sent[name]) else sent[name]
        assert faults(header["schema"], value) == [], f"{name}: {sent[name]}"


@cache
def _validator(schema: str) -> Draft202012Validator:
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **json.loads(schema)}
    return Draft202012Validator(_absolute(whole), registry=_registry())


@cache
def _registry() -> Any:
    return Registry().with_resource("urn:document", DRAFT202012.create_resource(document()))


def _absolute(part: Any) -> Any:
    """The same part with pointers that work from outside of the document."""
    if isinstance(part, list):
        return [_absolute(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: f"urn:document{value}" if name == "$ref" and isinstance(value, str) else _absolute(value)
        for name, value in part.items()
    }
