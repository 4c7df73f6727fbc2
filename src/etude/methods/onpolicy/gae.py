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

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from etude.advantages.returns import StepGAE
from etude.core.batches import Transitions
from etude.core.fields import Count, NonNegative, Positive
from etude.core.method import Claim
from etude.core.population import FlatParameters, Population
from etude.core.slots import Network, StateCritic
from etude.critics.state import StateValue
from etude.methods.onpolicy.trpo import trpo
from etude.optimizers.population import Failures, column
from etude.optimizers.trust_region import conjugate_gradients, dot, flat_gradient, hessian_product
from etude.policies.control.networks import MLP


class MonteCarloGAE(StepGAE):
    """GAE whose critic learns from discounted returns, as with lambda = 1, whatever the lambda of the credit."""

    def of_transitions(self, batch: Transitions) -> Tensor:
        advantages = super().of_transitions(batch)
        batch.returns = self.estimate(batch, 1.0) + batch.values
        return advantages


class TrustRegionValue(StateCritic):
    """V(s), moved once per rollout by the Gauss-Newton step that changes values by a set amount (section 5).

    Args:
        epsilon: mean (V - V_old)^2 / (2 sigma^2) of a step, to second order.
        damping: added to M's diagonal for the direction.
        iterations, tolerance: of conjugate gradients.
    """

    joint: ClassVar[bool] = False
    network: Network = MLP()
    epsilon: Positive = 0.01
    damping: NonNegative = 0.01
    iterations: Count = 10
    tolerance: NonNegative = 1e-10

    def build(self, shape: tuple[int, ...], population: Population) -> nn.Module:
        return StateValue(network=self.network).build(shape, population)

    def prepare(self, parameters: FlatParameters) -> None:
        named = zip(parameters.slices, parameters.leaves)
        leaves = [leaf for name, leaf in named if name.startswith("critic.")]
        object.__setattr__(self, "_fitted", (parameters.values[:, parameters.of("critic")], leaves))
        self.state["failures"] = Failures(len(parameters.values)).count

    def fit(self, fitting: Any) -> dict[str, Tensor]:
        parameters, leaves = self.__dict__["_fitted"]
        batch: Transitions = fitting.batch
        assert batch.returns is not None
        values = fitting.values(batch)
        error = batch.mean((values - batch.returns) ** 2)
        change = batch.mean((values - values.detach()) ** 2) / 2
        gradient = flat_gradient(error, leaves, keep=True)
        finite = gradient.isfinite().all(1)
        gradient = gradient.where(finite[:, None], torch.zeros_like(gradient))
        step = self._step(gradient, hessian_product(change, leaves), error.detach())
        with torch.no_grad():
            finite = finite & step.isfinite().all(1)
            failures = Failures(len(step))
            failures.count = self.state["failures"]
            failures.note(finite, batch)
            parameters.add_(step.where(finite[:, None], torch.zeros_like(step)))
            moved = batch.mean((fitting.values(batch) - values) ** 2)
        found = {"value_loss": error.detach() / 2, "value_change": moved / (2 * error.detach()).clamp(min=1e-12)}
        return {**found, "value_skipped_steps": (~finite).float()}

    def _step(self, gradient: Tensor, curvature: Any, sigma_squared: Tensor) -> Tensor:
        """[P, D]: the scaled direction; 0 where there is nothing to learn."""
        damping = column(self.damping, gradient)
        along = conjugate_gradients(lambda v: curvature(v) + damping * v, -gradient, self.iterations, self.tolerance)
        length = dot(along, curvature(along))
        size = (2 * column(self.epsilon, along) * sigma_squared[:, None] / length).sqrt()
        return torch.where(length > 0, size, torch.zeros_like(size)) * along


gae = trpo.replace(
    id="gae",
    title="High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    paper="arXiv:1506.02438",
    advantages=MonteCarloGAE(gamma=0.99, lam=0.97, standardize=True),
    critic=TrustRegionValue(epsilon=0.1),
    claim=Claim(
        statement="An intermediate lambda, 0.96, earns more than 0, which trusts the critic, and 1, which does not.",
        task="cartpole",
        metric="return",
        steps=30_000,
        seeds=20,
    ),
)
