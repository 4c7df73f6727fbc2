"""Random numbers in the weights of a network, by which it explores; without them it is its means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn

from etude.core.critic_slots import ParameterNoise
from etude.core.fields import NonNegative
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


def _width(layer: Linear) -> int:
    """Numbers that its noise is made of."""
    return int(layer.weight.shape[1] + layer.weight.shape[2])
