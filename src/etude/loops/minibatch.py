"""One minibatch of a policy, as what takes its steps sees it (`optimizers/model.py`)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from etude.core.batches import TokenBatch
from etude.loops.movement import Movement
from etude.loops.tally import Tally
from etude.optimizers.model import Halves
from etude.optimizers.population import Metrics

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod
    from etude.loops.update import Updater


class Minibatch:
    """Rows that the updater differentiates when a step asks for their gradient."""

    def __init__(
        self, updater: Updater, method: CompleteTokenMethod, batch: TokenBatch, fresh: bool, tally: Tally
    ) -> None:
        self.updater, self.method, self.batch, self.fresh, self.tally = updater, method, batch, fresh, tally

    def gradient(self) -> Metrics:
        """Leave the gradient in the parameters, in smaller micro-batches if memory runs out."""
        used, attempt = None, Tally()
        with suppress(torch.OutOfMemoryError):
            used = self.updater.accumulate(self.method, self.batch, self.fresh, attempt)
        if used is None:  # outside the handler, whose traceback would keep the tensors alive
            self.updater.halve(self.batch, self.tally)
            return self.gradient()
        self.tally.merge(attempt)
        self.movement = Movement(self.updater.stepper.parameters)
        return {}

    def halves(self) -> Halves | None:
        return self.updater.halves()
