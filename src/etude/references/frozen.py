"""Where the reference policy comes from."""

from __future__ import annotations

from etude.core.fields import Count, Fraction
from etude.core.slots import Reference


class Frozen(Reference):
    """The policy as it was at the first step."""


class Periodic(Reference):
    """The policy as it was at the last multiple of `every` steps."""

    every: Count = 50

    def refresh(self, step: int) -> float:
        return float(step % self.every == 0)


class MovingAverage(Reference):
    """reference <- (1 - rate) reference + rate policy after every step."""

    rate: Fraction = 0.01

    def refresh(self, step: int) -> float:
        return self.rate
