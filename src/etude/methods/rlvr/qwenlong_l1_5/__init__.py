"""QwenLong-L1.5: a recipe for long inputs, and for inputs beyond the context (arXiv:2512.12967).

A recipe in six runs and a merge, where QwenLong-L1 has three phases:

1. three phases on inputs of growing length, on all of the text at once (`qwenlong-l1-5-phase`, below);
2. from the third, a memory agent: a document comes in chunks x_1 .. x_K, and of every chunk the policy sees the
   question, its own memory m_{t-1} and x_t alone (`memory-and-chunk`; the plan p_t of what to look for next is part of
   what it writes). There is one reward at the end, and

       grad J = E[sum_t A grad log pi(m_t | q, m_{t-1}, x_t) + A grad log pi(y | q, m_K)],

   A of the whole episode, standardised like any other, reaches the rows of all chunks. A few supervised steps before it
   (`notes`) show a small model what a memory is; the paper's models know;
3. the third phase and the memory agent are merged with what the recipe began from (`sce`), and
4. the last phase trains the merged policy on all of the text again.

A phase changes GRPO in five places; J = 1 / (sum_j |y_j|) sum_i A_i sum_t log pi:

1. every batch has as many problems of each kind (`balanced-levels`, on inputs of the phase's lengths);
2. A_i = (r_i - mean of its group) / std of all rewards of its kind in the batch (`level-std`);
3. AEPO: while the batch's entropy is high, completions with A_i < 0 are left out (`aepo`; the static variants are
   `sure-negatives`);
4. one update of the batch that was sampled, so neither ratio nor clip, and every token weighs the same;
5. reward: max(rule, judge), as in QwenLong-L1, at temperature 0.7.

Sampling is from the whole distribution (top-p 0.95 there). That problems are chosen by pass@k of the base before,
and again at each switch under the next phase's limits, is left out: groups that are all right or all wrong have no
advantage, and cost samples alone. Kinds of questions are `Problem.level`: of `facts` with `task.level=kind`. Lengths
are as in `qwenlong-l1`. The code is not public.
"""

from etude.advantages.group import GroupAdvantage, GroupMean, LevelStd
from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.curricula.balanced import BalancedLevels
from etude.curricula.lengths import WithinLengths
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.qwenlong_l1_5.memory import MemoryAndChunk
from etude.objectives.policy_gradient import PolicyGradient
from etude.rewards.judged import JudgeReward
from etude.rewards.judges import Contained, SameAnswer
from etude.stages.chain import Train
from etude.stages.merging import SCE
from etude.token_weights.band import AEPO

PHASE = "qwenlong-l1-5-phase"

qwenlong_l1_5 = Recipe(
    id="qwenlong-l1-5",
    title="QwenLong-L1.5: Post-Training Recipe for Long-Context Reasoning and Memory Management",
    paper="arXiv:2512.12967",
    runs=(
        Train(called="short", method=PHASE, steps=40, set=("curriculum.most=128",)),
        Train(called="middle", method=PHASE, steps=40, set=("curriculum.above=128", "curriculum.most=256")),
        Train(called="long", method=PHASE, steps=40, set=("curriculum.above=256",)),
        Train(called="notes", method="sft", steps=40, task="facts-in-chunks"),
        Train(
            called="memory", method=PHASE, steps=40, task="facts-in-chunks",
            set=("experience.view=memory-and-chunk", "rewards=task-reward", "task.level=kind"),
        ),
        SCE(called="merged", begins="start", of=("long", "memory")),
        Train(called="full", method=PHASE, steps=40, set=("curriculum.above=256",)),
    ),
    claim=Claim(
        statement="Phases of growing length, a memory agent merged in and the longest again teach more about lists of "
        "every length than all lengths at once in equal steps.",
        bed="language/facts-kinds",
        baseline=PHASE,
        changes={
            "runs.short.set": ["curriculum.most=40"],
            "runs.middle.set": ["curriculum.above=40", "curriculum.most=70"],
            "runs.long.set": ["curriculum.above=70"],
            "runs.notes.set": ["task.facts=16", "task.chunk=4"],
            "runs.memory.set": [
                "experience.view=memory-and-chunk", "rewards=task-reward", "task.level=kind", "task.facts=16",
                "task.chunk=4",
            ],
            "runs.full.set": ["curriculum.above=70"],
            "experience.temperature": 1.0,
            "optimizer.lr": 1e-4,
        },
        baseline_changes={"experience.temperature": 1.0, "optimizer.lr": 1e-4},
        measures=(Measure(name="end"), Measure(name="area", role="mechanism")),
        equal=("steps",),
        paper_effect="61.92 to 71.82 on average, from its start of 30B; the memory agent 9.48 on inputs of one to four "
        "million tokens",
    ),
)  # fmt: skip

qwenlong_l1_5_phase = grpo.replace(
    id="qwenlong-l1-5-phase",
    title="QwenLong-L1.5, one phase of it",
    paper="arXiv:2512.12967",
    curriculum=WithinLengths(of=BalancedLevels()),
    experience=Groups(size=8, temperature=0.7),
    rewards=(JudgeReward(panel=(Contained(), SameAnswer())),),
    advantages=GroupAdvantage(centre=GroupMean(), scale=LevelStd()),
    objective=PolicyGradient(),
    token_weights=(AEPO(),),
    aggregation="token-mean",
)

__all__ = ["MemoryAndChunk", "qwenlong_l1_5", "qwenlong_l1_5_phase"]
