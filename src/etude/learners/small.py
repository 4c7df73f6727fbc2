"""Small networks that learn inside of a part of another slot, which asks them and says what they learn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from etude.core.learners import Apart, Learning
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.step_slots import StepOptimizer
from etude.optimizers.learner import Weights, descend

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from etude.core.method import Method

NEVER = 2**31
"""A warmup that no run comes to the end of."""


class SmallLearner(Apart, abstract=True):
    """A network whose weights, moments and counts are in the part's own `state` (`optimizers/learner.py`).

    It learns from all its rows at once. What `when` does not name of its `learning` is as the class has it.
    """

    when: ClassVar[frozenset[str]] = frozenset({"optimizer", "epochs"})
    """The fields of its `learning` that can be chosen."""

    def objection(self, method: Method) -> str | None:
        optimizer, own = self.learning.optimizer, _default(type(self)).fields()
        if not (isinstance(optimizer, StepOptimizer) and isinstance(optimizer, TokenOptimizer)):
            return f"takes steps along its gradient, and {type(optimizer).__name__} takes others: choose adam-w."
        for name, value in self.learning.fields().items():
            if name not in self.when and value != own[name]:
                return f"learns from all its rows at once, when they are there: leave learning.{name} at {own[name]}."
        return None

    def learn_from(
        self, loss: Callable[[Weights], Tensor], data: DataclassInstance | None = None, rate: float = 1.0
    ) -> None:
        """Its epochs of steps on `loss(weights)`, a number; `rate` is the schedule's factor."""
        optimizer = self.learning.optimizer
        assert isinstance(optimizer, StepOptimizer)
        descend(self.state, loss, optimizer, self.learning.epochs, data, rate)


def _default(cls: type[SmallLearner]) -> Learning:
    found = next(field.default for field in dataclasses.fields(cls) if field.name == "learning")
    assert isinstance(found, Learning)
    return found


def upgraded_learning(cls: type[SmallLearner], values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values of a part that had `lr` and `epochs` of its own, with its `learning`."""
    data = dict(values)
    if "learning" in data or "lr" not in data:
        return data
    default = _default(cls)
    optimizer = default.optimizer.to_json() | {"lr": data.pop("lr")}
    epochs = data.pop("epochs", default.epochs)
    how = {"epochs": epochs} if epochs else {"warmup": NEVER}
    return {**data, "learning": default.to_json() | {"optimizer": optimizer} | how}
