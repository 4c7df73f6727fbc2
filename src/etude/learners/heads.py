"""How a critic says a value, and how far a value is from its target."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from etude.core.critic_slots import Error, QHead, Said
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive
from etude.core.population import PerMember, Population
from etude.core.step_slots import Initializer
from etude.policies.control.networks import Linear, Plain


class Direct(QHead, abstract=True):
    """A head whose last layer says its numbers directly."""

    def layer(self, population: Population, name: str, width: int, choices: int, start: Initializer) -> nn.Module:
        return Linear(population, name, width, max(1, choices) * self.size, start=start)


class Returns(Direct, abstract=True):
    """A head whose numbers are returns: each of them is rewarded and discounted as a return is."""

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        return torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), outputs)


class SeveralReturns(Returns, abstract=True):
    """K returns, whose mean is the value."""

    count: Count = 200

    @property
    def size(self) -> int:
        return self.count

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)


class Scalar(Returns):
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


class Atoms(Direct):
    """The chances of K returns between `low` and `high`, as logits (C51, arXiv:1707.06887).

        target_j = sum_i p_i max(0, 1 - |clip(r + discount z_i, low, high) - z_j| / dz)

    Shapes: outputs [..., K] -> values [...].

    >>> head = Atoms(count=3, low=0.0, high=2.0)
    >>> certain = torch.tensor([[[0.0, 0.0, 100.0]]])  # a return of 2
    >>> head.mean(certain).item()
    2.0
    >>> head.target(torch.tensor([[0.5]]), torch.tensor([[0.5]]), certain)[..., 1:].tolist()  # 1.5: half 1, half 2
    [[[0.5, 0.5]]]
    """

    says: ClassVar[Said] = "probabilities"
    count: Count = 51
    low: float = -10.0
    high: float = 10.0

    def check(self) -> None:
        if self.count < 2 or not self.low < self.high:
            raise ConfigError(
                f"Atoms are at least two returns from low to high, got {self.count} from {self.low} to {self.high}."
            )

    @property
    def size(self) -> int:
        return self.count

    def _returns(self, like: Tensor) -> Tensor:
        """[..., K], with as many axes as `like` [P, ..., K]."""
        shares = torch.linspace(0.0, 1.0, self.count, dtype=like.dtype, device=like.device)
        found: Tensor = self.low + (self.high - self.low) * shares.view(*[1] * (like.dim() - 1), -1)
        return found

    def bounds(self) -> Tensor:
        return self._returns(torch.zeros(1, 1))[:, [0, -1]]

    def mean(self, outputs: Tensor) -> Tensor:
        return (outputs.softmax(-1) * self._returns(outputs)).sum(-1)

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        atoms, chances = self._returns(outputs), outputs.softmax(-1)
        moved = (rewards[..., None] + discounts[..., None] * atoms).clamp(self.low, self.high)
        apart = (moved[..., None] - atoms[..., None, :]).abs() * ((self.count - 1) / (self.high - self.low))
        return (chances[..., None] * (1 - apart).clamp(min=0.0)).sum(-2)


@functools.cache
def symexp_bins(count: int, low: float, high: float) -> Tensor:
    """[count] sign(x) (exp |x| - 1) of `count` numbers x from `low` to `high`, equally far apart, in float64."""
    each = [low + (high - low) * k / (count - 1) for k in range(count)]
    return torch.tensor([math.copysign(math.expm1(abs(x)), x) for x in each], dtype=torch.float64)


class TwoHot(Direct):
    """The chances of K numbers as logits, close to each other near 0 and far apart beyond (arXiv:2301.04104, eq. 8).

        b_j = symexp(x_j),   symexp(x) = sign(x) (exp |x| - 1),   x_j from `low` to `high`, equally far apart
        two_hot(y) is (b_j+1 - y) / (b_j+1 - b_j) at the bin below y, the rest at the one above, so that its mean is y

    Numbers beyond the last bins are these.

    Shapes: numbers [...] <-> chances [..., K]; outputs [..., K] -> values [...].

    >>> head = TwoHot(bins=3, low=-1.0, high=1.0)  # bins at 1 - e, 0, e - 1
    >>> chances = head.two_hot(torch.tensor([[0.5, -9.0]]))
    >>> [[round(x, 3) for x in each] for each in chances[0].tolist()]
    [[0.0, 0.709, 0.291], [1.0, 0.0, 0.0]]
    >>> round(head.decode(chances)[0, 0].item(), 6)
    0.5
    """

    says: ClassVar[Said] = "probabilities"
    bins: Count = 65
    low: float = -10.0
    high: float = 10.0

    def check(self) -> None:
        if self.bins < 2 or not self.low < self.high:
            raise ConfigError(
                f"TwoHot has at least two bins from low to high, got {self.bins} from {self.low} to {self.high}."
            )

    @property
    def size(self) -> int:
        return self.bins

    def _bins(self, like: Tensor) -> Tensor:
        """[..., K], with one axis more than `like` [P, ...]."""
        low, high = (x.numbers if isinstance(x, PerMember) else (x,) for x in (self.low, self.high))
        members = max(len(low), len(high))
        own = [symexp_bins(self.bins, low[k % len(low)], high[k % len(high)]) for k in range(members)]
        return torch.stack(own).to(like).view(members, *[1] * (like.dim() - 1), self.bins)

    def bounds(self) -> Tensor:
        return self._bins(torch.zeros(1))[:, [0, -1]]

    def two_hot(self, numbers: Tensor) -> Tensor:
        """Chances whose mean is the number."""
        bins = self._bins(numbers)
        below = (numbers[..., None] >= bins[..., 1:-1]).sum(-1, keepdim=True)
        each = bins.expand(*numbers.shape, self.bins)
        lower, upper = each.gather(-1, below), each.gather(-1, below + 1)
        share = ((numbers[..., None] - lower) / (upper - lower)).clamp(0.0, 1.0)
        return torch.zeros_like(each).scatter(-1, below, 1 - share).scatter(-1, below + 1, share)

    def decode(self, chances: Tensor) -> Tensor:
        """The mean."""
        return (chances * self._bins(chances[..., 0])).sum(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        return self.decode(outputs.softmax(-1))

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        return self.two_hot(rewards + discounts * self.mean(outputs))


class Quantiles(SeveralReturns):
    """K quantiles of the return, at the middles of K equal shares (QR-DQN, arXiv:1710.10044).

    Shapes: outputs [..., K] -> values [...].

    >>> Quantiles(count=2).mean(torch.tensor([[1.0, 3.0]])).item()
    2.0
    """

    says: ClassVar[Said] = "quantiles"


class Dueling(QHead):
    """Numbers of the state and of each choice, whose mean over the choices is taken off (arXiv:1511.06581, eq. 9).

        Q(s, a) = V(s) + A(s, a) - mean_b A(s, b)

    Args:
        head: how a value is said; of atoms the logits add up so.

    Shapes: outputs [P, M, N, A, K].

    >>> Dueling.joined(torch.tensor([[[10.0, 1.0, 3.0]]]), 1).tolist()  # V, then A of two choices
    [[[9.0, 11.0]]]
    """

    head: QHead = Scalar()

    @property
    def says(self) -> Said:  # type: ignore[override]  # as the head that it holds
        return self.head.says

    @property
    def size(self) -> int:
        return self.head.size

    def layer(self, population: Population, name: str, width: int, choices: int, start: Initializer) -> nn.Module:
        if not choices:
            raise ConfigError("Dueling takes the mean over choices off, and the actions are a Box: leave it out.")
        return DuelingLayer(Linear(population, name, width, (1 + choices) * self.size, start=start), self.size)

    @staticmethod
    def joined(numbers: Tensor, size: int) -> Tensor:
        """[..., (1 + A) K] -> [..., A K]."""
        each = numbers.unflatten(-1, (-1, size))
        value, advantages = each[..., :1, :], each[..., 1:, :]
        found: Tensor = (value + advantages - advantages.mean(-2, keepdim=True)).flatten(-2)
        return found

    def mean(self, outputs: Tensor) -> Tensor:
        return self.head.mean(outputs)

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        return self.head.target(rewards, discounts, outputs)


class DuelingLayer(Plain):
    """A linear layer whose numbers are joined as `Dueling` says."""

    def __init__(self, linear: Linear, size: int) -> None:
        super().__init__()
        self.linear, self.size = linear, size

    def forward(self, x: Tensor) -> Tensor:
        return Dueling.joined(self.linear(x), self.size)


class Squared(Error):
    """(x - y)^2.

    Shapes: [..., K] -> [..., K].

    >>> Squared()(torch.tensor([3.0]), torch.tensor([1.0])).item()
    4.0
    """

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return (prediction - target).square()

    def slope(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 2.0 * (prediction - target)


class Huber(Error):
    """d^2 / 2 up to |d| = delta, delta (|d| - delta / 2) beyond (Huber 1964): gradients of at most delta.

    Shapes: [..., K] -> [..., K].

    >>> Huber(delta=1.0)(torch.tensor([0.5, 3.0]), torch.tensor([0.0, 0.0])).tolist()
    [0.125, 2.5]
    """

    delta: Positive = 1.0

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        difference = prediction - target
        if not difference.requires_grad:
            return _huber(difference, self.delta)
        found: Tensor = _Huber.apply(difference, self.delta)  # type: ignore[no-untyped-call]
        return found

    def slope(self, prediction: Tensor, target: Tensor) -> Tensor:
        return (prediction - target).clamp(-self.delta, self.delta)


def _huber(difference: Tensor, delta: Any) -> Tensor:
    size = difference.abs()
    inside = size.clamp(max=delta)
    return inside * (size - 0.5 * inside)


class _Huber(torch.autograd.Function):
    """Its gradient in closed form: the difference, cut at delta; the bits that those of its parts add up to."""

    @staticmethod
    def forward(ctx: Any, difference: Tensor, delta: Any) -> Tensor:
        ctx.delta = delta
        ctx.save_for_backward(difference)
        return _huber(difference, delta)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (difference,) = ctx.saved_tensors
        return gradients[0] * difference.clamp(-ctx.delta, ctx.delta), None


class CrossEntropy(Error):
    """-target log softmax(outputs), of chances.

    Shapes: [..., K] -> [..., K].

    >>> CrossEntropy()(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])).sum().item()
    0.6931471824645996
    """

    compares: ClassVar[Said] = "probabilities"

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return -target * prediction.log_softmax(-1)

    def least(self, target: Tensor) -> Tensor:
        """The target's entropy: what it is more is the divergence KL(target || prediction)."""
        entropy: Tensor = torch.special.entr(target)
        return entropy


class QuantileHuber(Error):
    """Asymmetric Huber loss of quantiles, the mean over those of the target (arXiv:1710.10044, eq. 10).

        of quantile i: mean_j |tau_i - 1{u_ij < 0}| huber(u_ij) / kappa,   u_ij = target_j - x_i,  tau_i = (i + 1/2) / K

    Shapes: [..., K] -> [..., K].

    >>> QuantileHuber(kappa=1.0)(torch.tensor([0.0]), torch.tensor([3.0])).item()  # tau is 1/2
    1.25
    """

    compares: ClassVar[Said] = "quantiles"
    kappa: Positive = 1.0

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        count = prediction.shape[-1]
        u = target[..., None, :] - prediction[..., None]
        shares = (torch.arange(count, dtype=u.dtype, device=u.device) + 0.5)[:, None] / count
        size = u.abs()
        inside = size.clamp(max=self.kappa)
        huber = inside * (size - 0.5 * inside) / self.kappa
        return ((shares - (u.detach() < 0).to(u.dtype)).abs() * huber).mean(-1)
