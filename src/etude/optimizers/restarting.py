"""AdamW that begins anew, for methods whose rounds are optimization problems of their own."""

from __future__ import annotations

from etude.core.fields import Count
from etude.optimizers.adam import TorchAdamW


class RestartingAdamW(TorchAdamW):
    """AdamW that forgets its moments before every `every`-th training step.

    >>> [RestartingAdamW(every=2).restarts(step) for step in range(4)]
    [True, False, True, False]
    """

    every: Count = 1

    def restarts(self, step: int) -> bool:
        return step % self.every == 0
