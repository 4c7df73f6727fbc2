"""Small networks that a part trains on its own: a population of one, whose tensors are in the part's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etude.core.population import FlatParameters
from etude.core.step_slots import StepOptimizer
from etude.optimizers.population import Metrics

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Weights = dict[str, Tensor]


def learner(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """A network that has taken no step yet, to be kept in a part's state: `weights`, `optimizer`, `updates`."""
    return {"weights": {k: w.detach().clone() for k, w in weights.items()}, "optimizer": {}, "updates": 0}


def descend(
    state: dict[str, Any], loss: Callable[[Weights], Tensor], optimizer: StepOptimizer, steps: int = 1,
    data: DataclassInstance | None = None, rate: float = 1.0,
) -> None:  # fmt: skip
    """Steps of an optimizer on `loss(weights)`, a number. Where the gradient has been exactly 0, nothing moves.

    Args:
        data: what the loss is of, a dataclass, shown if its gradient is not finite.
        rate: the schedule's factor on the learning rate.

    Raises: NonFiniteError at the third gradient in a row that is not finite; such steps are skipped.
    """
    module = nn.ParameterDict({k: nn.Parameter(w[None].clone()) for k, w in state["weights"].items()})
    parameters = FlatParameters({"learner": module})
    stepper = optimizer.population(parameters)
    if state["optimizer"]:
        stepper.load(state["optimizer"])
    lesson = _Lesson(module, parameters, loss, data)
    for _ in range(steps):
        stepper.step(lesson, rate)
    state["weights"] = {k: w.detach()[0].clone() for k, w in module.items()}
    state["optimizer"] = stepper.tensors()
    state["updates"] += steps


@dataclass
class _Lesson:
    """A loss of one network's weights, as an optimizer sees it."""

    module: nn.ParameterDict
    parameters: FlatParameters
    of: Callable[[Weights], Tensor]
    batch: DataclassInstance | None

    def gradient(self) -> Metrics:
        with torch.enable_grad():
            loss = self.of({k: w[0] for k, w in self.module.items()})[None]
            self.parameters.differentiate(loss)
        return {"loss": loss.detach()}
