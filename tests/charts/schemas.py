"""Is a rendered object what a cluster takes? By Kubernetes' own schemas, strictly, or by those in ``crds/``.

``kubernetes_validate`` carries the schemas of each version. It reads all of them anew for each object, which takes
longer than everything else here; so they are read once, and each distinct object is judged once. A kind that is unknown
is a fault, unless ``crds/`` has its schema.
"""

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.charts.rendered import Object

CRDS = Path(__file__).with_name("crds")


@cache
def versions() -> list[str]:
    """Every version of Kubernetes with schemas, ``1.25`` and so on, oldest first."""
    names = [folder.name for folder in files("kubernetes_validate").joinpath("kubernetes-json-schema").iterdir()]
    found = {match[1] for name in names if (match := re.fullmatch(r"v(\d+\.\d+)\.\d+-local-strict", name))}
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def faults(found: Object, version: str) -> list[str]:
    """What a cluster of this version has against an object, each with its place; nothing when it takes it."""
    return list(_faults(json.dumps(found, sort_keys=True), version))


@cache
def _faults(text: str, version: str) -> tuple[str, ...]:
    found = json.loads(text)
    validator = _custom(found["kind"]) or _built_in(version, found["apiVersion"], found["kind"])
    if validator is None:
        return (f"{found['apiVersion']} {found['kind']} is unknown to Kubernetes {version}",)
    return tuple(
        f"{'.'.join(str(part) for part in error.absolute_path) or 'the object'}: {error.message}"
        for error in validator.iter_errors(found)
    )


@cache
def _custom(kind: str) -> Any:
    path = CRDS / f"{kind.lower()}.json"
    if not path.exists():
        return None
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, registry=_shared())


@cache
def _shared() -> Any:
    """What the schemas in ``crds/`` have in common."""
    schema = json.loads((CRDS / "shared.json").read_text())
    return Registry().with_resource("shared.json", Resource.from_contents(schema, DRAFT202012))


@cache
def _built_in(version: str, api_version: str, kind: str) -> Any:
    group, _, name = api_version.rpartition("/")
    file = "-".join([kind.lower(), *([group.split(".")[0]] if group else []), name]) + ".json"
    path = _folder(version).joinpath(file)
    if not path.is_file():
        return None
    return jsonschema.Draft202012Validator(json.loads(path.read_text()), registry=_definitions(version))


@cache
def _folder(version: str) -> Any:
    return files("kubernetes_validate").joinpath("kubernetes-json-schema", f"v{version}.0-local-strict")


@cache
def _definitions(version: str) -> Any:
    definitions = Resource.from_contents(json.loads(_folder(version).joinpath("_definitions.json").read_text()))
    return definitions @ Registry()
