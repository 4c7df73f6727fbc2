"""Arithmetic for a policy that cannot do it."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "round": round, "min": min, "max": max, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "floor": math.floor, "ceil": math.ceil, "gcd": math.gcd,
    "factorial": math.factorial,
}  # fmt: skip
NAMES = {"pi": math.pi, "e": math.e}
LARGEST = 4_000
"""Bits of an integer."""


def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: numbers, + - * / // % ** and brackets, sqrt, log, sin and the like, as in (3 + 4) * sqrt(2).

    >>> calculator("(3 + 4) * 6"), calculator("1/3"), calculator("2^10"), calculator("max(1, 2.50)")
    ('42', '0.333333333333333', '1024', '2.5')
    """
    try:
        parsed = ast.parse(expression.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is no arithmetic expression") from None
    value = _value(parsed)
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=bool() | str() | bytes() | complex() | None):
            pass
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left, op, right) if type(op) in BINARY:
            return _small(type(op), _value(left), _value(right))
        case ast.UnaryOp(op, operand) if type(op) in UNARY:
            return UNARY[type(op)](_value(operand))
        case ast.Name(name) if name in NAMES:
            return NAMES[name]
        case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
            values = [_value(a) for a in arguments]
            if name == "factorial" and values and values[0] > 500:
                raise ValueError("the result is too large")
            return FUNCTIONS[name](*values)
    raise ValueError(f"{ast.unparse(node)} is no arithmetic")


def _small(kind: type, left: Any, right: Any) -> Any:
    """The result of an operation. Raises ValueError for one that is too large, or is no real number."""
    whole = isinstance(left, int) and isinstance(right, int)
    if kind is ast.Pow and whole and abs(left) > 1 and right * left.bit_length() > LARGEST:
        raise ValueError("the result is too large")
    if kind is ast.Mult and whole and left.bit_length() + right.bit_length() > LARGEST:
        raise ValueError("the result is too large")
    result = BINARY[kind](left, right)
    if isinstance(result, complex):
        raise ValueError("the result is no real number")
    return result
