"""Errors of V by which it learns the largest value within the logs: conjugates of f-divergences (arXiv:2302.08560).

V minimises lam f*_p(y) - (1 - lam) y of y = Q - V: f*_p is the conjugate of f over weights of at least 0. The weight of
an action in that is its slope: none of those that are much worse than V count.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from etude.core.critic_slots import Error
from etude.core.fields import Interval, Positive


class TotalVariationDual(Error):
    """lam max(y, 0) - (1 - lam) y,  y = target - prediction: V is a quantile of the targets.

    The least of it is where P(Q > V) = (1 - lam) / lam, at the quantile (2 lam - 1) / lam: 3/4 for lam = 4/5.

    Shapes: [..., K] -> [..., K].

    >>> TotalVariationDual(lam=0.75)(torch.tensor([0.0, 0.0]), torch.tensor([2.0, -2.0])).tolist()
    [1.0, 0.5]
    """

    lam: Annotated[float, Interval(gt=0.5, lt=1)] = 0.7

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        y = target - prediction
        return self.lam * y.clamp(min=0) - (1 - self.lam) * y


class ChiSquareDual(Error):
    """lam (max(y, 0) + max(y, 0)^2 / 4) - (1 - lam) y,  y = target - prediction.

    y + y^2 / 4 is the conjugate of Pearson's chi-square from y = -2 on, and -1 below; what is made of it is 0 where y
    is below 0. (The authors' code has max(y + y^2 / 4, 0), which is this down to y = -4, and rises again below.)

    Shapes: [..., K] -> [..., K].

    >>> ChiSquareDual(lam=0.75)(torch.tensor([0.0, 0.0]), torch.tensor([2.0, -2.0])).tolist()
    [1.75, 0.5]
    """

    lam: Annotated[float, Interval(gt=0.5, lt=1)] = 0.7

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        y = target - prediction
        above = y.clamp(min=0)
        return self.lam * (above + above.square() / 4) - (1 - self.lam) * y


class Gumbel(Error):
    """exp(z) - z - 1,  z = (target - prediction) / scale cut at `most`: reverse KL, Gumbel regression (XQL).

    Its least is at V = scale log E exp(Q / scale) where nothing is cut. All are divided by the largest exp(z) of a
    batch, at least exp(-1), so that one row does not throw V away (arXiv:2301.02328, appendix).

    Shapes: [P, ..., K] -> the same; the largest is each member's own.

    >>> [round(x, 4) for x in Gumbel()(torch.zeros(1, 2, 1), torch.tensor([[[1.0], [0.0]]])).flatten().tolist()]
    [0.2642, 0.0]
    """

    scale: Positive = 1.0
    most: Positive = 7.0

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        z = ((target - prediction) / self.scale).clamp(max=self.most)
        with torch.no_grad():
            largest = z.flatten(1).amax(1).clamp(min=-1.0).view(-1, *[1] * (z.dim() - 1))
        return (z - largest).exp() - z * (-largest).exp() - (-largest).exp()
