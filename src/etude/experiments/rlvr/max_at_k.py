"""max@k's claim: the expected best of 64 samples, known exactly, with graded rewards and three inner updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.core.kinds import TokenMethod
from etude.experiments.arms import Exact, Question, enumerable, findings, variant
from etude.experiments.cells import spread
from etude.methods.rlvr.max_at_k import BestOfGroup, OffPolicyMaxAtK
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.tasks.tabular.enumerable import Enumerable

if TYPE_CHECKING:
    from etude.loops.enumerable import EnumerableLoop

TASK = Enumerable(prompts=8, vocabulary=6, length=2, solutions=2, spread=2.0, graded=True)
SEED_COUNT, STEPS = 64, 60


def experiment() -> dict[str, Any]:
    """max@64 at the end of training, and its mean along the way."""
    methods = arms()
    runs = dict(zip(methods, spread(_train, list(methods.values()))))
    ours, *others = methods
    questions = [
        Question(f"max@64 against {name}", {k: runs[k].final("max@64") for k in (ours, name)}) for name in others
    ]
    figures = {
        name: {k: {"final": float(c[-1].mean()), "mean": float(c.mean())} for k, c in run.curves.items()}
        for name, run in runs.items()
    }
    return findings(questions, task="enumerable", steps=STEPS, seeds=SEED_COUNT, metric="max@64", figures=figures)


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


def _train(method: TokenMethod) -> Exact:
    return enumerable(method, TASK, seeds=SEED_COUNT, steps=STEPS, measure=_best_of)


@torch.no_grad()
def _best_of(loop: EnumerableLoop) -> dict[str, Tensor]:
    """Exact E[max of k rewards], means over the prompts, [P] each."""
    rewards, order = loop.rewards.sort(dim=-1)
    probs = loop.policy.probs()
    below = probs.gather(-1, order.expand_as(probs)).cumsum(-1).clamp(max=1)
    before = torch.cat([torch.zeros_like(below[..., :1]), below[..., :-1]], -1)
    return {f"max@{k}": (rewards * (below**k - before**k)).sum(-1).mean(1) for k in (1, 4, 64)}
