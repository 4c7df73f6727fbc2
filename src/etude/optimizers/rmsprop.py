"""RMSProp as A3C has it: epsilon stands inside of the root, and several workers may step on the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.core.fields import Fraction, Positive
from etude.core.population import FlatParameters, Number
from etude.core.step_slots import StepOptimizer
from etude.optimizers.population import Differentiable, Failures, Metrics, column
from etude.optimizers.schedules import Constant, Schedule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class RMSProp(StepOptimizer):
    """RMSProp, neither centred nor with momentum (arXiv:1602.01783, section 4).

        g <- decay g + (1 - decay) d^2,   theta <- theta - lr d / sqrt(g + epsilon)

    torch's RMSprop divides by sqrt(g) + epsilon instead. d is the gradient of the **sum** of the losses of all steps
    that are learned from at once, as the paper accumulates it: beside epsilon its size matters.

    Args:
        lr: learning rate. decay: the paper's alpha. epsilon: added to g, in the unit of squared gradients.
        summed: whether d is of the sum over the steps; otherwise of their mean, as everywhere else.
        shared: whether workers that learn side by side (`--on hogwild`) have one g for all, or each its own.
        schedule: what becomes of the rate.
        clip_norm: largest norm of d of a member; None for no limit.

    Shapes: parameters, d and g [P, D].

    >>> from etude.core.population import Numbers
    >>> from types import SimpleNamespace as Rows
    >>> parameters = FlatParameters({"w": Numbers({"w": torch.zeros(1)})})
    >>> lesson = Rows(gradient=lambda: parameters.gradient.fill_(3.0) and {}, batch=None)
    >>> stepper = RMSProp(lr=0.1, decay=0.5, epsilon=4.5).population(parameters)
    >>> _ = stepper.step(lesson, 1.0)
    >>> stepper.square.item(), round(parameters.values.item(), 6)  # 9 / 2, then 0.1 * 3 / sqrt(4.5 + 4.5)
    (4.5, -0.1)
    """

    name: ClassVar[str] = "rmsprop"
    lock_free: ClassVar[bool] = True
    lr: Positive = 1e-3
    decay: Fraction = 0.99
    epsilon: Positive = 0.1
    summed: bool = True
    shared: bool = True
    schedule: Schedule = Constant()
    clip_norm: Positive | None = None

    def rate(self, step: int, steps: int) -> float:
        return self.schedule.factor(max(0.0, 1 - step / max(1, steps)))

    def clip(self) -> float | None:
        return self.clip_norm

    def population(self, parameters: FlatParameters) -> PopulationRMSProp:
        return PopulationRMSProp(
            parameters, self.lr, self.decay, self.epsilon, self.clip_norm, summed=self.summed, shared=self.shared
        )


class PopulationRMSProp:
    """`RMSProp` of every member. One whose gradient is not finite takes no step, which is counted.

    Raises: NonFiniteError after three skipped steps in a row.
    """

    def __init__(
        self, parameters: FlatParameters, lr: Number, decay: Number, epsilon: Number, clip: Number | None, *,
        summed: bool = True, shared: bool = True,
    ) -> None:  # fmt: skip
        self.parameters, self.summed, self.shared = parameters, summed, shared
        self.values = parameters.values  # what is stepped on
        self.square = torch.zeros_like(self.values)
        self.lr, self.decay, self.epsilon = (column(x, self.values) for x in (lr, decay, epsilon))
        self.clip = None if clip is None else column(clip, self.values)
        self.failures = Failures(len(self.values), self.values.device)

    def step(self, lesson: Differentiable, rate: Number) -> Metrics:
        metrics, along = lesson.gradient(), self.parameters.gradient
        if self.summed:
            along.mul_(steps_in(lesson.batch, along))
        norm = torch.linalg.vector_norm(along, dim=1, keepdim=True)
        finite = norm < torch.inf
        self._apply(along, norm, finite, self.lr * column(rate, along))
        self.failures.note(finite[:, 0], lesson.batch)
        return {**metrics, "gradient_norm": norm[:, 0], "skipped_steps": 1.0 - finite[:, 0].float()}

    @torch.no_grad()
    def _apply(self, along: Tensor, norm: Tensor, finite: Tensor, lr: Tensor) -> None:
        if self.clip is not None:
            along.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        if not self.failures.here or not bool(finite.all()):  # of another device to ask is to wait for it
            along.masked_fill_(~finite, 0.0)
            decay, lr = self.decay.where(finite, 1.0), lr.where(finite, 0.0)
        else:
            decay = self.decay
        # in place: whoever else steps on the same numbers loses at most what was written in between
        self.square.mul_(decay).addcmul_(along * (1 - decay), along)
        self.values.sub_(lr * along / (self.square + self.epsilon).sqrt())
        if self.values is not self.parameters.values:
            self.parameters.values.copy_(self.values)

    def join(self, values: Tensor, square: Tensor) -> None:
        """Step on these numbers, [P, D] each, from now on, which others step on too: `square` only if it is `shared`.

        The parameters are as the last step left `values`.
        """
        self.values = values
        if self.shared:
            self.square = square

    def tensors(self) -> dict[str, Tensor]:
        return {"square": self.square, "failures": self.failures.count}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self.tensors().items():
            value.copy_(tensors[name])


def steps_in(batch: DataclassInstance | None, like: Tensor) -> Tensor:
    """[P, 1] or [1, 1] how many steps a loss is a mean over: those of rows [P, N] that count; 1 of what has no rows."""
    rewards, weights = getattr(batch, "rewards", None), getattr(batch, "weights", None)
    if weights is not None:
        counted: Tensor = weights.flatten(1).sum(1, keepdim=True).to(like)
        return counted
    return like.new_full((1, 1), 1.0 if rewards is None else rewards[0].numel())
