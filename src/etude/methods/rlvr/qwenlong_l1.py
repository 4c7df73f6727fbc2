"""QwenLong-L1: progressive context scaling (arXiv:2505.17667).

A recipe: a chain of runs by the length of their inputs, each from the policy of the one before, with a fresh optimizer.
Its warm-up by supervised learning is what it begins from: a bed's start, or `etude train sft`. Each run is a phase
(`qwenlong-l1-phase`), which changes DAPO in four places:

1. problems: phase k trains on inputs of a length in (L_{k-1}, L_k] (`within-lengths`), and
2. for a share of each step on those of earlier phases again, drawn by diff(x) = 1 / m(x), m(x) the mean reward of x's
   last group, at most 8: never solved ones weigh as much as those solved once in eight, always solved ones are not
   drawn (`retrospective`). The paper prefers those never solved, as a larger cap does: `curriculum.cap=1000`;
3. reward: r = max(r_rule, r_judge), a rule that takes an answer which contains the right one or is contained in it, and
   a judge of whether both mean the same, asked only where the rule said no; nothing answered is 0. Plus the soft
   overlong penalty over the last tenth of the tokens, down to -1;
4. both clips at 0.2, eight completions at temperature 0.7, groups drawn in up to ten rounds, four minibatches.

How many earlier problems a step has is not said: `share=0.25` is ours. The judge is a small language model there; here
it is `same-answer`, which reads numbers in words and figures alike; a `model-judge` in the panel asks a model. The
published rule looks for characters (`unit=character`): 1 is then in 12. Sampling is from the whole distribution, since
the ratio is the policy's own (top-p 0.95 there).

Lengths are in characters of the prompt, and those here of `facts` with 16, 32 and 64 facts; for another task

    --set runs.short.set=curriculum.of.most=2000 --set runs.long.set=...

Without limits, earlier runs and a judge, one phase is DAPO on a rule.
"""

from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.curricula.lengths import Retrospective, WithinLengths
from etude.experience.groups import Groups
from etude.filters.informative import InformativeGroups
from etude.methods.rlvr.dapo import dapo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.rewards.judged import JudgeReward
from etude.rewards.judges import Contained, SameAnswer
from etude.rewards.outcome import OverlongPenalty
from etude.stages.chain import Train

qwenlong_l1 = Recipe(
    id="qwenlong-l1",
    title="QwenLong-L1: Towards Long-Context Large Reasoning Models with Reinforcement Learning",
    paper="arXiv:2505.17667",
    runs=(
        Train(called="short", method="qwenlong-l1-phase", steps=50, set=("curriculum.of.most=128",)),
        Train(
            called="middle", method="qwenlong-l1-phase", steps=50,
            set=("curriculum.of.above=128", "curriculum.of.most=256", "curriculum.run={short}"),
        ),
        Train(
            called="long", method="qwenlong-l1-phase", steps=50,
            set=("curriculum.of.above=256", "curriculum.run={middle}"),
        ),
    ),
    claim=Claim(
        statement="Short lists first, then longer ones with the hard short ones again, teach more about lists of every "
        "length than all lengths at once in equal steps.",
        bed="language/facts-long",
        baseline="qwenlong-l1-phase",
        changes={
            "runs.short.set": ["curriculum.of.most=40"],
            "runs.middle.set": ["curriculum.of.above=40", "curriculum.of.most=70", "curriculum.run={short}"],
            "runs.long.set": ["curriculum.of.above=70", "curriculum.run={middle}"],
            "experience.temperature": 1.0,
            "optimizer.lr": 1e-4,
        },
        baseline_changes={"experience.temperature": 1.0, "optimizer.lr": 1e-4},
        measures=(Measure(name="end"), Measure(name="area", role="mechanism")),
        equal=("steps",),
        paper_effect="70.7 on average over seven sets of questions about documents, 5.1 above its start of 32B",
    ),
)  # fmt: skip

qwenlong_l1_phase = dapo.replace(
    id="qwenlong-l1-phase",
    title="QwenLong-L1, one phase of it",
    paper="arXiv:2505.17667",
    curriculum=Retrospective(of=WithinLengths()),
    experience=Groups(size=8, temperature=0.7),
    rewards=(JudgeReward(panel=(Contained(), SameAnswer())), OverlongPenalty(buffer=0.1)),
    filters=(InformativeGroups(rounds=10),),
    objective=ClippedSurrogate(low=0.2, high=0.2),
    minibatches=4,
)
