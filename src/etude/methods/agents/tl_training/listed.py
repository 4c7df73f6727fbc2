"""Which tools a problem lists, and what parameters they have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from etude.core.episodes import Problem

Signatures = Mapping[str, Collection[str]]
"""Parameters of every tool that is listed, by its name."""


def listed(problem: Problem) -> Signatures | None:
    """The tools of a problem; None if nothing says which there are.

    `info["signatures"]` has them as they are. Else they are the JSON schemas that the chat template is given (`tools`
    in data files): a name and `parameters` with `properties`, by themselves or as the `function` of an object.

    >>> schema = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {}, "b": {}}}}}
    >>> listed(Problem("1", "?", info={"template_arguments": {"tools": [schema, {"name": "now"}]}}))
    {'add': ['a', 'b'], 'now': []}
    """
    given = problem.info.get("signatures")
    if isinstance(given, Mapping):
        return given
    arguments = problem.info.get("template_arguments")
    schemas = arguments.get("tools") if isinstance(arguments, Mapping) else None
    if not schemas:
        return None
    functions: list[Any] = [schema.get("function", schema) for schema in schemas]
    if not all(isinstance(f, Mapping) and isinstance(f.get("name"), str) for f in functions):
        return None
    return {f["name"]: [*((f.get("parameters") or {}).get("properties") or {})] for f in functions}
