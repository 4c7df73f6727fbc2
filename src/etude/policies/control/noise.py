"""Random numbers in the weights of a network, by which it explores; without them it is its means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Generator, Tensor, nn

from etude.core.critic_slots import ParameterNoise
from etude.core.fields import Interval, NonNegative
from etude.core.sampling_slots import Drawing
from etude.policies.control.networks import Linear, Plain, affine


class Noise:
    """What the noisy layers of one network of every member read: its copies have one of their own.

    Args:
        size: K numbers of one network. networks: M of every member.
    """

    def __init__(self, size: int, networks: int) -> None:
        self.size, self.networks = size, networks
        self.numbers: Tensor | None = None  # [P M, K] while there is noise

    def draw(self, draw: Drawing, name: str) -> Tensor:
        """sign(n) sqrt|n| of standard normal numbers of each member's own, [P, M, K]."""

        def shaped(generator: Generator, count: int) -> Tensor:
            normal = torch.randn(count, self.networks, self.size, generator=generator)
            return normal.sign() * normal.abs().sqrt()

        return draw(name, shaped)


@contextmanager
def noisy(network: nn.Module, draw: Drawing, name: str) -> Iterator[None]:
    """Passes inside have the noise that is drawn under this name, those outside none; so has a network without any.

    Of M networks of every member the first ones read theirs, where the others are left out.
    """
    noise: Noise | None = getattr(network, "noise", None)
    if noise is None:
        yield
        return
    numbers = noise.draw(draw, name)
    count = len(next(network.parameters())) // len(numbers)
    noise.numbers = numbers[:, :count].flatten(0, 1)
    try:
        yield
    finally:
        noise.numbers = None


class NoisyLinear(Plain):
    """x (W + W' e_in e_out) + b + b' e_out for every member, and x W + b without noise.

    Args:
        linear: whose numbers are the means. deviations: W' and b' at the start.
        place: of its e_in, then e_out, in the numbers of `noise`.
    """

    def __init__(self, linear: Linear, deviations: tuple[Tensor, Tensor], noise: Noise, place: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.weight_sigma, self.bias_sigma = map(nn.Parameter, deviations)
        middle = place + linear.weight.shape[1]
        self.noise, self.inputs = noise, slice(place, middle)
        self.outputs = slice(middle, middle + linear.weight.shape[2])

    def forward(self, x: Tensor) -> Tensor:
        numbers = self.noise.numbers
        if numbers is None:
            return affine(x, self.weight, self.bias)
        inputs, outputs = numbers[:, self.inputs, None], numbers[:, None, self.outputs]
        weight = self.weight + self.weight_sigma * (inputs * outputs)
        return affine(x, weight, self.bias + self.bias_sigma * outputs)


class FactorisedNoise(ParameterNoise):
    """Factorised Gaussian noise in every linear layer, whose size is learned (arXiv:1706.10295, eq. 10 and 11).

        w_ij = mu_ij + sigma_ij f(e_i) f(e_j),   b_j = mu_j + sigma_j f(e_j),   f(x) = sign(x) sqrt|x|

    with e_i and e_j standard normal: inputs + outputs numbers for a layer, the same for all rows of a batch. The means
    start where the layers do (the paper's start is `FanIn`), and all sigmas of a layer at sigma / sqrt(inputs).

    Args:
        sigma: at the start, before that root.

    Shapes: weights [P M, inputs, outputs], noise [P, M, K].

    >>> from etude.core.population import Member, Population
    >>> from etude.policies.control.networks import MLP
    >>> layers, _ = MLP(hidden=(8,)).build((4,), Population([Member(0)]), "critic")
    >>> FactorisedNoise(sigma=0.5).put(layers, 1).size
    12
    >>> layers.layers[0].weight_sigma.unique().tolist()
    [0.25]
    """

    sigma: NonNegative = 0.5

    def put(self, network: nn.Module, members: int) -> Noise:
        layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, Linear)}
        rows = len(next(iter(layers.values())).weight)
        noise, place = Noise(sum(_width(x) for x in layers.values()), rows // members), 0
        for name, layer in layers.items():
            inputs = layer.weight.shape[1]
            deviations = self._start(layer.weight, inputs, members), self._start(layer.bias, inputs, members)
            where, _, key = name.rpartition(".")
            setattr(network.get_submodule(where), key, NoisyLinear(layer, deviations, noise, place))
            place += _width(layer)
        return noise

    def _start(self, like: Tensor, inputs: int, members: int) -> Tensor:
        """Shaped as `like` [P M, ...]; of each member its own sigma, where they differ."""
        ones = torch.ones(members, like.numel() // members)
        found: Tensor = ones * (self.sigma / math.sqrt(inputs))
        return found.view_as(like)


class Masks(Noise):
    """Which units there are of the K hidden ones, and then 1 / (1 - rate) of each, so that means stay."""

    def __init__(self, size: int, networks: int, rate: Any) -> None:
        super().__init__(size, networks)
        self.rate = rate

    def draw(self, draw: Drawing, name: str) -> Tensor:
        def uniform(generator: Generator, count: int) -> Tensor:
            return torch.rand(count, self.networks, self.size, generator=generator)

        numbers = draw(name, uniform)
        found: Tensor = (numbers - self.rate >= 0).to(numbers.dtype) * (1 / (1 - self.rate))
        return found


class DroppedLinear(Plain):
    """(m x) W + b for every member, where m are its place in the masks, and x W + b without them."""

    def __init__(self, linear: Linear, masks: Masks, place: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.masks, self.inputs = masks, slice(place, place + linear.weight.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        masks = self.masks.numbers
        return affine(x if masks is None else x * masks[:, None, self.inputs], self.weight, self.bias)


class Dropout(ParameterNoise):
    """Hidden units that are left out by chance, in every pass anew and the same for all rows (arXiv:1506.02142).

        x <- x m / (1 - rate),    m = 1 with a chance of 1 - rate, else 0

    What a network says in several passes is what the members of an ensemble say that share its weights.

    Args:
        rate: the chance to be left out.

    Shapes: weights [P M, inputs, outputs], masks [P, M, K].

    >>> from etude.core.population import Member, Population
    >>> from etude.policies.control.networks import MLP
    >>> layers, _ = MLP(hidden=(8, 6)).build((4,), Population([Member(0)]), "critic")
    >>> Dropout(rate=0.5).put(layers, 1).size
    8
    """

    rate: Annotated[float, Interval(ge=0, lt=1)] = 0.2

    def put(self, network: nn.Module, members: int) -> Noise:
        layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, Linear)}
        rows, place = len(next(iter(layers.values())).weight), 0
        hidden = list(layers.items())[1:]
        masks = Masks(sum(int(layer.weight.shape[1]) for _, layer in hidden), rows // members, self.rate)
        for name, layer in hidden:
            where, _, key = name.rpartition(".")
            setattr(network.get_submodule(where), key, DroppedLinear(layer, masks, place))
            place += int(layer.weight.shape[1])
        return masks


def _width(layer: Linear) -> int:
    """Numbers that its noise is made of."""
    return int(layer.weight.shape[1] + layer.weight.shape[2])
