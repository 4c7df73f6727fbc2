"""SAC: TD3 whose policy is a distribution, and whose entropy counts as reward (arXiv:1812.05905).

Changes TD3 in four places:

1. the policy is tanh of a normal, acts by chance, and the value of what follows has -alpha log pi(a'|s') added, a'
   drawn anew;
2. it climbs the smaller of both critics, minus alpha log pi;
3. the temperature alpha learns to hold the entropy at -1 nat for every number of an action (in units);
4. nothing is delayed or smoothed. Policy and temperature step from the same losses, after the critics.

Settings are SB3's defaults, which are the paper's (its table 1): 256-256, batches of 256, a rate of 3e-4 and slow
copies at 0.005. SB3 begins to learn after 100 steps, here it is 1,000.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.exploration import Sampled
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions
from etude.learners.temperature import PerAction, Temperature
from etude.methods.value.ddpg import TENTH
from etude.methods.value.td3 import SIZES, td3
from etude.objectives.actor import Entropy, MaximizeQ
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedPolicy

sac = td3.replace(
    id="sac",
    title="Soft Actor-Critic Algorithms and Applications",
    paper="arXiv:1812.05905",
    policy=SquashedPolicy(learning=Learning(Adam(lr=3e-4))),
    exploration=Sampled(),
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromPolicy(), reduce=Min(), entropy=True),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    learners=(Temperature(start=1.0, entropy=PerAction(-1.0), learning=Learning(Adam(lr=3e-4))),),
    actor=(MaximizeQ(over=Min()), Entropy()),
    order=("critic", ("policy", "temperature")),
    claim=Claim(
        statement="A policy whose entropy counts earns more than DDPG of the same sizes from as many steps.",
        bed="control/pendulum",
        baseline="ddpg",
        changes={**SIZES, "critic.learning.target.rate": 0.01},
        baseline_changes={"policy.last": "fan-in", "critic.last": "fan-in"},
        measures=(Measure(name="area", smallest=TENTH), Measure(name="end", role="mechanism", smallest=TENTH)),
        equal=("steps",),
        runs=4,
        paper_effect="higher returns than DDPG in six of six MuJoCo tasks (figure 1)",
    ),
)
