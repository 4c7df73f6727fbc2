"""Stream Q(lambda): Q-learning from each step once, as it happens (arXiv:2410.14606).

Changes DQN in six places:

1. there is no replay, no batch and no slow copy: an update learns from the step that was just taken;
2. traces carry its error back over the steps before, z <- gamma lambda z + grad Q(s, a), and are 0 after an end and
   after a choice that was not the best (Watkins);
3. a step is w <- w + lr / max(M, 1) error z with M = lr kappa max(|error|, 1) |z|_1, which does not overshoot;
4. nine tenths of the inputs of every unit start at 0, and biases too;
5. hidden layers are normalised, without parameters, before leaky rectifiers;
6. observations are normalised, and rewards divided by the deviation of their discounted sums.

Settings are the paper's: rate 1, lambda 0.8, kappa 2, layers of 128, epsilon to 0.01. Its code takes a time limit for
an end and shows the network the time (here `sampling.horizon=time-aware` and `policy.observations=time-feature,
normalize-observations`); by default values bootstrap through it, as everywhere. Of the paper's algorithms this is the
one for choices; `stream-ac` learns a value of states beside a policy.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning
from etude.experience.exploration import EpsilonGreedy
from etude.experience.latest import Latest, Newest
from etude.experience.sampling import OneStep
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.optimizers.traces import ObGD
from etude.policies.control.initializers import Sparse
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations
from etude.policies.control.replay import FromCritic
from etude.rewards.running import NormalizeRewards

NETWORK = MLP(hidden=(128, 128), activation="leaky-relu", layer_norm=True, affine=False, initializer=Sparse(share=0.9))

stream_x = dqn.replace(
    id="stream-x",
    title="Streaming Deep Reinforcement Learning Finally Works",
    paper="arXiv:2410.14606",
    policy=FromCritic(observations=(NormalizeObservations(),)),
    experience=Latest(),
    exploration=EpsilonGreedy(start=1.0, end=0.01, over=4_000),
    sampling=Newest(horizon=OneStep(gamma=0.99)),
    rewards=(NormalizeRewards(gamma=0.99),),
    critic=QFunctions(
        network=NETWORK,
        last=Sparse(share=0.9),
        backup=Bootstrap(Argmax()),
        learning=Learning(ObGD(lr=1.0, lam=0.8, kappa=2.0)),
    ),
    claim=Claim(
        statement="From each step once, without replay or batch, DQN's return is met within a twentieth of the most.",
        bed="control/cartpole-hard",
        baseline="dqn",
        measures=(
            Measure(name="area", margin=-25.0, smallest=25.0),
            Measure(name="end", role="mechanism", smallest=25.0),
        ),
        equal=("steps",),
        runs=4,
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="the sample efficiency of batch methods, without their replay",
    ),
)
