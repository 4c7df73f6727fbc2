"""The micro-batches of a batch for a policy, a prompt held while answers to it follow each other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.micro_batches import Sharing, plan
from etude.policies.blocks import LONG
from etude.policies.language import LanguagePolicy
from etude.policies.prompts import Held, in_blocks, shareable

COPIED = 0.25
"""What the keys and values of a token take where every row has a copy, against all that is held of one: 0.10 to 0.17 in
Llamas of 0.8 M and 10 M parameters, up to 0.25 in models 32 wide (bytes that autograd saves)."""


def micro_batches(
    policy: LanguagePolicy, batch: TokenBatch, budget: int, whole_groups: bool = False
) -> Iterator[Tensor]:
    """Row indices of micro-batches that hold at most `budget` padded tokens (`core/micro_batches.plan`).

    Each is to be evaluated, and its backward pass done, before the next is asked for; after the last one the gradient
    of a prompt that was held reaches the weights.
    """
    for pieces in plan(batch, budget, whole_groups, sharing(policy)):
        if len(pieces) == 1:
            yield pieces[0]
            continue
        policy.held = held = Held(batch.rows(pieces[0][:1], trim=True))
        try:
            yield from pieces
            held.finish()
        finally:
            policy.held = None


def sharing(policy: LanguagePolicy) -> Sharing | None:
    """How a policy shares prompts; None: it does not."""
    if not (policy.share_prompts and shareable(policy.config)):
        return None
    blocks = in_blocks(policy.backbone(policy._causal(policy.model)), policy.config)
    return Sharing(COPIED, LONG if blocks else math.inf)
