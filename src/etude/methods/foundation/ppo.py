"""PPO: proximal policy optimization for tokens (arXiv:1707.06347, as used for language models in arXiv:2203.02155).

Changes REINFORCE in four places:

1. a critic on the policy's own trunk predicts the reward to come before every token; it is trained with the policy,
   its step clipped around the old values (arXiv:2005.12729);
2. credit is generalized advantage estimation (arXiv:1506.02438), A_t = sum_k (gamma lam)^k delta_{t+k} with
   delta_t = r_t + gamma V_{t+1} - V_t, standardised over the batch;
3. the surrogate is clipped, so that a batch may be used several times:

       loss = -mean_t min(rho_t A_t, clip(rho_t, 1 - 0.2, 1 + 0.2) A_t),   rho_t = pi / pi_old;

4. each batch is passed over twice, in two minibatches each time.

gamma = 1, since a completion is no longer worth less for being longer. In control gamma = 0.98,
advantages are standardised per minibatch, values are not clipped, an entropy bonus of 0.01 is added, and a rollout of
64 steps in 8 environments is passed over 10 times in 2 minibatches, with Adam's rate falling from 1e-3 to 0.
"""

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.experience.vector import Rollouts
from etude.learners.token import TokenCritic
from etude.methods.foundation.reinforce import reinforce, reinforce_control
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.regularizers.entropy import EntropyBonus

ppo = reinforce.replace(
    id="ppo",
    title="Proximal Policy Optimization Algorithms",
    paper="arXiv:1707.06347",
    advantages=GAE(gamma=1.0, lam=0.95, standardize=True),
    objective=ClippedSurrogate(low=0.2, high=0.2),
    critic=TokenCritic(coefficient=0.5, clip=0.2),
    epochs=2,
    minibatches=2,
    claim=Claim(
        statement="Using each batch several times within the clip learns faster per sample than one REINFORCE step.",
        bed="language/compose-easy",
        baseline="reinforce",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
    ),
)

ppo_control = reinforce_control.replace(
    id="ppo",
    title=ppo.title,
    paper=ppo.paper,
    experience=Rollouts(environments=8, steps=64),
    advantages=GAE(gamma=0.98, lam=0.9, per_minibatch=True),
    objective=ClippedSurrogate(low=0.2, high=0.2),
    regularizers=(EntropyBonus(coefficient=0.01),),
    optimizer=AdamW(lr=1e-3, epsilon=1e-5, clip_norm=0.5, schedule=Linear()),
    epochs=10,
    minibatches=2,
    claim=Claim(
        statement="Used many times, a batch is better bounded by a clip of 0.2 than by a penalty on the KL divergence "
        "that adapts to a target of 0.01, by one of a fixed weight of 1, or by nothing.",
        task="cartpole",
        setting="cart-pole in gusts, four rooms and Acrobot-v1, scored from 0 (as at the start) to 1; 10 epochs in 8 "
        "minibatches of 64",
        measures=(
            Measure(name="score against adaptive", bounds=(None, 1.0)),
            Measure(name="score against fixed", bounds=(None, 1.0)),
            Measure(name="score against none", bounds=(None, 1.0)),
            Measure(name="clipped", role="mechanism", minimum=0.02),
            Measure(name="adaptive against fixed", role="mechanism", bounds=(None, 1.0)),
            Measure(name="fixed against none", role="mechanism", bounds=(None, 1.0)),
            Measure(name="worst task against none", role="mechanism", bounds=(None, 1.0)),
        ),
        equal=("environment_steps",),
        learned_on="score against fixed",
        paper_effect="normalised scores on seven MuJoCo tasks: clip 0.82, adaptive 0.74, fixed 0.71, nothing -0.39",
    ),
)
