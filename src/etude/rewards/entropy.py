"""Being paid for staying undecided."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import NonNegative
from etude.core.slots import TokenReward


class EntropyReward(TokenReward):
    """r[b,t] = -coefficient * log pi of each sampled token, in nats.

    Its sum over a completion is an unbiased estimate of coefficient * H(pi(. | prompt)), the entropy of whole
    completions, and the policy gradient of that reward is the gradient of it, since E[grad log pi] = 0. A bonus on the
    entropy of each token (`EntropyBonus`) leaves out what a token does to the entropy of those that follow.

    Shapes: [B, T], 0 outside the action mask. Belongs to fresh samples: behaviour_logp is then log pi.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[-2.0, 0.0]]), action_mask=torch.tensor([[1, 0]]))
    >>> EntropyReward(coefficient=0.5).shape(rows).abs().tolist()
    [[1.0, 0.0]]
    """

    judges: ClassVar[bool] = False
    uses_behaviour: ClassVar[bool] = True
    coefficient: NonNegative = 0.01

    def shape(self, batch: TokenBatch) -> Tensor:
        return -self.coefficient * batch.behaviour_logp * batch.action_mask
