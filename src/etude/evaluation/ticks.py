"""Where the ticks of an axis stand, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

SMALLEST = 1e-300
"""What is no distance: of numbers below this the powers of ten are not exact, and then 0."""


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) at even distances that cover [low, high], about `count` of them.

    >>> ticks(0.03, 0.97)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if high - low <= max(1e-12 * max(abs(low), abs(high)), SMALLEST):
        pad = abs(low) * 0.1 if abs(low) > SMALLEST else 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def labels(values: Sequence[float]) -> list[str]:
    """How ticks are written: as many digits as tell them apart, thousands as k, M, G."""
    top = max(abs(v) for v in values)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if top >= limit:
            scale = limit if unit != "k" else 1e3
            return [f"{v / scale:.4g}{unit}" if v else "0" for v in values]
    if top < 1e-3:
        return [f"{v:.3g}" if v else "0" for v in values]
    gap = min((b - a for a, b in pairwise(values)), default=1.0)
    digits = next((d for d in range(7) if abs(round(gap, d) - gap) < gap * 1e-6), 6)
    return [f"{v:.{digits}f}" for v in values]


def number(value: float) -> str:
    """A number as people write it: 0.123, 12.3, 1,234, 4.5e-06."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 0.0995 or abs(value) >= 1 else f"{value:.3f}"
