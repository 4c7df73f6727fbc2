"""RIQL: IQL for logs in which rows are wrong: in what was seen, done, paid, or in what followed (arXiv:2310.12955).

Changes IQL in four places:

1. observations have mean 0 and deviation 1 over the logs;
2. critics pay no more than linearly for targets that are far off (eq. 7), so that no row moves them more than a slope
   of 1, and targets are cut at -100 and 1000,

    loss_Q = mean l(y - Q_k(s, a)),    l(x) = x^2 / (2 delta) if |x| <= delta, else |x| - delta / 2

3. there are five of them, and V and the policy go by a low quantile of what their slow copies say (eq. 8), linear
   between two of them, in the place of the least of two,

    Q_alpha(s, a) = quantile_alpha over k of Q'_k(s, a),    alpha = 0.25

4. the policy does one thing, and is cloned by the square of its distance,

    loss_pi = min(exp(3 (Q_alpha - V)), 100) |mu(s) - a|^2

The paper tunes delta = 1 / sigma^2 (sigma of 0.1, 0.5, 1 or 3), alpha (0.1, 0.25 or 0.5) and the number of critics (3
or 5) for each kind of corruption; these are its code's own values. There rewards are scaled to 1000 for the range of
returns: where values are below -100, set `critic.backup.low` (`critic_cut` says the share of targets that were cut).
There V's loss and advantages are of V before its step, as in the code that it began with; here they are IQL's. There
moments are of what followed too, and critics begin as EDAC's do.

`Corrupt` makes such logs: `--set transforms=corrupt,standardize-observations`.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from etude.core.claims import Claim, Measure
from etude.core.critic_slots import Error, Reduction
from etude.core.fields import Interval, Positive
from etude.core.learners import Learning, Target
from etude.core.replay_slots import ReplayReading
from etude.experience.transforms import StandardizeObservations
from etude.learners.backups import CutBootstrap, FromValue
from etude.learners.q import QFunctions
from etude.learners.value import Expectile, ValueFunction
from etude.methods.offline.bc import TENTH
from etude.methods.offline.iql import iql
from etude.objectives.clone import Clone, ExpAdvantage, SquaredNorm
from etude.optimizers.adam import Adam
from etude.optimizers.schedules import Cosine
from etude.policies.control.replay import DeterministicPolicy


class BoundedInfluence(Error):
    """x^2 / (2 delta) up to |x| = delta, |x| - delta / 2 beyond: Huber's loss with slopes of at most 1.

    Shapes: [..., K] -> [..., K].

    >>> BoundedInfluence(delta=0.5)(torch.tensor([0.25, 3.0]), torch.tensor([0.0, 0.0])).tolist()
    [0.0625, 2.75]
    """

    delta: Positive = 1.0

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        size = (prediction - target).abs()
        inside = size.clamp(max=self.delta)
        return inside * (size - 0.5 * inside) / self.delta


class QuantileOfCritics(Reduction):
    """The alpha-quantile of what M critics say, linear between the two that are next to it (arXiv:2310.12955, eq. 8).

    Args:
        alpha: 0: the least. 1: the largest. 1/2: the middle one.

    Shapes: [P, M, N] -> [P, N].

    >>> values = torch.tensor([[[4.0], [1.0], [2.0]]])
    >>> [QuantileOfCritics(alpha=a)(values, None).item() for a in (0.0, 0.25, 1.0)]
    [1.0, 1.5, 4.0]
    """

    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.25

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        ordered = values.sort(1).values
        most = values.shape[1] - 1
        place = values.new_ones(len(values), 1) * (self.alpha * most)
        below = place.floor().clamp(0, most)
        first, second = (
            ordered.gather(1, at.long().view(-1, *[1] * (values.dim() - 1)).expand(-1, 1, *values.shape[2:]))[:, 0]
            for at in (below, (below + 1).clamp(max=most))
        )
        return torch.lerp(first, second, (place - below).view(-1, *[1] * (first.dim() - 1)))


LOW = QuantileOfCritics(alpha=0.25)

riql = iql.replace(
    id="riql",
    title="Towards Robust Offline Reinforcement Learning under Diverse Data Corruption",
    paper="arXiv:2310.12955",
    transforms=(StandardizeObservations(),),
    policy=DeterministicPolicy(learning=Learning(Adam(lr=3e-4, schedule=Cosine()))),
    value=ValueFunction(of=LOW, error=Expectile(tau=0.7), learning=Learning(Adam(lr=3e-4))),
    critic=QFunctions(
        count=5,
        backup=CutBootstrap(FromValue()),
        error=BoundedInfluence(delta=1.0),
        learning=Learning(Adam(lr=3e-4), target=Target(rate=0.005)),
    ),
    actor=(Clone(weight=ExpAdvantage(beta=3.0, cap=100.0, over=LOW), error=SquaredNorm()),),
    claim=Claim(
        statement="On logs with a third of their rows corrupted, RIQL earns more than IQL, whatever is corrupted.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average, "
            "corrupted by chance at a rate of 0.3 in what was seen, done, paid or followed, four runs of each arm; "
            "networks of 64-64, 5,000 updates, 20 clean episodes of likeliest actions; beta 0.1 for rewards of some "
            "ten times the size, no cut"
        ),
        measures=(
            Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return under dynamics", role="mechanism", smallest=TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="the best average on D4RL's locomotion under chance and under an adversary (tables 1 and 2)",
    ),
)
