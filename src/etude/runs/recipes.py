"""Tables of a TOML file as dataclasses: what beds and presets are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import check

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Made = TypeVar("Made", bound="DataclassInstance")


def made(kind: type[Made], where: str, values: Mapping[str, Any]) -> Made:
    """A dataclass from a table of a recipe. Raises ConfigError for keys and values that do not fit."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a table, got {values!r}.")
    hints = get_type_hints(kind, include_extras=True)
    names = [f.name for f in fields(kind)]
    for key in values:
        if key not in names:
            raise UnknownNameError(f"key of {where}", key, names, f"There are: {', '.join(names)}.")
    simple = {
        k: v if is_dataclass(v) or isinstance(v, Mapping) else check(f"{where}: {k}", hints[k], v)
        for k, v in values.items()
    }
    try:
        return kind(**simple)
    except TypeError as error:
        raise ConfigError(f"{where} lacks a key: {error}.") from None
