"""Unbiased weights of completions for what the best of several samples is worth: sorted rewards and binomials."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as Ratio
from functools import cache
from math import comb

import torch
from torch import Tensor

from etude.advantages.group import of_episodes
from etude.core.batches import TokenBatch
from etude.core.fields import Count
from etude.core.slots import TokenAdvantages


def of_groups(function: Callable[..., Tensor], group: Tensor, *values: Tensor) -> Tensor:
    """[B] in float64: `function` of every group's values, each [M, n], for groups of equal size n together.

    >>> of_groups(lambda x: x - x.max(1, keepdim=True)[0], torch.tensor([0, 1, 0]), torch.tensor([1.0, 5.0, 4.0]))
    tensor([-3.,  0.,  0.], dtype=torch.float64)
    """
    _, index, counts = torch.unique(group, return_inverse=True, return_counts=True)
    size, out = counts[index], torch.zeros(len(group), dtype=torch.float64, device=group.device)
    for n in torch.unique(size).tolist():
        rows = (size == n).nonzero()[:, 0]
        rows = rows[index[rows].argsort(stable=True)].view(-1, n)
        out[rows] = function(*(v[rows].double() for v in values))
    return out


@cache
def _shares(n: int, k: int, below: int, fixed: int) -> tuple[float, ...]:
    """C(j - below, k - fixed) / C(n, k) for j = 1..n, correctly rounded; 0 where a number is negative."""
    ways = (comb(j - below, k - fixed) if j >= below and k >= fixed else 0 for j in range(1, n + 1))
    return tuple(w / comb(n, k) for w in ways)


def max_at_k(scores: Tensor, group: Tensor, k: int, delta: Tensor | None = None) -> Tensor:
    """What each completion adds to max@k = E[max of k rewards]: r~ [B] such that sum_i r~_i s_i estimates its gradient.

    Over the C(n, k) subsets I of a group's n completions (arXiv:2510.23393; on-policy also PKPO, arXiv:2505.15201),

        r~_i = 1/C(n, k) sum_{I containing i} (1 + sum_{l in I} delta_l) max_I r.

    `delta` [B] is pi/pi_old - 1 of whole completions, so that the bracket is the product of the k ratios to first
    order; None: on-policy. Sorting and two running sums replace the subsets: O(n log n). With rewards 0 and 1 this is
    pass@k. A group of fewer than k completions is taken at k = n.

    Shapes: everything [B]; returns scores' dtype.

    >>> max_at_k(torch.tensor([0.0, 2.0, 1.0]), torch.zeros(3), 2)
    tensor([1.0000, 1.3333, 1.0000])
    """
    moved = torch.zeros_like(scores) if delta is None else delta
    return of_groups(lambda r, d: _max_at_k(r, d, k), group, scores, moved).to(scores.dtype)


def _max_at_k(scores: Tensor, delta: Tensor, k: int) -> Tensor:
    """[M, n] r~ of groups of n: weights of ranks i < j (from 1), S_j = delta summed over ranks below j.

    w_ii = C(i-1, k-1) (1 + delta_i) + C(i-2, k-2) S_i
    w_ij = C(j-2, k-2) (1 + delta_i + delta_j) + C(j-3, k-3) (S_j - delta_i)
    """
    n = scores.shape[1]
    k = min(k, n)
    own, rest, pair, triple = (scores.new_tensor(_shares(n, k, a, b)) for a, b in ((1, 1), (2, 2), (2, 2), (3, 3)))
    r, order = scores.sort(dim=1, stable=True)
    d = delta.gather(1, order)
    below = d.cumsum(1) - d
    ranked = r * (own * (1 + d) + rest * below)
    ranked = ranked + _above(r * (pair * (1 + d) + triple * below)) + d * _above(r * (pair - triple))
    exact = k / n * r  # equal rewards at rest: no rounding that could pass for a difference
    same = (r[:, :1] == r[:, -1:]) & (d == 0).all(1, keepdim=True)
    return torch.zeros_like(r).scatter(1, order, torch.where(same, exact, ranked))


def _above(x: Tensor) -> Tensor:
    """[M, n] sum over the ranks above each."""
    return x.flip(1).cumsum(1).flip(1) - x


@cache
def maclaurin_weights(n: int, order: int, failures: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights of a success and of a failure among n completions of which K = 0..n succeeded, times n.

    sum_i weight_i s_i / n has the expectation sum_{k=0}^{T-1} (1-p)^k grad p, T = order (arXiv:2602.02710). With
    F = n - K, a success weighs sum_{k=0}^{T-1} C(F, k)/C(n-1, k) and a failure nothing; with `failures`, a success
    weighs 1 and a failure -sum_{k=1}^{T-1} C(F-1, k)/C(n-1, k).

    >>> maclaurin_weights(4, 4)[0][1:]  # order n: n / K
    (4.0, 2.0, 1.3333333333333333, 1.0)
    """

    def series(chosen: int, first: int) -> float:
        return float(sum((Ratio(comb(chosen, k), comb(n - 1, k)) for k in range(first, order)), Ratio(0)))

    if not failures:
        return tuple(series(n - right, 0) for right in range(n + 1)), (0.0,) * (n + 1)
    return (1.0,) * (n + 1), (*(-series(n - right - 1, 1) for right in range(n)), 0.0)


class MaclaurinAdvantage(TokenAdvantages):
    """Gradient of -sum_{k=1}^T (1-p)^k / k, the series of log p cut at order T (MaxRL, arXiv:2602.02710).

    T = 1 is REINFORCE on the success probability p, T = n averages the scores of the successes alone, which is the
    maximum-likelihood gradient up to groups without a success. Unbiased for every T <= n (`maclaurin_weights`).

    Args:
        order: T; None, or more than a group has completions, takes all of them.
        failures: let failures carry the higher orders instead of successes: same expectation, other variance.
        threshold: a score above this is a success.

    Shapes: scores [B] -> advantages [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> ones = torch.ones(4, dtype=torch.bool)
    >>> scores, group = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4)
    >>> rows = Rows(scores=scores, group=group, sampled=ones, action_mask=ones[:, None], once=lambda: None)
    >>> MaclaurinAdvantage()(rows)[:, 0].tolist()
    [2.0, 0.0, 0.0, 2.0]
    """

    order: Count | None = None
    failures: bool = False
    threshold: float = 0.5

    def __call__(self, batch: TokenBatch) -> Tensor:
        return of_episodes(self._of_scores, batch, batch.scores, batch.sampled)[:, None] * batch.action_mask

    def _of_scores(self, scores: Tensor, on: Tensor, group: Tensor) -> Tensor:
        """[B] of completions with these scores, 0 where they are not `on`."""
        right, advantages = (scores > self.threshold).double(), torch.zeros_like(scores)
        advantages[on] = of_groups(self._weights, group[on], right[on]).to(scores.dtype)
        return advantages

    def _weights(self, right: Tensor) -> Tensor:
        """[M, n] from successes [M, n]."""
        n = right.shape[1]
        tables = maclaurin_weights(n, min(self.order or n, n), self.failures)
        success, failure = (right.new_tensor(t)[right.sum(1).long(), None] for t in tables)
        return torch.where(right > 0, success, failure)
