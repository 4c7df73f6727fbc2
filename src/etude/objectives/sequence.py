"""Objectives whose unit is the whole completion, compared with the others of its problem."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.slots import TokenObjective


def sequence_sum(values: Tensor, batch: TokenBatch) -> Tensor:
    """[B] sum of `values` [B, T] over each row's action tokens."""
    return (values * batch.action_mask).sum(1)


def sequence_log_ratio(batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
    """[B] log pi(y) - log pi_old(y) of whole completions, with gradient."""
    return sequence_sum(policy.logp - batch.behaviour_logp, batch)


class GroupObjective(TokenObjective, abstract=True):
    """-c_i log pi(y_i), where the coefficient of a completion is computed anew before every optimizer step.

    The group stays in one micro-batch, so `coefficients` sees all completions of a problem under the policy as it is
    now; no second forward pass is needed. Shapes: c [B], detached; the loss is -c log pi per token [B, T], so that the
    method's aggregation decides on lengths ('fixed-length' keeps the plain sum over tokens, up to a constant).
    """

    couples: ClassVar[Literal["row", "group"]] = "group"
    uses_behaviour: ClassVar[bool] = True

    def coefficients(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """c [B]; `policy` is detached."""
        raise NotImplementedError

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return -self.coefficients(batch, detached(policy))[:, None] * policy.logp


def detached(policy: TokenLogProbs) -> TokenLogProbs:
    """The same numbers without their gradient."""
    entropy, hidden = (None if x is None else x.detach() for x in (policy.entropy, policy.hidden))
    return TokenLogProbs(policy.logp.detach(), entropy, hidden=hidden, head=policy.head)
