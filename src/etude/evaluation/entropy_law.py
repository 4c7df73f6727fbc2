"""What a step does to a softmax policy's entropy, and how far a score goes until none is left (arXiv:2505.22617)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
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


class Exhaustion(NamedTuple):
    """The fit R = -a exp(H) + b of scores by entropies, and what it says."""

    a: float
    b: float
    r_squared: float

    @property
    def ceiling(self) -> float:
        """The score at H = 0, where nothing is left to trade: b - a."""
        return self.b - self.a


def exhaustion(entropies: Sequence[float], scores: Sequence[float]) -> Exhaustion:
    """Least squares of R = -a exp(H) + b over the course of a run (section 2.4).

    Args:
        entropies: mean entropy of the policy, nats per token; scores: at the same steps, [n] each.

    Raises: ValueError with fewer than three points, or where all entropies are equal.

    >>> fit = exhaustion([0.0, 0.5, 1.0], [0.8, 1 - 0.2 * 2.718281828**0.5, 1 - 0.2 * 2.718281828])
    >>> round(fit.a, 6), round(fit.b, 6), round(fit.ceiling, 6), round(fit.r_squared, 6)
    (0.2, 1.0, 0.8, 1.0)
    """
    x, y = np.exp(np.asarray(entropies, float)), np.asarray(scores, float)
    if len(x) < 3 or np.ptp(x) == 0:
        raise ValueError(
            f"A fit of R = -a exp(H) + b takes three or more entropies that differ, got {list(entropies)}."
        )
    slope, b = np.polyfit(x, y, 1)
    rest, whole = np.sum((y - slope * x - b) ** 2), np.sum((y - y.mean()) ** 2)
    return Exhaustion(float(-slope), float(b), 1.0 if whole == 0 else float(1 - rest / whole))
