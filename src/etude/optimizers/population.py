"""Steps of a population: every member's gradient, norm and moments are its own."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from etude.policies.control.population import FlatParameters, PerMember

Metrics = dict[str, Tensor]


class Surrogate(Protocol):
    """What an optimizer of control may ask about one minibatch."""

    def gradient(self) -> Metrics:
        """Put the loss's gradient into `FlatParameters.gradient`; returns what to report, [P] each."""
        ...


class PopulationOptimizer(Protocol):
    """Takes steps, and remembers what it must."""

    def step(self, surrogate: Surrogate, rate: float) -> Metrics:
        """One step on a minibatch; `rate` is the schedule's factor on the learning rate."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on."""
        ...

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Undo `tensors`."""
        ...


class PopulationAdam:
    """Adam with decoupled weight decay (arXiv:1711.05101) and one gradient norm per member.

    The same numbers as torch's AdamW for each member, in a few operations on [P, D]. A member whose gradient is not
    finite keeps its weights and moments, and the step is counted (`skipped`).

    Args:
        columns: which parameters; all by default.
        lr: a float, or one per member.
    """

    def __init__(
        self, parameters: FlatParameters, lr: Any, betas: tuple[float, float], epsilon: float, weight_decay: float,
        clip: Any, columns: slice = slice(None),
    ) -> None:  # fmt: skip
        self.values, self.gradient = parameters.values[:, columns], parameters.gradient[:, columns]
        self.lr, self.betas, self.epsilon, self.weight_decay, self.clip = lr, betas, epsilon, weight_decay, clip
        self.first, self.second = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.taken = torch.zeros(len(self.values), 1, dtype=torch.float64)

    def step(self, surrogate: Surrogate, rate: float) -> Metrics:
        metrics = surrogate.gradient()
        norm = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True)
        finite = norm.isfinite()
        if bool(finite.all()):
            self._apply(norm, rate)
        else:
            self._guarded(finite, norm, rate)
        return {**metrics, "gradient_norm": norm[:, 0], "skipped_steps": (~finite[:, 0]).float()}

    @torch.no_grad()
    def _apply(self, norm: Tensor, rate: float) -> None:
        g, (b1, b2) = self.gradient, self.betas
        if self.clip is not None:
            g.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.taken += 1
        lr = self.lr * rate
        if self.weight_decay:
            self.values.mul_(1 - _column(lr, self.values) * self.weight_decay)
        self.first.lerp_(g, 1 - b1)
        self.second.mul_(b2).addcmul_(g, g, value=1 - b2)
        size = (_column(lr, self.taken) / (1 - b1**self.taken)).to(g.dtype)
        spread = (1 - b2**self.taken).sqrt().to(g.dtype)
        step = self.first / (self.second.sqrt() / spread).add_(self.epsilon)
        self.values.sub_(step.mul_(size))

    def _guarded(self, finite: Tensor, norm: Tensor, rate: float) -> None:
        """As `_apply`, for the members with a finite gradient only."""
        kept = [x.clone() for x in (self.values, self.first, self.second, self.taken)]
        self.gradient.masked_fill_(~finite, 0.0)
        self._apply(norm.where(finite, torch.ones_like(norm)), rate)
        for now, before in zip((self.values, self.first, self.second, self.taken), kept):
            now.copy_(torch.where(finite, now, before))

    def tensors(self) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second, "taken": self.taken}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self.tensors().items():
            value.copy_(tensors[name])


def _column(number: Any, like: Tensor) -> Tensor:
    """A float, or one per member, as [P, 1] or [1, 1]."""
    return number.values.to(like.dtype) if isinstance(number, PerMember) else like.new_full((1, 1), number)
