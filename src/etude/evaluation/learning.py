"""A learning curve as two numbers: where it is going, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from etude.core.errors import DataError

FASTEST, SLOWEST = 20.0, 0.05
"""Rates that are looked at, in units of one over the whole budget: outside, a curve is a step or a straight line."""


@dataclass(frozen=True)
class Fitted:
    """score(t) = start + (ceiling - start) (1 - exp(-rate t / budget)), fitted by least squares.

    Args:
        start: the measured score at 0.
        ceiling: what it comes near to, within the bounds of the score.
        rate: 1 means that after the budget 1 - 1/e of the way is gone; dimensionless.
        residual: root of the mean squared difference to what was measured.
    """

    start: float
    ceiling: float
    rate: float
    residual: float


def fit_curve(at: ArrayLike, scores: ArrayLike, bounds: tuple[float | None, float | None] = (None, None)) -> Fitted:
    """Fit a curve that saturates, through its first point.

    For a given rate the best ceiling is linear least squares, cut to the bounds; the rate is searched.

    Args:
        at: [points], from 0 to the budget, in any unit.
        scores: [points].
        bounds: floor and ceiling of the score.

    Raises: DataError for fewer than three points, scores that are not finite, or steps that do not grow from 0.

    >>> t = np.linspace(0, 10, 6)
    >>> found = fit_curve(t, 0.2 + 0.6 * (1 - np.exp(-3 * t / 10)), (0.0, 1.0))
    >>> round(found.ceiling, 3), round(found.rate, 3)
    (0.8, 3.0)
    """
    from scipy.optimize import minimize_scalar

    x, y = np.asarray(at, float), np.asarray(scores, float)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 3 or not np.isfinite(y).all():
        raise DataError(f"A learning curve needs three or more finite scores, a step for each, got {y.tolist()}.")
    if x[0] != 0 or (np.diff(x) <= 0).any():
        raise DataError(f"The steps of a learning curve must grow from 0, got {x.tolist()}.")
    t, gain = x / x[-1], y - y[0]
    low, high = (-np.inf if bounds[0] is None else bounds[0]), (np.inf if bounds[1] is None else bounds[1])

    def ceiling(rate: float) -> float:
        shape = 1 - np.exp(-rate * t)
        return float(np.clip(y[0] + shape @ gain / (shape @ shape), low, high))

    def squared(log_rate: float) -> float:
        rate = float(np.exp(log_rate))
        return float(np.mean((gain - (ceiling(rate) - y[0]) * (1 - np.exp(-rate * t))) ** 2))

    grid = np.linspace(np.log(SLOWEST), np.log(FASTEST), 41)
    best = int(np.argmin([squared(g) for g in grid]))  # the loss may have two valleys where the ceiling is cut
    ends = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(squared, bounds=ends, method="bounded", options={"xatol": 1e-7})
    rate = float(np.exp(found.x))
    return Fitted(float(y[0]), ceiling(rate), rate, float(np.sqrt(found.fun)))
