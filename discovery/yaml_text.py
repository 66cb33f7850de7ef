"""Values as block YAML, for commands that print it.

Pure: plain dicts, lists and scalars go in, lines come out. Written by hand, since that is all that YAML is needed for.
"""

import json
from collections.abc import Iterator
from typing import Any

LONGEST_IMPLICIT_KEY = 1000


def yaml_lines(value: dict[str, Any] | list[Any] | tuple[Any, ...]) -> Iterator[str]:
    """Block YAML whose strings are all in double quotes, so that no name is ever read as a number or as ``no``."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _pair(_scalar(name), item)
        return
    for item in value:
        if isinstance(item, dict | list | tuple) and item:
            first, *others = yaml_lines(item)
            yield from (f"- {first}", *(f"  {line}" for line in others))
        else:
            yield f"- {_scalar(item)}"


def _pair(key: str, item: Any) -> Iterator[str]:
    nested = isinstance(item, dict | list | tuple) and bool(item)
    if len(key) > LONGEST_IMPLICIT_KEY:  # YAML reads a key before its colon only up to 1024 characters
        yield f"? {key}"
        yield f": {_scalar(item)}"
        return
    yield f"{key}:" if nested else f"{key}: {_scalar(item)}"
    if nested:
        yield from (f"  {line}" for line in yaml_lines(item))


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power
    if not isinstance(value, str):
        return json.dumps(value)
    return "".join(c if c.isprintable() else _escape(c) for c in json.dumps(value, ensure_ascii=False))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
