"""Links: what is minimised of a pair's margin m, the implicit reward of the better answer minus that of the worse."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from etude.core.fields import Interval, NonNegative, Positive
from etude.core.part import Part


def logistic(margin: Tensor, wrong: float = 0.0) -> Tensor:
    """-(1 - wrong) log sigmoid(margin) - wrong log sigmoid(-margin), `wrong` the chance of a pair the wrong way round.

    >>> import torch
    >>> round(logistic(torch.zeros(())).item(), 4)
    0.6931
    """
    return -(1 - wrong) * logsigmoid(margin) - wrong * logsigmoid(-margin)


class Link(Part, abstract=True):
    """The loss of a pair, from its margin and from how much more the better answer is worth."""

    slot = "link"
    orders: ClassVar[bool] = True
    """Whether it only asks which is better, so that a pair of equals says nothing."""

    def __call__(self, margin: Tensor, gap: Tensor) -> Tensor:
        """The loss [N] of pairs with margins [N] in nats and gaps r(y) - r(y') [N], at least 0 and in rewards."""
        raise NotImplementedError


class Logistic(Link):
    """-log sigmoid(beta m - target): DPO's (arXiv:2305.18290, eq. 7), with SimPO's target (arXiv:2405.14734, eq. 6).

    With label smoothing s it is -(1 - s) log sigmoid(z) - s log sigmoid(-z), z = beta m - target: s is the probability
    that a pair is the wrong way round.

    Shapes: margin [N] -> [N].

    Args:
        beta: per nat of the margin.
        target: how large beta m should be; SimPO calls it gamma.

    >>> import torch
    >>> round(Logistic(beta=2.0, target=1.0)(torch.tensor([0.5]), torch.ones(1)).item(), 4)
    0.6931
    """

    beta: Positive = 0.1
    target: NonNegative = 0.0
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0

    def __call__(self, margin: Tensor, gap: Tensor) -> Tensor:
        z = self.beta * margin
        return logistic(z - self.target if self.target else z, self.label_smoothing)


class SquaredToConstant(Link):
    """(m - 1 / (2 beta))^2: IPO's (arXiv:2310.12036, eq. 17), and INPO's with beta = eta (arXiv:2407.00617, eq. 10).

    The margin has a goal, so pairs that are always the same way round do not push the policy without end.

    Shapes: margin [N] -> [N], in nats squared.

    >>> import torch
    >>> SquaredToConstant(beta=0.25)(torch.tensor([2.0, 0.0]), torch.ones(2)).tolist()
    [0.0, 4.0]
    """

    beta: Positive = 0.1

    def __call__(self, margin: Tensor, gap: Tensor) -> Tensor:
        return (margin - 1 / (2 * self.beta)) ** 2


class SquaredToReward(Link):
    """(m - eta (r(y) - r(y')))^2: REBEL's, as its code has it (arXiv:2404.16767, algorithm 1, times eta^2).

    It is 0 for all pairs at once exactly where pi ~ q exp(eta r), q being what log pi is divided by.

    Shapes: margin, gap [N] -> [N], in nats squared.

    Args:
        eta: nats per unit of reward.

    >>> import torch
    >>> SquaredToReward(eta=2.0)(torch.tensor([3.0, 3.0]), torch.tensor([1.5, 0.5])).tolist()
    [0.0, 4.0]
    """

    orders: ClassVar[bool] = False
    eta: Positive = 1.0

    def __call__(self, margin: Tensor, gap: Tensor) -> Tensor:
        return (margin - self.eta * gap) ** 2


class ContrastiveReward(Link):
    """(r(y) - r(y') - beta m)^2 / (2 beta): CoPG's (arXiv:2406.19185, eq. 10), beta / 2 of REBEL's with eta = 1 / beta.

    Its gradient does not vanish with beta: -(R - R') (grad log pi(y) - grad log pi(y')), R = r - beta log(pi / q).

    Shapes: margin, gap [N] -> [N], in rewards.

    Args:
        beta: rewards per nat.

    >>> import torch
    >>> ContrastiveReward(beta=0.5)(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])).tolist()
    [0.0, 1.0]
    """

    orders: ClassVar[bool] = False
    beta: Positive = 0.1

    def __call__(self, margin: Tensor, gap: Tensor) -> Tensor:
        return (gap - self.beta * margin) ** 2 / (2 * self.beta)


class Hinge(Link):
    """max(0, target - beta m): RRHF's with target 0 (arXiv:2304.05302, eq. 3), SLiC's with 1 (arXiv:2305.10425).

    Shapes: margin [N] -> [N].

    >>> import torch
    >>> Hinge(beta=0.5, target=1.0)(torch.tensor([3.0, 0.0, -2.0]), torch.ones(3)).tolist()
    [0.0, 1.0, 2.0]
    """

    beta: Positive = 1.0
    target: NonNegative = 0.0

    def __call__(self, margin: Tensor, gap: Tensor) -> Tensor:
        return (self.target - self.beta * margin).clamp(min=0)
