"""What a field may hold, declared once on the field.

The check, the error sentence, the documentation and the command line all read the same annotation:

>>> check("ClippedSurrogate.low", Fraction, 0.2)
0.2
>>> check("ClippedSurrogate.low", Fraction, 1.5)
Traceback (most recent call last):
...
etude.core.errors.ConfigError: ClippedSurrogate.low must be a number in (0, 1), got 1.5.
"""

from __future__ import annotations

import json
import types
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt

from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(gt=0, lt=1)]
Probability = Annotated[float, Interval(ge=0, le=1)]
PositiveProbability = Annotated[float, Interval(gt=0, le=1)]
Count = Annotated[int, Ge(1)]
WholeNumber = Annotated[int, Ge(0)]


def check(where: str, hint: object, value: object) -> Any:
    """`value` if it is what `hint` allows (an int is a float, a list is a tuple); else a ConfigError."""
    from pydantic import ValidationError

    try:
        return _adapter(hint).validate_python(tuple(value) if isinstance(value, list) else value, strict=True)
    except ValidationError:
        raise ConfigError(f"{where} must be {describe(hint)}, got {value!r}.") from None


def parse(where: str, hint: object, text: str) -> Any:
    """Read a field from the text of a command line, with the same checks."""
    from pydantic import ValidationError

    if text.lower() in ("none", "null") and type(None) in get_args(hint):
        return None
    values = [*_literals(text), text]
    if get_origin(hint) is tuple:  # a lone value is a list of one
        values += [(value,) for value in values]
    for value in values:
        try:
            return _adapter(hint).validate_python(value, strict=True)
        except ValidationError:
            continue
    raise ConfigError(f"{where} must be {describe(hint)}, got {text!r}.")


def _literals(text: str) -> list[Any]:
    """What the text means as JSON, or as a comma-separated tuple."""
    try:
        value = json.loads({"True": "true", "False": "false"}.get(text, text))
    except ValueError:
        if "," not in text:
            return []
        value = [v for part in text.split(",") for v in (_literals(part.strip()) or [part.strip()])[:1]]
    return [_tuples(value)]


def _tuples(value: Any) -> Any:
    """A list of JSON as a tuple, and those in it."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))


def describe(hint: object) -> str:
    """The hint as the middle of a sentence: 'a number in (0, 1)', 'one of 'k1', 'k3''."""
    origin = get_origin(hint)
    if origin is Annotated:
        base, *limits = get_args(hint)
        return describe(base) + "".join(_range(limit) for limit in limits)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(a) for a in get_args(hint))
    if origin is tuple:
        return f"a list, each item {describe(get_args(hint)[0])}"
    names: dict[object, str] = {
        float: "a number", int: "a whole number", str: "text", bool: "true or false", type(None): "none"
    }  # fmt: skip
    return names.get(hint) or str(getattr(hint, "__name__", hint))


def _range(limit: object) -> str:
    low, high = getattr(limit, "gt", None), getattr(limit, "lt", None)
    low_closed, high_closed = getattr(limit, "ge", None), getattr(limit, "le", None)
    match (low, low_closed, high, high_closed):
        case (None, None, None, None):
            return ""
        case (a, None, None, None):
            return f" above {a}"
        case (None, a, None, None):
            return f" of at least {a}"
        case (None, None, b, None):
            return f" below {b}"
        case (None, None, None, b):
            return f" of at most {b}"
    left = f"({low}" if low is not None else f"[{low_closed}"
    right = f"{high})" if high is not None else f"{high_closed}]"
    return f" in {left}, {right}"


__all__ = [
    "Count", "Fraction", "Ge", "Gt", "Interval", "Le", "Lt", "NonNegative", "Positive", "PositiveProbability",
    "Probability", "WholeNumber", "check", "describe", "parse",
]  # fmt: skip
