"""Stream AC(lambda): an actor and a critic, from each step once, as it happens (arXiv:2410.14606).

Changes stream Q(lambda) in four places:

1. the critic says what a state is worth, with the error r + gamma V(s') - V(s), and no choice ends its traces;
2. a policy of its own acts by chance: a softmax over choices, or a normal whose mean and deviation it says;
3. it learns by the same error, along traces z <- gamma lambda z + grad (log pi(a|s) + 0.01 sign(error) H(pi(.|s))),
   with kappa 3 where the critic has 2;
4. both errors and gradients are computed before either steps.

Settings are the paper's, the same everywhere. Numbers of a Box are in units here, so a deviation is of half its range;
in MuJoCo, where bounds are -1 and 1, that is the paper's. What is drawn beyond the bounds is learned from as it was
drawn. Of time limits the docstring of `stream-x` speaks.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.experience.exploration import Sampled
from etude.learners.backups import Bootstrap, FromValue
from etude.learners.v import VFunctions
from etude.methods.value.stream_x import NETWORK, stream_x
from etude.objectives.actor import LikelihoodRatio, SignedEntropy
from etude.optimizers.traces import ObGD
from etude.policies.control.initializers import Sparse
from etude.policies.control.observations import NormalizeObservations
from etude.policies.control.replay import StochasticPolicy

stream_ac = stream_x.replace(
    id="stream-ac",
    title=stream_x.title,
    paper=stream_x.paper,
    policy=StochasticPolicy(
        network=NETWORK, observations=(NormalizeObservations(),), last=Sparse(share=0.9),
        learning=Learning(ObGD(lr=1.0, lam=0.8, kappa=3.0)),
    ),
    exploration=Sampled(),
    critic=VFunctions(
        network=NETWORK, last=Sparse(share=0.9), backup=Bootstrap(FromValue()),
        learning=Learning(ObGD(lr=1.0, lam=0.8, kappa=2.0)),
    ),
    actor=(LikelihoodRatio(), SignedEntropy(weight=0.01)),
    order=(("policy", "critic"),),
    claim=Claim(
        statement="From each step once, without replay, batch or copy, SAC's return is met within a twentieth.",
        bed="control/pendulum-stream-half",
        baseline="sac",
        changes={"policy.network.hidden": (64, 64), "critic.network.hidden": (64, 64)},
        baseline_changes={
            "policy.network.hidden": (64, 64), "critic.network.hidden": (64, 64), "optimizer.lr": 1e-3,
        },
        measures=(Measure(name="area", smallest=75.0, margin=-75.0), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="the sample efficiency of SAC and PPO on MuJoCo and DM Control, with one set of settings",
    ),
)  # fmt: skip
