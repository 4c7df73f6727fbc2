"""What networks say of every choice, read at the choice that was made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.core.replay_slots import Traced


def of_choices(said: Tensor, actions: Tensor) -> Tensor:
    """What is said of the choice that was made: [P, M, N, A, K] at choices [P, N, 1] -> [P, M, N, K]."""
    return said.gather(3, _index(said, actions)).squeeze(3)


def _index(said: Tensor, actions: Tensor) -> Tensor:
    return actions.long().unsqueeze(1).unsqueeze(-1).expand(-1, said.size(1), -1, -1, said.size(-1))


def traced_choices(traced: Traced, actions: Tensor) -> Traced:
    """The same of a network whose slopes are known: what has no part in the choice has slope 0."""
    said, index = traced.outputs, _index(traced.outputs, actions)

    def slopes(slope: Tensor) -> Sequence[Tensor]:
        return traced.slopes(torch.zeros_like(said).scatter_add_(3, index, slope.unsqueeze(3)))

    return Traced(said.gather(3, index).squeeze(3), slopes)
