"""How a learning rate goes on once it has risen."""

from __future__ import annotations

import math

from etude.core.fields import Probability
from etude.core.part import Part


class Schedule(Part, abstract=True):
    """The factor on a learning rate, from what is left of the run."""

    slot = "schedule"

    def factor(self, left: float) -> float:
        """The factor where `left` of the steps after the warmup, from 1 down to 0, are still to come."""
        raise NotImplementedError


class Constant(Schedule):
    """The whole rate, to the end.

    >>> Constant().factor(left=0.25)
    1.0
    """

    def factor(self, left: float) -> float:
        return 1.0


class Falling(Schedule, abstract=True):
    """From the whole rate down to a share of it.

    Args:
        floor: the share of the rate that is left at the end.
    """

    floor: Probability = 0.0

    def factor(self, left: float) -> float:
        return self.floor + (1 - self.floor) * self.shape(left)

    def shape(self, left: float) -> float:
        """From 1 to 0."""
        raise NotImplementedError


class Linear(Falling):
    """floor + (1 - floor) left.

    >>> [round(Linear(floor=0.2).factor(left), 9) for left in (1.0, 0.5, 0.0)]
    [1.0, 0.6, 0.2]
    """

    def shape(self, left: float) -> float:
        return left


class Cosine(Falling):
    """floor + (1 - floor) (1 + cos(pi (1 - left))) / 2, half a wave (arXiv:1608.03983).

    >>> [round(Cosine(floor=0.2).factor(left), 9) for left in (1.0, 0.5, 0.0)]
    [1.0, 0.6, 0.2]
    """

    def shape(self, left: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * (1 - left)))
