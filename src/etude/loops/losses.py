"""What a method minimises on a minibatch: its objective, regularizers, critic and heads, under one denominator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.kinds import TokenMethod
from etude.core.learners import TokenHead
from etude.core.method import Method
from etude.objectives.aggregation import token_shares

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


class Term(NamedTuple):
    """One summand of the loss: per token [B, T] or per row [B], and its weighted sum."""

    values: Tensor
    total: Tensor


def with_shares(method: CompleteTokenMethod, batch: TokenBatch, length: int) -> TokenBatch:
    """A whole minibatch with the share of each token and row in its loss; `length` is the completion limit.

    Computed before the minibatch is cut into micro-batches, so that the loss cannot depend on the cut.
    """
    return batch.replace(shares=loss_shares(method, batch, length), row_shares=batch.weights / len(batch))


def loss_shares(method: CompleteTokenMethod, batch: TokenBatch, length: int) -> Tensor:
    """[B, T] shares of the tokens.

    Written rows among sampled ones are averaged apart from them, each over its own tokens. Either kind then counts by
    the share of the minibatch's problems that have rows of it, which makes the loss a mean over problems.
    """
    mask, sampled, dtype = batch.action_mask, batch.sampled, batch.rewards.dtype
    if bool(sampled.all()) or not method.experience.samples:
        return token_shares(method.aggregation, mask, length, dtype) * batch.weights[:, None]
    shares, problems = torch.zeros_like(mask, dtype=dtype), len(batch.group.unique())
    for rows, aggregation in ((sampled, method.aggregation), (~sampled, "sequence-mean")):
        part = len(batch.group[rows].unique()) / problems
        shares[rows] = part * token_shares(aggregation, mask[rows], length, dtype)
    return shares * batch.weights[:, None]


def with_factors(method: TokenMethod, batch: TokenBatch, factors: Sequence[Tensor]) -> TokenBatch:
    """The minibatch with the factors [B, T] that each of the method's token weights gives its tokens."""
    shares = objective_shares = batch.shares
    assert shares is not None and objective_shares is not None
    for part, factor in zip(method.token_weights, factors, strict=True):
        objective_shares = objective_shares * factor
        shares = shares * factor if part.everywhere else shares
    return batch.replace(shares=shares, objective_shares=objective_shares if factors else None)


def with_held_tokens(method: TokenMethod, batch: TokenBatch, policy: TokenLogProbs) -> TokenBatch:
    """The minibatch with the shares of regularizers that hold back some of its tokens only; after `with_factors`."""
    shares = batch.shares
    assert shares is not None
    held = {part.name: shares * part.where(batch, policy) for part in method.regularizers if part.where is not None}
    return batch.replace(regularizer_shares=held)


def loss_terms(method: CompleteTokenMethod, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Term]:
    """The summands of the loss by name, for a batch that has its `shares`."""
    values = method.objective(batch, policy)
    if batch.objective_shares is None:
        summands = {"objective": _weighted(values, batch)}
    elif values.dim() > 1:
        summands = {"objective": _weighted(values, batch.replace(shares=batch.objective_shares))}
    else:
        raise ConfigError(
            f"{type(method.objective).__name__} gave a loss per row, which the factors of "
            f"{' and '.join(p.name for p in method.token_weights)} cannot weigh: leave the slot token_weights empty, "
            "and say per_row = True in the class."
        )
    for part in method.regularizers:
        shares = batch.regularizer_shares.get(part.name, batch.shares)
        summands[f"regularizer/{part.name}"] = _weighted(part(batch, policy), batch.replace(shares=shares))
    if method.joint_critic is not None:
        summands["value_loss"] = _weighted(method.joint_critic.loss(batch, policy), batch)
    for head in heads(method):
        summands[f"{head.label}_loss"] = _weighted(head.loss(batch, policy), batch)
    return summands


def useful_rows(method: CompleteTokenMethod, batch: TokenBatch) -> Tensor:
    """Rows that can have a gradient: with zero advantage and nothing else in the loss, none."""
    if not skips(method):
        return torch.arange(len(batch), device=batch.tokens.device)
    advantages = batch.advantages
    assert advantages is not None
    return ((advantages != 0) & weighed(batch)).any(1).nonzero()[:, 0]


def skips(method: CompleteTokenMethod) -> bool:
    """Whether rows that have no advantage take no forward pass: nothing else is in the loss."""
    alone = not method.regularizers and method.joint_critic is None and not heads(method)
    return method.objective.vanishes_with_advantage and alone


def weighed(batch: TokenBatch) -> Tensor:
    """[B, T] where a token has a share in the objective."""
    shares = batch.shares if batch.objective_shares is None else batch.objective_shares
    assert shares is not None
    return shares != 0


def heads(method: Method) -> list[TokenHead]:
    """The learners that the policy's own step trains."""
    return [part for part in method.slots()["learners"] if part.joint]


def _weighted(values: Tensor, batch: TokenBatch) -> Term:
    assert batch.shares is not None and batch.row_shares is not None
    if values.dim() == 1:
        return Term(values, (values * batch.row_shares).sum())
    return Term(values, torch.where(batch.action_mask, values * batch.shares, 0.0).sum())


def per_row(loss: Tensor, mask: Tensor) -> Tensor:
    """[B] mean over each row's tokens of a loss that is per token or per row."""
    return loss if loss.dim() == 1 else torch.where(mask, loss, 0.0).sum(1) / mask.sum(1).clamp(min=1)
