"""Lite PPO: two tricks are enough (Tricks or Traps?, arXiv:2508.08221).

Changes GRPO in two places; everything else of the study's switches stays off:

1. rewards are centred on their group but scaled by the standard deviation of the whole batch,

       A_i = (r_i - mean_group) / (std_batch + eps),

   so that a group with one odd answer (7 right of 8: -2.65 for the wrong one under GRPO) cannot shout;
2. every token weighs the same in the loss, which suits base models (completion means suit aligned ones).

    loss = -1/(sum_i |y_i|) sum_i sum_t min(rho A_i, clip(rho, 1 - 0.2, 1 + 0.2) A_i)

The paper's tricks, one at a time from two starts on easy and hard problems, are `etude studies run lite-ppo`. What it
found, at 4B and 8B: dividing by the group's deviation hurts where its rewards are nearly all equal (easy problems),
the batch's is robust; clipping higher (best at about 0.28, for the smaller up to 0.32) and the completion mean help
aligned models, the token mean base models; leaving out what was cut helps under short limits alone.
"""

from etude.advantages.group import BatchStd, GroupAdvantage, GroupMean
from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo

lite_ppo = grpo.replace(
    id="lite-ppo",
    title="Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
    paper="arXiv:2508.08221",
    row="analysis",
    advantages=GroupAdvantage(centre=GroupMean(), scale=BatchStd()),
    aggregation="token-mean",
    claim=Claim(
        statement="Group mean with batch deviation and a token mean learns more than GRPO from a base model.",
        bed="language/compose-medium",
        baseline="grpo",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
    ),
)
