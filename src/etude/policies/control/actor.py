"""The policy of control: what it sees of an observation, a network, a distribution over actions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from etude.core.fields import Positive
from etude.core.slots import Network, Observations, Policy
from etude.policies.control.distributions import Distribution, distribution
from etude.policies.control.networks import MLP, Linear
from etude.policies.control.population import Population


class ActorPolicy(Policy):
    """A network with one output per parameter of the action distribution.

    Args:
        observations: what happens to observations first, in this order (normalise, stack frames).
        gain: scale of the last layer's weights; small, so that all actions are about equally likely at first.
        log_std: of Gaussian actions, at the start; learned, the same in every state.
    """

    network: Network = MLP()
    observations: tuple[Observations, ...] = ()
    gain: Positive = 0.01
    log_std: float = 0.0

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> Actor:
        transforms = []
        for part in self.observations:
            module, shape = part.build(shape, population)
            transforms.append(module)
        body, width = self.network.build(shape, population, "policy")
        spread = distribution(actions)
        head = Linear(population, "policy.head", width, spread.parameters - spread.free, self.gain)
        return Actor(transforms, body, head, spread, shape, population.size, self.log_std)


class Actor(nn.Module):
    """Observations [P, N, ...] to parameters [P, N, K] of `distribution`.

    Args:
        shape: of what the body (and a critic) sees of one observation.
    """

    def __init__(
        self, transforms: list[nn.Module], body: nn.Module, head: nn.Module, distribution: Distribution,
        shape: tuple[int, ...], members: int, log_std: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.transforms, self.body, self.head = nn.ModuleList(transforms), body, head
        self.distribution, self.shape = distribution, shape
        if distribution.free:
            self.log_std = nn.Parameter(torch.full((members, 1, distribution.free), log_std))

    def see(self, observations: Tensor) -> Tensor:
        """What the body gets: images in [0, 1], everything else as it is, then the transforms."""
        x = observations.float() / 255 if observations.dtype == torch.uint8 else observations
        for transform in self.transforms:
            x = transform(x)
        return x

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(seen))
        if not self.distribution.free:
            return found
        return torch.cat([found, self.log_std.expand(-1, found.shape[1], -1)], -1)
