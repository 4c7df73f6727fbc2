"""A guide to policy gradients: six methods derived, implemented and compared on common ground (arXiv:2401.13662).

What each of the six changes, in the order of the text:

- `reinforce`: the gradient of the log-likelihood, weighed by the return;
- `a2c`: weighed by generalized advantages, in minibatches;
- `npg`: along the natural gradient, as far as a quadratic KL of 0.01 allows;
- `trpo`: and shortened until the KL itself is within 0.01 and the surrogate not lower than before;
- `ppo`: no second derivatives, a clipped surrogate instead, and several epochs;
- `v-mpo`: no policy gradient, but the likelihood of the better half, within a learned KL.

This method is its PPO with the settings that all six have in common. It changes PPO in control in eight places:

1. rollouts of 2048 steps in 8 environments, passed over 10 times in 8 minibatches;
2. observations are normalised by running moments and cut at 10;
3. rewards are divided by the running deviation of their discounted sum and cut at 10;
4. gamma = 0.99 and lambda = 0.95, advantages standardised per minibatch;
5. the policy's network has 4 layers of 32 with SiLU (swish), and Gaussian actions pass through tanh onto their bounds;
6. the critic's has 5 layers of 256;
7. no entropy bonus;
8. Adam's rate falls from 3e-4 to a hundredth of it; the gradient's norm is cut at 0.5.

The other five take them by `replace`, as its claim does.
"""

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.experience.vector import Rollouts
from etude.learners.state import StateValue
from etude.methods.foundation.ppo import ppo_control
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.policies.control.actor import ActorPolicy
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations
from etude.rewards.running import NormalizeRewards

policy_gradient_guide = ppo_control.replace(
    id="policy-gradient-guide",
    title="The Definitive Guide to Policy Gradients in Deep Reinforcement Learning: Theory, Algorithms and "
    "Implementations",
    paper="arXiv:2401.13662",
    row="survey",
    policy=ActorPolicy(
        network=MLP(hidden=(32, 32, 32, 32), activation="silu"), observations=(NormalizeObservations(),), squash=True
    ),
    experience=Rollouts(environments=8, steps=2048),
    rewards=(NormalizeRewards(gamma=0.99),),
    advantages=GAE(gamma=0.99, lam=0.95, per_minibatch=True),
    critic=StateValue(network=MLP(hidden=(256, 256, 256, 256, 256), activation="silu"), coefficient=0.5),
    regularizers=(),
    optimizer=AdamW(lr=3e-4, clip_norm=0.5, schedule=Linear(floor=0.01)),
    epochs=10,
    minibatches=8,
    claim=Claim(
        statement="From as many steps TRPO, PPO and V-MPO, which bound the policy's step, earn more on average than "
        "A2C, and A2C more than REINFORCE.",
        task="cartpole",
        setting="cart-pole in gusts and Acrobot-v1, scored from 0 (as at the start) to 1; the guide's settings, "
        "two layers of 32, each method with its own rollouts, epochs and tuned rate",
        measures=(
            Measure(name="regularised against a2c", bounds=(None, 1.0)),
            Measure(name="a2c against reinforce", bounds=(None, 1.0)),
            Measure(name="npg against a2c", role="mechanism", bounds=(None, 1.0)),
            Measure(name="trpo against a2c", role="mechanism", bounds=(None, 1.0)),
            Measure(name="ppo against a2c", role="mechanism", bounds=(None, 1.0)),
            Measure(name="v-mpo against a2c", role="mechanism", bounds=(None, 1.0)),
        ),
        equal=("environment_steps",),
        learned_on="regularised against a2c",
        paper_effect="learning curves on four MuJoCo tasks, 8M steps: what regularises the policy's step learns best",
    ),
)
