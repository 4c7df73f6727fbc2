"""Where the numbers of a linear layer start, every member's from random numbers of its own."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from etude.core.fields import Interval, Positive
from etude.core.population import Number, PerMember, Population, per_member
from etude.core.step_slots import Initializer
from etude.optimizers.population import column
from etude.policies.control.networks import GAIN, orthogonal


def _of_networks(number: Number, population: Population) -> Any:
    """A number, or one per member for each of its networks, which stand one after another."""
    if not isinstance(number, PerMember):
        return number
    each = population.size // len(number.numbers)
    return PerMember([x for x in number.numbers for _ in range(each)])


def _uniform(population: Population, name: str, shape: tuple[int, int], limit: Number) -> Tensor:
    """[P, *shape] uniform in [-limit, limit], a number or one per member."""
    drawn = population.draw("init", name, of=lambda g: torch.rand(shape, generator=g))
    found: Tensor = (2 * drawn - 1) * _of_networks(limit, population)
    return found


class FanIn(Initializer):
    """Weights and biases uniform in +-1 / sqrt(inputs), as torch's own linear layers start (and DDPG's hidden ones).

    Shapes: weights [P, inputs, outputs], biases [P, 1, outputs].

    >>> from etude.core.population import Member
    >>> weights = FanIn().weights(Population([Member(0), Member(1)]), "policy.0", 16, 5)
    >>> weights.shape, bool(weights.abs().max() <= 0.25)
    (torch.Size([2, 16, 5]), True)
    """

    def weights(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return _uniform(population, name, (inputs, outputs), 1 / math.sqrt(inputs))

    def biases(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return _uniform(population, f"{name}.bias", (1, outputs), 1 / math.sqrt(inputs))


class Within(Initializer):
    """Weights and biases uniform in +-limit, whatever the layer's size: last layers that begin near 0.

    Shapes: weights [P, inputs, outputs], biases [P, 1, outputs].

    >>> from etude.core.population import Member
    >>> bool(Within(limit=3e-3).weights(Population([Member(0)]), "critic.head", 64, 1).abs().max() <= 3e-3)
    True
    """

    limit: Positive = 3e-3

    def weights(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return _uniform(population, name, (inputs, outputs), self.limit)

    def biases(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return _uniform(population, f"{name}.bias", (1, outputs), self.limit)


class Orthogonal(Initializer):
    """Orthogonal weights scaled by `gain` (arXiv:1312.6120), biases of 0.

    Shapes: weights [P, inputs, outputs], biases [P, 1, outputs].

    >>> from etude.core.population import Member
    >>> w = Orthogonal(gain=1.0).weights(Population([Member(0)]), "policy.0", 4, 3)[0]
    >>> bool(((w.T @ w) - torch.eye(3)).abs().max() < 1e-5)
    True
    """

    gain: Positive = GAIN

    def weights(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return orthogonal(population, name, outputs, inputs, _of_networks(self.gain, population)).transpose(1, 2)

    def biases(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return torch.zeros(population.size, 1, outputs)


class Xavier(Initializer):
    """Weights uniform in +-gain sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010), biases of 0.

    Shapes: weights [P, inputs, outputs], biases [P, 1, outputs].

    >>> from etude.core.population import Member
    >>> bool(Xavier(gain=1.0).weights(Population([Member(0)]), "critic.0", 3, 3).abs().max() <= 1.0)
    True
    """

    gain: Positive = 1.0

    def weights(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return _uniform(population, name, (inputs, outputs), self.gain * math.sqrt(6 / (inputs + outputs)))

    def biases(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return torch.zeros(population.size, 1, outputs)


class Sparse(Initializer):
    """Weights uniform in +-1 / sqrt(inputs), of which each unit's share, drawn anew for it, is 0 (arXiv:2410.14606).

    Args:
        share: of a unit's inputs that it does not hear: ceil(share * inputs) of them.

    Shapes: weights [P, inputs, outputs], biases [P, 1, outputs] of 0.

    >>> from etude.core.population import Member
    >>> weights = Sparse(share=0.9).weights(Population([Member(0), Member(1)]), "critic.0", 16, 3)
    >>> (weights == 0).sum(1).tolist()  # ceil(14.4)
    [[15, 15, 15], [15, 15, 15]]
    """

    share: Annotated[float, Interval(ge=0, lt=1)] = 0.9

    def weights(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        weights = _uniform(population, name, (inputs, outputs), 1 / math.sqrt(inputs))
        chance = population.draw("init", f"{name}.heard", of=lambda g: torch.rand(inputs, outputs, generator=g))
        rank = chance.argsort(dim=1, stable=True).argsort(1)
        deaf = per_member(self, lambda own: float(math.ceil(own.share * inputs)))
        return weights.masked_fill(rank < column(deaf, weights)[..., None], 0.0)

    def biases(self, population: Population, name: str, inputs: int, outputs: int) -> Tensor:
        return torch.zeros(population.size, 1, outputs)
