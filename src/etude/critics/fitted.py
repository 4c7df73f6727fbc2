"""Values that are fitted after the policy's step, so that the advantages of a rollout never see its own returns."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from etude.core.batches import Transitions
from etude.core.fields import Count, Positive
from etude.core.population import FlatParameters, Population
from etude.core.slots import Network, StateCritic
from etude.critics.state import StateValue
from etude.optimizers.population import PopulationAdam
from etude.policies.control.networks import MLP


class FittedValue(StateCritic):
    """V(s) by several epochs of Adam on the squared error, after the policy has moved.

        loss = 1/2 mean (V(s) - R)^2

    over minibatches of the rollout, with an optimizer of its own (arXiv:2401.13662 for TRPO: 10 epochs).

    Args:
        lr: constant; multiplied by the policy's schedule where that has one.
        clip_norm: largest gradient norm of a step; None for no limit.
    """

    joint: ClassVar[bool] = False
    network: Network = MLP()
    epochs: Count = 10
    minibatches: Count = 8
    lr: Positive = 1e-3
    epsilon: Positive = 1e-5
    clip_norm: Positive | None = 0.5

    def build(self, shape: tuple[int, ...], population: Population) -> nn.Module:
        return StateValue(network=self.network).build(shape, population)

    def prepare(self, parameters: FlatParameters) -> None:
        columns = parameters.of("critic")
        adam = PopulationAdam(parameters, self.lr, (0.9, 0.999), self.epsilon, 0.0, self.clip_norm, columns)
        object.__setattr__(self, "_fitter", (parameters, adam))
        self.state.update(adam.tensors())

    def fit(self, fitting: Any) -> dict[str, Tensor]:
        parameters, adam = self.__dict__["_fitter"]
        adam.load(self.state)  # a resumed run put other tensors there
        batch, found = fitting.batch, []
        size = batch.rewards.shape[1]
        for epoch in range(self.epochs):
            order = fitting.population.draw(
                "critic", fitting.number, epoch, of=lambda g: torch.randperm(size, generator=g)
            )
            for piece in order.tensor_split(self.minibatches, 1):
                found.append(adam.step(_Errors(fitting, parameters, batch.rows(piece)), fitting.rate))
        self.state.update(adam.tensors())
        last = found[-self.minibatches :]
        return {
            "value_loss": torch.stack([m["value_loss"] for m in last], 1).mean(1),
            "value_skipped_steps": torch.stack([m["skipped_steps"] for m in found], 1).sum(1),
        }


class _Errors:
    """One minibatch of the fit, as an optimizer sees it."""

    def __init__(self, fitting: Any, parameters: FlatParameters, batch: Transitions) -> None:
        self.fitting, self.parameters, self.batch = fitting, parameters, batch

    def gradient(self) -> dict[str, Tensor]:
        loss = squared_error(self.fitting.values(self.batch), self.batch)
        self.parameters.differentiate(loss)
        return {"value_loss": loss.detach()}


def squared_error(values: Tensor, batch: Transitions) -> Tensor:
    """[P] 1/2 mean (V - R)^2 over the steps that count."""
    assert batch.returns is not None
    return batch.mean((values - batch.returns) ** 2) / 2
