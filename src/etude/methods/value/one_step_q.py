"""One-step Q-learning by workers side by side: every step is learned from once, as it happens (arXiv:1602.01783).

Changes DQN in six places:

1. there is no replay: an update learns from the five steps that were just taken, each once,

       y_i = r_i + gamma (1 - terminated) max_a Q'(s_{i+1}, a),     loss = sum_i (y_i - Q(s_i, a_i))^2;

2. with `--on hogwild:W` there are W workers, which step on the same numbers without waiting for each other and go by
   one count of steps (`loops/hogwild.py`): what makes steps unlike that are learned from one after the other is no
   longer a memory but that they come from several places;
3. every worker draws to which chance of trying anything it falls: 0.1, 0.01 or 0.5, with 0.4, 0.3 and 0.3;
4. the step is RMSProp's with epsilon inside of the root, of the gradient of the sum, and one running mean of its square
   for all workers; the rate falls to 0;
5. errors are squared, and gradients are not cut;
6. the copy that stands still is renewed every 100 updates, which are 500 steps; in the paper every 40,000 frames of 1e8
   and more. The chance falls over 10,000 steps instead of 4 million.

The paper draws rates between 1e-4 and 1e-2 and does not say epsilon; 0.1 is what `a3c` has.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.exploration import DrawnEpsilon
from etude.experience.latest import Latest, Newest
from etude.experience.sampling import OneStep
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.optimizers.rmsprop import RMSProp
from etude.optimizers.schedules import Linear
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP

one_step_q = dqn.replace(
    id="one-step-q",
    title="Asynchronous Methods for Deep Reinforcement Learning",
    paper="arXiv:1602.01783",
    experience=Latest(steps=5),
    exploration=DrawnEpsilon(over=10_000),
    sampling=Newest(horizon=OneStep(gamma=0.99)),
    critic=QFunctions(
        network=MLP(hidden=(64, 64), activation="relu", initializer=FanIn()),
        backup=Bootstrap(Argmax()),
        learning=Learning(RMSProp(lr=3e-3, decay=0.99, epsilon=0.1, schedule=Linear()), target=Target(every=100)),
    ),
    claim=Claim(
        statement="From each step once, without a replay, DQN's return is met within a twentieth of the most.",
        bed="control/cartpole-hard",
        baseline="dqn",
        measures=(
            Measure(name="area", margin=-25.0, smallest=25.0),
            Measure(name="end", role="mechanism", smallest=25.0),
        ),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0, 3.0)},
        paper_effect="with 16 workers, DQN's Atari scores in less time than DQN has on a GPU",
    ),
)
