"""Importance sampling: what others earned, weighted by how much likelier the policy is to do what they did.

With the weights w_t = prod_{k <= t} pi(a_k|s_k) / mu(a_k|s_k) of an episode up to step t, all estimates are of the
discounted return of the first T steps, T being the longest episode of the logs. An episode that ended for good earns 0
from there on and keeps its weight; one that a limit stopped earlier is left out of the steps that nobody saw.
"""

from __future__ import annotations

import numpy as np

from etude.evaluation.off_policy.episodes import Episodes, Estimate, Numbers, student

LARGEST = 300.0
"""Logarithm of the largest weight: numbers beyond have no place in float64."""


def cumulative_weights(episodes: Episodes, log_ratios: Numbers) -> Numbers:
    """w_t [E, T] of log pi(a|s) - log mu(a|s) [N]; beyond an end the last one.

    >>> from types import SimpleNamespace as Two
    >>> two = Two(rows=np.array([[0, 1], [2, 2]]), there=np.array([[True, True], [True, False]]))
    >>> cumulative_weights(two, np.log([2.0, 2.0, 0.5])).round(9).tolist()
    [[2.0, 4.0], [0.5, 0.5]]
    """
    each = np.where(episodes.there, log_ratios[episodes.rows], 0.0)
    found: Numbers = np.exp(np.minimum(np.cumsum(each, 1), LARGEST))
    return found


def effective_sample_size(weights: Numbers) -> float:
    """(sum w)^2 / sum w^2 of weights [E]: as how many equal ones they count (Kish 1965); 0 where all are 0.

    >>> effective_sample_size(np.array([1.0, 1.0, 0.0])), effective_sample_size(np.zeros(3))
    (2.0, 0.0)
    """
    largest = weights.max()
    if largest == 0:
        return 0.0
    part = weights / largest
    return float(part.sum() ** 2 / (part**2).sum())


def per_decision(episodes: Episodes, weights: Numbers, gamma: float) -> Estimate:
    """sum_t gamma^t mean_i w_it r_it: every reward weighted by what led to it (Precup et al. 2000).

    Without bias where mu is right, and of a variance that grows exponentially with T.

    Shapes: weights [E, T].
    """
    return _mean(episodes, weights, episodes.known.astype(np.float64), gamma)


def weighted_per_decision(episodes: Episodes, weights: Numbers, gamma: float) -> Estimate:
    """sum_t gamma^t sum_i w_it r_it / sum_i w_it: the weights of a step add up to 1 (Precup et al. 2000).

    Biased towards what the logs earned, and of far less variance. Its interval is that of its linearisation.

    Shapes: weights [E, T].
    """
    return _mean(episodes, weights, weights * episodes.known, gamma)


def _mean(episodes: Episodes, weights: Numbers, share: Numbers, gamma: float) -> Estimate:
    """sum_t gamma^t sum_i w_it r_it / sum_i share_it, [E, T] each, with what every episode adds to it."""
    discounts = gamma ** np.arange(episodes.horizon)
    earned = weights * episodes.rewards
    total = share.sum(0)
    total[total == 0] = 1.0  # nobody was there, and nothing is earned
    means = earned.sum(0) / total
    each = ((earned - share * means) * (discounts * episodes.count / total)).sum(1)
    return student(float((discounts * means).sum()), each, effective_sample_size(weights[:, -1]))


def doubly_robust(
    episodes: Episodes, weights: Numbers, gamma: float, q: Numbers, value: Numbers, following: Numbers
) -> Numbers:
    """V(s_0) + sum_t gamma^t w_t (r_t + gamma V(s_{t+1}) - Q(s_t, a_t)) of each episode (arXiv:1511.03722), [E].

    Their mean is right where either the weights or Q are. With Q = 0 it is that of `per_decision`, unless limits cut
    episodes early. How far it may be off: `FittedQ.doubly_robust`.

    Args:
        q, value: Q(s_t, a_t) and V(s_t). following: V(s_{t+1}), 0 where nothing follows.

    Shapes: all [E, T]; what stands beyond an end is not read.
    """
    discounts = gamma ** np.arange(episodes.horizon)
    errors = np.where(episodes.there, episodes.rewards + gamma * following - q, 0.0)
    found: Numbers = value[:, 0] + (discounts * weights * errors).sum(1)
    return found
