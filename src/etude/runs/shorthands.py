"""Fields of a task with names of their own: `--chat never` is `--set task.chat=never`, in files and Python too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from etude.core.errors import UnknownNameError

FIELDS = {
    "columns": "columns", "answer": "extractor", "skip_bad_rows": "skip_bad_rows", "chat": "chat", "system": "system",
    "template_arguments": "template_arguments", "stream": "stream", "data": "data",
    "heldout": "heldout", "tools": "tools.functions",
}  # fmt: skip
"""The field that each name stands for."""
PARTS = {"tools": "task.tools=tool-calls"}
"""What fills the slot that such a field is in."""
NAMES = tuple(FIELDS)


def taken(told: MutableMapping[str, Any]) -> list[str]:
    """The assignments that these names stand for, taken out of what a run was told.

    >>> told = {"chat": "never", "columns": {"prompt": "question"}, "steps": 3}
    >>> taken(told), told
    (['task.columns=prompt=question', 'task.chat=never'], {'steps': 3})
    """
    given = {name: told.pop(name) for name in NAMES if name in told}
    said = {name: value for name, value in given.items() if value not in (None, False, (), [], {})}
    fields = [[*_before(name), f"task.{FIELDS[name]}={text(value)}"] for name, value in said.items()]
    return [assignment for each in fields for assignment in each]


def _before(name: str) -> list[str]:
    return [PARTS[name]] if name in PARTS else []


def alone(told: Mapping[str, Any]) -> list[str]:
    """The same of names that can be no others. Raises UnknownNameError, with the nearest, for one that is none.

    >>> alone({"answer": "boxed"})
    ['task.extractor=boxed']
    """
    for name in told:
        if name not in FIELDS:
            raise UnknownNameError("option", name, NAMES)
    return taken(dict(told))


def no_field(task: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """That a task has no field of this name: with the nearest, or with the flag that stands for it.

    >>> print(no_field("compose", "extractor", ["levels"]))
    There is no field of task compose named 'extractor'. --answer sets it, which means nothing here: leave it out.
    """
    flags = {field.partition(".")[0]: f"--{flag.replace('_', '-')}" for flag, field in FIELDS.items()}
    if name in flags:
        known, hint = (), f"{flags[name]} sets it, which means nothing here: leave it out."
    else:
        known = list(known)
        hint = f"It has: {', '.join(known)}." if known else ""
    return UnknownNameError(f"field of task {task}", name, known, hint)


def text(value: object) -> str:
    """A value as the command line has it.

    >>> text({"enable_thinking": False}), text(["prompt=question", "answer=label"]), text(True)
    ('enable_thinking=false', 'prompt=question,answer=label', 'true')
    """
    if isinstance(value, Mapping):
        value = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        items = [str(v) for v in value]
        return json.dumps(items) if any("," in item for item in items) else ",".join(items)
    return json.dumps(value) if isinstance(value, bool) else str(value)
