"""SAC for choices: all chances are seen, so nothing is sampled in the losses (arXiv:1910.07207).

Changes SAC in three places:

1. the policy is a softmax over the choices, and the critics say the values of all;
2. the target takes the mean over what may be done next, sum_a pi(a|s') (min_i Q_i'(s', a) - alpha log pi(a|s'));
   the policy climbs the same mean here;
3. the temperature holds the entropy at 0.98 of the largest, log A.

Sizes and rates are those of `sac`; the paper's, for Atari, have convolutions and batches of 64.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.learners.temperature import OfUniform, Temperature
from etude.methods.value.sac import sac
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SoftmaxPolicy

sac_discrete = sac.replace(
    id="sac-discrete",
    title="Soft Actor-Critic for Discrete Action Settings",
    paper="arXiv:1910.07207",
    policy=SoftmaxPolicy(learning=Learning(Adam(lr=3e-4))),
    learners=(Temperature(start=1.0, entropy=OfUniform(share=0.98), learning=Learning(Adam(lr=3e-4))),),
    claim=Claim(
        statement="A policy over choices whose entropy counts earns as much as DQN or more from as many steps.",
        bed="control/cartpole-hard",
        baseline="dqn",
        changes={
            "learners.temperature.entropy.share": 0.5,
            "policy.network.hidden": (64, 64),
            "critic.network.hidden": (64, 64),
            "sampling.batch": 64,
            "experience.every": 4,
            "experience.updates": 0.25,
        },
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        paper_effect="better than Rainbow on 10 of 20 Atari games after 100,000 steps (table 1)",
    ),
)
