"""How a learner takes steps of its own: what it reads, when it is time, with a slow copy behind it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from etude.core.learners import Apart
from etude.core.population import Number
from etude.optimizers.population import Metrics, Stepper


@dataclass
class Reader:
    """A learner among all networks, its own and its slow copy at hand.

    Args:
        networks, targets: of all learners, and their slow copies, by name; `name` is this learner's.
    """

    networks: Mapping[str, nn.Module]
    targets: Mapping[str, nn.Module]
    name: str

    @property
    def network(self) -> nn.Module:
        return self.networks[self.name]

    @property
    def target(self) -> nn.Module:
        return self.targets[self.name]


class Trainer:
    """Trains one learner, as its `Learning` says, with a population's stepper or a model's.

    Args:
        name: of the network, and of what is saved.
    """

    def __init__(self, part: Apart, name: str, network: nn.Module, stepper: Stepper) -> None:
        self.part, self.name, self.stepper = part, name, stepper
        self.target: nn.Module | None = None
        if part.learning.target is not None:
            self.target = copy.deepcopy(network).requires_grad_(False)

    def run(self, number: int, rate: Number, lessons: Callable[[int], Iterable[Any]]) -> Metrics:
        """Learn, if training step `number` is the time; returns means over the last epoch.

        Args:
            rate: the schedule's factor on the learning rate, one or one per member.
            lessons: an epoch's minibatches, as the stepper sees them.
        """
        turn, found = self.part.learning.turn(number), list[Metrics]()
        if turn is None:
            return {}
        for epoch in range(self.part.learning.epochs):
            last = [self.stepper.step(lesson, rate) for lesson in lessons(epoch)]
            found += last
            self._follow(turn * self.part.learning.epochs + epoch)
        return self._report(found, last)

    def pairs(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Tensors of the slow copy, each beside the network's."""
        raise NotImplementedError

    @torch.no_grad()
    def _follow(self, number: int) -> None:
        """Move the slow copy after pass `number`, from 0 on in the run, if it is time."""
        target = self.part.learning.target
        if target is not None and (number + 1) % target.every == 0:
            for slow, fast in self.pairs():
                if isinstance(target.rate, float) and target.rate == 1:
                    slow.copy_(fast)
                else:
                    slow.add_(target.rate * (fast - slow))

    def _report(self, found: list[Metrics], last: list[Metrics]) -> Metrics:
        label = self.part.label
        names = [k for k in found[0] if k not in ("gradient_norm", "skipped_steps", "learning_rate")]
        means = {f"{label}_{k}": torch.stack([m[k] for m in last], 1).mean(1) for k in names}
        return {**means, f"{label}_skipped_steps": torch.stack([m["skipped_steps"] for m in found], 1).sum(1)}
