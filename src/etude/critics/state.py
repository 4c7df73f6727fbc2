"""Values of states, by a network of their own."""

from __future__ import annotations

from torch import Tensor, nn

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import NonNegative, Positive
from etude.core.slots import Network, StateCritic
from etude.critics.token import value_loss
from etude.policies.control.networks import MLP, Linear
from etude.policies.control.population import Population


class Value(nn.Module):
    """What is seen [P, N, ...] to values [P, N]."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(seen))
        return found[..., 0]


class StateValue(StateCritic):
    """V(s), trained together with the policy by (optionally clipped) squared error, as `TokenCritic`."""

    network: Network = MLP()
    coefficient: NonNegative = 0.5
    clip: Positive | None = None

    def build(self, shape: tuple[int, ...], population: Population) -> nn.Module:
        body, width = self.network.build(shape, population, "critic")
        return Value(body, Linear(population, "critic.head", width, 1, gain=1.0))

    def loss(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return value_loss(batch, policy, self.coefficient, self.clip)
