"""REDQ: twenty updates for every step, held honest by ten critics (arXiv:2101.05982).

Changes SAC in three places:

1. there are ten critics, and the smallest value of two of them, drawn anew in every update, is learned from;
2. the policy climbs the mean of all ten;
3. twenty updates follow every step, of which the policy and the temperature take part in the last.

Those numbers are the paper's; so are sizes and rates, as `sac` has them.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.replay import Replay
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions
from etude.learners.temperature import PerAction, Temperature
from etude.methods.value.ddpg import TENTH
from etude.methods.value.sac import sac
from etude.methods.value.td3 import SIZES
from etude.objectives.actor import Entropy, MaximizeQ
from etude.objectives.reductions import Mean, RandomMin
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedPolicy

redq = sac.replace(
    id="redq",
    title="Randomized Ensembled Double Q-Learning: Learning Fast Without a Model",
    paper="arXiv:2101.05982",
    policy=SquashedPolicy(learning=Learning(Adam(lr=3e-4), every=20)),
    experience=Replay(random=1_000, warmup=1_000, every=1, updates=20.0),
    critic=QFunctions(
        count=10,
        backup=Bootstrap(FromPolicy(), reduce=RandomMin(of=2), entropy=True),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    learners=(Temperature(start=1.0, entropy=PerAction(-1.0), learning=Learning(Adam(lr=3e-4), every=20)),),
    actor=(MaximizeQ(over=Mean()), Entropy()),
    claim=Claim(
        statement="Many updates for each step, with an ensemble that holds them honest, earn more than SAC's one.",
        bed="control/pendulum",
        baseline="sac",
        changes=SIZES,
        baseline_changes=SIZES,
        measures=(Measure(name="area", smallest=TENTH), Measure(name="end", role="mechanism", smallest=TENTH)),
        equal=("steps",),
        runs=4,
        sweep={},
        paper_effect="about five times fewer steps than SAC to the same return on four MuJoCo tasks (table 1)",
    ),
)
