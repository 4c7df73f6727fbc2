"""REINFORCE: follow the return-weighted gradient of the log-likelihood (Williams, 1992).

The root of the on-policy methods: sample, score, and push each token's log-probability by its reward to go,

    grad J = E[ sum_t (G_t - b) grad log pi(a_t | s_t) ],

with the batch's mean reward as baseline b. One gradient step per batch; every token weighs the same.

In control b is a learned value of the state, and G_t goes on with it where an episode is truncated: GAE, lambda = 1.
"""

from etude.advantages.group import BatchMean
from etude.advantages.returns import GAE, RewardToGo
from etude.core.claims import Claim, Measure
from etude.core.kinds import RolloutMethod, TokenMethod
from etude.curricula.uniform import Uniform
from etude.experience.groups import Groups
from etude.experience.vector import Rollouts
from etude.learners.state import StateValue
from etude.objectives.policy_gradient import PolicyGradient
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.policies.control.actor import ActorPolicy
from etude.rewards.outcome import TaskReward

reinforce = TokenMethod(
    id="reinforce",
    title="Simple statistical gradient-following algorithms for connectionist reinforcement learning",
    paper="Williams 1992, doi:10.1007/BF00992696",
    curriculum=Uniform(),
    experience=Groups(size=8),
    rewards=(TaskReward(),),
    advantages=RewardToGo(gamma=1.0, baseline=BatchMean()),
    objective=PolicyGradient(),
    aggregation="token-mean",
    optimizer=AdamW(),
    problems=32,
    claim=Claim(
        statement="Rewards alone, without any worked answer, raise the accuracy of a model that is often wrong.",
        task="compose",
        measures=(
            Measure(name="accuracy", smallest=0.05),
            Measure(name="accuracy against a coin", role="mechanism", smallest=0.05),
        ),
        learned_on=None,
        paper_effect="a proof: the expected step is along the gradient of the expected reward; no number for language",
    ),
)

reinforce_control = RolloutMethod(
    id="reinforce",
    title=reinforce.title,
    paper=reinforce.paper,
    policy=ActorPolicy(),
    experience=Rollouts(environments=8, steps=128),
    advantages=GAE(gamma=0.99, lam=1.0, standardize=True),
    objective=PolicyGradient(),
    critic=StateValue(coefficient=0.5),
    optimizer=AdamW(lr=3e-3, epsilon=1e-5, clip_norm=0.5, schedule=Linear()),
)
