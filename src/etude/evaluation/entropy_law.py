"""What a step does to a softmax policy's entropy, and how far a score goes until none is left (arXiv:2505.22617)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def predicted_change(logits: Tensor, change: Tensor) -> Tensor:
    """H(softmax(z + d)) - H(softmax(z)) to first order: -Cov_{a ~ pi}(log pi(a), d(a)) (theorem 1).

    A policy gradient of rate eta has d = eta pi A (A centred under pi), a natural one d = eta A.

    Shapes: logits z and their change d [..., V] -> [...], in nats.

    >>> import torch
    >>> z, d = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.0, 1e-4], dtype=torch.float64)
    >>> def entropy(x): return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)
    >>> round(float((entropy(z + d) - entropy(z)) / predicted_change(z, d)), 3)
    1.0
    """
    logp = logits.log_softmax(-1)
    p = logp.exp()
    mean_logp, mean_change = (p * logp).sum(-1, keepdim=True), (p * change).sum(-1, keepdim=True)
    return -(p * (logp - mean_logp) * (change - mean_change)).sum(-1)


class Drift(NamedTuple):
    """How entropy changed from step to step, and what the law says of it with a rate eta that fits best.

    Args:
        eta: the rate; of a natural policy gradient on a table it is the step's own.
        explained: share of the squared changes that the law leaves nothing of; below 0 where it only adds to them.
        measured, predicted: H_{k+1} - H_k, and -eta Cov_k(log pi, A), in nats.
    """

    eta: float
    explained: float
    measured: list[float]
    predicted: list[float]


def drift(entropies: Sequence[float], covariances: Sequence[float]) -> Drift:
    """Least squares of H_{k+1} - H_k = -eta Cov_k(log pi, A), a line through 0, over the course of a run (theorem 2).

    Args:
        entropies, covariances: of the policy at the same steps, [n] each.

    Raises: ValueError with fewer than two steps, or where every covariance but the last is 0.

    >>> found = drift([1.0, 0.8, 0.7], [0.4, 0.2, 9.0])
    >>> round(found.eta, 6), round(found.explained, 6), [round(x, 6) for x in found.predicted]
    (0.5, 1.0, [-0.2, -0.1])
    """
    measured, against = np.diff(np.asarray(entropies, float)), np.asarray(covariances, float)[:-1]
    if not against.any():
        raise ValueError(f"The law of entropy takes covariances that are not all 0, got {list(covariances)}.")
    eta = -float(measured @ against) / float(against @ against)
    predicted = -eta * against
    rest, whole = np.sum((measured - predicted) ** 2), np.sum(measured**2)
    return Drift(eta, 1.0 if whole == 0 else float(1 - rest / whole), measured.tolist(), predicted.tolist())


class Exhaustion(NamedTuple):
    """The fit R = -a exp(H) + b of scores by entropies, and what it says.

    Args:
        a, b: its parameters.
        r_squared: share of the scores' variance that it explains.
        residual: root of the mean squared difference of a score and its fit.
    """

    a: float
    b: float
    r_squared: float
    residual: float

    @property
    def ceiling(self) -> float:
        """The score at H = 0, where nothing is left to trade: b - a."""
        return self.b - self.a

    def at(self, entropy: float) -> float:
        """The score that it foresees at an entropy."""
        return self.b - self.a * math.exp(entropy)


def exhaustion(entropies: Sequence[float], scores: Sequence[float]) -> Exhaustion:
    """Least squares of R = -a exp(H) + b over the course of a run (section 2.4).

    Args:
        entropies: mean entropy of the policy, nats per token; scores: at the same steps, [n] each.

    Raises: ValueError with fewer than three points, or where all entropies are equal.

    >>> fit = exhaustion([0.0, 0.5, 1.0], [0.8, 1 - 0.2 * 2.718281828**0.5, 1 - 0.2 * 2.718281828])
    >>> [round(x, 6) for x in (fit.a, fit.b, fit.ceiling, fit.at(0.5), fit.r_squared, fit.residual)]
    [0.2, 1.0, 0.8, 0.670256, 1.0, 0.0]
    """
    x, y = np.exp(np.asarray(entropies, float)), np.asarray(scores, float)
    if len(x) < 3 or np.ptp(x) == 0:
        raise ValueError(
            f"A fit of R = -a exp(H) + b takes three or more entropies that differ, got {list(entropies)}."
        )
    slope, b = np.polyfit(x, y, 1)
    rest, whole = np.sum((y - slope * x - b) ** 2), np.sum((y - y.mean()) ** 2)
    explained = 1.0 if whole == 0 else float(1 - rest / whole)
    return Exhaustion(float(-slope), float(b), explained, float(np.sqrt(rest / len(x))))
