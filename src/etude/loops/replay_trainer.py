"""One network that learns from stored rows, what takes its steps, and its slow copy."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from etude.core.learners import Learning
from etude.core.part import Need
from etude.core.population import FlatParameters, Population
from etude.core.replay_slots import Estimate
from etude.core.step_slots import StepOptimizer
from etude.core.transitions import Transitions
from etude.optimizers.population import Metrics


class ReplayTrainer:
    """One network that learns: its flat parameters [P, D], what takes its steps, its slow copy.

    Args:
        prefix: what its tensors are called by in a checkpoint.
        count: M networks of every member.
    """

    def __init__(
        self, name: str, prefix: str, network: nn.Module, learning: Learning, count: int, population: Population
    ) -> None:
        assert isinstance(learning.optimizer, StepOptimizer)
        self.name, self.network, self.learning = name, network, learning
        streams = [stream.split("steps", name) for stream in population.streams]
        self.parameters = FlatParameters({prefix: network}, count, streams)
        self.stepper = learning.optimizer.population(self.parameters)
        self.frozen = self.parameters.shared(network)
        self.first = self.parameters.shared(network, only=0)
        self.target: nn.Module | None = None
        if learning.target is not None:
            self.target = copy.deepcopy(network)
            self.slow = FlatParameters({prefix: self.target}, count)
            self.target.requires_grad_(False)
            self.slow_first = self.slow.shared(self.target, only=0)
        self.batch: Transitions | None = None
        self.report: Metrics = {}
        self.estimates = Need.ESTIMATE in learning.optimizer.needs
        self.estimate: Estimate | None = None

    def due(self, update: int) -> bool:
        """Whether it learns in this update, from 1."""
        return update > self.learning.warmup and update % self.learning.every == 0

    def gradient(self) -> Metrics:
        """What its stepper asks for: the gradient is there already."""
        return self.report

    @torch.no_grad()
    def follow(self) -> None:
        """Move the slow copy."""
        target = self.learning.target
        assert target is not None
        if isinstance(target.rate, float) and target.rate == 1:
            self.slow.values.copy_(self.parameters.values)
        elif isinstance(target.rate, float):
            self.slow.values.lerp_(self.parameters.values, target.rate)
        else:
            self.slow.values.add_(target.rate * (self.parameters.values - self.slow.values))

    def tensors(self) -> dict[str, Tensor]:
        """What its next step depends on besides the network."""
        slow = {"target": self.slow.values} if self.target is not None else {}
        return {**self.stepper.tensors(), **slow}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`."""
        self.stepper.load(dict(tensors))
        if self.target is not None:
            self.slow.values.copy_(tensors["target"])
