"""CFPI: clone the logs, learn what their actions are worth, and improve an action in closed form where it acts.

Changes behaviour cloning in three places (arXiv:2211.15956):

1. the policy is a mixture of four normals before tanh, cloned by likelihood,

    loss_pi = -log sum_i l_i(s) N(atanh a; mu_i(s), S_i(s)) + log |da/du|

2. an ensemble of critics learns by Sarsa what actions of the logs are worth, each from its own slow copy,

    y_m = r + gamma (1 - terminated) Q'_m(s', a'),    a' what was done next in the logs

3. nothing is trained to climb them. Where it acts a planner steps along the slope of their lower bound, mean_m Q_m -
   beta std_m Q_m, as far from the behaviour as its likelihood allows (log tau = 0.5): from the mean of every component
   (log-sum-exp), and from the mean of all (Jensen). Of these steps it does what the lower bound says is worth most.

With `--set policy=squashed-policy` that is SG-CFPI, in which both operators are one; with `--set planner=none` it acts
by the mean of the likeliest component. IQL's values serve as well: `etude train iql --set policy=mixture-policy
actor.clone.weight=ones planner=closed-form-improvement planner.beta=0.7071`, the smaller of its two critics.

As the authors' code has it: slopes are taken before tanh, networks have three layers of 256, the policy's rate is 1e-4,
observations are standardised, and every critic has a target of its own. There critics are two implicit-quantile
networks, and here five that say one number. It also has a factor of sqrt 2 more on the steps of log-sum-exp, which the
equation does not have, and divides them by a sum over components where the equation's is over the numbers of an action;
here the equations stand. The gradient of the chances reaches the body here too. Its iterated variant, which evaluates
the improved policy and improves it again, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from etude.core.claims import Claim, Measure
from etude.core.critic_slots import Backup, QHead
from etude.core.learners import Learning, Target
from etude.core.log_slots import has_column
from etude.core.replay_slots import ReplayReading
from etude.experience.transforms import NextActions, StandardizeObservations
from etude.learners.q import QFunctions
from etude.methods.offline.bc import TENTH, bc
from etude.objectives.clone import Clone, Likelihood
from etude.optimizers.adam import Adam
from etude.planners.closed_form import ClosedFormImprovement, JensenOperator, LogSumExpOperator
from etude.policies.control.initializers import FanIn
from etude.policies.control.mixture import MixturePolicy
from etude.policies.control.networks import MLP

if TYPE_CHECKING:
    from etude.core.method import Method

DEEP = MLP(hidden=(256, 256, 256), activation="relu", initializer=FanIn())


class OwnSarsa(Backup):
    """y_m = r + discount Q'_m(s', a'), of what was done next, for each of M critics by its own slow copy.

    Shapes: [P, M, N, K] -> [P, M, N, K].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> from etude.learners.heads import Scalar
    >>> batch = Rows(rewards=torch.ones(1, 1), discounts=torch.full((1, 1), 0.5),
    ...              offers={"next_actions": torch.tensor([[[3.0]]])})
    >>> read = Rows(batch=batch, outputs=lambda at, a, copy: torch.stack([a, 2 * a], 1))
    >>> OwnSarsa().target(read, Scalar()).flatten().tolist()
    [2.5, 4.0]
    """

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if slots["critic"] is not None and not isinstance(slots["critic"], SarsaQFunctions):
            return "has a target for each critic, which others do not read: set critic=sarsa-q-functions."
        if slots["sampling"] is not None and slots["sampling"].horizon.length > 1:
            return "asks what was done after one step: set sampling.horizon=one-step."
        if not has_column(method, "next_actions"):
            return "asks what was done next, which no row says: set transforms=next-actions."
        return None

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        batch = read.batch
        assert batch.discounts is not None
        then = batch.offers["next_actions"].nan_to_num(0.0)  # nothing was done after the end, and counts nothing
        return head.target(batch.rewards[:, None], batch.discounts[:, None], read.outputs("next", then, copy=True))


class SarsaQFunctions(QFunctions):
    """Q(s, a) by `count` networks, each of which learns from its own slow copy (arXiv:2211.15956, section 4.1).

    Shapes: observations [P, N, D], actions [P, N, A] in units -> [P, M, N, K].

    >>> SarsaQFunctions(count=5).count
    5
    """

    backup: Backup = OwnSarsa()

    def objection(self, method: Method) -> str | None:
        if not isinstance(self.backup, OwnSarsa):
            return f"has a target for each network, and {type(self.backup).__name__} one: set critic=q-functions."
        return super().objection(method)

    def targets(self, read: ReplayReading) -> Tensor:
        return self.backup.target(read, self.head)


cfpi = bc.replace(
    id="cfpi",
    title="Offline Reinforcement Learning with Closed-Form Policy Improvement Operators",
    paper="arXiv:2211.15956",
    transforms=(NextActions(), StandardizeObservations()),
    order=("policy", "critic"),
    policy=MixturePolicy(network=DEEP, count=4, learning=Learning(Adam(lr=1e-4))),
    critic=SarsaQFunctions(
        network=DEEP,
        count=5,
        backup=OwnSarsa(),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    actor=(Clone(error=Likelihood()),),
    planner=ClosedFormImprovement(operators=(LogSumExpOperator(least=0.05), JensenOperator()), log_tau=0.5, beta=1.0),
    claim=Claim(
        statement=("On logs that chance pushes about the improved clone earns more than the clone."),
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand with torques off by 5 on average; networks of 64-64, 5,000 "
            "updates, 20 episodes of what the planner does, the baseline's of the likeliest component's mean"
        ),
        measures=(
            Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return beside one normal", role="mechanism", smallest=TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="MG more than SG on average, and both far more than cloning, on D4RL's locomotion (table 1)",
    ),
)
