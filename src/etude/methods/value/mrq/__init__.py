"""MR.Q: TD3 on features from which a linear model tells what comes next (arXiv:2501.16142).

Changes TD3 in five places, with one set of hyper-parameters for a Box and for choices:

1. an encoder makes features z_s of observations and z_sa of both (`Encoder`), learned by its model alone: from z_s(s_0)
   on it is unrolled five steps. The policy reads z_s, the critics z_sa, and neither moves it;
2. actions of choices are one-hot vectors, relaxed by Gumbel noise (`RelaxedPolicy`); noise on them is halved and the
   largest is taken;
3. values are in units of the mean reward, y = (R_3 + gamma^3 c' min_i Q_i') / c (`ScaledBootstrap`): three steps, R_3 =
   sum gamma^t r_t up to the end;
4. rows are drawn by max(max_i |Q_i - y|, 1)^0.4 against a Huber error (LAP), the encoder's too;
5. the policy climbs the mean of both critics, minus 1e-5 of what it says before tanh or softmax, squared; all slow
   copies are renewed every 250 updates, after which the encoder learns 250 times in a row.

Sizes and rates are those of the authors' code. Four things differ: it takes the errors of a row from Q(s, pi(s)), here
they are those of Q(s, a); it leaves out windows that a time limit cuts, here they count up to it; its first renewal
comes before the first update, here after 250; the loss of the critics is their mean, here their sum.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.prioritized import LossAdjustedRows
from etude.experience.replay import Replay
from etude.experience.sampling import NStep, Window
from etude.learners.backups import ClippedNoise, FromPolicy
from etude.learners.heads import Huber
from etude.learners.q import QFunctions
from etude.methods.value.ddpg import TENTH
from etude.methods.value.mrq.actions import NoisySample, RelaxedPolicy
from etude.methods.value.mrq.encoder import NORMED, START, Encoder
from etude.methods.value.mrq.scale import ScaledBootstrap
from etude.methods.value.td3 import SIZES, td3
from etude.objectives.actor import MaximizeQ, PreActivationPenalty
from etude.objectives.reductions import Mean, Min
from etude.optimizers.adam import AdamW

SMALL = {
    "learners.encoder.states.hidden": (64, 64, 64), "learners.encoder.actions": 32, "learners.encoder.joined": 64,
    "learners.encoder.pairs.hidden": (64, 64), "critic.network.hidden": (64, 64, 64), "policy.network.hidden": (64, 64),
    "experience.random": 1_000, "experience.warmup": 1_000, "learners.encoder.learning.every": 100,
    "learners.encoder.learning.epochs": 100, "learners.encoder.learning.target.every": 100,
    "critic.learning.target.every": 100, "policy.learning.target.every": 100,
}  # fmt: skip
"""Sizes for small tasks, which it is trained on."""

mrq = td3.replace(
    id="mrq",
    title="Towards General-Purpose Model-Free Reinforcement Learning",
    paper="arXiv:2501.16142",
    policy=RelaxedPolicy(
        tau=10.0,
        network=NORMED.replace(hidden=(512, 512), activation="relu"),
        last=START,
        learning=Learning(AdamW(lr=3e-4, weight_decay=1e-4, clip_norm=None), target=Target(every=250)),
    ),
    experience=Replay(random=10_000, warmup=10_000),
    exploration=NoisySample(scale=0.2),
    sampling=LossAdjustedRows(batch=256, alpha=0.4, least=1.0, horizon=NStep(gamma=0.99, n=3)),
    critic=QFunctions(
        network=NORMED,
        count=2,
        backup=ScaledBootstrap(FromPolicy(noise=ClippedNoise(scale=0.2, limit=0.3)), reduce=Min()),
        error=Huber(),
        last=START,
        learning=Learning(AdamW(lr=3e-4, weight_decay=1e-4, clip_norm=20.0), target=Target(every=250)),
    ),
    learners=(Encoder(sampling=Window(length=5)),),
    actor=(MaximizeQ(over=Mean()), PreActivationPenalty(weight=1e-5)),
    order=("targets", "encoder", "critic", "policy"),
    claim=Claim(
        statement="On features that tell what comes next, and untuned, it learns faster than TD3.",
        bed="control/pendulum",
        baseline="td3",
        changes={**SMALL, "sampling.batch": 64, "sampling.horizon.gamma": 0.98},
        baseline_changes=SIZES,
        measures=(Measure(name="area", smallest=TENTH), Measure(name="end", role="mechanism", smallest=TENTH)),
        equal=("steps",),
        sweep={},
        runs=2,
        paper_effect="mean return of 836 on 28 tasks of the DeepMind control suite after 500,000 steps (table 1)",
    ),
)
