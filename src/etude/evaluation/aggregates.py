"""One number for many runs: aggregates over runs and tasks, and bringing tasks to one scale (arXiv:2108.13264)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.core.errors import ConfigError, DataError

Array = NDArray[np.float64]


def table(scores: ArrayLike) -> Array:
    """Scores as [..., N, M] in float64; [N] is one task. Raises DataError for empty or non-finite scores."""
    values = np.asarray(scores, float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim < 2 or values.size == 0:
        raise DataError(f"Scores must be [runs] or [runs, tasks] with at least one run, got shape {np.shape(scores)}.")
    if not np.isfinite(values).all():
        run, task = np.argwhere(~np.isfinite(values))[0][-2:]
        raise DataError(f"Scores must be finite; run {run} of task {task} is not. Leave that run out and say so.")
    return values


# Aggregates: [..., N, M] -> [...]; a plain [N] counts as one task


def mean(scores: ArrayLike) -> Array:
    """Mean over tasks of the mean over runs. [..., N, M] -> [...]."""
    found: Array = table(scores).mean((-2, -1))
    return found


def median(scores: ArrayLike) -> Array:
    """Median over tasks of each task's mean over runs. [..., N, M] -> [...].

    With one task that is the task's mean; for the middle run of a single task use `numpy.median`.
    """
    found: Array = np.median(table(scores).mean(-2), axis=-1)
    return found


def interquartile_mean(scores: ArrayLike) -> Array:
    """Mean of the middle half of all N * M scores: floor(N M / 4) are dropped at each end. [..., N, M] -> [...].

    Less noisy than the median, less moved by outliers than the mean.

    >>> float(interquartile_mean([1.0, 2.0, 3.0, 100.0]))
    2.5
    """
    pool = table(scores)
    pool = np.sort(pool.reshape(*pool.shape[:-2], -1), axis=-1)
    cut = pool.shape[-1] // 4
    found: Array = pool[..., cut : pool.shape[-1] - cut].mean(-1)
    return found


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> Array:
    """target - mean(min(score, target)): how far below the target, what lies above not counted. Lower is better."""
    found: Array = target - np.minimum(table(scores), target).mean((-2, -1))
    return found


# Bringing tasks to one scale


def relative_to(scores: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """(scores - low) / (high - low), per task: 0 is the level of `low` (a random policy), 1 that of `high` (a human).

    Raises ConfigError if a task's two levels are equal.
    """
    span = np.asarray(high, float) - np.asarray(low, float)
    if np.any(span == 0):
        raise ConfigError("relative_to: low and high must differ in every task, else there is no scale between them.")
    found: Array = (np.asarray(scores, float) - np.asarray(low, float)) / span
    return found


def min_max(*arms: ArrayLike) -> list[Array]:
    """Each arm's scores [N, M] relative to the lowest and highest of all arms, per task; a constant task becomes 0."""
    tables = [table(arm) for arm in arms]
    low = np.min([t.min(0) for t in tables], axis=0)
    span = np.max([t.max(0) for t in tables], axis=0) - low
    return [(t - low) / np.where(span == 0, 1, span) for t in tables]
