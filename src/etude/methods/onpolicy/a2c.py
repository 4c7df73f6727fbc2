"""A2C: advantage actor-critic, many small steps with a critic's credit (arXiv:1602.01783, as in arXiv:2401.13662).

Changes REINFORCE in control in five places:

1. credit is generalized advantage estimation with lambda = 0.95 instead of 1, so an action is judged by what follows
   soon and by the critic for the rest,

       A_t = sum_k (gamma lam)^k delta_{t+k},    delta_t = r_t + gamma V(s_{t+1}) - V(s_t);

2. updates are small and many: 8 steps in each of 8 environments, one gradient step on

       loss = -mean A log pi + 0.5 * 1/2 mean (A + V_old - V)^2 - 0.01 mean entropy;

3. the entropy bonus;
4. rewards are divided by the running deviation of their discounted sum, cut at 10;
5. observations are normalised by running moments, cut at 10.

The guide passes once, in 8 minibatches, over 8 x 2048 steps; over a budget of 100,000 steps that would be 48 updates,
so here a rollout is one minibatch of 64 steps (A3C, arXiv:1602.01783, has 5 to 20 steps in 16 environments).
"""

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.experience.vector import Rollouts
from etude.methods.foundation.reinforce import reinforce_control
from etude.policies.control.actor import ActorPolicy
from etude.policies.control.observations import NormalizeObservations
from etude.regularizers.entropy import EntropyBonus
from etude.rewards.running import NormalizeRewards

a2c = reinforce_control.replace(
    id="a2c",
    title="Asynchronous Methods for Deep Reinforcement Learning",
    paper="arXiv:1602.01783",
    policy=ActorPolicy(observations=(NormalizeObservations(),)),
    experience=Rollouts(environments=8, steps=8),
    rewards=(NormalizeRewards(gamma=0.99),),
    advantages=GAE(gamma=0.99, lam=0.95, standardize=True),
    regularizers=(EntropyBonus(coefficient=0.01),),
    claim=Claim(
        statement="Many small steps with a critic's credit earn more than REINFORCE from as many steps.",
        bed="control/cartpole-hard",
        baseline="reinforce",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3, 1e-2)},
    ),
)
