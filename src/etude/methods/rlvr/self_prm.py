"""Self-PRM: who learns to solve learns to judge, and can choose among its own solutions (arXiv:2505.11227).

Changes GRPO in one place, the size of a step: 16 problems, ours, since the paper looks at models that others trained.
Rewards are of outcomes alone, and no judgement is ever trained. What is new is what is asked of the policy,
here by `etude evaluate RUN --judge plain` (or `self-ref`):

1. the first wrong step of given solutions, -1 for none: F1 = 2 a b / (a + b), with a and b the shares of wrong and of
   right solutions that are judged exactly (ProcessBench, arXiv:2412.06559);
2. of k solutions of its own the one that it accepts most often, of equals one with the commonest result, of these the
   likeliest (`self-prm@k`, beside `maj@k`, `pass@1` and `pass@k`); precision and recall of its word, by level;
3. both with a solution of its own in view (Self-REF), or by several judgements of each solution (`--judgements 8`): of
   given ones the commonest word counts, of its own the share that accepts;
4. along training (`etude train self-prm --evaluate-every 10 --evaluate-judge plain`), how F1 goes with accuracy, and
   whether solving a problem and judging its given solution rightly are independent (Pearson's chi-square of the 2 x 2
   table).

The claim's experiment does all of them around and along one run of GRPO on sums, from a policy that has been shown both
worked answers and judgements, which work out each total before they say one: `etude claims run self-prm`. The paper has
no code; its other judge, a trained model of steps, is not built.
"""

from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo

self_prm = grpo.replace(
    id="self-prm",
    title="Is PRM Necessary? Problem-Solving RL Implicitly Induces PRM Capability in LLMs",
    paper="arXiv:2505.11227",
    row="analysis",
    problems=16,
    claim=Claim(
        statement="While it learns to solve, and no judgement is trained, a policy's judgements of given solutions get "
        "better, and of 16 of its own solutions its word chooses a right one more often than votes do.",
        task="sums",
        setting="four and five numbers; 2,000 worked answers and 2,000 judgements shown first, then 100 steps of "
        "16 x 8, after against before",
        measures=(
            Measure(name="F1 of first wrong steps", smallest=0.03),
            Measure(name="chosen of 16, against votes", smallest=0.02),
            Measure(name="accuracy", role="mechanism", smallest=0.03),
            Measure(name="accuracy gained", role="mechanism", minimum=0.03, smallest=0.03, bounds=(-1.0, 1.0)),
            Measure(name="F1 along accuracy", role="mechanism", smallest=0.2, bounds=(-1.0, 1.0)),
            Measure(name="precision, five numbers, against four", role="mechanism", direction="lower", smallest=0.03),
            Measure(name="F1 with a solution in view, against none", role="mechanism", smallest=0.03),
        ),
        learned_on=None,
        paper_effect="F1 83.5 and 83.7 after RL alone, 78.3 of the best trained judge of 72 B; of 32 solutions "
        "on AIME24 90.0 by its word and 86.7 by votes; precision below 10 % on hard problems; Self-REF +18.8 F1 for an "
        "instruction model, about 0 after RL",
    ),
)
