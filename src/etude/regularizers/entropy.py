"""Staying undecided."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import NonNegative
from etude.core.part import Need
from etude.core.slots import TokenRegularizer
from etude.core.step_slots import StepRegularizer
from etude.core.transitions import Transitions


class EntropyBonus(TokenRegularizer, StepRegularizer):
    """-coefficient * H(pi(. | prefix)) per token, in nats.

    Shapes: [B, T] or [P, N].

    >>> import torch
    >>> EntropyBonus(coefficient=0.5)(None, TokenLogProbs(torch.tensor([-1.0]), entropy=torch.tensor([3.0]))).tolist()
    [-1.5]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    coefficient: NonNegative = 0.01

    def __call__(self, batch: TokenBatch | Transitions, policy: TokenLogProbs) -> Tensor:
        assert policy.entropy is not None
        return -self.coefficient * policy.entropy
