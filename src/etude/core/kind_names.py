"""Kinds of method by name: those that there are, whose slots are whose, and what a method's JSON was written as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod
from etude.core.method import Method
from etude.core.part import to_json
from etude.core.recipe import Recipe

KINDS: dict[str, type[Method]] = {kind.__name__: kind for kind in (TokenMethod, RolloutMethod, ReplayMethod, Recipe)}


def all_slots() -> dict[str, tuple[type[Method], ...]]:
    """Every slot, with the kinds that have it."""
    names = dict.fromkeys(name for kind in KINDS.values() for name in kind.slot_names())
    return {name: tuple(k for k in KINDS.values() if name in k.slot_names()) for name in names}


def kind_class(name: str) -> type[Method]:
    """The kind called `name` ('TokenMethod', or 'my_module:MyMethod'). Raises UnknownNameError."""
    if ":" in name:
        from etude.core.registry import load_class

        return load_class(name, Method, "a kind of Method")
    if name not in KINDS:
        raise UnknownNameError("kind of method", name, KINDS)
    return KINDS[name]


def read(data: Mapping[str, Any]) -> tuple[type[Method], dict[str, Any]]:
    """The kind and the values of a method's JSON.

    Before there were kinds, a method had all slots; one that held a policy was for control. Slots that its kind does
    not read are left out if they were at their default. Raises ConfigError if one was set.
    """
    values = dict(data)
    values.pop("preset", None)  # what a run began with: its settings are among the others
    name = values.pop("type", None)
    if name is not None:
        return kind_class(name), values
    cls = KINDS["RolloutMethod" if values.get("policy") else "TokenMethod"]
    values["row"] = values.pop("kind", "method")
    values.pop("on_control", None)
    if cls is RolloutMethod:
        values.pop("problems", None)  # came from the parent's tokens
    for slot, kinds in all_slots().items():
        if cls not in kinds and slot in values:
            default = to_json(kinds[0].__dataclass_fields__[slot].default)
            if (value := values.pop(slot)) != default:
                raise ConfigError(f"{values['id']} has {slot} = {value}, which a {cls.__name__} does not have.")
    return cls, values
