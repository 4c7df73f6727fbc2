"""Whether two formulas are the same. Runs in a worker process (`answers.py` starts it), which a formula may hang."""

from __future__ import annotations

from math_verify import parse, verify


def same(given: str, wanted: str) -> bool:
    """What math-verify says of two formulas in LaTeX."""
    return bool(verify(parse(_latex(wanted)), parse(_latex(given))))


def _latex(text: str) -> str:
    return text if "$" in text else f"${text}$"
