"""What the policy, its critic and its reference say of a whole batch, without gradient, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.learners import ValueNetwork
from etude.core.rows import reaching_on
from etude.loops.lockstep import in_step, lightest
from etude.loops.together import whole
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches
from etude.policies.texts.likelihood import reference_logits
from etude.runtime.ranks import ALONE, Ranks


@torch.no_grad()
def evaluate_all(
    policy: LanguagePolicy, batch: TokenBatch, needs: Iterable[str], budget: int, ranks: Ranks = ALONE
) -> TokenLogProbs:
    """The policy on a whole batch, without gradient, micro-batch by micro-batch; each rank on its part of the rows."""
    evaluate = policy.evaluate if ranks.count == 1 else policy.evaluate_together
    return _gather(policy, batch, budget, lambda micro: evaluate(micro, needs), ranks)


@torch.no_grad()
def values_all(
    policy: LanguagePolicy, batch: TokenBatch, budget: int, critic: ValueNetwork | None = None
) -> tuple[Tensor, Tensor]:
    """The critic on a whole batch, without gradient: [B, T] values, and [B] those after truncated rows' last tokens.

    It is the policy's value head, unless it is a network of its own.

    V of a text is read where its next token would be predicted, so truncated rows get one token more; after a full
    context it is 0.
    """
    longer, after = reaching_on(batch, policy.context)
    if critic is None:
        values = evaluate_all(policy, longer, {"values"}, budget).values
    else:
        own = critic
        values = _gather(own.policy, longer, budget, lambda micro: TokenLogProbs(own.values(micro))).logp
    assert values is not None
    return values[:, :-1] * batch.action_mask, (values * after).sum(1)


@torch.no_grad()
def reference_all(policy: LanguagePolicy, batch: TokenBatch, budget: int) -> Tensor:
    """[B, T] reference log-probabilities of a whole batch."""
    return _gather(policy, batch, budget, lambda micro: TokenLogProbs(policy.reference_logp(micro))).logp


@torch.no_grad()
def reference_values_all(policy: LanguagePolicy, batch: TokenBatch, budget: int) -> Tensor:
    """[B, T] log sum exp of the reference's logits on a whole batch."""

    def values(micro: TokenBatch) -> TokenLogProbs:
        return TokenLogProbs(reference_logits(policy, micro).logsumexp(-1) * micro.action_mask)

    return _gather(policy, batch, budget, values).logp


def _gather(
    policy: LanguagePolicy, batch: TokenBatch, budget: int, evaluate: Callable[[TokenBatch], TokenLogProbs],
    ranks: Ranks = ALONE,
) -> TokenLogProbs:  # fmt: skip
    found: dict[str, Tensor] = {}
    with ranks.agreed():
        rows = ranks.mine(batch, torch.arange(len(batch), device=batch.tokens.device))
        own = batch if ranks.count == 1 else batch.rows(rows)
        for piece in in_step(ranks, micro_batches(policy, own, budget)):
            if piece is None:
                evaluate(lightest(policy, batch, budget))
                continue
            out = evaluate(own.rows(piece, trim=True))
            for name, value in vars(out).items():
                if isinstance(value, Tensor):
                    there = found.setdefault(name, value.new_zeros(*batch.tokens.shape, *value.shape[2:]))
                    there[rows[piece], : value.shape[1]] = value
    tensors = whole(ranks, found, batch.tokens.shape, batch.tokens.device)
    return TokenLogProbs(
        tensors["logp"], tensors.get("entropy"), tensors.get("values"), tensors.get("hidden"),
        logits=tensors.get("logits"),
    )  # fmt: skip
