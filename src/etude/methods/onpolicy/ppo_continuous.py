"""PPO for continuous actions, in the configuration that its implementations share (arXiv:1707.06347, arXiv:2005.12729).

Changes PPO in control in seven places; the numbers are CleanRL's for MuJoCo:

1. rollouts of 2048 steps in one environment, passed over 10 times in 32 minibatches of 64;
2. observations are normalised by running moments and cut at 10;
3. rewards are divided by the running deviation of their discounted sum and cut at 10;
4. gamma = 0.99 and lambda = 0.95, advantages standardised per minibatch;
5. the step of the values is clipped around the old ones by 0.2, as that of the policy;
6. no entropy bonus: the Gaussian's deviation is learned, the same in every state;
7. Adam's rate falls from 3e-4 to 0; the gradient's norm is cut at 0.5.

    loss = -mean min(rho A, clip(rho, 0.8, 1.2) A) + 1/4 mean max((V - R)^2, (V_old + clip(V - V_old, 0.2) - R)^2)

Normalisers stand still during a rollout and its update and learn from it afterwards; CleanRL's change with every step.
On `pendulum` ten members reach a mean return of -166 in 300,000 steps (the worst -204).
"""

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.experience.vector import Rollouts
from etude.learners.state import StateValue
from etude.methods.foundation.ppo import ppo_control
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.policies.control.actor import ActorPolicy
from etude.policies.control.observations import NormalizeObservations
from etude.rewards.running import NormalizeRewards

ppo_continuous = ppo_control.replace(
    id="ppo-continuous",
    title="Proximal Policy Optimization Algorithms",
    paper="arXiv:1707.06347",
    policy=ActorPolicy(observations=(NormalizeObservations(),)),
    experience=Rollouts(environments=1, steps=2048),
    rewards=(NormalizeRewards(gamma=0.99),),
    advantages=GAE(gamma=0.99, lam=0.95, per_minibatch=True),
    critic=StateValue(coefficient=0.5, clip=0.2),
    regularizers=(),
    optimizer=AdamW(lr=3e-4, epsilon=1e-5, clip_norm=0.5, schedule=Linear()),
    epochs=10,
    minibatches=32,
    claim=Claim(
        statement="Normalised and in long rollouts, PPO swings the pendulum up where its defaults for control do not.",
        task="pendulum",
        measures=(Measure(name="return", smallest=50.0, bounds=(None, None)),),
        equal=("environment_steps",),
        learned_on="return",
        paper_effect="best of seven methods on most of seven MuJoCo tasks; normalised score 0.82 with clip 0.2",
    ),
)
