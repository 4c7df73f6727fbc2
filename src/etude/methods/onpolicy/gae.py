"""GAE: generalized advantage estimation, with a value function that has a trust region of its own (arXiv:1506.02438).

Changes TRPO in two places:

1. lambda = 0.97, and the critic learns from discounted returns G_t = sum_l gamma^l r_{t+l} (bootstrapped where an
   episode is truncated or the rollout ends), not from A + V;
2. the critic takes one step per rollout, by conjugate gradients, as far as

       mean (V - V_old)^2 / (2 sigma^2) <= epsilon,    sigma^2 = mean (V_old - G)^2,

   with the Gauss-Newton matrix M = mean j j^T, j = grad V(s): direction d = -M^{-1} grad mean (V - G)^2, scaled so that
   1/2 d^T M d = epsilon sigma^2.

The order is part of the method: advantages come from the values before this iteration, the policy moves, and only then
are the values fitted. A critic fitted first to the rollout's own returns would leave no residual to learn from.

The paper's rollouts are larger (20 trajectories and more), with epsilon = 0.01; with 512 steps a rollout that is too
slow for the critic, and epsilon = 0.1 here. Lambda between 0.92 and 0.98 was best on its cart-pole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from etude.advantages.returns import StepGAE
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Positive
from etude.core.learners import Learning
from etude.core.method import Method
from etude.core.population import FlatParameters, PerMember
from etude.core.step_slots import Network, StepOptimizer
from etude.core.transitions import Transitions
from etude.learners.fitted import FittedValue
from etude.methods.onpolicy.trpo import trpo
from etude.optimizers.population import Failures, Lesson, Metrics, column
from etude.optimizers.trust_region import conjugate_gradients, dot, flat_gradient, hessian_product
from etude.policies.control.networks import MLP


class MonteCarloGAE(StepGAE):
    """GAE whose critic learns from discounted returns, as with lambda = 1, whatever the lambda of the credit.

    Shapes: as of `GAE` in control, [P, T, E].

    >>> from types import SimpleNamespace as Rows
    >>> nothing = torch.zeros(1, 2, 1)
    >>> rows = Rows(rewards=torch.tensor([[[1.0], [2.0]]]), values=nothing, next_values=nothing)
    >>> rows.terminated = rows.truncated = torch.tensor([[[False], [True]]])
    >>> [MonteCarloGAE(gamma=0.5).estimate(rows, lam).flatten().tolist() for lam in (0.0, 1.0)]
    [[1.0, 2.0], [2.0, 2.0]]
    """

    def returns_of_transitions(self, batch: Transitions) -> Tensor:
        return self.estimate(batch, 1.0) + batch.values


class GaussNewton(StepOptimizer):
    """The Gauss-Newton step on half a mean squared error that changes values by a set amount (section 5).

    Args:
        epsilon: mean (V - V_old)^2 / (2 sigma^2) of a step, to second order.
        damping: added to M's diagonal for the direction.
        iterations, tolerance: of conjugate gradients.

    Raises: ConfigError if `lr` is given: the length of the step is `epsilon`.

    Shapes: parameters [P, D].

    With sigma = 1, values move by sqrt(2 epsilon) in the root mean square:

    >>> round((2 * GaussNewton(epsilon=0.02).epsilon) ** 0.5, 6)
    0.2
    """

    epsilon: Positive = 0.01
    damping: NonNegative = 0.01
    iterations: Count = 10
    tolerance: NonNegative = 1e-10

    def check(self) -> None:
        if self.lr is not None:
            raise ConfigError("GaussNewton has no learning rate; set how far a step goes with epsilon.")

    def objection(self, method: Method) -> str | None:
        if method.slots().get("optimizer") is self:
            return "is for learners of values: the policy takes natural-gradient or trust-region."
        return None

    def population(self, parameters: FlatParameters) -> PopulationGaussNewton:
        return PopulationGaussNewton(self, parameters)


class PopulationGaussNewton:
    """Takes the steps of `GaussNewton` for every member at once.

    Metrics [P]: `loss`, `change` (mean (V - V_old)^2 / (2 sigma^2), as it came out), `skipped_steps`.
    """

    def __init__(self, part: GaussNewton, parameters: FlatParameters) -> None:
        self.part, self.values, self.leaves = part, parameters.values, parameters.leaves
        self.failures = Failures(len(self.values), self.values.device)

    def step(self, lesson: Lesson, rate: float | PerMember) -> Metrics:
        read, batch = lesson.read(), lesson.batch
        values, loss = read.says, lesson.loss(read)
        change = batch.mean((values - values.detach()) ** 2) / 2
        gradient = flat_gradient(2 * loss, self.leaves, keep=True)
        sigma_squared = 2 * loss.detach()
        finite = gradient.isfinite().all(1)
        gradient = gradient.where(finite[:, None], torch.zeros_like(gradient))
        step = self._step(gradient, hessian_product(change, self.leaves), sigma_squared)
        with torch.no_grad():
            finite = finite & step.isfinite().all(1)
            self.failures.note(finite, batch)
            self.values.add_(step.where(finite[:, None], torch.zeros_like(step)))
            moved = batch.mean((lesson.read().says - values) ** 2) / (2 * sigma_squared).clamp(min=1e-12)
        return {"loss": loss.detach(), "change": moved, "skipped_steps": (~finite).float()}

    def _step(self, gradient: Tensor, curvature: Callable[[Tensor], Tensor], sigma_squared: Tensor) -> Tensor:
        """[P, D]: the scaled direction; 0 where there is nothing to learn."""
        part, damping = self.part, column(self.part.damping, gradient)
        along = conjugate_gradients(lambda v: curvature(v) + damping * v, -gradient, part.iterations, part.tolerance)
        length = dot(along, curvature(along))
        size = (2 * column(part.epsilon, along) * sigma_squared[:, None] / length).sqrt()
        return torch.where(length > 0, size, torch.zeros_like(size)) * along

    def tensors(self) -> dict[str, Tensor]:
        return {"failures": self.failures.count}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.failures.count.copy_(tensors["failures"])


class TrustRegionValue(FittedValue):
    """V(s), moved once per rollout by the Gauss-Newton step that changes values by a set amount (section 5).

    Shapes: V, R [P, N] -> loss [P].

    >>> TrustRegionValue(learning=Learning(optimizer=GaussNewton(epsilon=0.02))).learning.optimizer.epsilon
    0.02
    """

    learning: Learning = Learning(optimizer=GaussNewton())
    network: Network = MLP()

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        data = dict(values)
        if "learning" in data or "epsilon" not in data:
            return data
        names = ("epsilon", "damping", "iterations", "tolerance")
        optimizer = GaussNewton().to_json() | {name: data.pop(name) for name in names}
        return {**data, "learning": Learning(optimizer=GaussNewton()).to_json() | {"optimizer": optimizer}}


gae = trpo.replace(
    id="gae",
    title="High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    paper="arXiv:1506.02438",
    advantages=MonteCarloGAE(gamma=0.99, lam=0.97, standardize=True),
    critic=TrustRegionValue(learning=Learning(optimizer=GaussNewton(epsilon=0.1))),
    claim=Claim(
        statement="An intermediate lambda, 0.96, earns more than 0, which trusts the critic, and 1, which does not.",
        task="cartpole",
        setting="gusts of up to 20 N; the area under the curve of ten runs for each seed",
        measures=(
            Measure(name="return against lambda 0", bounds=(0.0, 500.0)),
            Measure(name="return against lambda 1", bounds=(0.0, 500.0)),
        ),
        learned_on="return against lambda 1",
        paper_effect="intermediate lambda, 0.92 to 0.98, learns best on cart-pole (figure 3)",
    ),
)
