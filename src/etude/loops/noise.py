"""What rounding puts between two computations of the same log-probability, and what no longer is rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Mean gap in nats that is never a fault: a policy that grows sure of itself rounds ever less, and may turn back."""
CEILING = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""Largest mean gap whatever was measured; the bound of the first batch, before which nothing was."""
MARGIN, ERRORS = 3.0, 5.0
"""The bound, in means of what was measured, and in standard errors of the mean that is judged."""
DECAY = 0.9


class Noise:
    """The gap between two computations of the same log-probability, measured while both have the same weights.

    With count n, total s and squares q of all |gaps| so far, each update's faded by `DECAY` at the next:

        bound(N) = max(floor, 3 m + 5 sqrt(v / N)), at most the ceiling,    m = s / n,  v = q / n - m^2

    for the mean of N gaps. Shapes: `sums` [3] in float64, the state that a checkpoint keeps; [P, 3] for the members of
    a population, each of which has a bound of its own. Gaps are in nats.

    >>> noise = Noise()
    >>> noise.bound(100, torch.float32)
    0.002
    >>> noise.observe(torch.tensor([1e-4, 3e-4]))
    >>> round(noise.bound(100, torch.float32), 8)  # 3 * 2e-4 + 5 * 1e-4 / 10
    0.00065
    """

    def __init__(self, *members: int) -> None:
        self.sums = torch.zeros(*members, 3, dtype=torch.float64)

    def bound(self, count: int, dtype: torch.dtype) -> float:
        """Largest mean of `count` gaps that is rounding; `dtype` is the coarser of the two computations'."""
        return _bound(self.sums.tolist(), count, dtype)

    def bounds(self, counts: Sequence[float], dtype: torch.dtype) -> list[float]:
        """The bound of each member, for as many gaps as it has."""
        return [_bound(sums, n, dtype) for sums, n in zip(self.sums.tolist(), counts, strict=True)]

    @staticmethod
    def measured(gaps: Tensor, weights: Tensor | None = None) -> Tensor:
        """[3] or [P, 3] count, sum and sum of squares of |gaps| [N] or [P, N].

        Args:
            weights: 1 for gaps that count, 0 for others.
        """
        gaps = gaps.double()
        if weights is None:
            count = torch.full(gaps.shape[:-1], gaps.shape[-1], dtype=gaps.dtype, device=gaps.device)
            return torch.stack([count, gaps.sum(-1), gaps.square().sum(-1)], -1)
        on = weights.double()
        return torch.stack([on.sum(-1), (gaps * on).sum(-1), (gaps.square() * on).sum(-1)], -1)

    def observe(self, gaps: Tensor, weights: Tensor | None = None) -> None:
        """Measure gaps of samples from weights that are known to be the trained ones; shapes are `measured`'s."""
        self.take(self.measured(gaps, weights))

    def take(self, sums: Tensor) -> None:
        """The same from `measured`."""
        self.sums = DECAY * self.sums + sums


def _bound(sums: Sequence[float], count: float, dtype: torch.dtype) -> float:
    n, total, squares = sums
    if not n:
        return CEILING[dtype]
    mean = total / n
    error = (max(0.0, squares / n - mean**2) / max(1.0, count)) ** 0.5
    return float(min(CEILING[dtype], max(FLOOR[dtype], MARGIN * mean + ERRORS * error)))
