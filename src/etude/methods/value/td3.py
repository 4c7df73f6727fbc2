"""TD3: DDPG with two critics, delayed policies and smoothed targets (arXiv:1802.09477).

Changes DDPG in three places, and its sizes:

1. of two critics the smaller value is learned from;
2. the policy, and all slow copies, move in every second update only;
3. what the policy would do next is smoothed, a' = clip(mu'(s') + clip(n, -0.5, 0.5), -1, 1) with n of deviation 0.2.

Networks of 256-256, batches of 256, one rate, and noise without memory, as its author's code has them; that acts at
random for 25,000 steps where here it is 1,000 (`experience.random` and `.warmup`).
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.exploration import GaussianNoise
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.backups import Bootstrap, ClippedNoise, FromPolicy
from etude.learners.q import QFunctions
from etude.methods.value.ddpg import TENTH, ddpg
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam
from etude.policies.control.replay import DeterministicPolicy

SIZES = {
    "policy.network.hidden": (64, 64), "critic.network.hidden": (64, 64), "sampling.batch": 64,
    "sampling.horizon.gamma": 0.98, "optimizer.lr": 1e-3,
}  # fmt: skip
"""For a small task, those of the pendulum's baseline."""

td3 = ddpg.replace(
    id="td3",
    title="Addressing Function Approximation Error in Actor-Critic Methods",
    paper="arXiv:1802.09477",
    policy=DeterministicPolicy(learning=Learning(Adam(lr=3e-4), every=2, target=Target(rate=0.005, every=2))),
    exploration=GaussianNoise(scale=0.1),
    sampling=UniformRows(batch=256, horizon=OneStep(gamma=0.99)),
    critic=QFunctions(
        count=2,
        backup=Bootstrap(FromPolicy(noise=ClippedNoise(scale=0.2, limit=0.5)), reduce=Min()),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005, every=2)),
    ),
    claim=Claim(
        statement="Two critics, delay and smoothing earn more than DDPG of the same sizes from as many steps.",
        bed="control/pendulum",
        baseline="ddpg",
        changes={**SIZES, "policy.learning.target.rate": 0.01, "critic.learning.target.rate": 0.01},
        baseline_changes={"policy.last": "fan-in", "critic.last": "fan-in"},
        measures=(Measure(name="area", smallest=TENTH), Measure(name="end", role="mechanism", smallest=TENTH)),
        equal=("steps",),
        runs=4,
        paper_effect="higher final returns than DDPG in seven of seven MuJoCo tasks (table 1)",
    ),
)
