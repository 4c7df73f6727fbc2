"""IQL: values of the better actions in the logs, and a policy cloned from them; no other action is ever asked about.

Changes TD3+BC in four places (arXiv:2110.06169):

1. V(s) learns an expectile of what the critics' slow copies say of the actions that were done (eq. 5),

    loss_V = |tau - 1(u < 0)| u^2,    u = min_k Q'_k(s, a) - V(s),    tau = 0.7

2. critics learn y = r + gamma (1 - terminated) V(s'): nobody says what would be done next (eq. 6);
3. the policy is a distribution, cloned from actions that are better than that (eq. 7),

    loss_pi = -min(exp(3 u), 100) log pi(a|s)

4. observations are as they come, nothing is delayed, and the policy's rate falls as a cosine.

As its author's code has it: V steps first, and the policy's weights and the critics' targets are made of the V that has
stepped; the normal's mean is squashed and its deviation no observation moves. (d3rlpy steps V and critics together,
`order=[["value","critic"],"policy"]`, and its deviation is the sigmoid of a number, between the same bounds.)
"""

from etude.core.learners import Learning, Target
from etude.learners.backups import Bootstrap, FromValue
from etude.learners.q import QFunctions
from etude.learners.value import Expectile, ValueFunction
from etude.methods.offline.bc import over_cloning
from etude.methods.offline.td3_bc import td3_bc
from etude.objectives.clone import Clone, ExpAdvantage, Likelihood
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.optimizers.schedules import Cosine
from etude.policies.control.replay import SquashedMeanPolicy

iql = td3_bc.replace(
    id="iql",
    title="Offline Reinforcement Learning with Implicit Q-Learning",
    paper="arXiv:2110.06169",
    transforms=(),
    order=("value", "policy", "critic"),
    policy=SquashedMeanPolicy(learning=Learning(Adam(lr=3e-4, schedule=Cosine()))),
    value=ValueFunction(of=Min(), error=Expectile(tau=0.7), learning=Learning(Adam(lr=3e-4))),
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromValue()),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    actor=(Clone(weight=ExpAdvantage(beta=3.0, cap=100.0), error=Likelihood()),),
    claim=over_cloning(
        statement="On logs of good and bad episodes IQL earns more than cloning them.",
        also="; beta 0.1 for its larger rewards",
        paper_effect="more than cloning in most of D4RL's tasks (table 1)",
    ),
)
