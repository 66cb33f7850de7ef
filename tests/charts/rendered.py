"""What the chart renders for some values, as objects; and the objects as tests ask for them."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from tests.charts.engine import CHART, Engine, Refused

Object = dict[str, Any]

HOOK = "helm.sh/hook"

# A password of 32 letters and digits in base64, and a SHA-256 in hexadecimal digits.
_GENERATED = re.compile(r"[A-Za-z0-9+/]{43}=|\b[0-9a-f]{64}\b")


class _Loader(yaml.CSafeLoader):
    """YAML as the API server takes it: a key that is there twice is an error, not the last of both."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        twice = [key for key in keys if keys.count(key) > 1]
        assert not twice, f"the key {twice[0]!r} is there twice, {node.start_mark}"
        return super().construct_mapping(node, deep=deep)


def objects_of(text: str) -> list[Object]:
    """The objects of a stream of YAML; empty documents are none."""
    return [found for found in yaml.load_all(text, _Loader) if found]


class Rendered(NamedTuple):
    """All that one rendering gave. ``notes`` is what is printed after an installation."""

    objects: tuple[Object, ...]
    hooks: tuple[Object, ...]
    notes: str
    text: str

    @property
    def stable(self) -> str:
        """The text without what is made of the rest, or by chance: checksums, and a password that is generated."""
        return _GENERATED.sub("", self.text)

    def all(self, kind: str) -> list[Object]:
        """Every object of a kind, hooks aside."""
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, component: str | None = None) -> Object:
        """The only object of a kind, or of those the one of a component such as ``redis``."""
        found = [each for each in self.all(kind) if component is None or component_of(each) == component]
        assert len(found) == 1, f"{len(found)} objects are a {kind} of {component}, of {[*self.names()]}"
        return found[0]

    def names(self) -> Iterator[str]:
        """``Deployment/discovery`` and so on."""
        return (f"{found['kind']}/{found['metadata']['name']}" for found in self.objects)

    @property
    def deployment(self) -> Object:
        """The Deployment of the service."""
        return self.one("Deployment")

    @property
    def pod(self) -> Object:
        """What its pods are made of."""
        spec: Object = self.deployment["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        """The container that runs the service."""
        found: Object = next(each for each in self.pod["containers"] if each["name"] == "discovery")
        return found

    @property
    def variables(self) -> dict[str, str]:
        """The environment of that container that is written in the open: of its ConfigMaps, then its own."""
        found: dict[str, str] = {}
        for source in self.container.get("envFrom", ()):
            name = source.get("configMapRef", {}).get("name")
            maps = [each for each in self.all("ConfigMap") if each["metadata"]["name"] == name]
            found |= maps[0]["data"] if maps else {}
        return found | {each["name"]: each["value"] for each in self.container.get("env", ()) if "value" in each}


def component_of(found: Object) -> str:
    """The component that its labels name."""
    return str(found["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def pods_of(found: Object) -> Object | None:
    """The metadata and spec of the pods that an object makes, or is."""
    if found["kind"] == "Pod":
        return found
    template = found.get("spec", {}).get("template") if isinstance(found.get("spec"), dict) else None
    return template if isinstance(template, dict) and "spec" in template else None


def as_rendered(texts: dict[str, str]) -> Rendered:
    """What came out, by template, taken apart."""
    notes = "\n".join(text for path, text in texts.items() if path.endswith("NOTES.txt"))
    manifests = {path: text for path, text in sorted(texts.items()) if not path.endswith("NOTES.txt")}
    found = [each for path, text in manifests.items() for each in _of(path, text)]
    hooks = [each for each in found if HOOK in (each["metadata"].get("annotations") or {})]
    objects = [each for each in found if each not in hooks]
    return Rendered(tuple(objects), tuple(hooks), notes, "\n".join(manifests.values()))


def _of(path: str, text: str) -> list[Object]:
    try:
        return objects_of(text)
    except yaml.YAMLError as error:
        raise AssertionError(f"{path} rendered what is no YAML: {error}\n{text}") from None


class Chart:
    """The chart of this project; each rendering is made once in a session."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._texts: dict[str, dict[str, str]] = {}
        self._known: dict[str, Rendered] = {}

    def render(self, values: dict[str, Any] | str | None = None, **options: Any) -> Rendered:
        """Render with values, given as the text of a values file or as what it says."""
        key, texts = self._render(values, options)
        if key not in self._known:
            self._known[key] = as_rendered(texts)
        return self._known[key]

    def outcome(self, values: dict[str, Any] | None = None) -> str:
        """What comes of values, as text to compare: all that is rendered without what chance makes; or the refusal."""
        try:
            return _GENERATED.sub("", str(self._render(values, {})[1]))
        except Refused as refused:
            return f"refused: {refused}"

    def _render(self, values: dict[str, Any] | str | None, options: dict[str, Any]) -> tuple[str, dict[str, str]]:
        text = values if isinstance(values, str) else yaml.safe_dump(values or {}, sort_keys=False)
        key = repr((text, sorted(options.items())))
        if key not in self._texts:
            self._texts[key] = self.engine.render(text, chart=CHART, **options)
        return key, self._texts[key]
