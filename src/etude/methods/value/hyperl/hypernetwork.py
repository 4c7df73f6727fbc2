"""Critics whose weights a network says: one reads the observation, and what it makes of it reads the action."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive
from etude.core.population import Population
from etude.core.step_slots import Initializer, Network
from etude.learners.heads import Direct
from etude.learners.q import QFunctions
from etude.policies.control.initializers import FanIn, Within
from etude.policies.control.networks import Linear, Plain

if TYPE_CHECKING:
    from etude.core.method import Method


class HalfFanIn(FanIn):
    """Weights uniform in +-1 / (2 sqrt(inputs)); biases, as torch has them, in +-1 / sqrt(inputs).

    Shapes: weights [P, inputs, outputs], biases [P, 1, outputs].

    >>> from etude.core.population import Member
    >>> bool(HalfFanIn().weights(Population([Member(0)]), "critic.0", 16, 5).abs().max() <= 0.125)
    True
    """

    def weights(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return super().weights(population, name, inputs, outputs) / 2


class WeightsWithin(Within):
    """Weights uniform in +-limit, whatever the layer's size; biases of 0.

    Shapes: weights [P, inputs, outputs], biases [P, 1, outputs].

    >>> from etude.core.population import Member
    >>> one, start = Population([Member(0)]), WeightsWithin(limit=0.05)
    >>> bool(start.weights(one, "w", 4, 9).abs().max() <= 0.05), start.biases(one, "w", 4, 2).tolist()
    (True, [[[0.0, 0.0]]])
    """

    limit: Positive = 0.05

    def biases(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return torch.zeros(population.size, 1, outputs)


class ResidualBlocks(Plain):
    """v + W' relu(W relu(v)), block after block; between two widths a linear layer.

    Args:
        stages: the layers of each width: one that reads the width before, then two for each block.
    """

    def __init__(self, stages: Sequence[Sequence[Linear]]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.ModuleList(layers) for layers in stages)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            first, *pairs = cast(nn.ModuleList, stage)
            x = first(x)
            for inner, outer in zip(pairs[::2], pairs[1::2]):
                x = x + outer(torch.relu_(inner(torch.relu(x))))
        return x


class ResidualNetwork(Network):
    """Residual blocks at growing widths, without an activation at the end (arXiv:2106.06842, appendix B).

    Args:
        hidden: the widths. blocks: at each of them. initializer: where all layers start.

    Shapes: [P, N, D] -> [P, N, width], the last of the widths.

    >>> from etude.core.population import Member
    >>> network, width = ResidualNetwork(hidden=(32, 64)).build((3,), Population([Member(0)]), "critic")
    >>> network(torch.zeros(1, 5, 3)).shape, width
    (torch.Size([1, 5, 64]), 64)
    """

    hidden: tuple[Count, ...] = (256, 512, 1024)
    blocks: Count = 2
    initializer: Initializer = HalfFanIn()

    def check(self) -> None:
        if not self.hidden:
            raise ConfigError("ResidualNetwork.hidden must have at least one width.")

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        if len(shape) != 1:
            raise ConfigError(f"{name}: ResidualNetwork reads vectors, and observations are images {list(shape)}.")

        def stage(i: int, inputs: int, width: int) -> list[Linear]:
            widths = [inputs] + [width] * (2 * self.blocks)
            return [
                Linear(population, f"{name}.{i}.{k}", w, width, start=self.initializer) for k, w in enumerate(widths)
            ]

        pairs = itertools.pairwise([*shape, *self.hidden])
        return ResidualBlocks([stage(i, *pair) for i, pair in enumerate(pairs)]), self.hidden[-1]


class Emitted(NamedTuple):
    """A layer for every row: y -> (W y) scale + bias. W is [P, N, outputs, inputs], scale and bias [P, N, outputs]."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __call__(self, y: Tensor) -> Tensor:
        """[P, N, inputs] -> [P, N, outputs].

        Each row has a matrix of its own, so nothing is saved by a product over them, which for edges of 1 would be
        another kernel.
        """
        return (self.weight * y[..., None, :]).sum(-1) * self.scale + self.bias


class Emitter(Plain):
    """What a linear layer says as a layer of its own for every row: W, 1 + s and b."""

    def __init__(self, linear: Linear, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.inputs, self.outputs = linear, inputs, outputs

    def forward(self, z: Tensor) -> Emitted:
        said = self.linear(z).unflatten(-1, (self.inputs + 2, self.outputs))
        return Emitted(said[..., : self.inputs, :].mT, 1 + said[..., -2, :], said[..., -1, :])


class HyperCritics(Plain):
    """M critics of every member: what is seen [P, N, D], actions [P, N, A] in units -> [P, M, N, K].

    Args:
        reverse: whether the primary network reads the action.

    How many there are follows from the rows of the weights, and `noise` is what layers read, as in `Critics`.
    """

    choices = 0

    def __init__(self, primary: nn.Module, first: Emitter, last: Emitter, reverse: bool) -> None:
        super().__init__()
        self.primary, self.first, self.last, self.reverse = primary, first, last, reverse
        self.noise: Any = None

    def layers(self, x: Tensor) -> tuple[Emitted, Emitted]:
        """The two layers that are made of x [P M, N, D]."""
        z = self.primary(x)
        return self.first(z), self.last(z)

    def forward(self, seen: Tensor, actions: Tensor) -> Tensor:
        members, rows = seen.shape[:2]
        count = len(self.last.linear.weight) // members
        x, y = (actions, seen) if self.reverse else (seen, actions)
        if count > 1:
            x, y = (v[:, None].expand(-1, count, -1, -1).flatten(0, 1) for v in (x, y))
        first, last = self.layers(x)
        said: Tensor = last(torch.relu(first(y)))
        return said.view(members, count, rows, -1)


class HyperQFunctions(QFunctions):
    """Q(s, a) = Q_w(a), whose weights w a primary network says of s (arXiv:2106.06842, section 4).

        z = primary(s),   W_1, s_1, b_1, W_2, s_2, b_2 linear in z
        Q = (W_2 h)(1 + s_2) + b_2,   h = relu((W_1 a)(1 + s_1) + b_1)

    So an action meets weights of its observation, and the gradient in the action is that of a small network.

    Args:
        network: the primary one. dynamic: units of the hidden layer that it says.
        first, last: where what says the hidden layer, and the last one, starts.
        reverse: whether weights are said of the action and read the observation, which the paper compares.

    Shapes: observations [P, N, D], actions [P, N, A] in units -> [P, M, N, K].

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Box
    >>> part = HyperQFunctions(network=ResidualNetwork(hidden=(8,)), dynamic=4, count=2)
    >>> critics = part.build((3,), Box(-1.0, 1.0, (1,)), Population([Member(0)]))
    >>> critics(torch.zeros(1, 5, 3), torch.zeros(1, 5, 1)).shape
    torch.Size([1, 2, 5, 1])
    """

    network: Network = ResidualNetwork()
    dynamic: Count = 256
    first: Initializer = WeightsWithin(limit=0.05)
    last: Initializer = WeightsWithin(limit=0.008)
    reverse: bool = False

    def objection(self, method: Method) -> str | None:
        if not isinstance(self.head, Direct):
            return (
                f"says its last layer anew for every observation, and {type(self.head).__name__} has one of its own: "
                "set critic.head=scalar."
            )
        return super().objection(method)

    def _network(self, shape: tuple[int, ...], size: int, choices: int, each: Population) -> nn.Module:
        if not size:
            raise ConfigError(
                "HyperQFunctions read an observation and the numbers of an action apart: of choices, or behind an "
                "encoder that joins the two, take q-functions."
            )
        seen, read = ((size,), shape[0]) if self.reverse else (shape, size)
        primary, width = self.network.build(seen, each, "critic")

        def emitter(name: str, inputs: int, outputs: int, start: Initializer) -> Emitter:
            linear = Linear(each, f"critic.{name}", width, (inputs + 2) * outputs, start=start)
            return Emitter(linear, inputs, outputs)

        first = emitter("first", read, self.dynamic, self.first)
        return HyperCritics(primary, first, emitter("last", self.dynamic, self.head.size, self.last), self.reverse)
