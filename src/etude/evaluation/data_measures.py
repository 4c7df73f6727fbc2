"""What a data set can support, in numbers: how good its episodes are, how much they cover, how many of them count.

TQ and SACo are those of "A Dataset Perspective on Offline Reinforcement Learning" (arXiv:2111.04714, section 3). Unique
pairs are counted exactly, in memory, and not estimated by HyperLogLog as there where sets are large; the entropy of a
cloned behaviour and how sparse rewards are, which it reports besides, are not printed here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.core.errors import ConfigError
from etude.evaluation.off_policy.importance import effective_sample_size

BINS = 100
"""Equal parts of every dimension between the limits of the reference, in which continuous states and actions fall."""
TEMPERATURE = 0.1
"""Of weights by return, returns going from 0 to 1 (arXiv:2306.13085)."""


def trajectory_quality(mean: float, worst: float, best: float) -> float:
    """TQ = (g - g_min) / (g_max - g_min), g the mean return of data, of that of chance, and of the best policy's.

    Raises: ConfigError if the best data are no better than the worst.

    >>> trajectory_quality(-500.0, -1200.0, -200.0)
    0.7
    """
    if best <= worst:
        raise ConfigError(f"The best data must earn more than the worst, got {best:g} and {worst:g}.")
    return (mean - worst) / (best - worst)


def gym_score(value: float, least: float, mean: float, most: float) -> float:
    """LMRL Gym's score of a return: 0 at the least one, 50 at the data's mean, 100 at the highest, linear between.

    Beyond its ends it goes on as it did before (arXiv:2311.18232, section 5).

    Raises: ConfigError unless least < mean < most.

    >>> [gym_score(g, -16.0, -12.0, 0.0) for g in (-16.0, -14.0, -12.0, -6.0, 0.0)]
    [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    if not least < mean < most:
        raise ConfigError(f"The data's mean must lie between the least and the highest, got {least}, {mean}, {most}.")
    if value <= mean:
        return 50 * (value - least) / (mean - least)
    return 50 + 50 * (value - mean) / (most - mean)


def pairs(observations: NDArray[Any], actions: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """[u, D + A] the unique pairs of what was seen [N, D] and done [N, A], every dimension cut into a hundred parts.

    Args:
        low, high: [D + A] the limits of the reference; what lies outside falls into the outermost part.

    >>> one = np.array([[0.0], [0.001], [1.0]])
    >>> len(pairs(one, np.zeros((3, 1)), np.zeros(2), np.ones(2)))
    2
    """
    both = np.concatenate([observations, actions], 1)
    wide = np.where(high > low, high - low, 1.0)
    cells = np.clip(np.floor((both - low) / wide * BINS), 0, BINS - 1).astype(np.int16)
    return np.unique(cells, axis=0)


def limits(observations: NDArray[Any], actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """[D + A] least and largest of every dimension."""
    both = np.concatenate([observations, actions], 1)
    return both.min(0), both.max(0)


def positive_sided_variance(returns: NDArray[Any]) -> float:
    """PSV = mean max(G - mean G, 0)^2, returns going from 0 to 1: how far good episodes are above the usual ones.

    Where it is near 0 there is nothing in the data to prefer, and imitation is as good as any method
    (arXiv:2306.13085, section 4.1).

    >>> positive_sided_variance(np.array([0.0, 0.0, 0.0, 4.0])), positive_sided_variance(np.ones(3))
    (0.140625, 0.0)
    """
    scaled = _scaled(returns)
    return float((np.maximum(scaled - scaled.mean(), 0) ** 2).mean())


def effective_episodes(returns: NDArray[Any]) -> float:
    """As how many episodes those of a data set count once they are weighted by exp(G / 0.1), G going from 0 to 1.

    How many good episodes there are to learn from; all of them where all earn the same.

    >>> effective_episodes(np.ones(4)), round(effective_episodes(np.array([0.0, 0.0, 1.0])), 3)
    (4.0, 1.0)
    """
    return effective_sample_size(np.exp((_scaled(returns) - 1) / TEMPERATURE))


def _scaled(returns: NDArray[Any]) -> NDArray[Any]:
    """From 0 to 1; all 0 where they are equal."""
    span = np.ptp(returns)
    found: NDArray[Any] = (returns - returns.min()) / (span if span > 0 else 1.0)
    return found


def histogram(values: NDArray[Any], bins: int = 10) -> tuple[list[int], list[float]]:
    """Counts, and the edges between which they are, one more."""
    counts, edges = np.histogram(values, bins if np.ptp(values) > 0 else 1)
    return counts.tolist(), edges.tolist()
