"""Passes of all ranks at once: where weights are divided, who has no more rows must still take part in the others'."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.part import Need
from etude.loops.losses import loss_terms
from etude.loops.token_learning import TokenLearners
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches
from etude.runtime.ranks import Ranks

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


def in_step(ranks: Ranks, pieces: Iterable[Tensor]) -> Iterator[Tensor | None]:
    """This rank's micro-batches; in lockstep then None as often as it takes for all ranks to have had as many."""
    if not ranks.lockstep:
        yield from pieces
        return
    own = list(pieces)
    most = max(ranks.told(len(own)))
    yield from own
    yield from [None] * (most - len(own))


def lightest(policy: LanguagePolicy, batch: TokenBatch, budget: int, whole_groups: bool = False) -> TokenBatch:
    """The micro-batch of a batch that has the fewest padded tokens: what a rank passes that has no more of its own."""
    found = min(
        micro_batches(policy, batch, budget, whole_groups), key=lambda rows: len(rows) * int(batch.lengths[rows].max())
    )
    return batch.rows(found, trim=True)


def pass_along(
    policy: LanguagePolicy, learners: TokenLearners, method: CompleteTokenMethod, batch: TokenBatch,
    needs: Collection[Need], budget: int,
) -> None:  # fmt: skip
    """A forward and a backward pass of some rows of a batch that weigh nothing, with the graph of those that do."""
    micro = lightest(policy, batch, budget, method.objective.couples == "group")
    said = learners.said(policy.evaluate_together(micro, needs))
    terms = loss_terms(method, micro, said).values()
    loss = sum((term.total for term in terms), torch.zeros_like(batch.scores[0]))
    (0.0 * loss).backward()
