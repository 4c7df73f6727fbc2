"""Optimizers that keep traces: gradients of what was estimated in earlier steps, which learn from this step's error."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from etude.core.fields import Fraction, Positive, Probability
from etude.core.part import Need
from etude.core.population import FlatParameters, Number
from etude.core.step_slots import StepOptimizer
from etude.optimizers.population import Differentiable, Failures, Metrics, column

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.replay_slots import Estimate


class Told(Differentiable, Protocol):
    """What these optimizers ask: `gradient` is that of the estimate's value."""

    @property
    def estimate(self) -> Estimate | None:
        """The value, its error, and what traces carry on."""
        ...


class ObGD(StepOptimizer):
    """Overshooting-bounded gradient descent along eligibility traces (arXiv:2410.14606).

        z <- gamma lam z + grad f,   M = lr kappa max(|error|, 1) |z|_1
        w <- w + lr / max(M, 1) error z

    f is what is estimated and `error` how far its target lies above it; gamma is the horizon's. Where M > 1, the
    absolute changes of all weights sum to |error| / (kappa max(|error|, 1)). After the end of an episode, and after
    what the backup would not have done, z is 0.

    Args:
        lr: what a step is multiplied by where it does not overshoot.
        lam: how traces decay, beside gamma.
        kappa: how far below overshooting steps are kept.

    Shapes: parameters and traces [P, D]; norms, M and steps are each member's own.

    >>> from etude.core.population import Numbers
    >>> from types import SimpleNamespace as Rows
    >>> module = Numbers({"w": torch.zeros(1)})
    >>> parameters = FlatParameters({"w": module})
    >>> estimate = Rows(error=torch.tensor([3.0]), carry=torch.tensor([0.9]))
    >>> lesson = Rows(gradient=lambda: parameters.gradient.fill_(1.0) and {}, estimate=estimate, batch=None)
    >>> stepper = ObGD(lam=0.5).population(parameters)
    >>> _ = stepper.step(lesson, 1.0)
    >>> parameters.values.item(), round(stepper.trace.item(), 3)  # M = 2 * 3 * 1: a step of 3 / 6
    (0.5, 0.45)
    """

    name: ClassVar[str] = "obgd"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ESTIMATE})
    lr: Positive = 1.0
    lam: Probability = 0.8
    kappa: Positive = 2.0

    def objection(self, method: Method) -> str | None:
        sampling, experience = method.slots().get("sampling"), method.slots()["experience"]
        if sampling is not None and not (sampling.newest and (experience is None or experience.acts)):
            return "keeps traces from step to step: set experience=latest and sampling=newest."
        if sampling is not None and experience is not None and experience.environments > 1:
            return "keeps one trace for each member, which is of one environment: set experience.environments=1."
        if sampling is not None and experience is not None and experience.capacity > 1:
            return "keeps traces from step to step, and learns from several at once: set experience.steps=1."
        return None

    def population(self, parameters: FlatParameters) -> PopulationObGD:
        return PopulationObGD(parameters, self.lr, self.lam, self.kappa)


class AdaptiveObGD(ObGD):
    """`ObGD` along traces that are divided by the root of a running mean square (arXiv:2410.14606).

        v <- beta2 v + (1 - beta2) (error z)^2,   d = z / sqrt(v / (1 - beta2^t) + epsilon)
        M = lr kappa max(|error|, 1) |d|_1,   w <- w + lr / max(M, 1) error d

    Shapes: parameters, traces and their mean squares [P, D]; the rest is as of `ObGD`.

    >>> AdaptiveObGD().beta2
    0.999
    """

    name: ClassVar[str] = "adaptive-obgd"
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8

    def population(self, parameters: FlatParameters) -> PopulationAdaptiveObGD:
        return PopulationAdaptiveObGD(parameters, self.lr, self.lam, self.kappa, self.beta2, self.epsilon)


class PopulationObGD:
    """`ObGD` of every member. One whose gradient or error is not finite takes no step, which is counted.

    Raises: NonFiniteError after three skipped steps in a row.
    """

    def __init__(self, parameters: FlatParameters, lr: Number, lam: Number, kappa: Number) -> None:
        self.values, self.gradient = parameters.values, parameters.gradient
        self.lr, self.lam, self.kappa = (column(x, self.values) for x in (lr, lam, kappa))
        self.trace = torch.zeros_like(self.values)
        self.failures = Failures(len(self.values), self.values.device)

    @torch.no_grad()
    def step(self, lesson: Told, rate: Number) -> Metrics:
        metrics, told = lesson.gradient(), lesson.estimate
        assert told is not None
        finite = self.gradient.abs().amax(1, keepdim=True).isfinite() & told.error[:, None].isfinite()
        if not self.failures.here or not bool(finite.all()):  # of another device to ask is to wait for it
            self.gradient.masked_fill_(~finite, 0.0)
        error = told.error[:, None].where(finite, 0.0)
        self.trace += self.gradient
        along, lr = self._along(error), self.lr * column(rate, self.values)
        total = torch.linalg.vector_norm(along, 1, dim=1, keepdim=True)
        bound = lr * self.kappa * error.abs().clamp(min=1.0) * total
        self.values += lr / bound.clamp(min=1.0) * error * along
        self.trace *= self.lam * told.carry[:, None]
        self.failures.note(finite[:, 0], lesson.batch)
        length = error.abs() * torch.linalg.vector_norm(along, dim=1, keepdim=True)
        bounded = (bound > 1).to(error.dtype)
        taken = {"gradient_norm": length[:, 0], "bounded_steps": bounded[:, 0]}
        return {**metrics, **taken, "skipped_steps": 1.0 - finite[:, 0].float()}

    def _along(self, error: Tensor) -> Tensor:
        """Where to, [P, D]."""
        return self.trace

    def tensors(self) -> dict[str, Tensor]:
        return {"trace": self.trace, "failures": self.failures.count}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self.tensors().items():
            value.copy_(tensors[name])


class PopulationAdaptiveObGD(PopulationObGD):
    """`AdaptiveObGD` of every member."""

    def __init__(
        self, parameters: FlatParameters, lr: Number, lam: Number, kappa: Number, beta2: Number, epsilon: Number
    ) -> None:
        super().__init__(parameters, lr, lam, kappa)
        self.beta2, self.epsilon = column(beta2, self.values), column(epsilon, self.values)
        self.second = torch.zeros_like(self.values)
        self.taken = torch.zeros(len(self.values), 1, device=self.values.device)

    def _along(self, error: Tensor) -> Tensor:
        self.taken += 1
        self.second += (1 - self.beta2) * ((error * self.trace).square() - self.second)
        return self.trace / (self.second / (1 - self.beta2**self.taken) + self.epsilon).sqrt()

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "second": self.second, "taken": self.taken}
