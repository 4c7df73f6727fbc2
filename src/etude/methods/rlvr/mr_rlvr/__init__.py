"""MR-RLVR: exercises about worked answers come before their problems (arXiv:2511.17473).

A recipe of three runs, instead of GRPO's one:

1. exercises are made of worked answers (`Exercises`), without a judge and without a final answer that can be checked.
   *Masked, then fill*: m spans that carry the reasoning are blank, r = 1/m sum_k match(fill_k, gold_k). *Reorder*: the
   n steps are shown in another order, r = 1/n sum_i 1[step i is in its place]. An answer that cannot be read earns 0;
   both kinds are mixed in every batch;
2. GRPO on them (`ProcessReward`);
3. GRPO on the problems, with an optimizer of its own. Alone this is GRPO.

A random order of n different steps earns 1/n on average, as many places as a permutation keeps: one. Gold fills put
back into the blanks are the worked answer.

How the paper chooses spans, matches fills and weighs the kinds is not confirmed; here spans are numbers, m is drawn
from 1 to 4 (`runs.exercises.blanks`), and both kinds are equally frequent. The separator of steps and both prompts are
fields as well. No code is public.
"""

from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.curricula.masking import filled, masked
from etude.methods.rlvr.mr_rlvr.pieces import Exercises, ProcessReward, fill_score, order_score
from etude.stages.chain import Train

mr_rlvr = Recipe(
    id="mr-rlvr",
    title="Masked-and-Reordered Self-Supervision for Reinforcement Learning from Verifiable Rewards",
    paper="arXiv:2511.17473",
    runs=(
        Exercises(called="exercises", problems=1000),
        Train(called="process", method="grpo", steps=100, task="{exercises}", set=("rewards=process-reward",)),
        Train(called="rl", method="grpo", steps=150),
    ),
    claim=Claim(
        statement="Exercises about worked answers before GRPO, on few problems, make it end higher than GRPO alone, "
        "and higher than after imitating the same worked answers.",
        task="sums",
        setting="Sums of four and five numbers, 500 of them; 60 steps of exercises, or as many supervised steps on the "
        "worked answers, or none, then 60 steps of GRPO with 16 problems",
        measures=(
            Measure(name="pass@1 against GRPO alone"),
            Measure(name="pass@8 against GRPO alone"),
            Measure(name="pass@1 after imitation"),
            Measure(name="pass@8 after imitation", role="mechanism"),
            Measure(name="process reward, from start to end", role="mechanism", smallest=0.05),
        ),
        equal=("rl completions",),
        learned_on="pass@1 against GRPO alone",
        paper_effect="over RLVR, on average over AIME24, AIME25, AMC23 and MATH500: pass@1 +9.86%, pass@5 +5.27%, "
        "pass@8 +4.00%, relative",
    ),
)

__all__ = ["Exercises", "ProcessReward", "fill_score", "filled", "masked", "mr_rlvr", "order_score"]
