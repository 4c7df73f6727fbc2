"""How the step is taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from etude.core.fields import Fraction, Interval, NonNegative, Positive, Probability
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.part import hints
from etude.core.population import FlatParameters
from etude.core.step_slots import StepOptimizer
from etude.optimizers.population import DecayingAdam, PopulationAdam
from etude.optimizers.schedules import Constant, Schedule
from etude.runtime.shards import size

CONTROL_RATE = 3e-4
"""The learning rate of control where none is chosen."""


class TorchAdamW(TokenOptimizer, abstract=True):
    """AdamW (arXiv:1711.05101) with a learning-rate schedule and gradient-norm clipping, for one model.

    Args:
        lr: largest learning rate; None takes `automatic_rate` of what is trained.
        warmup: fraction of all steps over which the rate rises linearly from 0.
        schedule: what follows.
        clip_norm: largest global gradient norm; None for no limit.
    """

    lr: Positive | None = None
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    warmup: Probability = 0.0
    schedule: Schedule = Constant()
    clip_norm: Positive | None = 1.0

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        data = dict(values)
        if not isinstance(mode := data.get("schedule"), str):
            return data
        floor = data.get("floor", 0.0) if "floor" in hints(cls) else data.pop("floor", 0.0)
        return {**data, "schedule": {"part": mode} | ({} if mode == "constant" else {"floor": floor})}

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        chosen = list(parameters)
        rate = self.lr or automatic_rate(sum(map(size, chosen)))
        return torch.optim.AdamW(chosen, rate, (self.beta1, self.beta2), self.epsilon, self.weight_decay, foreach=True)

    def rate(self, step: int, steps: int) -> float:
        rising = self.warmup * steps
        if step < rising:
            return (step + 1) / (rising + 1)
        return self.schedule.factor(max(0.0, 1 - (step - rising) / max(1.0, steps - rising)))

    def clip(self) -> float | None:
        return self.clip_norm


class AdamW(TorchAdamW, StepOptimizer):
    """AdamW (arXiv:1711.05101) with a learning-rate schedule and gradient-norm clipping.

    Args:
        lr: largest learning rate; None takes `automatic_rate` of what is trained, in control 3e-4.
        warmup, schedule, clip_norm: as in `TorchAdamW`; in control every member has its own norm.

    Shapes: parameters [P, D] in control.

    >>> [round(AdamW(warmup=0.5).rate(step, 4), 4) for step in range(4)]
    [0.3333, 0.6667, 1.0, 1.0]
    """

    def population(self, parameters: FlatParameters) -> PopulationAdam:
        rate = CONTROL_RATE if self.lr is None else self.lr
        betas = (self.beta1, self.beta2)
        return PopulationAdam(parameters, rate, betas, self.epsilon, self.weight_decay, self.clip_norm)


class Adam(StepOptimizer):
    """Adam (arXiv:1412.6980), without a bound on the gradient unless one is given.

    Args:
        lr: learning rate. clip_norm: largest gradient norm of a member; None for no limit.
        weight_decay: of the L2 norm, added to the gradient, as the paper of DDPG has it; not AdamW's.
        schedule: what becomes of the rate.

    Shapes: parameters [P, D].

    >>> Adam(lr=1e-3).rate(5, 10)
    1.0
    """

    lr: Positive = 3e-4
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    schedule: Schedule = Constant()
    clip_norm: Positive | None = None

    def rate(self, step: int, steps: int) -> float:
        return self.schedule.factor(max(0.0, 1 - step / max(1, steps)))

    def clip(self) -> float | None:
        return self.clip_norm

    def population(self, parameters: FlatParameters) -> PopulationAdam:
        betas = (self.beta1, self.beta2)
        return DecayingAdam(parameters, self.lr, betas, self.epsilon, self.weight_decay, self.clip_norm)


def direction(
    gradient: Tensor, first: Tensor, second: Tensor, taken: int, beta1: float, beta2: float, epsilon: float
) -> Tensor:
    """The next step of `AdamW`, as a multiple of its rate and uphill, for a gradient and the moments before it.

        m = beta1 first + (1 - beta1) g,   v = beta2 second + (1 - beta2) g^2,   k = taken + 1
        d = m / (1 - beta1^k) / (sqrt(v / (1 - beta2^k)) + epsilon)

    Shapes: `gradient` [..., D], moments [..., D], broadcast. The moments stay as they are (`moments` moves them).

    >>> direction(torch.tensor([0.5, -2.0]), torch.zeros(2), torch.zeros(2), 0, 0.9, 0.999, 1e-8).round(decimals=3)
    tensor([ 1., -1.])
    """
    mean = torch.lerp(gradient, first, beta1)
    square = (beta2 * second).addcmul(gradient, gradient, value=1 - beta2)
    unbiased = (1.0 - beta2 ** (taken + 1)) ** 0.5  # of the root, kept out of the large tensor
    return mean.div_(square.sqrt_().add_(epsilon * unbiased)).mul_(unbiased / (1 - beta1 ** (taken + 1)))


def moments(gradient: Tensor, first: Tensor, second: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    """First and second moment after a gradient."""
    return torch.lerp(gradient, first, beta1), torch.lerp(gradient * gradient, second, beta2)


def rate_sentence(part: object, rate: float, rule: str) -> str:
    """The learning rate that was taken, and by which rule; empty if the user or the method chose it.

    >>> rate_sentence(AdamW(), automatic_rate(500_000), SIZES)
    'Learning rate 0.0001: 1e-4 up to a million trained parameters, then by their number to the power -0.63.'
    """
    if not isinstance(part, TorchAdamW | AdamW) or part.lr is not None:
        return ""
    return f"Learning rate {rate:.3g}: {rule}."


SIZES = "1e-4 up to a million trained parameters, then by their number to the power -0.63"
"""The rule of `automatic_rate`."""


def automatic_rate(parameters: int) -> float:
    """A learning rate for fine-tuning by reinforcement: 1e-4 up to a million trained parameters, 1e-6 at 1.5 billion.

    In between it falls as the number to the power -0.63, which is a line through what is commonly published.

    >>> [f"{automatic_rate(n):.1e}" for n in (500_000, 20_000_000, 1_500_000_000)]
    ['1.0e-04', '1.5e-05', '1.0e-06']
    """
    share: float = (1e6 / max(1, parameters)) ** 0.63
    return 1e-4 * min(1.0, share)
