"""How a critic says a value, how several critics become one, and how far a value is from its target."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.fields import Positive
from etude.core.replay_slots import Error, QHead, Reduction


class Scalar(QHead):
    """The value itself.

    Shapes: outputs [..., 1] -> values [...].

    >>> r, discount, following = torch.tensor([[1.0]]), torch.tensor([[0.9]]), torch.tensor([[[10.0]]])
    >>> Scalar().target(r, discount, following).tolist()
    [[[10.0]]]
    """

    @property
    def size(self) -> int:
        return 1

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        return torch.addcmul(rewards[..., None], discounts[..., None], outputs)

    def loss(self, outputs: Tensor, target: Tensor, error: Error) -> Tensor:
        return error(outputs, target).squeeze(-1)


class Squared(Error):
    """(x - y)^2.

    Shapes: [..., K] -> [..., K].

    >>> Squared()(torch.tensor([3.0]), torch.tensor([1.0])).item()
    4.0
    """

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return (prediction - target).square()


class Huber(Error):
    """d^2 / 2 up to |d| = delta, delta (|d| - delta / 2) beyond (Huber 1964): gradients of at most delta.

    Shapes: [..., K] -> [..., K].

    >>> Huber(delta=1.0)(torch.tensor([0.5, 3.0]), torch.tensor([0.0, 0.0])).tolist()
    [0.125, 2.5]
    """

    delta: Positive = 1.0

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        size = (prediction - target).abs()
        inside = size.clamp(max=self.delta)
        return inside * (size - 0.5 * inside)


class First(Reduction):
    """The first critic's value; the others are not even computed.

    Shapes: [P, M, N] -> [P, N].

    >>> First()(torch.tensor([[[1.0], [5.0]]])).tolist()
    [[1.0]]
    """

    first: ClassVar[bool] = True

    def __call__(self, values: Tensor) -> Tensor:
        return values[:, 0]


class Min(Reduction):
    """The smallest value (arXiv:1802.09477, section 4.2).

    Shapes: [P, M, N] -> [P, N].

    >>> Min()(torch.tensor([[[1.0], [5.0]]])).tolist()
    [[1.0]]
    """

    def __call__(self, values: Tensor) -> Tensor:
        return values[:, 0] if values.shape[1] == 1 else values.amin(1)


class Mean(Reduction):
    """The mean value.

    Shapes: [P, M, N] -> [P, N].

    >>> Mean()(torch.tensor([[[1.0], [5.0]]])).tolist()
    [[3.0]]
    """

    def __call__(self, values: Tensor) -> Tensor:
        return values[:, 0] if values.shape[1] == 1 else values.mean(1)
