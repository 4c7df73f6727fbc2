"""Staying near a reference policy, paid for in reward."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.fields import NonNegative
from etude.core.part import Need
from etude.core.slots import TokenReward


class KLPenalty(TokenReward):
    """r[b,t] = -coefficient * (log pi - log reference) of each sampled token (arXiv:2203.02155, eq. 2).

    Its sum over a completion is an unbiased estimate of -coefficient * KL(pi || reference) for the prompt. As a
    reward it carries no gradient of its own: the policy gradient does.

    Shapes: [B, T], 0 outside the action mask; nats times the coefficient.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[-1.0]]), reference_logp=torch.tensor([[-3.0]]))
    >>> rows.action_mask = torch.tensor([[True]])
    >>> KLPenalty(coefficient=0.5).shape(rows).tolist()
    [[-1.0]]
    """

    judges: ClassVar[bool] = False
    uses_behaviour: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    coefficient: NonNegative = 0.05

    def shape(self, batch: TokenBatch) -> Tensor:
        assert batch.reference_logp is not None
        return -self.coefficient * (batch.behaviour_logp - batch.reference_logp) * batch.action_mask
