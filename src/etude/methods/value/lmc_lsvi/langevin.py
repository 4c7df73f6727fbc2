"""Optimizers whose steps have noise, so that weights are a sample and not a minimum."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.fields import Fraction, Interval, NonNegative, Positive
from etude.core.population import FlatParameters, Number
from etude.core.step_slots import StepOptimizer
from etude.optimizers.population import DecayingAdam, PopulationAdam, column
from etude.optimizers.schedules import Constant, Schedule


class Langevin(StepOptimizer, abstract=True):
    """What both share: moments, noise and a schedule.

    Args:
        lr: learning rate. sigma: size of the noise, beta^(-1/2) of an inverse temperature beta.
        clip_norm: largest gradient norm of a member; None for no limit.
        schedule: what becomes of the rate.
    """

    lr: Positive = 1e-3
    sigma: NonNegative = 1e-2
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8
    schedule: Schedule = Constant()
    clip_norm: Positive | None = None

    def rate(self, step: int, steps: int) -> float:
        return self.schedule.factor(max(0.0, 1 - step / max(1, steps)))

    def clip(self) -> float | None:
        return self.clip_norm


class AdaptiveSGLD(Langevin):
    """Stochastic gradient Langevin dynamics with an adaptive drift (arXiv:2009.09535), as LMCDQN steps.

        m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2   (without bias correction)
        w <- w - lr (g + a m / (sqrt(v) + epsilon)) + sigma sqrt(2 lr) n,   n standard normal

    Args:
        a: how much the drift counts beside the plain gradient.

    Shapes: parameters [P, D]; n is drawn from each member's own stream.

    >>> AdaptiveSGLD(a=0.1, sigma=1e-6).rate(5, 10)
    1.0
    """

    a: NonNegative = 1.0

    def population(self, parameters: FlatParameters) -> PopulationSGLD:
        return PopulationSGLD(self, parameters)


class LangevinAdam(Langevin):
    """Adam (arXiv:1412.6980) with noise added to its step, sigma sqrt(2 lr) n: the baseline of arXiv:2305.18246.

    The paper's code divides the noise by v^(1/4), of which its text says nothing; here it has one size.

    Shapes: parameters [P, D]; n is drawn from each member's own stream.

    >>> LangevinAdam(sigma=1e-6).rate(5, 10)
    1.0
    """

    def population(self, parameters: FlatParameters) -> NoisyAdam:
        return NoisyAdam(self, parameters)


class Normals:
    """Standard normal numbers [P, D] of every member's own, by how many steps it has taken: a resumed run's go on."""

    def __init__(self, parameters: FlatParameters, part: Langevin) -> None:
        if not parameters.streams:
            raise ConfigError(
                f"{type(part).__name__} draws random numbers of every member's own, which nobody gives it here: take "
                "adam."
            )
        self.streams = parameters.streams

    def at(self, taken: Tensor, like: Tensor) -> Tensor:
        """For members that have taken so many steps, [P]."""
        numbers = zip(self.streams, taken.tolist(), strict=True)
        each = [
            torch.randn(like.shape[1], generator=stream.split("langevin", int(count)).torch, dtype=like.dtype)
            for stream, count in numbers
        ]
        return torch.stack(each).to(like.device)


class NoisyAdam(DecayingAdam):
    """Adam's step, then noise."""

    def __init__(self, part: Langevin, parameters: FlatParameters) -> None:
        super().__init__(parameters, part.lr, (part.beta1, part.beta2), part.epsilon, 0.0, part.clip_norm)
        self.normals, self.sigma = Normals(parameters, part), part.sigma

    @torch.no_grad()
    def _apply(self, norm: Tensor, rate: Number, within: bool = False) -> None:
        noise = self.normals.at(self.taken, self.values)
        super()._apply(norm, rate)
        self.values.add_(noise * column(self.sigma * (2 * self.lr * rate) ** 0.5, noise))


class PopulationSGLD(PopulationAdam):
    """Adaptive SGLD for every member; what is not finite is skipped as by `PopulationAdam`."""

    def __init__(self, part: AdaptiveSGLD, parameters: FlatParameters) -> None:
        super().__init__(parameters, part.lr, (part.beta1, part.beta2), part.epsilon, 0.0, part.clip_norm)
        self.normals, self.sigma, self.a = Normals(parameters, part), part.sigma, part.a

    @torch.no_grad()
    def _apply(self, norm: Tensor, rate: Number, within: bool = False) -> None:
        g, lr, (b1, b2) = self.gradient, self.lr * rate, self.betas
        if self.clip is not None and not within:
            g.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.first.mul_(b1).add_(g, alpha=1 - b1)
        self.second.mul_(b2).addcmul_(g, g, value=1 - b2)
        drift = self.first / (self.second.sqrt() + column(self.epsilon, g)) * column(self.a, g)
        self.values.sub_((g + drift) * column(lr, g))
        noise = self.normals.at(self.taken, g)
        self.values.add_(noise * column(self.sigma * (2 * lr) ** 0.5, g))
        self.taken += 1
