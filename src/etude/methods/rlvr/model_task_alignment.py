"""Model-task alignment: which odd recipes teach depends on what the model could do before (arXiv:2508.21188).

The paper trains models with rewards that do not know the truth, on one problem, and on wrong answers alone, and reads
what comes of it against pass@k of the model that each began from, on that task. Here that is the study
`etude studies run model-task-alignment`; this method is the common ground of its recipes.

Changes DAPO in four places:

1. rewards are the task's alone, without the punishment of long answers;
2. 16 completions of each problem, and at most two rounds of problems for one step;
3. a batch is used in two minibatches (128 problems a step, 64 at a time);
4. AdamW's weights decay by 0.1 times the rate, which rises over the first ten of 300 steps.

With c the task's reward, f whether a text has the form of an answer, and A the advantage in the whole group:

    ground truth        r = c                             (the method)
    random              r = f Bernoulli(1/2)              rewards=random-reward,format-gate
    incorrect           r = f (1 - c)                     rewards=incorrect-reward,format-gate
    format              r = f                             rewards=format-reward
    majority            r = 1[the group's commonest answer]   rewards=majority-reward
    entropy             r = mean_t log pi(y_t)            rewards=confidence-reward
    one problem                                           curriculum=replicated curriculum.chosen=named-problems
                                                          curriculum.chosen.ids=ID
    negative only       A 1[A < 0]                        --with negative-only
    positive only       A 1[A > 0]                        --with positive-only

All of them are parts that stack on any method of tokens. The released code asks r < 1 and r > 0 where signs of A stand
here, which is the same for rewards of 0 and 1. A text without the form of an answer counts as wrong, so f c = c. That
code divides by the standard deviation of the sample, here it is that of the group as a population.
"""

from etude.core.claims import Claim, Measure
from etude.experience.groups import Groups
from etude.filters.informative import InformativeGroups
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW

model_task_alignment = dapo.replace(
    id="model-task-alignment",
    title="Model-Task Alignment Drives Distinct RL Outcomes",
    paper="arXiv:2508.21188",
    row="analysis",
    experience=Groups(size=16),
    rewards=grpo.rewards,
    filters=(InformativeGroups(rounds=2),),
    optimizer=AdamW(weight_decay=0.1, warmup=0.03),
    minibatches=2,
    claim=Claim(
        statement="Without the truth, by the majority of answers, and from wrong answers alone a larger share of what "
        "the truth teaches is learned from a start that solves the task now and then than from one that hardly ever "
        "does.",
        task="compose",
        setting="three tables in a row, 80 steps of 16 x 8; the shipped model, and one taught mostly single tables",
        measures=(
            Measure(name="share of majority", smallest=0.2, bounds=(None, None)),
            Measure(name="share of wrong answers alone", smallest=0.2, bounds=(None, None)),
            Measure(name="accuracy by the truth", role="mechanism", smallest=0.03),
            Measure(name="pass@16 of the start", role="mechanism", minimum=0.8, smallest=0.05),
        ),
        learned_on="accuracy by the truth",
        paper_effect="in Qwen and Llama on mathematics and logic, random, wrong and majority rewards, one problem and "
        "wrong answers alone work where pass@k of the start is high, and hardly at all where it is low",
    ),
)
