"""The micro-batches of a batch for a policy, a prompt held while answers to it follow each other."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.micro_batches import plan
from etude.policies.language import LanguagePolicy
from etude.policies.prompts import Held, in_blocks, shareable


def micro_batches(
    policy: LanguagePolicy, batch: TokenBatch, budget: int, whole_groups: bool = False
) -> Iterator[Tensor]:
    """Row indices of micro-batches that hold at most `budget` padded tokens (`core/micro_batches.plan`).

    Each is to be evaluated, and its backward pass done, before the next is asked for; after the last one the gradient
    of a prompt that was held reaches the weights.
    """
    for pieces in plan(batch, budget, whole_groups, copied(policy)):
        if len(pieces) == 1:
            yield pieces[0]
            continue
        policy.held = held = Held(batch.rows(pieces[0][:1], trim=True))
        try:
            yield from pieces
            held.finish()
        finally:
            policy.held = None


def copied(policy: LanguagePolicy) -> float | None:
    """Tokens that a token of a shared prompt counts for in each row; None: prompts are not shared."""
    config = policy.config
    if not (policy.share_prompts and shareable(config)):
        return None
    if in_blocks(policy.backbone(policy._causal(policy.model)), config):
        return 0.0
    return 0.25
