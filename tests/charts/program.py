"""The process that a rendered pod would start: its words, its environment and its files, below a folder of the test.

What a kubelet and a container engine do is done here for the fields that the chart uses, and for no other: a field that
is new to the chart fails here until it is added.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tests.charts.rendered import Object, Rendered
from tests.documents import PROJECT

Secrets = dict[str, dict[str, str]]

_reference = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
FIELDS = {"metadata.name": "discovery-0", "metadata.namespace": "prod", "status.podIP": "127.0.0.1"}


class Program(NamedTuple):
    """What to start: the words after the image's entry point are ``words[1:]``."""

    words: list[str]
    variables: dict[str, str]


def program_of(rendered: Rendered, root: Path, secrets: Secrets | None = None) -> Program:
    """What the service's container starts, with its files written below ``root``, where the pod has them below ``/``.

    ``secrets`` has those that the chart takes but does not make.
    """
    given = {} if secrets is None else secrets
    container = rendered.container
    paths = _write_files(rendered, container, root, given)
    variables = {name: _moved(value, paths, root) for name, value in _variables(rendered, container, given).items()}
    words = container["command"] if "command" in container else image_words("ENTRYPOINT")
    words = [*words, *(container["args"] if "args" in container else image_words("CMD"))]
    expanded = [_reference.sub(lambda found: variables.get(found[1], found[0]), word) for word in words]
    return Program([_moved(word, paths, root) for word in expanded], variables)


def image_words(instruction: str) -> list[str]:
    """The words of ``ENTRYPOINT`` or ``CMD`` of the image."""
    found = re.findall(rf"^{instruction} (\[.*\])$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
    words: list[str] = json.loads(found[-1])
    return words


def _moved(text: str, paths: list[str], root: Path) -> str:
    """A path of the pod as one of the test."""
    mounted = "|".join(re.escape(path) for path in paths)
    return re.sub(rf"(?<![\w/])(?:{mounted})(?=/|$)", lambda found: f"{root}{found[0]}", text) if paths else text


# ---- environment


def _variables(rendered: Rendered, container: Object, secrets: Secrets) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        assert set(source) == {"configMapRef"}, f"the pod takes variables from {source}"
        found |= _data(rendered, "ConfigMap", source["configMapRef"]["name"], secrets)
    for each in container.get("env", ()):
        found[each["name"]] = each["value"] if "value" in each else _from(rendered, each["valueFrom"], secrets)
    return found


def _from(rendered: Rendered, source: Object, secrets: Secrets) -> str:
    (kind, reference), *more = source.items()
    assert not more
    if kind == "fieldRef":
        return FIELDS[reference["fieldPath"]]
    kinds = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}
    return _data(rendered, kinds[kind], reference["name"], secrets)[reference["key"]]


# ---- files


def _write_files(rendered: Rendered, container: Object, root: Path, secrets: Secrets) -> list[str]:
    """Write what every mount shows; the paths of the mounts, longest first."""
    volumes = {each["name"]: each for each in rendered.pod.get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
        assert set(mount) <= {"name", "mountPath", "readOnly"}, f"the pod mounts {mount}"
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _contents(rendered, volumes[mount["name"]], secrets).items():
            (folder / name).write_text(text)
    return sorted((each["mountPath"] for each in container.get("volumeMounts", ())), key=len, reverse=True)


def _contents(rendered: Rendered, volume: Object, secrets: Secrets) -> dict[str, str]:
    if "projected" in volume:
        parts = [_contents(rendered, each, secrets) for each in volume["projected"]["sources"]]
        return {name: text for part in parts for name, text in part.items()}
    if "emptyDir" in volume:
        return {}
    for field, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
        if field in volume:
            name = volume[field].get("secretName") or volume[field]["name"]
            data = _data(rendered, kind, name, secrets)
            items = volume[field].get("items")
            return data if items is None else {each["path"]: data[each["key"]] for each in items}
    raise AssertionError(f"the pod has the volume {volume}")


def _data(rendered: Rendered, kind: str, name: str, secrets: Secrets) -> dict[str, str]:
    """The text behind every key of a ConfigMap or Secret."""
    for each in rendered.all(kind):
        if each["metadata"]["name"] == name:
            plain = each.get("data", {}) if kind == "ConfigMap" else _decoded(each)
            return {key: str(text) for key, text in plain.items()}
    assert kind == "Secret", f"there is no ConfigMap {name}"
    assert name in secrets, f"the pod takes the Secret {name}, of which the test has none"
    return secrets[name]


def _decoded(secret: Object) -> dict[str, Any]:
    decoded = {key: base64.b64decode(text).decode() for key, text in secret.get("data", {}).items()}
    return decoded | secret.get("stringData", {})


class AnySecret(dict[str, dict[str, str]]):
    """Whatever Secret and key a pod asks for: for tests that start nothing."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> dict[str, str]:
        return _AnyKey()


class _AnyKey(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"the text of {key}"
