"""HGPO: a policy that learns when to think, from completions in both of its modes (arXiv:2505.14631).

A completion begins with one of two texts, <think> or <no_think>: it reasons first, or it answers at once. Changes GRPO
in five places:

1. of N completions of a problem half begin with each mode, whatever the policy would have chosen (`BothModes`). The
   mode's tokens are trained: what they are divided by is pi_old's probability of them, as of all others;
2. rewards are compared twice, and both comparisons are standardised as GRPO's rewards are (`BetweenAndWithin`). Between
   the modes, all completions of the one with the higher mean reward get 1, where not to think is given a margin;
   within a mode its best completion gets 1,

       A_t = A_within + alpha A_between 1[t is of the mode],   mode = argmax(mean r_think, mean r_no_think + margin);

   so the choice of a mode is learned by what the modes are worth, and what follows it by what it is worth in its mode;
3. PPO's clip is 0.5;
4. 0.001 of the KL (k3) to a reference that is refreshed now and then;
5. N is 4.

Before it a policy learns both modes from worked answers in either (`sft`, on a task that has such: `hybrid-sums`). How
often the mode that it chooses freely is the better one says `hybrid_accuracy` (`evaluation/modes.py`).

The paper's objective divides by the fine-tuned policy where its algorithm samples from, and means, pi_old. It says
argmax: that the shorter one of equally good completions is best is ours (`advantages.shorter`), that no thinking wins
where the modes are equal too. How long a reference stays is not said; here 50 steps. There is no official code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd, episode_sum, group_sum, of_episodes
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative
from etude.core.slots import TokenAdvantages
from etude.experience.modes import BEGUN, DIRECT, MODE, THINK, BothModes
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.references.frozen import Periodic
from etude.regularizers.kl import KLToReference

if TYPE_CHECKING:
    from etude.core.method import Method


class BetweenAndWithin(TokenAdvantages):
    """A_within of all tokens, and alpha A_between of those that say the mode (arXiv:2505.14631, 2.3).

    Within a mode the best completion of a problem gets 1 and the others 0; between the modes all completions of the
    better one get 1. `of` makes advantages of either.

    Shapes: scores [B] -> advantages [B, T].

    Args:
        of: GRPO's standardised rewards; RLOO's with `of.centre=leave-one-out` and `of.scale=none`.
        alpha: weight of the choice between the modes.
        margin: added to the mean reward of not thinking; a mode wins that is above it, and no thinking where equal.
        shorter: whether the shorter one of equally good completions is the best; else the first that was sampled.

    Two completions think, the second of which is right; of the two that do not one is:

    >>> scores, mode = torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1])
    >>> between_modes(scores, mode, torch.zeros(4), margin=0.2).tolist()
    [0.0, 0.0, 1.0, 1.0]
    >>> within_modes(scores, mode, torch.tensor([9, 9, 2, 2]), torch.zeros(4)).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """

    of: GroupAdvantage = GroupAdvantage(centre=GroupMean(), scale=GroupStd())
    alpha: NonNegative = 1.0
    margin: float = 0.2
    shorter: bool = True

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots().get("experience"), BothModes):
            return "compares completions that think with others that do not: set experience=both-modes."
        if method.slots().get("second_look") is not None:
            return (
                "compares two modes, and what a second look tries again is in none of them: leave out the second look."
            )
        return None

    def __call__(self, batch: TokenBatch) -> Tensor:
        info = [e.info for e in batch.episodes]
        mode, begun = (batch.group.new_tensor([i.get(k, n) for i in info]) for k, n in ((MODE, -1), (BEGUN, 0)))
        length = episode_sum(batch.action_counts, batch) if self.shorter else torch.zeros_like(begun)
        within = of_episodes(lambda *x: within_modes(*x), batch, batch.scores, mode, length)
        between = of_episodes(lambda s, m, g: between_modes(s, m, g, self.margin), batch, batch.scores, mode)
        of_mode = batch.action_mask & (batch.action_mask.cumsum(1) <= begun[:, None])
        if (once := batch.once()) is not None:
            of_mode &= torch.zeros_like(batch.sampled).index_fill(0, once[0], True)[:, None]  # it is said once
        chosen = self.alpha * self.of.of_scores(batch, between)[:, None] * of_mode
        return self.of.of_scores(batch, within)[:, None] * batch.action_mask + chosen


def between_modes(scores: Tensor, mode: Tensor, group: Tensor, margin: float) -> Tensor:
    """[B] 1 for completions of the mode that is better in their group, else 0; all 0 where a mode has none.

    Args:
        scores, mode, group: [B]; `mode` is 0 of completions that think, 1 of those that do not.
        margin: added to the mean score of not thinking, which also wins where both are equal.
    """
    mine = [(mode == m).to(scores.dtype) for m in (THINK, DIRECT)]
    count = [group_sum(m, group) for m in mine]
    think, direct = (group_sum(scores * m, group) / n.clamp(min=1) for m, n in zip(mine, count))
    won = torch.where(think > direct + margin, mode == THINK, mode == DIRECT)
    return (won & (count[THINK] > 0) & (count[DIRECT] > 0)).to(scores.dtype)


def within_modes(scores: Tensor, mode: Tensor, length: Tensor, group: Tensor) -> Tensor:
    """[B] 1 for the best completion of each mode in its group, else 0; of equal scores the shorter, then the first.

    Args:
        scores, mode, length, group: [B].
    """
    order = torch.argsort(length, stable=True)
    order = order[torch.argsort(scores[order], descending=True, stable=True)]
    kinds, whose = torch.unique(torch.stack([group.to(mode), mode], 1), dim=0, return_inverse=True)
    places = torch.arange(len(order), device=order.device)
    first = torch.full((len(kinds),), len(order), device=order.device)
    best = order[first.scatter_reduce(0, whose[order], places, "amin")]
    found = torch.zeros_like(scores)
    found[best] = 1.0
    return found


hgpo = grpo.replace(
    id="hgpo",
    title="Think Only When You Need with Large Hybrid-Reasoning Models",
    paper="arXiv:2505.14631",
    experience=BothModes(size=4),
    advantages=BetweenAndWithin(alpha=1.0, margin=0.2),
    objective=ClippedSurrogate(low=0.5, high=0.5),
    regularizers=(KLToReference(coefficient=0.001),),
    reference=Periodic(every=50),
    claim=Claim(
        statement="From a policy that knows both modes HGPO learns to choose the better one more often than methods "
        "that sample from the mode it chooses, thinks about what is hard, and gets more right per token.",
        task="hybrid-sums",
        setting="Sums of two numbers and of four, after 300 supervised steps on answers in both modes; 40 steps of 32 "
        "problems with 4 completions each: HGPO, GRPO, and right answers alone (rft).",
        measures=(
            Measure(name="hybrid accuracy", smallest=0.05),
            Measure(name="accuracy per token", smallest=0.01),
            Measure(name="thinking by difficulty", smallest=0.1, bounds=(-1.0, 1.0)),
            Measure(name="accuracy", role="mechanism"),
            Measure(name="hybrid accuracy against right answers alone", role="mechanism", smallest=0.05),
            Measure(name="hybrid accuracy against the start", role="mechanism", smallest=0.05),
            Measure(name="thinking with a wide margin", role="mechanism", direction="lower", smallest=0.05),
        ),
        equal=("completions",),
        learned_on="accuracy",
        paper_effect="9.2 % and 7.1 % over fine-tuning with DPO, 18.3 % and 11.5 % over fine-tuning on right answers, "
        "on average at 1.5 B and 7 B",
    ),
)
