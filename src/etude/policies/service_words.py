"""Services with names of two or three tokens, many of which begin alike: family `services` of `word_tokenizer.py`."""

from __future__ import annotations

from typing import NamedTuple


class Service(NamedTuple):
    """What a service takes and returns.

    Args:
        needs: parameters that every call has; a parameter is called as the type of its values.
        may: parameters that a call may have besides.
        returns: the type of what it answers with; '' for one that only does something.
    """

    needs: tuple[str, ...]
    may: tuple[str, ...] = ()
    returns: str = ""


SERVICES: dict[tuple[str, ...], Service] = {
    ("get", "_user", "_age"): Service(("person",), (), "number"),
    ("get", "_user", "_city"): Service(("person",), ("day",), "city"),
    ("get", "_user", "_boss"): Service(("person",), (), "person"),
    ("get", "_item", "_price"): Service(("item",), ("city", "day"), "number"),
    ("get", "_item", "_city"): Service(("item",), (), "city"),
    ("get", "_item", "_owner"): Service(("item",), ("day",), "person"),
    ("set", "_user", "_age"): Service(("person", "number")),
    ("set", "_user", "_city"): Service(("person", "city"), ("day",)),
    ("set", "_item", "_price"): Service(("item", "number"), ("city",)),
    ("set", "_item", "_city"): Service(("item", "city")),
    ("set", "_item", "_owner"): Service(("item", "person"), ("day",)),
    ("find", "_user"): Service(("city",), ("number",), "person"),
    ("find", "_user", "_item"): Service(("person",), (), "item"),
    ("find", "_item"): Service(("city",), ("number",), "item"),
    ("book", "_trip"): Service(("person", "city"), ("day",)),
    ("book", "_trip", "_hotel"): Service(("person", "city", "number"), ("day",)),
    ("book", "_trip", "_train"): Service(("person", "day"), ("city",)),
    ("book", "_item"): Service(("person", "item"), ("day",)),
    ("cancel", "_trip"): Service(("person",), ("day",)),
    ("cancel", "_trip", "_hotel"): Service(("person", "city")),
    ("cancel", "_item"): Service(("person", "item")),
    ("count", "_trip"): Service(("city",), ("day",), "number"),
    ("count", "_item"): Service(("city",), (), "number"),
    ("count", "_user"): Service(("city",), (), "number"),
}
"""By the tokens of its name."""
VERBS = {"get": "tell", "set": "change", "find": "seek", "book": "reserve", "cancel": "drop", "count": "sum"}
"""How a request asks for what a name begins with."""
PARTS = tuple(dict.fromkeys(part for name in SERVICES for part in name))
NOUNS = tuple(part[1:] for part in PARTS if part.startswith("_"))
REPLIES = ("ok", "that", "error:", "unknown", "unexpected", "missing", "tool", "argument")
