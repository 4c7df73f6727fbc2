"""max@k's claim: the expected best of 64 samples, known exactly, with graded rewards and three inner updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, tables, variant
from etude.methods.rlvr.max_at_k import BestOfGroup, OffPolicyMaxAtK
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.tasks.tabular.enumerable import Enumerable

if TYPE_CHECKING:
    from etude.loops.enumerable import EnumerableLoop


class Rare(Enumerable):
    """Rewards u^8 with u uniform in [0, 1]: one response in nine is worth more than 0.4, one in 36 more than 0.8."""

    id: ClassVar[str] = "rare"

    def table(self, responses: int) -> Tensor:
        random = torch.Generator().manual_seed(self.seed + 1)
        return torch.rand(self.prompts, responses, generator=random, dtype=torch.float64) ** 8


TABLE, STEPS = Rare(prompts=16, vocabulary=6, length=3, spread=2.0), 60


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """max@64 at the end of training, against each rival; max@1 beside it."""
    runs = tables(arms(), TABLE, seeds=seeds, steps=STEPS, measure=best_of)
    ours, *others = runs
    names = {f"max@64 against {other}": other for other in others}
    return pairs(
        seeds,
        {**{name: runs[ours].final("max@64") for name in names}, "max@1": runs[ours].final("max@1")},
        {**{name: runs[other].final("max@64") for name, other in names.items()}, "max@1": runs["grpo"].final("max@1")},
        start={"max@1": runs["grpo"].first("max@1")},
    )


def arms() -> dict[str, TokenMethod]:
    """The method and, with the same samples, updates and KL, what it is compared with."""
    ours = variant("max-at-k")
    task, clipped = ours.rewards[:1], ClippedSurrogate()
    plain = GroupAdvantage(centre=None, scale=None)

    def best(part: BestOfGroup) -> TokenMethod:
        return ours.replace(rewards=(*task, part), advantages=plain, objective=clipped)

    return {
        "off-policy max@4": ours,
        "on-policy max@4": ours.replace(objective=clipped),
        "grpo": ours.replace(rewards=task, objective=clipped),
        "BoN-max-mean": best(BestOfGroup(baseline="mean")),
        "BoN-max-second": best(BestOfGroup(baseline="second")),
        "own ratio twice": ours.replace(objective=OffPolicyMaxAtK(own_ratio="twice")),
    }


@torch.no_grad()
def best_of(loop: EnumerableLoop) -> dict[str, Tensor]:
    """Exact E[max of k rewards], means over the prompts, [P] each."""
    rewards, order = loop.rewards.sort(dim=-1)
    probs = loop.policy.probs()
    below = probs.gather(-1, order.expand_as(probs)).cumsum(-1).clamp(max=1)
    before = torch.cat([torch.zeros_like(below[..., :1]), below[..., :-1]], -1)
    return {f"max@{k}": (rewards * (below**k - before**k)).sum(-1).mean(1) for k in (1, 4, 64)}
