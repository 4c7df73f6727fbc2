"""ROLL: more groups are begun than a step needs, and the first that hold are learned from (arXiv:2506.06122).

Changes GRPO in two places:

1. dynamic sampling: groups whose rewards are all equal are replaced (`InformativeGroups`);
2. over-sampling: E groups more than the B of a step are under way until B hold. A completion is rewarded when it ends,
   a group judged when it is whole, one that is dropped replaced at once, and all that is unfinished when the step is
   full is aborted, so that nobody waits for the longest completion (`FirstGroups`):

       groups that are alive <= B + E,   learned from: the first B that hold, by when their last completion ended

Without the two it is GRPO. Time is that of a sampler which holds all rows at once, in tokens, so a run can be repeated
and gone on with, wherever it samples. These are the results of the schedule, not its speed: here all rows of a round
are sampled to their end, and what is aborted is work that was done. The scheduler of single samples, with the states
of a row, is `runtime/scheduler.py`, for workers that are simulated so far; rows that are a step older (the paper's
ratio of asynchronous generation) are `bound`; roles on workers are `runtime/executors/`.

Differences to the paper and its code. `async_generation_ratio` may be a fraction, `bound` is a whole number. What is
under way when a step is full is aborted with a bound, too, where the paper may carry it over. The code of August 2026
begins a further prompt wherever fewer than E are running, so also at the end of a step; here E groups run in advance
from its beginning. Shares of domains in a batch are for a curriculum. The paper gives no E; the code has 16
beside a batch of 128, and four beside 32 are as many.
"""

from etude.core.claims import Claim, Measure
from etude.filters.first import FirstGroups
from etude.filters.informative import InformativeGroups
from etude.methods.rlvr.grpo import grpo

roll = grpo.replace(
    id="roll",
    title="Reinforcement Learning Optimization for Large-Scale Learning: An Efficient and User-Friendly Scaling "
    "Library",
    paper="arXiv:2506.06122",
    filters=(InformativeGroups(), FirstGroups(extra=4)),
    claim=Claim(
        statement="In as many steps the first groups that hold teach no less than all of them, and a full batch of "
        "them is there in a 1.5th of the time that generating, scoring and refilling by batches takes.",
        task="compose",
        setting="chains of two to four, 30 steps of 16 x 8 in 4 minibatches from the shipped model, beside GRPO with "
        "dynamic sampling; schedules are simulated: 16 x 8 answers of 8 to 256 tokens (log-normal) on four samplers of "
        "16 slots, 5 to 30 ms of verification, eight at a time, two groups of five dropped, four more than are needed",
        measures=(
            Measure(name="accuracy", smallest=0.03, margin=-0.03),
            Measure(name="speed", smallest=0.1, against=1.5, bounds=(1.0, None)),
            Measure(name="accuracy, chains of four", role="mechanism", smallest=0.03, margin=-0.03),
            Measure(name="aborted", role="mechanism", smallest=0.05, minimum=0.05, bounds=(None, None)),
            Measure(name="speed, none begun in advance", role="mechanism", smallest=0.1, against=1.0,
                    bounds=(None, None)),
            Measure(name="speed, a step ahead", role="mechanism", smallest=0.1, against=1.0, bounds=(None, None)),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (1e-4, 2e-4, 4e-4)},
        learned_on="accuracy",
        paper_effect="none for the schedule alone; accuracy from 0.18 to 0.52 (7B) and from 0.27 to 0.62 (30B-A3B)",
    ),
)  # fmt: skip
