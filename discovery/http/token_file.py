"""The file of tokens: from its bytes, YAML or JSON, to identities.

Pure: bytes go in, and out comes all that the file names, or one line that says what is wrong where. A token may have
been pasted in the wrong place, so no text of the file is repeated but plain words. How the file is followed while it is
renewed is known by ``renewed_file``.
"""

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import yaml  # type: ignore[import-untyped]

from discovery.http.tokens import ANY, METRICS, READ, REGISTER, Identities, Identity, Right
from discovery.registration_rules import identifier_fault

_KEYS = ("name", "sha256", "scopes")
_TAKES = "it takes name, sha256 and scopes"
_HASH_IT = 'the SHA-256 of the token in 64 hex digits (printf %s "$TOKEN" | sha256sum), and never the token itself'

_hex_digest = re.compile(r"[0-9a-fA-F]{64}").fullmatch
_name = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._@:/+-]{0,62}[A-Za-z0-9._@:/+-])?").fullmatch
_word = re.compile(r"[A-Za-z_-]{1,24}").fullmatch
_escape = re.compile(r"%(?![0-9A-Fa-f]{2})").search
_NOTHING = sha256(b"").digest()


def read_tokens(content: bytes) -> Identities:
    """The identities that the file names. Raises ``ValueError`` with one line: the place, and what is wrong there."""
    document = _parsed(content)
    if not isinstance(document, dict) or "tokens" not in document:
        raise ValueError('it must hold a mapping with the key "tokens"')
    if set(document) != {"tokens"}:
        raise ValueError('it takes the key "tokens" and no other')
    entries = document["tokens"]
    if not isinstance(entries, list):
        raise ValueError("tokens must be a list")
    return _by_digest(_identity(f"tokens[{number}]", entry) for number, entry in enumerate(entries))


def _by_digest(found: Iterable[Identity]) -> Identities:
    """All of them by digest. Two with one name would share limits and log lines, two with one digest are one token."""
    identities: dict[bytes, Identity] = {}
    numbers: dict[str, int] = {}
    for number, identity in enumerate(found):
        if identity.name in numbers:
            raise ValueError(f"tokens[{number}].name is that of tokens[{numbers[identity.name]}] too: each has its own")
        if other := identities.get(identity.digest):
            raise ValueError(f"tokens[{number}].sha256 is that of tokens[{numbers[other.name]}] too: each has its own")
        numbers[identity.name] = number
        identities[identity.digest] = identity
    return identities


def _identity(place: str, entry: Any) -> Identity:
    if not isinstance(entry, dict):
        raise ValueError(f"{place} must be a mapping: {_TAKES}")
    _check_keys(place, entry)
    digest = _digest(f"{place}.sha256", entry["sha256"])
    name = entry["name"]
    if not isinstance(name, str) or _name(name) is None:
        raise ValueError(
            f"{place}.name must be 1 to 64 of A-Z a-z 0-9 . _ @ : / + - and spaces, beginning with a letter or digit"
        )
    if sha256(name.encode()).digest() == digest:
        raise ValueError(f"{place}.name is the token itself, and names are logged: choose another, and a new token")
    scopes = entry["scopes"]
    if not isinstance(scopes, list) or not scopes:
        raise ValueError(f"{place}.scopes must be a list of at least one scope, such as read or register:us-east-1")
    rights = [right for number, scope in enumerate(scopes) for right in _rights(f"{place}.scopes[{number}]", scope)]
    return Identity(
        name,
        digest,
        READ in scopes or ANY in scopes,
        METRICS in scopes or ANY in scopes,
        frozenset(rights),
    )


def _check_keys(place: str, entry: dict[Any, Any]) -> None:
    for key in entry:
        if key in ("token", "value", "secret", "password"):
            raise ValueError(f"{place}.{key} is not taken: give sha256, {_HASH_IT}")
        if key not in _KEYS:
            # What is no plain word may be anything, even a token.
            named = f" {key}" if isinstance(key, str) and _word(key) else ""
            raise ValueError(f"{place} has an unknown key{named}: {_TAKES}")
    for key in _KEYS:
        if key not in entry:
            raise ValueError(f"{place}.{key} is missing: {_TAKES}")


def _digest(place: str, text: Any) -> bytes:
    if not isinstance(text, str) or _hex_digest(text) is None:
        raise ValueError(f"{place} must be {_HASH_IT}")
    digest = bytes.fromhex(text)
    if digest == _NOTHING:
        raise ValueError(f"{place} is the SHA-256 of nothing at all: was the variable with the token empty?")
    return digest


# ---- scopes


def _rights(place: str, scope: Any) -> Iterator[Right]:
    """Where a scope lets register: of ``read`` and ``metrics`` nowhere."""
    if not isinstance(scope, str):
        raise ValueError(f"{place} must be text")
    if scope in (READ, METRICS):
        return
    if scope == ANY:
        yield Right(None, None)
        return
    kind, colon, where = scope.partition(":")
    if kind != REGISTER or not colon:
        # It is not repeated: a token may have been pasted here too.
        raise ValueError(
            f"{place} must be read, metrics, register:<cluster_id>, register:<cluster_id>/<namespace>, or * for all"
        )
    parts = where.split("/")
    if len(parts) > 2:
        raise ValueError(f"{place} has more than a cluster and a namespace: a / within one of them is written %2F")
    cluster_id = _part(place, "cluster_id", parts[0])
    yield Right(cluster_id, _part(place, "namespace", parts[1]) if len(parts) == 2 else None)


def _part(place: str, name: str, text: str) -> str | None:
    """One part of a pool key, percent-encoded where needed as in paths; ``*`` alone is any, ``%2A`` is a ``*``."""
    if text == ANY:
        return None
    if "*" in text:
        raise ValueError(f"{place} has a * within its {name}: only the whole may be *, and a real * is written %2A")
    if _escape(text):
        raise ValueError(f"{place} has a % in its {name} that is no escape: a real % is written %25")
    try:
        part = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{place} has escapes in its {name} that are not UTF-8") from None
    if fault := identifier_fault(part):
        raise ValueError(f"{place} names no {name}: it {fault}")
    return part


# ---- YAML and JSON


def _parsed(content: bytes) -> Any:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if not text.strip():
        raise ValueError("it is empty")
    try:
        return _json(text) if text.lstrip().startswith("{") else _yaml(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _json(text: str) -> Any:
    """JSON, or YAML that begins like it; JSON with tabs is none of YAML's."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError:
        return _yaml(text)


def _without_repeats(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one of its mappings")
    return found


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """YAML in which every scalar is the text that is written there: a digest of digits alone is no number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping; what stands twice is refused, where YAML's own loaders take the last."""
        if not isinstance(node, yaml.MappingNode) or not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            raise ValueError(f"line {node.start_mark.line + 1} has a key that is no plain text")
        return _without_repeats(
            [
                (self.construct_object(key, deep=True), self.construct_object(value, deep=True))
                for key, value in node.value
            ]
        )


def _yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        # The library's own text quotes what it could not read.
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}this is neither YAML nor JSON") from None
    except yaml.YAMLError:
        raise ValueError("it holds characters that YAML does not allow") from None
    finally:
        loader.dispose()
