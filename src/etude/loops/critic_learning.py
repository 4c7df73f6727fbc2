"""How a critic of tokens learns that is a network of its own beside the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch
from etude.core.learners import OwnCritic
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.rows import split_groups
from etude.core.streams import Stream
from etude.loops.states import below
from etude.loops.together import add_gradients
from etude.loops.trainer import Trainer
from etude.optimizers.model import Halves, ModelStepper
from etude.optimizers.population import Metrics
from etude.policies.micro_batches import micro_batches
from etude.runtime.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

NAME = "critic"


class CriticTrainer(Trainer):
    """Trains an `OwnCritic` beside a policy, micro-batch by micro-batch.

    Args:
        steps: training steps in total, for its schedule.
        ranks: who takes its steps too, each on a part of the rows.
    """

    part: OwnCritic
    stepper: ModelStepper

    def __init__(self, part: OwnCritic, policy: LanguagePolicy, steps: int, ranks: Ranks = ALONE) -> None:
        assert isinstance(part.learning.optimizer, TokenOptimizer)
        self.network, self.steps, self.age, self.ranks = part.build(policy), steps, 0, ranks
        stepper = ModelStepper(part.learning.optimizer, self.network.parameters(), self.network.updated)
        super().__init__(part, NAME, nn.ParameterList(self.network.parameters()), stepper)

    @property
    def leads(self) -> bool:
        """Whether the policy waits for it in this training step."""
        return self.age < self.part.lead

    def learn(self, batch: TokenBatch, number: int, stream: Stream, budget: int) -> Metrics:
        """Learn from credited rows, if it is time and they have something to teach; means over the last epoch, [1].

        Args:
            budget: padded tokens of a micro-batch; results do not depend on it.
        """
        self.age += 1
        if batch.returns is None:  # rows of a step between that is another method's, and of which no value is said
            return {}
        taught = self.part.taught(batch)
        rows = batch.replace(action_mask=taught).rows(taught.any(1).nonzero()[:, 0])
        if not len(rows):
            return {}
        self.stepper.begin(number, f"{number} of the critic")
        rate = self.part.learning.optimizer.rate(number, self.steps)

        def lessons(epoch: int) -> Iterator[Values]:
            count = self.part.learning.minibatches
            order = stream.split(NAME, epoch).numpy if count > 1 else None
            for piece in split_groups(rows, count, order):
                yield Values(self, rows.rows(piece), budget)

        return self.run(number, rate, lessons)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        return []

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Weights, moments, and for how many training steps it has been there."""
        weights = {f"network.{k}": v for k, v in self.network.tensors().items()}
        stepper = {f"stepper.{k}": v for k, v in self.stepper.tensors().items()}
        return {**weights, **stepper, "age": torch.tensor(self.age)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`."""
        self.network.load_tensors(below(tensors, "network."))
        self.stepper.load(below(tensors, "stepper."))
        self.age = int(tensors["age"])


class Values:
    """A minibatch of the critic, as what takes its steps sees it (`optimizers/model.py`)."""

    def __init__(self, trainer: CriticTrainer, batch: TokenBatch, budget: int) -> None:
        self.trainer, self.batch, self.budget = trainer, batch, budget

    def gradient(self) -> Metrics:
        """Leave the gradient of the mean over the minibatch's tokens in the parameters."""
        network, ranks, tokens, total = self.trainer.network, self.trainer.ranks, self.batch.action_mask.sum(), 0.0
        with ranks.agreed():
            mine = ranks.mine(self.batch, torch.arange(len(self.batch), device=self.batch.tokens.device))
            own = self.batch if ranks.count == 1 else self.batch.rows(mine)
            for piece in micro_batches(network.policy, own, self.budget):
                micro = own.rows(piece, trim=True)
                errors = self.trainer.part.loss(micro, network.values(micro))
                loss = torch.where(micro.action_mask, errors, 0.0).sum() / tokens
                loss.backward()
                total += float(loss.detach())
        add_gradients(ranks, self.trainer.stepper.parameters)
        return {"loss": torch.tensor([sum(ranks.told(total))], dtype=torch.float64)}

    def halves(self) -> Halves | None:
        return None
