"""What the policy sees of an observation: parts that belong to the policy and are saved with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from etude.core.fields import Positive
from etude.core.slots import Observations
from etude.policies.control.population import Population


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Each member's mean and variance [P, 1, ...] over N of [P, N, ...]."""
    return values.mean(1, keepdim=True), values.var(1, correction=0, keepdim=True)


def merged(
    values: Tensor, mean: Tensor | float, variance: Tensor | float, count: Tensor | float
) -> tuple[Tensor, Tensor, Any]:
    """Mean and variance [P, 1, ...], and their count, after [P, N, ...] more than the `count` values they were of.

    Chan, Golub and LeVeque's parallel update (doi:10.1080/00031305.1983.10483115).
    """
    number = values.shape[1]
    here, spread = moments(values)
    total, apart = count + number, here - mean
    squares = variance * count + spread * number + apart**2 * count * number / total
    return mean + apart * number / total, squares / total, total


class RunningMoments(nn.Module):
    """Mean and variance [P, 1, *shape] of all that was seen; float64 inside."""

    def __init__(self, members: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.mean: Tensor
        self.variance: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(members, 1, *shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(members, 1, *shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, values: Tensor) -> None:
        """Learn from [P, N, *shape]."""
        found = merged(values.double(), self.mean, self.variance, self.count)
        for kept, new in zip((self.mean, self.variance, self.count), found):
            kept.copy_(new)


class Normalize(nn.Module):
    """(x - mean) / sqrt(variance), cut to [-clip, clip]."""

    def __init__(self, members: int, shape: tuple[int, ...], clip: float, epsilon: float) -> None:
        super().__init__()
        self.moments = RunningMoments(members, shape)
        self.clip, self.epsilon = clip, epsilon

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.moments.mean.float(), (self.moments.variance + self.epsilon).sqrt().float()
        return ((x - mean) / spread).clamp(-self.clip, self.clip)

    def observe(self, x: Tensor) -> None:
        """Learn from [P, N, *shape]."""
        self.moments.observe(x)


class NormalizeObservations(Observations):
    """Observations with mean 0 and variance 1 over all that the member has seen, cut at `clip`.

    The moments stand still during a rollout and its update, so the update sees what the policy saw; they learn from
    the rollout afterwards. In the first rollout observations are as they come.
    """

    clip: Positive = 10.0
    epsilon: Positive = 1e-8

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        return Normalize(population.size, shape, self.clip, self.epsilon), shape
