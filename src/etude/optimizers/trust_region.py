"""Natural gradients: steps that are as long as the change of the policy that they make.

The Fisher matrix F is the Hessian of the mean KL(behaviour || pi) over the rollout, at the weights that acted. It is
never formed: all that is needed are products F v, two passes backward through the divergence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.fields import Count, Fraction, NonNegative, Positive
from etude.core.part import Need
from etude.core.population import FlatParameters, Number
from etude.core.step_slots import StepOptimizer
from etude.optimizers.population import Failures, Metrics, Surrogate, column

if TYPE_CHECKING:
    from etude.core.method import Method

Product = Callable[[Tensor], Tensor]


class NaturalGradient(StepOptimizer):
    """A step along the natural gradient whose quadratic KL is `delta` (Kakade 2001; arXiv:1502.05477, section 6).

        theta <- theta - sqrt(2 delta / x^T F x) x,   x = (F + damping I)^{-1} grad loss,

    x by conjugate gradients, every member its own. Only the policy's weights move. It works on a whole rollout at
    once, since F is taken at the weights that acted: one epoch, one minibatch, and a critic that is fitted apart.

    Args:
        delta: mean KL of the step, to second order, in nats.
        damping: added to F's diagonal.
        iterations, tolerance: of conjugate gradients; it ends when the squared residual is below `tolerance`.

    Raises: ConfigError if `lr` is given: the length of the step is `delta`.

    Shapes: parameters, gradients [P, D].

    With F = 4 and a gradient of -2, x = 1/2 and x^T F x = 1, so the step is sqrt(2 * 0.02) / 2:

    >>> part = NaturalGradient(delta=0.02)
    >>> x = conjugate_gradients(lambda v: 4 * v, torch.tensor([[2.0]]), part.iterations, part.tolerance)
    >>> round(((2 * part.delta / (4 * x * x)).sqrt() * x).item(), 6)
    0.1
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.KL})
    delta: Positive = 0.01
    damping: NonNegative = 0.1
    iterations: Count = 10
    tolerance: NonNegative = 1e-10

    def check(self) -> None:
        if self.lr is not None:
            raise ConfigError(f"{type(self).__name__} has no learning rate; set how far a step goes with delta.")

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if slots["epochs"] != 1 or slots["minibatches"] != 1:
            return "takes one step on a whole rollout: set epochs and minibatches to 1."
        if slots["critic"] is not None and slots["critic"].joint:
            return "moves the policy only: use a critic that is fitted afterwards (critic=fitted-value)."
        if head := next((part for part in slots["learners"] if part.joint), None):
            return f"moves the policy only, and {type(head).__name__} is trained by the policy's step: leave it out."
        return None

    def population(self, parameters: FlatParameters) -> PopulationNaturalGradient:
        return PopulationNaturalGradient(self, parameters)


class TrustRegion(NaturalGradient):
    """The natural gradient's step, shortened until it keeps its promise (TRPO, arXiv:1502.05477, appendix C).

    The step is multiplied by shrink^j, j = 0, 1, ..., tries - 1; the first with mean KL <= delta and a loss that is
    not above the one before is taken. A member for which there is none keeps its weights (`accepted` 0).

    Shapes: parameters, gradients [P, D].

    >>> part = TrustRegion(shrink=0.5, tries=3)
    >>> [part.shrink**j for j in range(part.tries)]
    [1.0, 0.5, 0.25]
    """

    shrink: Fraction = 0.8
    tries: Count = 10

    def population(self, parameters: FlatParameters) -> PopulationNaturalGradient:
        return PopulationTrustRegion(self, parameters)


class PopulationNaturalGradient:
    """Takes the steps of `NaturalGradient` for every member at once.

    Metrics [P]: `gradient_norm`, `skipped_steps`, `accepted`, `kl` (mean over the rollout, after the step),
    `step_size` (what x was multiplied by).
    """

    def __init__(self, part: NaturalGradient, parameters: FlatParameters) -> None:
        self.part = part
        self.values = parameters.values[:, parameters.of("policy")]
        named = zip(parameters.slices, parameters.leaves)
        self.leaves = [leaf for name, leaf in named if name.startswith("policy.")]
        self.failures = Failures(len(self.values), self.values.device)

    def step(self, surrogate: Surrogate, rate: Number) -> Metrics:
        policy = surrogate.evaluate()
        surrogate.fresh = False  # from here on the weights are not those that acted
        assert policy.kl is not None
        loss, metrics = surrogate.loss(policy)
        gradient = flat_gradient(loss, self.leaves, keep=True)
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        finite = norm.isfinite()
        direction, size = self._direction(surrogate.mean(policy.kl), gradient.where(finite, torch.zeros_like(gradient)))
        length = torch.linalg.vector_norm(size * direction, dim=1, keepdim=True)
        finite = finite & length.isfinite()
        able = finite & (length > 0)
        step = (size * direction).where(able, torch.zeros_like(direction))
        accepted, kl, scale, broken = self._move(surrogate, step, loss.detach()[:, None], able)
        finite = finite & ~broken
        self.failures.note(finite[:, 0], surrogate.batch)
        found = {"gradient_norm": norm, "skipped_steps": (~finite).float(), "accepted": accepted.float(), "kl": kl}
        size = torch.where(accepted, scale * size, torch.zeros_like(size))
        return {**metrics, **{k: v[:, 0] for k, v in found.items()}, "step_size": size[:, 0]}

    def _direction(self, divergence: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """-(F + damping I)^{-1} gradient [P, D], and what to multiply it by, [P, 1] (not finite where F says 0)."""
        part, fisher = self.part, hessian_product(divergence, self.leaves)
        damping = column(part.damping, gradient)
        x = conjugate_gradients(lambda v: fisher(v) + damping * v, -gradient, part.iterations, part.tolerance)
        curvature = dot(x, fisher(x))
        size = (2 * column(part.delta, x) / curvature).sqrt()
        return x, torch.where(curvature > 0, size, torch.zeros_like(size))

    @torch.no_grad()
    def _move(
        self, surrogate: Surrogate, step: Tensor, loss: Tensor, able: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take the step; all [P, 1]: whether it was taken, mean KL after it, the factor on it, whether it broke."""
        before = self.values.clone()
        self.values.add_(step)
        after, kl = self._measure(surrogate)
        broken = able & ~(after.isfinite() & kl.isfinite())
        self.values.copy_(torch.where(broken, before, self.values))
        accepted = able & ~broken
        return accepted, torch.where(accepted, kl, torch.zeros_like(kl)), torch.ones_like(kl), broken

    def _measure(self, surrogate: Surrogate) -> tuple[Tensor, Tensor]:
        """Loss and mean KL with the weights as they are, [P, 1] each."""
        policy = surrogate.evaluate()
        assert policy.kl is not None
        return surrogate.loss(policy)[0][:, None], surrogate.mean(policy.kl)[:, None]

    def tensors(self) -> dict[str, Tensor]:
        return {"failures": self.failures.count}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.failures.count.copy_(tensors["failures"])


class PopulationTrustRegion(PopulationNaturalGradient):
    """Takes the steps of `TrustRegion`: a line search for every member, those that are done standing still."""

    part: TrustRegion

    @torch.no_grad()
    def _move(
        self, surrogate: Surrogate, step: Tensor, loss: Tensor, able: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        before, delta = self.values.clone(), column(self.part.delta, step)
        shrink = column(self.part.shrink, loss)
        scale, kl, accepted = torch.ones_like(loss), torch.zeros_like(loss), torch.zeros_like(able)
        for _ in range(self.part.tries):
            searching = able & ~accepted
            if not bool(searching.any()):
                break
            self.values.copy_(torch.where(searching, before + scale * step, self.values))
            now, divergence = self._measure(surrogate)
            good = searching & (divergence <= delta) & (now <= loss)
            accepted, kl = accepted | good, torch.where(good, divergence, kl)
            scale = torch.where(accepted, scale, scale * shrink)
        self.values.copy_(torch.where(accepted, self.values, before))
        return accepted, kl, scale, torch.zeros_like(able)


def flat_gradient(loss: Tensor, leaves: Sequence[Tensor], keep: bool = False, differentiable: bool = False) -> Tensor:
    """Each member's gradient [P, D] of a loss [P], leaves [P, ...] side by side.

    Args:
        keep: the graph, for another gradient; differentiable: the result, for a second derivative.
    """
    found = torch.autograd.grad(
        loss.sum(), list(leaves), retain_graph=keep or differentiable, create_graph=differentiable,
        materialize_grads=True,
    )  # fmt: skip
    return torch.cat([g.reshape(len(loss), -1) for g in found], 1)


def hessian_product(divergence: Tensor, leaves: Sequence[Tensor]) -> Product:
    """v [P, D] -> H v, H the Hessian of a divergence [P] with respect to each member's leaves (arXiv:1412.1193).

    At the minimum of a divergence between two models' outputs, H is the Gauss-Newton matrix: for KL the Fisher matrix,
    for half the mean squared difference of values the mean of j j^T with j the gradient of a value.
    """
    first = flat_gradient(divergence, leaves, differentiable=True)
    return lambda v: flat_gradient((first * v).sum(1), leaves, keep=True)


def conjugate_gradients(product: Product, target: Tensor, iterations: int, tolerance: float) -> Tensor:
    """x [P, D] with A x = target for each member's positive definite A, given as the product v -> A v.

    A member stops when the square of its residual is at most `tolerance`, or where A shows no positive curvature;
    it stands still while the others go on.
    """
    x, residual, along = torch.zeros_like(target), target, target
    left = dot(residual, residual)
    for _ in range(iterations):
        going = left > tolerance
        if not bool(going.any()):
            break
        image = product(along)
        curvature = dot(along, image)
        going = going & (curvature > 0)
        size = torch.where(going, left / curvature, torch.zeros_like(left))
        x = torch.where(going, x + size * along, x)
        residual = torch.where(going, residual - size * image, residual)
        now = dot(residual, residual)
        along = torch.where(going, residual + now / left * along, along)
        left = torch.where(going, now, torch.zeros_like(left))
    return x


def dot(a: Tensor, b: Tensor) -> Tensor:
    """[P, D], [P, D] -> [P, 1]."""
    return (a * b).sum(1, keepdim=True)
