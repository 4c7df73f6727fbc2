"""D4RL: data sets that differ in who made them, and a score; in a maze, values against cloning (arXiv:2004.07219).

A benchmark, whose claim is its most telling line: data in which hardly anybody went to the goal. It is learned from
by IQL, changed in one place: tau = 0.9 and beta = 10 instead of 0.7 and 3, as IQL has them in mazes (arXiv:2110.06169).
What the paper builds is here

1. pairs of an environment and a kind of data: `etude data make TASK --levels KINDS`, in Minari's format,

    | kind | who acts | what it asks of a method |
    |---|---|---|
    | `random`, `medium`, `expert` | chance, a third of the way, the best | to bear narrow or bad data |
    | `replay` | all stages up to medium | to bear data of many policies |
    | `mixed`, `medium-expert` | half and half | to tell good from bad |
    | `undirected` | who wanders through a maze from place to place | to join pieces; rewards are sparse |

   A wanderer goes where no observation says, so that no policy of what is seen does what it did. What the paper has
   besides, of hands, kitchens, traffic and cars, is not made here;

2. a reader, `--data`: of data without `next_observations` the last row of an episode that a limit ended is left out,
   since nobody saw what it led to, so that no row goes from one episode into the next,

    rows = steps - episodes that a limit ended

3. a score, 100 (J - J_random) / (J_expert - J_random), by references of this recipe: what `etude data make` prints is
   not to be held against scores of D4RL.

Its rewards in mazes are 1 within 0.5 of the goal, in every step that is spent there; here arriving ends the episode.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.learners.value import Expectile, ValueFunction
from etude.methods.offline.iql import iql
from etude.objectives.clone import Clone, ExpAdvantage, Likelihood
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam

d4rl = iql.replace(
    id="d4rl",
    title="D4RL: Datasets for Deep Data-Driven Reinforcement Learning",
    paper="arXiv:2004.07219",
    row="benchmark",
    value=ValueFunction(of=Min(), error=Expectile(tau=0.9), learning=Learning(Adam(lr=3e-4))),
    actor=(Clone(weight=ExpAdvantage(beta=10.0, cap=100.0), error=Likelihood()),),
    claim=Claim(
        statement="From logs of who wandered through a maze IQL arrives at a goal more often than cloning them.",
        task="pointmaze-medium",
        setting=(
            "10,000 logged steps from anywhere to one cell after another, one choice of twenty the goal on purpose, "
            "pushed a little by chance; the goal's reward less 1 in every step; networks of 64-64, 5,000 updates, 100 "
            "episodes of likeliest actions from anywhere"
        ),
        measures=(Measure(name="arrived", smallest=0.1, bounds=(0.0, 1.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on=None,
        paper_effect="more than cloning in mazes, far more in all but the smallest (arXiv:2110.06169, table 1)",
    ),
)
