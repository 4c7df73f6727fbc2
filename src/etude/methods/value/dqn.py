"""DQN: values of choices, learned from a replay against a copy that stands still (doi:10.1038/nature14236).

The root of the family. The best choice is taken but for a chance epsilon, every step is stored, and Q learns

    y = r + gamma (1 - terminated) max_a Q'(s', a),     loss = huber(Q(s, a) - y)

from rows drawn uniformly; Q' is a copy of Q as it was up to `target.every` updates ago. Settings are those that SB3's
zoo has for CartPole: a small network, and 128 updates after every 256 steps.
"""

from etude.core.claims import Claim, Measure
from etude.core.kinds import ReplayMethod
from etude.core.learners import Learning, Target
from etude.experience.exploration import EpsilonGreedy
from etude.experience.replay import Replay
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.heads import Huber
from etude.learners.q import QFunctions
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP
from etude.policies.control.replay import FromCritic

dqn = ReplayMethod(
    id="dqn",
    title="Human-level control through deep reinforcement learning",
    paper="doi:10.1038/nature14236",
    policy=FromCritic(),
    experience=Replay(capacity=100_000, random=1_000, warmup=1_000, every=256, updates=0.5),
    exploration=EpsilonGreedy(start=1.0, end=0.04, over=8_000),
    sampling=UniformRows(batch=64, horizon=OneStep(gamma=0.99)),
    critic=QFunctions(
        network=MLP(hidden=(256, 256), activation="relu", initializer=FanIn()),
        backup=Bootstrap(Argmax()),
        error=Huber(),
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
    order=("critic",),
    claim=Claim(
        statement="What is learned from a copy that stands still for 128 updates earns more than from one that stands "
        "still for eight.",
        bed="control/cartpole-hard",
        baseline="dqn",
        baseline_changes={"critic.learning.target.every": 8},  # renewed after each update, values grow without bound
        measures=(Measure(name="area", smallest=5.0), Measure(name="end", role="mechanism", smallest=5.0)),
        equal=("steps",),
        learned_on="area",
        sweep={"rate": (0.1, 0.3, 1.0)},
    ),
)
