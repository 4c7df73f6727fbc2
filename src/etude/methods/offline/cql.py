"""CQL: critics that say little of actions that the logs do not have, of numbers (`cql`) or of choices (`cql-discrete`).

`cql` changes SAC in four places, `cql-discrete` Double DQN in the first two (arXiv:2006.04779):

1. it learns from logs, and nothing is explored;
2. beside its error every critic minimises what it says of all actions, held against those that were done (eq. 4),

    alpha (log sum_a exp Q(s, a) - Q(s, a_done)),    alpha = 5, of choices 1

   where a sum over numbers is one over ten uniform actions, ten that the policy draws here and ten that it draws at the
   next observation, each by exp(Q) over its density (section F);
3. the policy's entropy does not count in what is learned from;
4. policy and temperature learn at a third of the critics' rate.

Sizes are those of d3rlpy, whose target takes the policy's mean; as the author's code has it, ours is drawn. That code
also clones for its first 40,000 updates, and can learn alpha by a multiplier; here neither is so. The discrete one is
DQN's size here, not that of Atari, where the paper has it on QR-DQN (`--set critic.head=quantiles
critic.error=quantile-huber`).
"""

from etude.core.learners import Learning, Target
from etude.experience.logged import Logged
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.penalties import ConservativeQ, DrawnActions, EveryChoice
from etude.learners.q import QFunctions
from etude.learners.temperature import PerAction, Temperature
from etude.methods.offline.bc import over_cloning
from etude.methods.value.double_dqn import double_dqn
from etude.methods.value.sac import sac
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SquashedPolicy

cql = sac.replace(
    id="cql",
    title="Conservative Q-Learning for Offline Reinforcement Learning",
    paper="arXiv:2006.04779",
    policy=SquashedPolicy(learning=Learning(Adam(lr=1e-4))),
    experience=Logged(),
    exploration=None,
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromPolicy(), reduce=Min()),
        penalties=(ConservativeQ(actions=DrawnActions(count=10), weight=5.0),),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    learners=(Temperature(start=1.0, entropy=PerAction(-1.0), learning=Learning(Adam(lr=1e-4))),),
    claim=over_cloning(
        statement="On logs of good and bad episodes CQL earns more than cloning them.",
        paper_effect="more than cloning in most of D4RL's tasks (tables 1 and 2)",
    ),
)

assert double_dqn.critic is not None
cql_discrete = double_dqn.replace(
    id="cql-discrete",
    title="Conservative Q-Learning for Offline Reinforcement Learning",
    paper="arXiv:2006.04779",
    experience=Logged(),
    exploration=None,
    critic=double_dqn.critic.replace(penalties=(ConservativeQ(actions=EveryChoice(), weight=1.0),)),
)
