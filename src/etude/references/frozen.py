"""Where the reference policy comes from."""

from __future__ import annotations

from etude.core.fields import Count, Fraction
from etude.core.slots import Reference


class Frozen(Reference):
    """The policy as it was at the first step.

    >>> [Frozen().refresh(step) for step in (1, 50)]
    [0.0, 0.0]
    """


class Periodic(Reference):
    """The policy as it was at the last multiple of `every` steps.

    >>> [Periodic(every=50).refresh(step) for step in (49, 50, 51)]
    [0.0, 1.0, 0.0]
    """

    every: Count = 50

    def refresh(self, step: int) -> float:
        return float(step % self.every == 0)


class MovingAverage(Reference):
    """reference <- (1 - rate) reference + rate policy after every step.

    A reference weight of 0 moves a quarter of the way to a policy's weight of 2:

    >>> rate = MovingAverage(rate=0.25).refresh(step=1)
    >>> (1 - rate) * 0.0 + rate * 2.0
    0.5
    """

    rate: Fraction = 0.01

    def refresh(self, step: int) -> float:
        return self.rate
