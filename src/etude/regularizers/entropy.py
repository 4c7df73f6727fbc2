"""Staying undecided."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import NonNegative
from etude.core.slots import Regularizer


class EntropyBonus(Regularizer):
    """-coefficient * H(pi(. | prefix)) per token, in nats."""

    serves: ClassVar[frozenset[str]] = frozenset({"language", "control"})
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    coefficient: NonNegative = 0.01

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert policy.entropy is not None
        return -self.coefficient * policy.entropy
