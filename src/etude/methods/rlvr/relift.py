"""ReLIFT: what reinforcement cannot learn is kept, and fine-tuned on once there is enough of it (arXiv:2506.07527).

Changes GRPO in five places:

1. a problem of which no completion is right, nor any paid less than 0 (-1 is for a broken format in the paper), goes on
   a buffer; once there are B = 32 (as many as a step has problems), the next step is supervised, on the worked answers
   of B of them, the newest first; the others stay. At most every other step is one (`Interleaved`, `WhenFull`). With
   its own AdamW, whose gradients are clipped at 0.7, it minimises

       -1/N sum_i sum_t log pi(y*_{i,t} | x_i, y*_{i,<t}) - 0.001 H,    N = all learned tokens;

2. advantages are r - mean(r), so all completions of such a problem have 0: the supervised steps alone teach it;
3. ratios are not clipped, loss_t = -pi / pi_old A;
4. tokens are summed and divided by the completion limit;
5. an entropy bonus of 0.001, and two minibatches.

The paper's reward is `rewards=graded-reward rewards.0.wrong=0 rewards.0.unformed=-1`. With `dapo --with relift` the
overlong penalty makes what a cut completion is paid negative, so a problem with one is never kept, however often it was
failed at; `stages.0.chooser.buffer.floor=-1` keeps it.

Problems that are never solved come often early and seldom late, and with them the supervised steps. In the paper one is
a second update within a step of reinforcement; here it is a step of its own, which takes the place of one and samples
nothing (`other` is their share). Variants: `stages.0.chooser.buffer.at_most=` (a share that is right), `.size=`,
`stages.0.turn.optimizer.lr=`; worked answers are the task's (a column of data, a program).
"""

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.claims import Claim, Measure
from etude.curricula.kept import HardProblems
from etude.methods.rlvr.grpo import grpo
from etude.objectives.unified import BehaviourDenominator, UnifiedGradient
from etude.optimizers.adam import AdamW
from etude.regularizers.entropy import EntropyBonus
from etude.stages.turns import Interleaved, Like, WhenFull

relift = grpo.replace(
    id="relift",
    title="Learning What Reinforcement Learning Can't: Interleaved Online Fine-Tuning for Hardest Questions",
    paper="arXiv:2506.07527",
    stages=(
        Interleaved(
            turn=Like(id="sft", keep=("regularizers",), optimizer=AdamW(clip_norm=0.7)),
            chooser=WhenFull(size=32, buffer=HardProblems(at_most=0.0, order="newest")),
        ),
    ),
    advantages=GroupAdvantage(centre=GroupMean(), scale=None),
    objective=UnifiedGradient(denominator=BehaviourDenominator(), mask=None),
    aggregation="fixed-length",
    regularizers=(EntropyBonus(coefficient=0.001),),
    minibatches=2,
    claim=Claim(
        statement="With worked answers of what it fails at, in steps that take the place of others, it learns more "
        "than GRPO in as many steps.",
        bed="language/compose-hard",
        baseline="grpo",
        measures=(
            Measure(name="end"),
            Measure(name="area", role="mechanism"),
            Measure(name="mean:other", role="mechanism", minimum=0.05),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (1e-4, 2e-4), "minibatches": (1, 4)},
        paper_effect="more than 5.2 points over six benchmarks, with 13% of the demonstrations",
    ),
)
