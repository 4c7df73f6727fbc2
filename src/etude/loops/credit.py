"""From rows to credit, and from credit to a loss: one path for language models and enumerable policies.

A step is three halves of work, joined by rows: *gather* (needs the sampler), *score* (frozen models, rewards, filters)
and *learn* (needs the optimizer). What is the same in every world is here; a world adds how it samples, how its policy
is looked at, and how its optimizer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.kinds import TokenMethod
from etude.core.slots import Context, Filter
from etude.loops.losses import Term, loss_terms, per_row, with_factors, with_held_tokens, with_shares
from etude.rewards.probes import apart, backed_up, with_values
from etude.rewards.scoring import score

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


Rows = dict[str, TokenBatch]
"""A step's rows by the player who said them, each player's by themselves."""


def scored(method: TokenMethod, batch: TokenBatch, context: Context) -> TokenBatch:
    """The rows that have a reward, with `rewards` and `scores`, rescored by the parts that compare completions.

    Probes are scored by themselves, and leave once they have said what the texts are worth that they go on from. Nodes
    of trees are worth what is below them.
    """
    attempts, probes = apart(batch)
    if probes is None:
        return backed_up(score(batch, method.rewards, context))
    found = score(probes, method.rewards, context)
    return with_values(score(attempts, method.rewards, context), found)


def kept(method: TokenMethod, batch: TokenBatch) -> TokenBatch:
    """Let the parts see the rows that have been scored; those that the filters keep, weighted. Late filters wait."""
    shown(method, batch)
    return judged(method, batch)


def shown(method: TokenMethod, batch: TokenBatch) -> None:
    """Let the parts see the rows that have been scored (`before_update`), of an episode of several rows the first."""
    if not len(batch):
        return
    every = batch.per_episode()
    known = every if every.unfinished is None else every.rows(every.finished.nonzero()[:, 0])
    for part in method.parts().values():
        if len(seen := every if part.sees_unfinished else known):
            part.before_update(seen)


def judged(method: TokenMethod, batch: TokenBatch) -> TokenBatch:
    """The rows that the filters keep which do not wait for advantages, weighted."""
    return weighed(batch, [part for part in method.filters if not part.late]) if len(batch) else batch


def weighed(batch: TokenBatch, filters: Sequence[Filter]) -> TokenBatch:
    """The rows that these filters keep, with the weights that they give them."""
    for part in filters:
        batch = batch.replace(weights=batch.weights * part.weigh(batch))
    return batch.rows((batch.weights != 0).nonzero()[:, 0])


def credited(method: TokenMethod, batch: TokenBatch) -> TokenBatch:
    """The rows with their advantages, 0 for a method that has none, that the late filters keep."""
    if not len(batch):
        return batch
    if method.advantages is None:
        batch = batch.replace(advantages=torch.zeros_like(batch.rewards))
    else:
        advantages, returns = method.advantages(batch), method.advantages.returns(batch)
        batch = batch.replace(advantages=advantages, returns=batch.returns if returns is None else returns)
    late = [part for part in method.filters if part.late]
    return weighed(batch, late) if late else batch


def terms(method: CompleteTokenMethod, batch: TokenBatch, policy: TokenLogProbs, length: int) -> dict[str, Term]:
    """The summands of the loss on a whole credited minibatch; `length` is the denominator of 'fixed-length'."""
    batch = with_shares(method, batch, length)
    batch = with_factors(method, batch, [part(batch, policy) for part in method.token_weights])
    batch = with_held_tokens(method, batch, policy)
    return loss_terms(method, batch, policy)


def loss(method: CompleteTokenMethod, batch: TokenBatch, policy: TokenLogProbs, length: int) -> Tensor:
    """The method's loss on a whole credited minibatch, token weights included."""
    return total(terms(method, batch, policy, length))


def total(summands: dict[str, Term]) -> Tensor:
    """The sum of the summands."""
    return torch.stack([term.total for term in summands.values()]).sum()


def row_losses(summands: dict[str, Term], batch: TokenBatch) -> Tensor:
    """[B] each row's objective, averaged over its tokens, detached: what 'row_loss' asks for."""
    return per_row(summands["objective"].values.detach(), batch.action_mask)
