"""SFT, then GRPO: a supervised warm start, then reinforcement from it.

A recipe of two runs: 1. `sft` on the task's worked answers; 2. `grpo` from the policy that this made, with an optimizer
of its own and held back to that policy, where anything holds it back. Nothing is mixed: the second run sees no worked
answer, and the first no reward.

Against `hpt` and others that mix both in one batch it is the plain alternative: what the change-over costs is the
optimizer's moments, and its one coefficient is how many of the steps are the first run's (`runs.sft.steps`). In one run
with one optimizer the same order is a method's `stages` (`grpo` with `Phase(like="sft", end=0.3)`).
"""

from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.stages.chain import Train

sft_then_grpo = Recipe(
    id="sft-then-grpo",
    title="DeepSeek-R1 (a cold start from worked answers, then GRPO)",
    paper="arXiv:2501.12948",
    row="system",
    runs=(
        Train(called="sft", method="sft", steps=50),
        Train(called="rl", method="grpo", steps=100),
    ),
    claim=Claim(
        statement="Where right chains are rarely sampled, a quarter of the steps on worked answers and the rest on "
        "GRPO beats all of them on GRPO.",
        bed="language/compose-hard",
        baseline="grpo",
        measures=(Measure(name="end"), Measure(name="area", role="mechanism")),
        changes={"runs.sft.steps": 10, "runs.rl.steps": 30},
        equal=("steps",),
    ),
)
