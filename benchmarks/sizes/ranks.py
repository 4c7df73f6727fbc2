"""Whether what is larger here is larger there: rank correlation of effects, with an interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from etude.core.errors import DataError
from etude.evaluation.intervals import Interval, Randomness, generator

Array = NDArray[np.float64]
LEAST = 4
"""Effects below which an order says nothing: of three, one order in six is the same by chance."""
RESAMPLES, LEVEL = 4000, 0.95


def spearman(x: ArrayLike, y: ArrayLike) -> Array:
    """Pearson's correlation of ranks, ties having their mean rank (Spearman 1904).

    Shapes: [..., m] both; returns [...], NaN where all of a side are equal.
    """
    a, b = (rankdata(side, axis=-1) for side in (x, y))
    a, b = (side - side.mean(-1, keepdims=True) for side in (a, b))
    return _over((a * b).sum(-1), (a * a).sum(-1), (b * b).sum(-1))


def kendall(x: ArrayLike, y: ArrayLike) -> Array:
    """tau-b: pairs that are ordered alike less those that are not, ties accounted for (Kendall 1945).

        tau = sum_ij s_ij t_ij / sqrt(sum_ij s_ij^2 sum_ij t_ij^2),    s_ij = sign(x_i - x_j),  t_ij = sign(y_i - y_j)

    Shapes: [..., m] both; returns [...], NaN where all of a side are equal.
    """
    s, t = (np.sign(side[..., :, None] - side[..., None, :]) for side in (np.asarray(x, float), np.asarray(y, float)))
    return _over((s * t).sum((-2, -1)), (s * s).sum((-2, -1)), (t * t).sum((-2, -1)))


def _over(product: Array, x: Array, y: Array) -> Array:
    scale = np.sqrt(x * y)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(scale > 0, product / np.where(scale > 0, scale, 1.0), np.nan))


class Agreement(NamedTuple):
    """Rank correlations of the same effects at two sizes."""

    spearman: Interval
    kendall: Interval


def agreement(
    x: ArrayLike, y: ArrayLike, *, resamples: int = RESAMPLES, level: float = LEVEL, rng: Randomness = 0
) -> Agreement:
    """Rank correlations of mean effects, with percentile bootstrap intervals.

    Drawn anew, with replacement, are the methods, as other ones would do, and the seeds of each size. The seeds of a
    size are the same for all of its methods, since their pairs share the baseline.

    Args:
        x: [m, n], effects of m methods with n seeds at one size.
        y: [m, k], of the same methods at another.
        rng: a seed; the same one gives the same intervals.

    Raises: DataError for other shapes, for fewer than four methods, and where all effects of a size are equal.
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    if a.ndim != 2 or b.ndim != 2 or len(a) != len(b) or not a.size or not b.size:
        raise DataError(
            f"Effects must be [methods, seeds], of the same methods at both sizes, got {a.shape}, {b.shape}."
        )
    if len(a) < LEAST:
        raise DataError(f"A rank correlation wants at least {LEAST} effects that both sizes have, got {len(a)}.")
    for side in (a, b):
        if np.ptp(side.mean(1)) == 0:
            raise DataError("All effects of a size are equal: they have no order to be compared.")
    random = generator(rng)
    methods = random.integers(0, len(a), (resamples, len(a)))
    drawn = [np.take_along_axis(_resampled(side, resamples, random), methods, 1) for side in (a, b)]
    found = [_interval(measure, (a.mean(1), b.mean(1)), drawn, level) for measure in (spearman, kendall)]
    return Agreement(*found)


def _resampled(effects: Array, resamples: int, random: np.random.Generator) -> Array:
    """[resamples, m], mean effects over seeds that are drawn anew."""
    seeds = random.integers(0, effects.shape[1], (resamples, effects.shape[1]))
    return np.asarray(effects[:, seeds].mean(-1).T)


def _interval(
    measure: Callable[[ArrayLike, ArrayLike], Array], means: tuple[Array, Array], drawn: list[Array], level: float
) -> Interval:
    found = measure(*drawn)
    low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(measure(*means)), float(low), float(high), level)


def repeated(effects: ArrayLike, *, resamples: int = RESAMPLES, rng: Randomness = 0) -> float:
    """The rank correlation to be expected of a size with itself, done again with as many other seeds.

    Effects are taken to be what was measured, and each repetition to err normally, with the covariance of their means
    (what the seeds of a baseline do to all effects alike moves none past another). No size can be expected to agree
    better with another one than with itself.

    Args:
        effects: [m, n], of m methods with the same n seeds, two or more.

    Raises: DataError for fewer than two seeds.
    """
    found = np.asarray(effects, float)
    if found.ndim != 2 or found.shape[1] < 2:
        raise DataError(
            f"How much effects vary between seeds wants two seeds of each, got [methods, seeds] {found.shape}."
        )
    mean, seeds = found.mean(1), found.shape[1]
    errors = (found - mean[:, None]) / np.sqrt(seeds * (seeds - 1))  # E[(e z)(e z)^T] is the covariance of the mean
    draws = generator(rng).standard_normal((2, resamples, seeds))
    return float(np.nanmean(spearman(*(mean + draws @ errors.T))))
