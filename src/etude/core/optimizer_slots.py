"""The slot of what takes the steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from etude.core.fields import Positive
from etude.core.part import Part

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Optimizer(Part, abstract=True):
    """How the step is taken."""

    slot = "optimizer"
    lr: Positive | None = None

    def rate(self, step: int, steps: int) -> float:
        """Factor on `lr` at this step."""
        return 1.0


class TokenOptimizer(Optimizer, abstract=True):
    """Steps of one model, by an optimizer of torch."""

    halves: ClassVar[bool] = False
    """Whether it wants to see the gradients of two halves of each minibatch (`pace`)."""

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer for these parameters."""
        raise NotImplementedError

    def pace(self, first: Sequence[Tensor], second: Sequence[Tensor], share: float = 0.5) -> float:
        """Factor on this step's rate, from the gradients of two halves of the minibatch, one tensor per parameter.

        Each is an estimate of its own of the gradient that the minibatch's, share * first + (1 - share) * second,
        estimates; `share` is the first half's share of the rows, not 1/2 where groups are odd in number.
        """
        return 1.0

    def restarts(self, step: int) -> bool:
        """Whether what it has averaged so far is forgotten before training step `step`."""
        return False

    def clip(self) -> float | None:
        """Largest gradient norm, or None."""
        return None
