"""Batched networks: one set of weights per member, [P, N, inputs] -> [P, N, outputs]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from etude.core.fields import Count
from etude.core.slots import Network
from etude.policies.control.population import Population

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "relu": torch.relu, "silu": nn.functional.silu, "elu": nn.functional.elu
}  # fmt: skip


class Linear(nn.Module):
    """x W + b for every member: weight [P, inputs, outputs], bias [P, 1, outputs].

    Weights are orthogonal, scaled by `gain` (arXiv:1312.6120; sqrt 2 and 0.01 for the last layer of a policy are the
    PPO implementations' choice, arXiv:2006.05990); biases start at 0.
    """

    def __init__(self, population: Population, name: str, inputs: int, outputs: int, gain: float = math.sqrt(2)):
        super().__init__()

        def orthogonal(generator: torch.Generator) -> Tensor:
            return nn.init.orthogonal_(torch.empty(outputs, inputs), gain, generator=generator).T

        self.weight = nn.Parameter(population.draw("init", name, of=orthogonal))
        self.bias = nn.Parameter(torch.zeros(population.size, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class LayerNorm(nn.Module):
    """Layer normalisation with a scale and a shift per member (arXiv:1607.06450)."""

    def __init__(self, population: Population, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(population.size, 1, width))
        self.shift = nn.Parameter(torch.zeros(population.size, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, nn.functional.layer_norm(x, x.shape[-1:]), self.scale)


class Layers(nn.Module):
    """Linear layers with an activation after each."""

    def __init__(self, layers: Sequence[nn.Module], norms: Sequence[nn.Module], activation: str) -> None:
        super().__init__()
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(norms)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x = self.activation(self.norms[number](x) if self.norms else x)
        return x


class MLP(Network):
    """A multilayer perceptron over flat observations. `hidden` may be empty: then what follows is linear."""

    hidden: tuple[Count, ...] = (64, 64)
    activation: Literal["tanh", "relu", "silu", "elu"] = "tanh"
    layer_norm: bool = False

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        sizes = [math.prod(shape), *self.hidden]
        layers = [Linear(population, f"{name}.{i}", *pair) for i, pair in enumerate(zip(sizes, sizes[1:]))]
        norms = [LayerNorm(population, n) for n in self.hidden] if self.layer_norm else []
        return Layers(layers, norms, self.activation), sizes[-1]
