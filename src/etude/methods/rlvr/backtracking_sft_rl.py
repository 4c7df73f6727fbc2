"""How much backtracking is enough? The same reinforcement after worked answers with few or many wrong branches
(arXiv:2505.24273).

The paper writes worked answers with a known number b of wrong branches that are given up, or with their content broken,
and reinforces what each of them makes. Here that is the study `etude studies run backtracking-sft-rl` on the task
`countdown-lines`; this recipe is what its cells have in common: two runs,

1. `sft` on the task's worked answers. Which ones they are the task says: `--set task.backtracks=3` for b = 3,
   `--set task.shown=shuffled` for the same lines in any order;
2. `backtracking-rl` from there, with an optimizer of its own; 16 problems a step here.

A trace of b branches on the solution s_1 ... s_m has each branch i after s_{j_i}, in the order of the j_i: wrong steps
to another number than the target, and the line `back j_i`, or `restart` where j_i = 0; then s_{j_i + 1} and so on.

`backtracking-rl` changes GRPO in three places:

1. the reward is 1 for a right answer, 0.1 for another one in its form, else 0: 0.9 [right] + 0.1 [formed];
2. 128 problems a step;
3. used in two minibatches, of 64.

How often completions go back and how long they are is in every step's metrics (`task/backtracks`, `completion_length`).
There is no KL and no bonus for entropy. Alone it is the cold start. Long answers that a model samples and learns from
itself, the paper's other kind, are not made here; its sudoku and six other tasks neither.
"""

from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.methods.rlvr.grpo import grpo
from etude.rewards.outcome import TaskReward
from etude.rewards.patterns import FormatReward
from etude.stages.chain import Train

backtracking_sft_rl = Recipe(
    id="backtracking-sft-rl",
    title="How Much Backtracking is Enough? Exploring the Interplay of SFT and RL in Enhancing LLM Reasoning",
    paper="arXiv:2505.24273",
    row="analysis",
    runs=(
        Train(called="sft", method="sft", steps=300, set=("optimizer.lr=2e-3",)),
        Train(called="rl", method="backtracking-rl", steps=60, set=("problems=16",)),
    ),
    claim=Claim(
        statement="After the same reinforcement, worked answers with a wrong branch that is given up have taught more "
        "than worked answers without.",
        bed="language/countdown-lines-easy",
        baseline="backtracking-sft-rl",
        changes={"runs.sft.set": ["optimizer.lr=2e-3", "task.backtracks=1"]},
        baseline_changes={"runs.sft.set": ["optimizer.lr=2e-3", "task.backtracks=0"]},
        measures=(Measure(name="end"), Measure(name="area", role="mechanism")),
        equal=("steps",),
        sweep={},
        paper_effect="longer traces with backtracks make reinforcement end higher and steadier; best is b = 1 for "
        "countdown and b = 5 for sudoku",
    ),
)

backtracking_rl = grpo.replace(
    id="backtracking-rl",
    title=backtracking_sft_rl.title,
    paper=backtracking_sft_rl.paper,
    rewards=(TaskReward(weight=0.9), FormatReward(weight=0.1)),
    problems=128,
    minibatches=2,
)
