"""Values as JSON that is the same values again: tuples stay tuples, and keys of dicts what they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TAG = "\0"
"""The only key of a dict that stands for something that JSON does not have."""


class Unpackable(Exception):
    """A value that is no plain data; the text says which, and where it is."""


def packed(value: Any, where: str) -> Any:
    """JSON values for text, numbers, None, and lists, tuples and dicts of them. Arrays of one number are numbers.

    Args:
        where: what the value is, for the message.

    Raises: Unpackable for anything else.

    >>> packed({"cell": (0, 1)}, "info")
    {'cell': {'\\x00': 'tuple', 'of': [0, 1]}}
    >>> unpacked(packed({"cell": (0, 1), 2: None}, "info"))
    {'cell': (0, 1), 2: None}
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        items = [packed(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if kind is list else {TAG: "tuple", "of": items}
    if isinstance(value, Mapping):
        pairs = {k: packed(v, f"{where}[{k!r}]") for k, v in value.items()}
        if TAG not in pairs and all(type(k) is str for k in pairs):
            return pairs
        return {TAG: "dict", "of": [[packed(k, f"a key of {where}"), v] for k, v in pairs.items()]}
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return packed(value.item(), where)
    for plain in (str, int, float):  # enumerations and the like
        if isinstance(value, plain):
            return plain(value)
    raise Unpackable(f"{where} is a {kind.__name__}")


def unpacked(value: Any) -> Any:
    """The value that `packed` made JSON of."""
    if isinstance(value, list):
        return [unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {k: unpacked(v) for k, v in value.items()}
    if value[TAG] == "tuple":
        return tuple(unpacked(item) for item in value["of"])
    return {unpacked(k): unpacked(v) for k, v in value["of"]}
