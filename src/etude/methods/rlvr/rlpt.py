"""RLPT: reinforcement learning on pre-training data (arXiv:2509.19249).

A recipe of two runs: `rlpt-text` on plain text, in which nobody has labelled an answer, then GRPO on answers. Its cold
start by instructions is what it begins from: a bed's start, or `etude train sft`. The first run changes GRPO in three
places:

1. the task: a text s_1 ... s_n in segments, of which s_i is to be said, 2 <= i < n, after s_<i (autoregressive), or
   after s_<i and s_{i+1} (middle). Whatever is thought, it is said between marks; prompts of both kinds are mixed;
2. the reward: 1 if a judge takes what is between the marks for the beginning of what follows, s_i s_{i+1} ..., since it
   may be several segments (strict equality is too harsh); else, and without marks, 0. Here the judge is a rule,
   `segment-prefix`: whole segments, equal but for white space; a `model-judge` in the panel asks a model;
3. the objective, J = E_next[r] + lambda E_middle[r]: advantages of middle prompts count lambda times.

Lambda is only said to be in (0, 1): 0.5 is ours. There is no KL, and no ratio is clipped with one update a batch. There
is no official code. The control that is shown the same segments, supervised instead of rewarded, is the recipe with

    --set runs.text.method=sft
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative
from etude.core.recipe import Recipe
from etude.core.slots import TokenAdvantages
from etude.methods.rlvr.grpo import grpo
from etude.rewards.judged import JudgeReward, Predicted
from etude.rewards.judges import SegmentPrefix
from etude.stages.chain import Train

ENOUGH = 1024
"""Completions after which a level that none of them has is taken for one that does not exist."""


class ScaledLevel(TokenAdvantages):
    """Advantages of another part, `factor` times those of problems of one level: E[r | others] + factor E[r | level].

    What completions of a problem are compared with does not change, and rows that count nothing stay in the mean, so
    that the gradient is linear in the factor.

    Shapes: scores [B] -> advantages [B, T].

    Args:
        of: whose advantages.
        level: `Problem.level` of those that count differently. One that none of the first 1,024 completions has is
            refused.

    >>> from types import SimpleNamespace as Rows
    >>> levels = [Rows(problem=Rows(level=name)) for name in ("next", "middle")]
    >>> ScaledLevel(factor=0.5).factors(Rows(episodes=levels, scores=torch.zeros(2))).tolist()
    [1.0, 0.5]
    """

    of: GroupAdvantage = GroupAdvantage(centre=GroupMean(), scale=GroupStd())
    level: str = "middle"
    factor: NonNegative = 0.5

    def before_update(self, batch: TokenBatch) -> None:
        seen: Counter[str] = self.made.setdefault("levels", Counter())
        seen.update(e.problem.level for e in batch.episodes)
        if self.level not in seen and seen.total() >= ENOUGH:
            raise ConfigError(
                f"ScaledLevel.level is {self.level!r}, and none of the first {seen.total()} completions is of a "
                f"problem of this level; there are {sorted(seen)}: set advantages.level to one of these, or choose "
                "advantages=group-advantage."
            )

    def __call__(self, batch: TokenBatch) -> Tensor:
        return self.of(batch) * self.factors(batch)[:, None]

    def factors(self, batch: TokenBatch) -> Tensor:
        """[B] by how much each row counts."""
        own = torch.tensor([e.problem.level == self.level for e in batch.episodes], device=batch.scores.device)
        return torch.where(own, self.factor, 1.0).to(batch.scores)


rlpt = Recipe(
    id="rlpt",
    title="Reinforcement Learning on Pre-Training Data",
    paper="arXiv:2509.19249",
    runs=(
        Train(called="text", method="rlpt-text", steps=60, task="derivations", set=("task.asks=next,middle",)),
        Train(called="answers", method="grpo", steps=40),
    ),
    claim=Claim(
        statement="Before as many steps on answers, being rewarded for saying the next segments of unlabelled texts "
        "teaches more than continued training on these segments.",
        bed="language/derivations",
        baseline="rlpt",
        baseline_changes={"runs.text.method": "sft"},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        paper_effect="before RLVR +2.3 and +1.3 points of pass@1 on AIME24 and AIME25 (Qwen3-4B-Base)",
    ),
)

rlpt_text = grpo.replace(
    id="rlpt-text",
    title="Reinforcement Learning on Pre-Training Data, on text",
    paper="arXiv:2509.19249",
    rewards=(JudgeReward(panel=(SegmentPrefix(),), sees=Predicted()),),
    advantages=ScaledLevel(),
)
