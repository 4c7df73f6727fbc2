"""Rewards as sums of channels: r = sum_j lambda_j r_j, each r_j of which lies in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from etude.core.fields import Count, Positive
from etude.core.part import Part


class Decomposition(Part, abstract=True):
    """How a reward is divided into L channels."""

    slot = "decomposition"

    @property
    def weights(self) -> tuple[float, ...]:
        """lambda, of each channel."""
        raise NotImplementedError

    def split(self, rewards: Tensor) -> Tensor:
        """Rewards [...] -> [..., L]."""
        raise NotImplementedError


class Whole(Decomposition):
    """One channel.

    Args:
        limit: what rewards above it are taken for; None: as they are.

    Shapes: rewards [...] -> [..., L].

    >>> Whole().split(torch.tensor([0.5, 3.0])).tolist()
    [[0.5], [1.0]]
    """

    limit: Positive | None = 1.0

    @property
    def weights(self) -> tuple[float, ...]:
        return (1.0,)

    def split(self, rewards: Tensor) -> Tensor:
        found: Tensor = rewards if self.limit is None else rewards.clamp(max=self.limit)
        return found[..., None]


class Polar(Decomposition):
    """What is won and what is lost apart, r = max(r, 0) - max(-r, 0), each divided further by `of`.

    Shapes: rewards [...] -> [..., L].

    >>> Polar().split(torch.tensor([0.5, -0.25])).tolist(), Polar().weights
    ([[0.5, 0.0], [0.0, 0.25]], (1.0, -1.0))
    """

    of: Decomposition = Whole()

    @property
    def weights(self) -> tuple[float, ...]:
        each = self.of.weights
        return (*each, *(-weight for weight in each))

    def split(self, rewards: Tensor) -> Tensor:
        return torch.cat([self.of.split(r.clamp(min=0.0)) for r in (rewards, -rewards)], -1)


class Bands(Decomposition):
    """Rewards of at least 0 by their size: of at most 1, 10, 100, ..., each in units of its band ("configuration 1").

        lambda = 1, 10, 100, ...;   r_j = r / lambda_j where r is in (lambda_j / 10, lambda_j], else 0

    Args:
        count: how many there are; what is beyond the last is taken for its end.

    Shapes: rewards [...] -> [..., L].

    >>> Bands(count=2).split(torch.tensor([0.5, 5.0, 50.0])).tolist()
    [[0.5, 0.0], [0.0, 0.5], [0.0, 1.0]]
    """

    count: Count = 2

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(10.0**j for j in range(self.count))

    def split(self, rewards: Tensor) -> Tensor:
        ends = rewards.new_tensor(self.weights)
        band = (rewards[..., None] > ends[:-1]).sum(-1, keepdim=True)
        within = torch.arange(self.count, device=rewards.device) == band
        return torch.where(within, (rewards[..., None] / ends).clamp(max=1.0), 0.0)


class Slices(Decomposition):
    """Rewards of at least 0 filled up in turn: the first 1, the next 9, the next 90, ... ("configuration 2").

        lambda = 1, 9, 90, ...;   r_j = min(max(r - the slices before, 0), lambda_j) / lambda_j

    Args:
        count: how many there are; what is beyond the last is left out.

    Shapes: rewards [...] -> [..., L].

    >>> Slices(count=2).split(torch.tensor([0.5, 5.5, 50.0])).tolist()
    [[0.5, 0.0], [1.0, 0.5], [1.0, 1.0]]
    """

    count: Count = 2

    @property
    def weights(self) -> tuple[float, ...]:
        return (1.0, *(9 * 10.0**j for j in range(self.count - 1)))

    def split(self, rewards: Tensor) -> Tensor:
        widths = rewards.new_tensor(self.weights)
        below = widths.cumsum(0) - widths
        return ((rewards[..., None] - below) / widths).clamp(0.0, 1.0)


class Ensemble(Decomposition):
    """Every channel of `of` several times, one beside the other, so that each can be learned through a map of its own.

    They count as their mean. The authors' code halves the rewards of two such channels too, so that there Q is half of
    what is earned.

    Shapes: rewards [...] -> [..., L].

    >>> Ensemble(of=Whole(), count=2).split(torch.tensor([0.5])).tolist(), Ensemble(of=Whole(), count=2).weights
    ([[0.5, 0.5]], (0.5, 0.5))
    """

    of: Decomposition = Polar()
    count: Count = 2

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(weight / self.count for weight in self.of.weights for _ in range(self.count))

    def split(self, rewards: Tensor) -> Tensor:
        return self.of.split(rewards).repeat_interleave(self.count, -1)
