"""Functions as tools: a JSON schema from type hints and docstring, and what is wrong with arguments.

A worker process imports this file, so at module level it imports nothing heavy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from etude.core.errors import ConfigError, nearest

KINDS: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip
Schema = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function that can be called.

    Args:
        parameters: their JSON schema: `{"type": "object", "properties": {...}, "required": [...]}`.
    """

    name: str
    description: str
    parameters: Schema

    @property
    def schema(self) -> Schema:
        """The tool as chat templates want it in `tools`."""
        return {"type": "function", "function": vars(self).copy()}

    @property
    def names(self) -> list[str]:
        """Of its parameters, in order."""
        return list(self.parameters["properties"])


def described(function: Callable[..., Any]) -> Tool:
    """A function as a tool: name, first paragraph of the docstring, and types of its parameters.

    Raises: ConfigError for a function without docstring, with a parameter whose type hint is missing or none that JSON
    has, or with parameters that have no names.

    >>> def weather(city: str, days: int = 1) -> str:
    ...     '''The weather to come.
    ...
    ...     Args:
    ...         city: where.
    ...     '''
    >>> described(weather).parameters["properties"], described(weather).parameters["required"]
    ({'city': {'type': 'string', 'description': 'where.'}, 'days': {'type': 'integer'}}, ['city'])
    """
    name, text = getattr(function, "__name__", type(function).__name__), inspect.getdoc(function)
    if not text:
        raise ConfigError(f"The tool {name} has no docstring: say in one what it does, for the model to read.")
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise ConfigError(f"The type hints of the tool {name} cannot be read: {error}.") from None
    about, properties, required = explained(text), {}, []
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"The tool {name} must take its arguments by name, and {str(parameter)!r} has none.")
        if key not in hints:
            raise ConfigError(f"The parameter {key!r} of the tool {name} has no type hint: write it as in {key}: str.")
        said = {"description": about[key]} if key in about else {}
        properties[key] = {**_schema(hints[key], f"the parameter {key!r} of the tool {name}"), **said}
        if parameter.default is parameter.empty:
            required.append(key)
    first = re.split(r"\n\s*\n|\n\s*Args:", text)[0]
    return Tool(name, " ".join(first.split()), {"type": "object", "properties": properties, "required": required})


def explained(docstring: str) -> dict[str, str]:
    """What a docstring says of each parameter, in the section `Args:`.

    >>> explained("Adds.\\n\\nArgs:\\n    a: one,\\n        or none\\n    b (int): two\\n\\nReturns:\\n    c: it")
    {'a': 'one, or none', 'b': 'two'}
    """
    section = re.search(r"^(?:Args|Arguments|Parameters):\s*\n(.*?)(?=^\S|\Z)", docstring, re.DOTALL | re.MULTILINE)
    if section is None:
        return {}
    lines = section[1].rstrip().split("\n")
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    found: dict[str, str] = {}
    key = ""
    for line in lines:
        begins = re.match(rf"\s{{{indent}}}(\w+)\s*(?:\([^)]*\))?:\s*(.*)", line)
        if begins:
            key = begins[1]
            found[key] = begins[2]
        elif key:
            found[key] += f" {line.strip()}"
    return {k: " ".join(v.split()) for k, v in found.items()}


def _schema(hint: object, where: str) -> Schema:
    """The JSON schema of a type hint."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint in KINDS:
        return {"type": KINDS[hint]}
    if hint in (list, tuple) or origin in (list, tuple, Sequence):
        items = [a for a in inside if a is not Ellipsis]
        return {"type": "array", **({"items": _schema(items[0], where)} if len({*items}) == 1 else {})}
    if hint is dict or origin in (dict, Mapping):
        return {"type": "object", **({"additionalProperties": _schema(inside[1], where)} if inside else {})}
    if origin is Literal:
        kinds = {KINDS.get(type(v), "") for v in inside}
        if len(kinds) == 1 and "" not in kinds:
            return {"type": kinds.pop(), "enum": list(inside)}
    if origin in (Union, UnionType):
        options = [_schema(a, where) for a in inside if a is not NoneType]
        made: Schema = options[0] if len(options) == 1 else {"anyOf": options}
        return {**made, "nullable": True} if NoneType in inside else made
    if hint is Any:
        return {}
    raise ConfigError(
        f"The type of {where} must be one that JSON has (str, int, float, bool, list, dict, Literal, or these with "
        f"None), got {hint!r}."
    )


def objection(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """What is wrong with a call's arguments, as a sentence; empty if nothing is.

    >>> add = Tool("add", "", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    >>> objection(add, {"a": 1}), objection(add, {"a": "1"})
    ('', "The argument 'a' of add must be an integer, got '1'.")
    >>> objection(add, {"as": 1})
    "add has no parameter 'as'. Did you mean 'a'? It has: a."
    """
    for key, value in arguments.items():
        if key not in tool.names:
            has = f"It has: {', '.join(tool.names)}." if tool.names else "It has none."
            return f"{tool.name} has no parameter {key!r}.{meant(key, tool.names)} {has}"
        if not fits(value, schema := tool.parameters["properties"][key]):
            return f"The argument {key!r} of {tool.name} must be {wanted(schema)}, got {_short(value)}."
    if missing := [k for k in tool.parameters["required"] if k not in arguments]:
        return f"{tool.name} needs the argument {missing[0]!r}, which must be {_of(tool, missing[0])}."
    return ""


def _of(tool: Tool, name: str) -> str:
    return wanted(tool.parameters["properties"][name])


def meant(name: str, known: Sequence[str]) -> str:
    """The nearest names, as a sentence after a space; empty if none is near."""
    near = nearest(name, known)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def fits(value: object, schema: Schema) -> bool:
    """Whether a JSON value is of a schema."""
    if value is None:
        return bool(schema.get("nullable")) or not schema
    if "anyOf" in schema:
        return any(fits(value, s) for s in schema["anyOf"])
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, PYTHON[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, list) and "items" in schema:
        return all(fits(v, schema["items"]) for v in value)
    if isinstance(value, dict) and "additionalProperties" in schema:
        return all(fits(v, schema["additionalProperties"]) for v in value.values())
    return True


def wanted(schema: Schema) -> str:
    """A schema in words."""
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if "anyOf" in schema:
        return " or ".join(map(wanted, schema["anyOf"]))
    kind = schema.get("type", "anything")
    if kind == "array" and "items" in schema:
        return f"a list whose entries are each {wanted(schema['items'])}"
    words = {"array": "a list", "object": "an object", "integer": "an integer", "boolean": "true or false"}
    words |= {"number": "a number", "string": "a text"}
    return words.get(kind, str(kind)) + (" or null" if schema.get("nullable") else "")


def from_text(text: str, schema: Schema) -> Any:
    """What a text means as an argument: itself, or a number or truth value where that is asked for.

    >>> whole = {"type": "integer"}
    >>> from_text(" 3 ", whole), from_text("three", whole), from_text("3", {"type": "string"})
    (3, 'three', '3')
    """
    text = text.strip()
    readers: dict[str, Callable[[str], Any]] = {"integer": int, "number": float}
    if schema.get("type") == "boolean":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return readers.get(schema.get("type", ""), str)(text)
    except ValueError:
        return text


def _short(value: object, most: int = 80) -> str:
    shown = repr(value)
    return shown if len(shown) <= most else f"{shown[:most]}..."
