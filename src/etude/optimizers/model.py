"""Steps of one model, by an optimizer of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from etude.core.errors import NonFiniteError
from etude.core.optimizer_slots import TokenOptimizer
from etude.optimizers.population import MAX_FAILURES, Differentiable, Metrics, tensors_of
from etude.runtime.shards import Shard, clip_gradients

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Halves = tuple[Sequence[Tensor], Sequence[Tensor], float]
"""Gradients of two halves of a minibatch, one tensor per parameter, and the first half's share of the rows."""


class ModelLesson(Differentiable, Protocol):
    """What a model's stepper may ask about one minibatch; `gradient` leaves it in the parameters' `grad`."""

    def halves(self) -> Halves | None:
        """What an optimizer that asks for halves goes by; None where the minibatch has none."""
        ...


class ModelStepper:
    """Takes a model's steps, as a population's `Stepper`: clips, paces, and skips what is not finite.

    Where no parameter has a gradient nothing is done, and no `gradient_norm` is reported.

    Args:
        part: makes the optimizer and says how it clips and paces.
        parameters: what is trained: of weights in 16 bits their float32 masters.
        moved: called after every step, to round masters into the weights.

    Raises: NonFiniteError at the third gradient in a row that is not finite; such steps are skipped.
    """

    def __init__(
        self, part: TokenOptimizer, parameters: Iterable[nn.Parameter], moved: Callable[[], None] = lambda: None
    ) -> None:
        self.part, self.parameters, self.moved = part, list(parameters), moved
        self.optimizer = part.build(self.parameters)
        self.lr = float(self.optimizer.param_groups[0]["lr"])
        self.failures, self.where = 0, ""

    def begin(self, step: int, where: str) -> None:
        """Training step `step` begins, called `where` in messages: forget what its optimizer says it forgets."""
        self.where = where
        if self.part.restarts(step):
            self.optimizer.state.clear()

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, lesson: ModelLesson, rate: float) -> Metrics:
        """One step on a minibatch; `rate` is the schedule's factor on the learning rate. Metrics are [1]."""
        self.clear()
        metrics = lesson.gradient()
        moving = [p for p in self.parameters if p.grad is not None]
        if not moving:
            return metrics
        halves = lesson.halves()
        pace = 1.0 if halves is None else self.part.pace(*halves)
        limit = self.part.clip()
        size = clip_gradients(moving, torch.inf if limit is None else limit)  # what the host must know before it steps
        finite = math.isfinite(size)
        self._note(finite, lesson.batch)
        rate = self.lr * rate * pace
        if finite:
            self._apply(rate)
        found = {"gradient_norm": size, "skipped_steps": 1.0 - finite, "learning_rate": rate}
        return {**metrics, **{k: torch.as_tensor(v, dtype=torch.float64).view(1) for k, v in found.items()}}

    def _apply(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.moved()

    def _note(self, finite: bool, batch: DataclassInstance | None) -> None:
        """Count a step; raises NonFiniteError, with its minibatch, at the third in a row that was skipped."""
        self.failures = 0 if finite else self.failures + 1
        if self.failures >= MAX_FAILURES:
            error = NonFiniteError(
                f"The gradient was not finite in {self.failures} optimizer steps in a row (step {self.where}); each "
                "was skipped. Lower the learning rate (--set optimizer.lr=...) or look at the rewards of the last "
                "batch."
            )
            error.batch = {k: v.detach().clone() for k, v in tensors_of(batch).items()}
            raise error

    # Checkpoints

    def moments(self) -> dict[int, dict[str, Tensor]]:
        """What the optimizer remembers of each parameter, by its number."""
        found: dict[int, dict[str, Tensor]] = self.optimizer.state_dict()["state"]
        return found

    def remember(self, moments: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Undo `moments`."""
        self.optimizer.load_state_dict(
            {**self.optimizer.state_dict(), "state": {k: dict(v) for k, v in moments.items()}}
        )

    def shards(self) -> dict[str, Shard]:
        """Which of `tensors` are of a shard of a weight, by name: this rank has its rows of them alone."""
        own = ((f"{i}.{k}", self.parameters[i], v) for i, state in self.moments().items() for k, v in state.items())
        return {name: p for name, p, value in own if isinstance(p, Shard) and value.shape == p.shape}

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on: moments as 'NUMBER.NAME', and `failures`."""
        flat = {f"{i}.{k}": v for i, state in self.moments().items() for k, v in state.items()}
        return {**flat, "failures": torch.tensor(self.failures)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`; those of shards are given whole, and cut here."""
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            number, _, key = name.partition(".")
            if key:
                of = self.parameters[int(number)]
                own = of.cut(value).clone() if isinstance(of, Shard) and value.shape == of.whole else value
                moments.setdefault(int(number), {})[key] = own
        self.remember(moments)
        self.failures = int(tensors["failures"])
