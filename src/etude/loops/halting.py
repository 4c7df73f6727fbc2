"""Members that have learned enough from a rollout: they stand still, bit for bit, while the others go on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from etude.core.population import FlatParameters
from etude.optimizers.population import Metrics, Stepper


class Halting:
    """Which members go on with an update, and what they report of the last epoch that they took part in.

    Numbers are added up one minibatch after another, so that no member's depend on how long the others go on.

    Shapes: `going` [P]; `taken` [P], the optimizer steps of the update so far.
    """

    def __init__(self, members: int, device: torch.device | None = None) -> None:
        self.going = torch.ones(members, dtype=torch.bool, device=device)
        self.taken, self.count = torch.zeros(members, device=device), torch.zeros(members, device=device)
        self.sums = Metrics()

    def begin(self) -> None:
        """An epoch begins: those that are in it report of it."""
        self.count = self.count.masked_fill(self.going, 0.0)
        self.sums = {k: v.masked_fill(self.going, 0.0) for k, v in self.sums.items()}

    def step(
        self, parameters: FlatParameters, optimizer: Stepper, take: Callable[[], Metrics], enough: Callable[[], Tensor]
    ) -> None:
        """Take an optimizer step, and take it back for those that stand still or have `enough` [P] now."""
        weights, state = parameters.values.clone(), {k: v.clone() for k, v in optimizer.tensors().items()}
        report, there = take(), self.going
        self.going = there & ~enough()
        if not bool(self.going.all()):
            self._take_back(parameters, optimizer, weights, state)
        self.taken += self.going
        self.count += there
        for name, value in report.items():
            before = self.sums.get(name, torch.zeros_like(value))
            self.sums[name] = torch.where(there, before + value, before)

    @torch.no_grad()
    def _take_back(
        self, parameters: FlatParameters, optimizer: Stepper, weights: Tensor, state: dict[str, Tensor]
    ) -> None:
        def chosen(now: Tensor, before: Tensor) -> Tensor:
            return torch.where(self.going.view(-1, *[1] * (now.dim() - 1)), now, before)

        parameters.values.copy_(chosen(parameters.values, weights))
        optimizer.load({k: chosen(v, state[k]) for k, v in optimizer.tensors().items()})

    def metrics(self) -> Metrics:
        """[P] means over the minibatches of each member's last epoch, and its optimizer steps."""
        return {**{k: v / self.count for k, v in self.sums.items()}, "optimizer_steps": self.taken}
