"""Files of tokens for tests: entries by the token itself, which the file then has as a digest."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any


def entry(token: str, *scopes: str, name: str = "") -> dict[str, Any]:
    """One entry; its name has nothing of the token in it."""
    digest = sha256(token.encode()).hexdigest()
    return {"name": name or f"t{digest[:8]}", "sha256": digest, "scopes": list(scopes)}


def content(*entries: dict[str, Any]) -> bytes:
    """A whole file."""
    return json.dumps({"tokens": entries}).encode()


def swap(path: Path, *entries: dict[str, Any]) -> None:
    """Put the file in place at once, as a mounted Secret is renewed."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content(*entries))
    fresh.replace(path)


def bearer(token: str) -> dict[str, str]:
    """The header with a token."""
    return {"authorization": f"Bearer {token}"}
