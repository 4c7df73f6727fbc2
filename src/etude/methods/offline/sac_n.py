"""SAC-N: SAC on logs with so many critics that the smallest of their values is low where the logs say little.

Changes SAC in two places (arXiv:2110.01548, section 3):

1. it learns from logs, and nothing is explored;
2. there are ten critics, and the smallest of all is learned from, and climbed; networks have three layers of 256.

How many it takes depends on the task, 10 to 500 in the paper: `critic.count`.
"""

from etude.core.learners import Learning, Target
from etude.experience.logged import Logged
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions
from etude.methods.offline.bc import over_cloning
from etude.methods.value.sac import sac
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP
from etude.policies.control.replay import SquashedPolicy

DEEP = MLP(hidden=(256, 256, 256), activation="relu", initializer=FanIn())

sac_n = sac.replace(
    id="sac-n",
    title="Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble",
    paper="arXiv:2110.01548",
    policy=SquashedPolicy(network=DEEP, learning=Learning(Adam(lr=3e-4))),
    experience=Logged(),
    exploration=None,
    critic=QFunctions(
        network=DEEP,
        count=10,
        backup=Bootstrap(FromPolicy(), reduce=Min(), entropy=True),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    claim=over_cloning(
        statement="On logs of good and bad episodes SAC with ten critics earns more than cloning them.",
        paper_effect="more than cloning in all of D4RL's locomotion tasks (table 1)",
    ),
)
