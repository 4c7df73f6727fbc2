"""Maps of values in which they are learned: increasing, and undone exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from etude.core.fields import Positive
from etude.core.part import Part


class ValueMap(Part, abstract=True):
    """f, increasing, and its inverse."""

    slot = "map"

    def forward(self, x: Tensor) -> Tensor:
        """f(x) of values [P, ...]."""
        raise NotImplementedError

    def inverse(self, y: Tensor) -> Tensor:
        """The values [P, ...] of which y is said."""
        raise NotImplementedError


class IdentityMap(ValueMap):
    """f(x) = x: with it alone this is Q-learning.

    Shapes: [P, ...] -> [P, ...].

    >>> IdentityMap().inverse(torch.tensor([3.0])).item()
    3.0
    """

    def forward(self, x: Tensor) -> Tensor:
        return x

    def inverse(self, y: Tensor) -> Tensor:
        return y


class LogMap(ValueMap):
    """f(x) = c ln x + d: values that lie as many times apart are as far apart (arXiv:1906.00572).

    Args:
        least: values below it are taken for it, since there is no logarithm of 0; about 0.96^100.

    Shapes: [P, ...] -> [P, ...].

    >>> y = LogMap(c=0.5).forward(torch.tensor([1.0, 0.0]))
    >>> [round(x, 2) for x in y.tolist()], [round(x, 5) for x in LogMap(c=0.5).inverse(y).tolist()]
    ([0.0, -2.04], [1.0, 0.01687])
    """

    c: Positive = 0.5
    d: float = 0.0
    least: Positive = 0.01687

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.c * x.clamp(min=self.least).log() + self.d
        return found

    def inverse(self, y: Tensor) -> Tensor:
        found: Tensor = ((y - self.d) / self.c).exp()
        return found


class LogLinMap(LogMap):
    """Logarithmic where f is below 0, and beyond a line with the slope that it has there (arXiv:2203.07171, section 5).

        f(x) = c ln x + d  for x <= x0 = exp(-d / c),   c exp(d / c) x - c  for x > x0

    So small values are told apart as by `LogMap`, and large ones as well as without a map.

    Shapes: [P, ...] -> [P, ...].

    >>> line = LogLinMap(c=0.5)
    >>> line.forward(torch.tensor([1.0, 3.0])).tolist(), line.inverse(torch.tensor([1.0])).item()
    ([0.0, 1.0], 3.0)
    """

    def forward(self, x: Tensor) -> Tensor:
        line = self.c * math.e ** (self.d / self.c) * x - self.c
        return torch.where(line > 0, line, super().forward(x))

    def inverse(self, y: Tensor) -> Tensor:
        line = (y + self.c) * (math.e ** (-self.d / self.c) / self.c)
        return torch.where(y > 0, line, super().inverse(y.clamp(max=0.0)))
