"""Steps of the learners that are not trained by the policy's own: when they are due, on what, by which optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from etude.core.learners import Reading, StepLearner
from etude.core.population import FlatParameters, Population, per_member
from etude.core.step_slots import StepOptimizer
from etude.core.transitions import Transitions
from etude.loops.trainer import Reader, Trainer
from etude.optimizers.population import Metrics
from etude.policies.control.actor import Actor


@dataclass
class StepReading(Reader):
    """Rows of a rollout as a learner reads them: `Reading`, each quantity computed once.

    Args:
        actor: the policy's module.
    """

    batch: Transitions
    actor: Any

    @cached_property
    def seen(self) -> Tensor:
        seen: Tensor = self.actor.see(self.batch.observations)
        return seen

    @cached_property
    def says(self) -> Tensor:
        said: Tensor = self.network(self.seen)
        return said


class Learners:
    """All learners of a method that take steps of their own, all members at once.

    Args:
        parts: learners by name; `networks` has theirs, and a critic's that the policy's step trains.
        steps: training steps in total, for their schedules.
    """

    def __init__(
        self, parts: Mapping[str, StepLearner], networks: Mapping[str, nn.Module], actor: Actor, population: Population,
        steps: int,
    ) -> None:  # fmt: skip
        self.networks, self.actor, self.population, self.steps = dict(networks), actor, population, steps
        self.trainers = {k: StepTrainer(part, k, self.networks[k]) for k, part in parts.items()}
        self.targets = {k: t.target for k, t in self.trainers.items() if t.target is not None}

    def read(self, name: str, batch: Transitions) -> StepReading:
        """Rows as the learner of this name reads them now."""
        return StepReading(self.networks, self.targets, name, batch, self.actor)

    @torch.no_grad()
    def offer(self, batch: Transitions) -> None:
        """Put into `batch.offers` what learners say of a rollout [P, T, E] before it is rewarded."""
        flat = batch.flat() if self.trainers else batch
        for name, trainer in self.trainers.items():
            for key, value in trainer.part.offers(self.read(name, flat)).items():
                batch.offers[key] = value.reshape(*batch.rewards.shape, *value.shape[2:])

    def run(self, batch: Transitions, number: int, order: str) -> Metrics:
        """Let those learn from a flat rollout that are due 'before' or 'after' the policy's update; [P] each."""
        found: Metrics = {}
        for trainer in self.trainers.values():
            if trainer.part.learning.order == order:
                found |= trainer.learn(self, batch, number)
        return found

    def tensors(self) -> dict[str, Tensor]:
        """What the next steps depend on besides the networks."""
        return {f"learners.{name}.{k}": v for name, t in self.trainers.items() for k, v in t.tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`."""
        for name, trainer in self.trainers.items():
            start = f"learners.{name}."
            trainer.load({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter [P, ...] of their networks by name."""
        for trainer in self.trainers.values():
            yield from trainer.parameters.named()

    def load_networks(self, tensors: Mapping[str, Tensor]) -> None:
        """Set every parameter."""
        for trainer in self.trainers.values():
            trainer.parameters.load(tensors)


class StepTrainer(Trainer):
    """Trains one learner of control: its parameters [P, D], and its slow copy."""

    part: StepLearner

    def __init__(self, part: StepLearner, name: str, network: nn.Module) -> None:
        assert isinstance(part.learning.optimizer, StepOptimizer)
        self.parameters = FlatParameters({name: network}, part.count)
        super().__init__(part, name, network, part.learning.optimizer.population(self.parameters))
        if self.target is not None:
            self.slow = FlatParameters({name: self.target}, part.count)

    def learn(self, learners: Learners, batch: Transitions, number: int) -> Metrics:
        """Learn from a flat rollout, if it is time; returns means over the last epoch, [P] each."""
        rate = per_member(self.part.learning.optimizer, lambda part: part.rate(number, learners.steps))
        pieces = partial(self._pieces, learners.population, batch, number)
        return self.run(number, rate, lambda epoch: (TrainerLesson(self, learners, piece) for piece in pieces(epoch)))

    def _pieces(self, population: Population, batch: Transitions, number: int, epoch: int) -> Iterator[Transitions]:
        """An epoch's minibatches, each member in an order of its own."""
        count, size = self.part.learning.minibatches, batch.rewards.shape[1]
        if count == 1:
            yield batch
            return
        order = population.draw(self.name, number, epoch, of=lambda g: torch.randperm(size, generator=g))
        yield from (batch.rows(piece) for piece in order.to(batch.rewards.device).tensor_split(count, 1))

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [] if self.target is None else [(self.slow.values, self.parameters.values)]

    def tensors(self) -> dict[str, Tensor]:
        slow = {"target": self.slow.values} if self.target is not None else {}
        return {**self.stepper.tensors(), **slow}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.stepper.load(tensors)
        if self.target is not None:
            self.slow.values.copy_(tensors["target"])


class TrainerLesson:
    """One minibatch of a learner, as what takes its steps sees it (`optimizers/population.py`)."""

    def __init__(self, trainer: StepTrainer, learners: Learners, batch: Transitions) -> None:
        self.trainer, self.learners, self.batch = trainer, learners, batch

    def read(self) -> Reading:
        return self.learners.read(self.trainer.name, self.batch)

    def loss(self, read: Reading) -> Tensor:
        return self.trainer.part.loss(read)

    def gradient(self) -> Metrics:
        loss = self.loss(self.read())
        self.trainer.parameters.differentiate(loss)
        return {"loss": loss.detach()}
