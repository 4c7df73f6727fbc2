"""Values of states, by a network of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.fields import NonNegative, Positive
from etude.core.learners import Joint, StateCritic
from etude.core.population import Population
from etude.core.step_slots import Network
from etude.learners.token import value_loss
from etude.policies.control.networks import MLP, Linear, Plain

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method


class Value(Plain):
    """What is seen [P, N, ...], or the policy's features [P, N, W], to values [P, N]."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, read: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(read))
        return found.squeeze(-1)


class StateValue(Joint, StateCritic):
    """V(s), trained together with the policy by (optionally clipped) squared error, as `TokenCritic`.

    Args:
        network: from what the policy sees to the value.
        shared: read the features of the policy's network (and memory) instead, which then learn from both losses;
            only the last layer is the critic's own, and `network` is not used.

    Shapes: values, returns [P, N] -> [P, N].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(values=torch.tensor([[0.0]]), returns=torch.tensor([[1.0]]))
    >>> StateValue(coefficient=0.5).loss(rows, Rows(values=torch.tensor([[3.0]]))).tolist()
    [[1.0]]
    """

    network: Network = MLP()
    shared: bool = False  # type: ignore[misc]  # of the part, where it is the class's in other learners
    coefficient: NonNegative = 0.5
    clip: Positive | None = None

    def objection(self, method: Method) -> str | None:
        if getattr(method.slots()["policy"], "memory", None) is not None and not self.shared:
            return "does not remember what the policy remembers: set critic.shared=true."
        return None

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        body, width = (nn.Identity(), shape[0]) if self.shared else self.network.build(shape, population, "critic")
        return Value(body, Linear(population, "critic.head", width, 1, gain=1.0))

    def loss(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return value_loss(batch, policy, self.coefficient, self.clip)
