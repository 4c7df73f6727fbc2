"""What a method minimises on a minibatch: its objective, regularizers and critic, under one denominator."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.method import Method
from etude.objectives.aggregation import token_weights


class Term(NamedTuple):
    """One summand of the loss: per token [B, T] or per row [B], and its weighted sum."""

    values: Tensor
    total: Tensor


def loss_weights(method: Method, batch: TokenBatch, length: int) -> Tensor:
    """[B, T] weights of the losses: sampled rows as the method says, written ones a mean over their own tokens.

    Computed on a whole minibatch, before it is cut into micro-batches; `length` is the completion limit.
    """
    mask, sampled, kind = batch.action_mask, batch.sampled, batch.rewards.dtype
    assert method.experience is not None
    if bool(sampled.all()) or not method.experience.samples:
        weights = token_weights(method.aggregation, mask, length, kind)
    else:
        weights = token_weights("token-mean", mask & ~sampled[:, None], length, kind)
        weights[sampled] = token_weights(method.aggregation, mask[sampled], length, kind)
    return weights * batch.weights[:, None]


def loss_terms(method: Method, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Term]:
    """The summands of the loss by name, for a batch with `extras` 'weights' [B, T] and 'row_weights' [B]."""
    assert method.objective is not None
    found = {"objective": _weighted(method.objective(batch, policy), batch)}
    for part in method.regularizers:
        found[f"regularizer/{part.name}"] = _weighted(part(batch, policy), batch)
    if method.critic is not None:
        found["value_loss"] = _weighted(method.critic.loss(batch, policy), batch)
    return found


def _weighted(values: Tensor, batch: TokenBatch) -> Term:
    if values.dim() == 1:
        return Term(values, (values * batch.extras["row_weights"]).sum())
    return Term(values, torch.where(batch.action_mask, values * batch.extras["weights"], 0.0).sum())


def per_row(loss: Tensor, mask: Tensor) -> Tensor:
    """[B] mean over each row's tokens of a loss that is per token or per row."""
    return loss if loss.dim() == 1 else torch.where(mask, loss, 0.0).sum(1) / mask.sum(1).clamp(min=1)
