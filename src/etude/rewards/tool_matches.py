"""Calls as ToolRL's grammar writes them, and how alike two lists of them are.

<think>...</think>
<tool_call>
{"name": "add", "parameters": {"a": 1}}
</tool_call>
<response>...</response>
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

OPEN, CLOSE = "<tool_call>", "</tool_call>"
Written: TypeAlias = Mapping[str, Any]
"""A call: `name`, and `parameters` by name."""


def calls_in(text: str) -> list[dict[str, Any]] | None:
    """The calls in a text, one JSON object per line between the tags; None if there are none that can be read.

    >>> calls_in('<tool_call>\\n{"name": "add", "parameters": {"a": 1}}\\n</tool_call>')
    [{'name': 'add', 'parameters': {'a': 1}}]
    >>> calls_in("<tool_call>\\n</tool_call>"), calls_in("no call")
    (None, None)
    """
    _, opened, rest = text.partition(OPEN)
    if not opened:
        return None
    try:
        found = [json.loads(line) for line in rest.partition(CLOSE)[0].strip().split("\n")]
    except (ValueError, RecursionError):
        return None
    whole = all(isinstance(c, dict) and "name" in c and isinstance(c.get("parameters"), dict) for c in found)
    return found if whole else None


def overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """J: sum of the smaller counts / (both lengths less that sum); 1 for two lists with the same entries.

    >>> overlap(["a", "a", "b"], ["a", "c"]), overlap([], []), overlap(["a"], [])
    (0.25, 1.0, 0.0)
    """
    both = sum((Counter(first) & Counter(second)).values())
    either = len(first) + len(second) - both
    return both / either if either else 1.0


def matched(gold: Sequence[Written], predicted: Sequence[Written]) -> list[float]:
    """What each call that was wanted finds among those that were made, each of which serves once.

    In order, each takes the call of its name that is left with the highest J(its keys) + how many of its values are
    equal; 0 where there is none.

    >>> gold = [{"name": "add", "parameters": {"a": 1, "b": 2}}]
    >>> matched(gold, [{"name": "add", "parameters": {"a": 1, "b": 3}}])
    [2.0]
    """
    left, found = list(predicted), []
    for call in gold:
        alike = [(_likeness(call, other), -i) for i, other in enumerate(left) if same_name(call, other)]
        best, place = max(alike, default=(0.0, 0))
        if best > 0:
            del left[-place]
        found.append(best)
    return found


def same_name(call: Written, other: Written) -> bool:
    """Whether two calls are of one tool."""
    return bool(call["name"] == other["name"])


def _likeness(call: Written, other: Written) -> float:
    wanted, given = call["parameters"], other["parameters"]
    equal = sum(k in given and given[k] == v for k, v in wanted.items())
    return float(overlap(list(wanted), list(given)) + equal)
