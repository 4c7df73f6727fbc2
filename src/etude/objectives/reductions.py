"""One value of several critics."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from etude.core.critic_slots import Reduction
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.replay_slots import ReplayReading


class First(Reduction):
    """The first critic's value; the others are not even computed.

    Shapes: [P, M, N] -> [P, N].

    >>> import torch
    >>> First()(torch.tensor([[[1.0], [5.0]]]), None).tolist()
    [[1.0]]
    """

    first: ClassVar[bool] = True

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        return values[:, 0]


class Min(Reduction):
    """The smallest value (arXiv:1802.09477, section 4.2).

    Shapes: [P, M, N] -> [P, N].

    >>> import torch
    >>> Min()(torch.tensor([[[1.0], [5.0]]]), None).tolist()
    [[1.0]]
    """

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        return values[:, 0] if values.shape[1] == 1 else values.amin(1)


class Mean(Reduction):
    """The mean value.

    Shapes: [P, M, N] -> [P, N].

    >>> import torch
    >>> Mean()(torch.tensor([[[1.0], [5.0]]]), None).tolist()
    [[3.0]]
    """

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        return values[:, 0] if values.shape[1] == 1 else values.mean(1)


class RandomMin(Reduction):
    """The smallest value of `of` critics, drawn anew in every update for each member (REDQ, arXiv:2101.05982).

    Shapes: [P, M, ...] -> [P, ...].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(normal=lambda purpose, like: torch.tensor([[0.3, -1.0, 0.5]]))
    >>> RandomMin(of=2)(torch.tensor([[[4.0], [1.0], [6.0]]]), read).tolist()  # of the first and the third
    [[4.0]]
    """

    of: Count = 2

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        count = values.shape[1]
        if self.of > count:
            raise ConfigError(f"RandomMin takes the smallest of {self.of} critics, and there are {count}.")
        place = read.normal("critics", values.flatten(2)[..., 0]).topk(self.of, 1).indices
        index = place.view(*place.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
        return values.gather(1, index).amin(1)


class LowerBound(Reduction):
    """mean - beta deviation of what M critics say, the deviation that of a whole population (arXiv:1910.12807).

    Of two critics a beta of 1 is their smallest value, and 0 is the mean of any number.

    Shapes: [P, M, N] -> [P, N].

    >>> import torch
    >>> [LowerBound(beta=b)(torch.tensor([[[1.0], [5.0]]]), None).item() for b in (0.0, 0.5, 1.0)]
    [3.0, 2.0, 1.0]
    """

    beta: NonNegative = 1.0

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        if values.shape[1] == 1:
            return values[:, 0]
        return values.mean(1) - self.beta * values.std(1, correction=0)
