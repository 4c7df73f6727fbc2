"""Values that are fitted after the policy's step, so that the advantages of a rollout never see its own returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from etude.core.learners import Learning, Reading, StateCritic, StepLearner
from etude.core.population import Population
from etude.core.step_slots import Network
from etude.core.transitions import Transitions
from etude.learners.state import StateValue
from etude.optimizers.adam import AdamW
from etude.policies.control.networks import MLP

if TYPE_CHECKING:
    from gymnasium import Space


class FittedValue(StepLearner, StateCritic):
    """V(s) by several epochs of Adam on the squared error, after the policy has moved.

        loss = 1/2 mean (V(s) - R)^2

    over minibatches of the rollout, with an optimizer of its own (arXiv:2401.13662 for TRPO: 10 epochs).

    Shapes: V, R [P, N] -> loss [P].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(returns=torch.tensor([[1.0, 3.0]]), mean=lambda x: x.mean(1))
    >>> FittedValue().loss(Rows(says=torch.tensor([[2.0, 3.0]]), batch=rows)).tolist()
    [0.25]
    """

    learning: Learning = Learning(optimizer=AdamW(lr=1e-3, epsilon=1e-5, clip_norm=0.5), epochs=10, minibatches=8)
    network: Network = MLP()

    @property
    def label(self) -> str:
        return "value"

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        data = dict(values)
        if "learning" in data or "epochs" not in data:
            return data
        adam = AdamW().to_json() | {name: data.pop(name) for name in ("lr", "epsilon", "clip_norm")}
        how = {name: data.pop(name) for name in ("epochs", "minibatches")}
        return {**data, "learning": Learning(optimizer=AdamW()).to_json() | {"optimizer": adam} | how}

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        return StateValue(network=self.network).build(shape, actions, population)

    def loss(self, read: Reading) -> Tensor:
        return squared_error(read.says, read.batch)


def squared_error(values: Tensor, batch: Transitions) -> Tensor:
    """[P] 1/2 mean (V - R)^2 over the steps that count."""
    assert batch.returns is not None
    return batch.mean((values - batch.returns) ** 2) / 2
