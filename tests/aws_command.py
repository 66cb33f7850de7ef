"""``aws …`` as far as the documents use it: words to a request by the model of the service, and that sent.

The program itself cannot live beside the library of the service, whose versions it fixes. Operations, their options and
types come from that library's own model, so a word that AWS does not know, or a value of the wrong shape, is refused
here too. ``python -m tests.aws_command dynamodb query …`` prints what the program prints.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import botocore.session
from botocore import xform_name
from botocore.model import Shape
from botocore.validate import ParamValidator

OPTIONS = ("region", "endpoint-url", "output")
"""Of the program itself, for every operation."""


class Request(NamedTuple):
    """What a command asks for: an operation or, for ``wait``, a condition; its parameters; options of the program."""

    service: str
    operation: str
    condition: str
    parameters: dict[str, Any]
    options: dict[str, str]


def request_of(words: Sequence[str]) -> Request:
    """The request that ``aws`` makes of these words; ``ValueError`` for what it would refuse."""
    program, name, command, *rest = words
    if program != "aws":
        raise ValueError(f"not a command for AWS: {program}")
    service = botocore.session.Session().get_service_model(name)
    condition = ""
    if command == "wait":
        condition, *rest = rest
        command = "describe-table"
    by_command = {xform_name(each, "-"): each for each in service.operation_names}
    if command not in by_command:
        raise ValueError(f"no such operation: {command}")
    shape = service.operation_model(by_command[command]).input_shape
    members = {xform_name(each, "-"): each for each in shape.members}
    parameters: dict[str, Any] = {}
    options: dict[str, str] = {}
    for flag, values in _flags(rest):
        if flag in members:
            parameters[members[flag]] = _value(shape.members[members[flag]], values)
        elif flag in OPTIONS and len(values) == 1:
            options[flag] = values[0]
        else:
            raise ValueError(f"{command} has no --{flag}")
    if report := ParamValidator().validate(parameters, shape).generate_report():
        raise ValueError(f"{command}: {report}")
    return Request(name, by_command[command], condition, parameters, options)


def _flags(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            found.append((word[2:], []))
        elif not found:
            raise ValueError(f"a value without an option: {word}")
        else:
            found[-1][1].append(word)
    return found


def _value(shape: Shape, words: list[str]) -> Any:
    if shape.type_name == "boolean":
        if words:
            raise ValueError(f"a switch takes no value: {words}")
        return True
    if shape.type_name == "list" and not words[0].startswith("["):
        return [_parsed(shape.member, word) for word in words]
    (word,) = words
    return _parsed(shape, word)


def _parsed(shape: Shape, word: str) -> Any:
    if shape.type_name in ("structure", "map", "list"):
        if word[:1] in ("{", "["):
            return json.loads(word)
        value, rest = _shorthand(shape, word)
        if rest:
            raise ValueError(f"what is {rest!r} in {word!r}?")
        return value
    return int(word) if shape.type_name in ("integer", "long") else _one_of(shape, word)


def _one_of(shape: Shape, word: str) -> Any:
    if shape.type_name == "boolean":
        return {"true": True, "false": False}[word]
    words = getattr(shape, "enum", ())
    if words and word not in words:
        raise ValueError(f"{word} is none of {words}")
    return word


def _shorthand(shape: Shape, text: str) -> tuple[dict[str, Any], str]:
    """``Name=value,Other={Name=value}``, and what stands after it."""
    found: dict[str, Any] = {}
    while True:
        name, equals, text = text.partition("=")
        if not equals or name not in shape.members:
            raise ValueError(f"{shape.name} has no {name!r}")
        if text.startswith("{"):
            found[name], text = _shorthand(shape.members[name], text[1:])
            if not text.startswith("}"):
                raise ValueError(f"a brace is not closed: {text!r}")
            text = text[1:]
        else:
            end = min([place for place in (text.find(","), text.find("}")) if place >= 0], default=len(text))
            found[name], text = _one_of(shape.members[name], text[:end]), text[end:]
        if not text.startswith(","):
            return found, text
        text = text[1:]


def main(words: Sequence[str]) -> int:
    """Send it, and print the answer as the program does; 254 and one line where it is refused."""
    request = request_of(["aws", *words])
    region, url = request.options.get("region"), request.options.get("endpoint-url")
    client: Any = botocore.session.Session().create_client(request.service, region_name=region, endpoint_url=url)
    try:
        if request.condition:
            client.get_waiter(request.condition.replace("-", "_")).wait(**request.parameters)
            return 0
        answer = getattr(client, xform_name(request.operation))(**request.parameters)
    except client.exceptions.ClientError as error:
        print(f"aws: {error}", file=sys.stderr)
        return 254
    finally:
        client.close()
    shown = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
    if shown:
        print(json.dumps(shown, indent=4, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
