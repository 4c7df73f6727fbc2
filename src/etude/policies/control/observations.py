"""What the policy sees of an observation: parts that belong to the policy and are saved with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from etude.core.fields import Positive
from etude.core.population import Population
from etude.core.step_slots import Observations
from etude.policies.control.leaves import Leaves


def moments(values: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each member's mean and variance [P, 1, ...] over N of [P, N, ...], over those whose weight [P, N] is 1."""
    mean, variance = values.mean(1, keepdim=True), values.var(1, correction=0, keepdim=True)
    if weights is None:
        return mean, variance
    on = weights.to(values.dtype).view(*weights.shape, *[1] * (values.dim() - 2))
    number = on.sum(1, keepdim=True).clamp(min=1)
    theirs = (values * on).sum(1, keepdim=True) / number
    spread = ((values - theirs) ** 2 * on).sum(1, keepdim=True) / number
    whole = on.all(1, keepdim=True)  # a member that lost nothing has the numbers of a run of its own
    return torch.where(whole, mean, theirs), torch.where(whole, variance, spread)


def merged(
    values: Tensor, mean: Tensor | float, variance: Tensor | float, count: Tensor | float, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Any]:
    """Mean and variance [P, 1, ...], and their count, after [P, N, ...] more than the `count` values they were of.

    Chan, Golub and LeVeque's parallel update (doi:10.1080/00031305.1983.10483115), over values whose weight is 1.
    """
    number: Any = values.shape[1]
    if weights is not None:
        number = weights.double().sum(1).view(-1, *[1] * (values.dim() - 1))
    here, spread = moments(values, weights)
    total, apart = count + number, here - mean
    squares = variance * count + spread * number + apart**2 * count * number / total
    after = mean + apart * number / total, squares / total, total
    if weights is None:
        return after
    before = (torch.as_tensor(x, dtype=torch.float64) for x in (mean, variance, count))
    new, spread, total = (torch.where(number > 0, a, b) for a, b in zip(after, before))
    return new, spread, total


class RunningMoments(nn.Module):
    """Mean and variance [P, 1, *shape] of all that was seen; float64 inside."""

    def __init__(self, members: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.mean: Tensor
        self.variance: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(members, 1, *shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(members, 1, *shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(members, 1, *[1] * len(shape), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, values: Tensor, weights: Tensor | None = None) -> None:
        """Learn from [P, N, *shape], of which those count whose weight [P, N] is 1."""
        moments = merged(values.double(), self.mean, self.variance, self.count, weights)
        for kept, new in zip((self.mean, self.variance, self.count), moments):
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

    def observe(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Learn from [P, N, *shape], of which those count whose weight [P, N] is 1."""
        self.moments.observe(x, weights)


class NormalizeVectors(nn.Module):
    """The vectors among several leaves [P, N, D] normalised, everything else as it is."""

    def __init__(self, members: int, shape: Leaves, clip: float, epsilon: float) -> None:
        super().__init__()
        self.shape = shape
        self.inside = Normalize(members, (sum(x.size for x in shape.leaves if x.kind == "vector"),), clip, epsilon)

    def _vectors(self, x: Tensor) -> Tensor:
        pieces = zip(self.shape.leaves, self.shape.split(x))
        return torch.cat([values for leaf, values in pieces if leaf.kind == "vector"], -1)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [leaf.size for leaf in self.shape.leaves if leaf.kind == "vector"]
        normal = iter(self.inside(self._vectors(x)).split(sizes, -1))
        pieces = zip(self.shape.leaves, self.shape.split(x))
        return torch.cat([next(normal) if leaf.kind == "vector" else values for leaf, values in pieces], -1)

    def observe(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Learn from [P, N, D], of which those count whose weight [P, N] is 1."""
        self.inside.observe(self._vectors(x), weights)


class NormalizeObservations(Observations):
    """Observations with mean 0 and variance 1 over all that the member has seen, cut at `clip`.

    The moments stand still during a rollout and its update, so the update sees what the policy saw; they learn from
    the rollout afterwards. In the first rollout observations are as they come. Of several leaves the vectors are
    normalised: images are scaled by their bounds, and choices are one-hot.

    Shapes: [P, N, ...] -> the same; moments [P, 1, ...].

    >>> from etude.core.population import Member
    >>> module, shape = NormalizeObservations().build((1,), Population([Member(0)]))
    >>> module.observe(torch.tensor([[[1.0], [3.0]]]))  # mean 2, deviation 1
    >>> module(torch.tensor([[[4.0]]])).tolist()
    [[[2.0]]]
    """

    clip: Positive = 10.0
    epsilon: Positive = 1e-8

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        if isinstance(shape, Leaves) and not shape.lone:
            if not any(leaf.kind == "vector" for leaf in shape.leaves):
                return nn.Identity(), shape
            return NormalizeVectors(population.size, shape, self.clip, self.epsilon), shape
        return Normalize(population.size, shape, self.clip, self.epsilon), shape
