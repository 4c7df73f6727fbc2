"""RLAD: one policy learns to write hints, another to solve with them (arXiv:2510.02263).

A recipe that alternates two policies, a writer pi(z | x) and a solver pi(y | x, z), instead of DAPO's one:

1. `WorthwhileHints`: hints from elsewhere are kept where they help the solver that it begins from, and where the
   solution cannot be said from the hint alone (0 of 16); the writer is fine-tuned on them;
2. `rlad-solver`, DAPO on problems with a hint of the writer in view, a group for each, in three places different:
   r(x, z, y) = Acc(y, y*) with a hint, and 0 without, whatever the answer (`only-with-hint`), so that nothing is gained
   by ignoring hints; prompts without one are mixed in (`bare`), whose groups stay although all rewards are equal
   (`informative-or-bare`); and KL to the policy at the start is on, which is all that these have;
3. `rlad-writer` with the solver as it is: of four hints to each of 500 problems, each scored by k solutions with it,

       r(x, z) = 1/k sum_i Acc(y_i, y*),   y_i ~ solver( . | x, z)

   the best against the worst by RPO, offline: one batch, four passes in steps of a sixteenth,

       loss = -log sigmoid(beta (m(z_w) - m(z_l))) - 1/|z_w| log pi(z_w | x),   m = log pi / ref

   `rlad-writer-rft` is the other update: fine-tuning on hints that are best and better than none
   (`--set runs.writer-1.method=rlad-writer-rft`);
4. problems are parted by how often the start solves them (`Rates`): the first solver is trained on easy ones, those
   after it on medium ones (`of-difficulty`). A budget of length that grows is `experience.max_tokens` of each run.

    etude train rlad --task operations --model RUN --evaluate 100

where RUN can read hints, as one fine-tuned on `--task operations --set task.forms='["plain","hinted"]'` does. In use a
budget of C solutions is m hints of k solutions each (`spend`). With one hint that never changes and none left out
step 2 is DAPO with KL, draw for draw.

There is no official code. The paper's hints are summaries by a stronger model of several solutions; here they are a
column of the data. That easy problems are solved more often than one time in four, the share of bare prompts, KL's
0.01, beta = 0.1 and k = 4 are ours; five epochs of fine-tuning are 470 steps of 32 where all of 3,000 hints are kept.
In the claim the writer's batches are small and its rate is 3e-4: after two batches of 300 problems at 1e-3 its hints
differ less, and of 16 solutions one was right in 0.59 of the problems instead of 0.77 (seeds 51 and 50).
"""

from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.curricula.rates import OfDifficulty
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.rlad.data import WorthwhileHints
from etude.methods.rlvr.rlad.hints import HintedGroups, HintGroups, accuracies, asking, hinted, hints_of, spend
from etude.methods.rlvr.rlad.scores import BestThatHelps, HelpedBy, InformativeOrBare, OnlyWithHint, SolvedWith
from etude.objectives.links import Logistic
from etude.objectives.pairs import PairLoss
from etude.objectives.supervised import LogLikelihood
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.stages.chain import Train
from etude.stages.rates import Rates

TITLE, PAPER = "RLAD: Training LLMs to Discover Abstractions for Solving Reasoning Problems", "arXiv:2510.02263"
EASY, MEDIUM = (0.25, 1.0), (0.0, 0.25)
"""Above which share of solutions that are right, and up to which."""


def solving(turn: int, begins: str, band: tuple[float, float]) -> Train:
    """A solver after the last one, with hints of the writer before it."""
    return Train(
        called=f"solver-{turn}", method="rlad-solver", steps=150, begins=begins,
        set=(
            f"experience.writer.model={{writer-{turn - 1}}}", "curriculum.rates={rates}",
            f"curriculum.above={band[0]}", f"curriculum.most={band[1]}",
        ),
    )  # fmt: skip


def writing(turn: int) -> Train:
    """A writer after the last one, whose hints the newest solver tries."""
    return Train(
        called=f"writer-{turn}", method="rlad-writer", steps=1, begins=f"writer-{turn - 1}",
        set=(f"rewards.0.solver.model={{solver-{turn}}}",),
    )  # fmt: skip


rlad = Recipe(
    id="rlad",
    title=TITLE,
    paper=PAPER,
    runs=(
        WorthwhileHints(called="hints", problems=3000),
        Rates(called="rates", problems=1000),
        Train(called="writer-0", method="sft", steps=470, task="{hints}", begins="start", set=("problems=32",)),
        solving(1, "start", EASY),
        writing(1),
        solving(2, "solver-1", MEDIUM),
        writing(2),
        solving(3, "solver-2", MEDIUM),
    ),
    claim=Claim(
        statement="With hints of a writer that learned which of them help, single solutions are right more often than "
        "DAPO's on the same problems after as many steps, and of 16 solutions one is right more often; 16 hints of one "
        "solution each find more than one hint of 16.",
        task="operations",
        setting="two layers of width 64 after 1,000 supervised steps on lines of which an eighth finds the recipe, "
        "three quarters with a hint in view; a writer shown 2,000 hints; 3 turns of 25 steps of 16 x 8 completions, "
        "and two batches of 150 x 4 hints",
        measures=(
            Measure(name="pass@1", smallest=0.02),
            Measure(name="pass@16", smallest=0.03),
            Measure(name="more hints", smallest=0.05),
            Measure(name="best hint", role="mechanism", smallest=0.03),
            Measure(name="without hints", role="mechanism", smallest=0.02),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (3e-4, 1e-3)},
        learned_on="pass@1",
        paper_effect="AIME 2025, Qwen3-1.7B: 42.45 with hints on average, DAPO 34.90 with them and 37.92 without; best "
        "hint 48.33 against 39.79; DAPO gains 4 points over the base, as RLAD without hints",
    ),
)

rlad_solver = dapo.replace(
    id="rlad-solver",
    title=f"{TITLE}, the solver",
    paper=PAPER,
    curriculum=OfDifficulty(),
    experience=HintedGroups(size=8, hints=2),
    rewards=(*dapo.rewards, OnlyWithHint()),
    filters=(InformativeOrBare(),),
    regularizers=(KLToReference(coefficient=0.01),),
    reference=Frozen(),
    problems=8,
)

rlad_writer = grpo.replace(
    id="rlad-writer",
    title=f"{TITLE}, the writer",
    paper=PAPER,
    experience=HintGroups(size=4, max_tokens=8),
    rewards=(SolvedWith(samples=4),),
    advantages=None,
    objective=PairLoss(link=Logistic(beta=0.1), nll=1.0),
    reference=Frozen(),
    problems=500,
    epochs=4,
    minibatches=16,
)

rlad_writer_rft = rlad_writer.replace(
    id="rlad-writer-rft",
    title=f"{TITLE}, the writer by fine-tuning",
    paper=PAPER,
    rewards=(HelpedBy(samples=4),),
    filters=(BestThatHelps(),),
    objective=LogLikelihood(),
    aggregation="token-mean",
    reference=None,
)

__all__ = [
    "BestThatHelps",
    "HelpedBy",
    "HintGroups",
    "HintedGroups",
    "InformativeOrBare",
    "OnlyWithHint",
    "SolvedWith",
    "WorthwhileHints",
    "accuracies",
    "asking",
    "hinted",
    "hints_of",
    "rlad",
    "rlad_solver",
    "rlad_writer",
    "rlad_writer_rft",
    "spend",
]
