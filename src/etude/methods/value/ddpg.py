"""DDPG: a deterministic policy that climbs its critic, from a replay (arXiv:1509.02971).

Changes DQN in four places:

1. the policy is a network of its own, tanh scaled to the bounds: it climbs the critic's gradient in the actions,
   d Q(s, mu(s)) / d phi;
2. the critic reads the action, and learns y = r + gamma (1 - terminated) Q'(s', mu'(s'));
3. slow copies of both follow a little after every update, theta' <- theta' + tau (theta - theta');
4. exploration adds noise that returns slowly to 0 (Ornstein-Uhlenbeck, time step 1).

Layers of 400 and 300, the paper's rates and its last layers within 3e-3; weight decay and batch normalisation, which
its successors left out, are off. The action enters with the observation, as in these; the paper's critic reads it in
its second layer (`critic.network.action_layer=1`).
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.exploration import OrnsteinUhlenbeck
from etude.experience.replay import Replay
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.objectives.actor import MaximizeQ
from etude.objectives.reductions import First
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn, Within
from etude.policies.control.networks import MLP
from etude.policies.control.replay import DeterministicPolicy

SMALL = {
    "policy.network.hidden": (64, 64), "critic.network.hidden": (64, 64), "sampling.horizon.gamma": 0.98,
    "policy.learning.optimizer.lr": 1e-3, "policy.learning.target.rate": 0.01, "critic.learning.target.rate": 0.01,
}  # fmt: skip
"""Sizes and rates for a small task, as the pendulum's bed sets them on its baseline."""
TENTH = 100.0
"""Of the way from chance to swung up: the smallest difference that matters there."""

ddpg = dqn.replace(
    id="ddpg",
    title="Continuous control with deep reinforcement learning",
    paper="arXiv:1509.02971",
    policy=DeterministicPolicy(
        network=MLP(hidden=(400, 300), activation="relu", initializer=FanIn()),
        last=Within(limit=3e-3),
        learning=Learning(Adam(lr=1e-4), target=Target(rate=0.001)),
    ),
    experience=Replay(capacity=1_000_000, random=1_000, warmup=1_000),
    exploration=OrnsteinUhlenbeck(rate=0.15, scale=0.2),
    sampling=UniformRows(batch=64, horizon=OneStep(gamma=0.99)),
    critic=QFunctions(
        network=MLP(hidden=(400, 300), activation="relu", initializer=FanIn()),
        backup=Bootstrap(FromPolicy()),
        last=Within(limit=3e-3),
        learning=Learning(Adam(lr=1e-3), target=Target(rate=0.001)),
    ),
    actor=(MaximizeQ(over=First()),),
    order=("critic", "policy"),
    claim=Claim(
        statement="Slow copies of policy and critic: without them less is learned.",
        bed="control/pendulum",
        baseline="ddpg",
        changes=SMALL,
        baseline_changes={"critic.learning.target.rate": 1.0, "policy.learning.target.rate": 1.0},
        measures=(Measure(name="area", smallest=TENTH), Measure(name="end", role="mechanism", smallest=TENTH)),
        equal=("steps",),
        runs=4,
        paper_effect="without target networks learning is poor in many tasks (figure 2)",
    ),
)
