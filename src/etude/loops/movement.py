"""Whether a step moved the weights: one that is smaller than their rounding is lost without a word."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.runtime.shards import Shard, divided

SAMPLE = 1024
"""Entries of each tensor that are looked at."""
LEAST = 0.1
"""Share of the weights that have to move in a step; below it the run says so."""


class Movement:
    """Looks at some entries of every tensor before a step, and after it at which of them moved."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = [p for p in parameters if p.grad is not None]
        self.before = [_sample(p) for p in self.parameters]

    def share(self) -> float:
        """Share of the weights with a gradient that are not what they were; 1 if there is no gradient.

        Of weights that are divided among ranks it is asked of all at once.
        """
        alike, apart = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        counts = []
        for p, before in zip(self.parameters, self.before, strict=True):
            assert p.grad is not None
            pulled = _sample(p.grad) != 0
            counts.append(torch.stack([((_sample(p) != before) & pulled).sum(), pulled.sum()]))
        found: Sequence[Tensor] = [*torch.stack(counts).double().cpu()] if counts else []  # asked for at once
        for p, before, own in zip(self.parameters, self.before, found):
            (apart if isinstance(p, Shard) else alike).add_(own * (p.numel() / max(1, len(before))))
        for shard in divided(self.parameters)[:1]:
            shard.ranks.sum([apart])
        changed, seen = (alike + apart).tolist()
        return changed / seen if seen else 1.0


def still(share: float, rate: float, step: int) -> str:
    """What to say of a step that moved too few of the weights."""
    return (
        f"Only {share:.1%} of the weights that have a gradient moved in step {step}: at a learning rate of {rate:.1e} "
        "the other changes are smaller than the rounding of the weights, and lost. Raise it (--set optimizer.lr=...)."
    )


@torch.no_grad()
def _sample(tensor: Tensor) -> Tensor:
    """About `SAMPLE` entries, evenly spaced."""
    return tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLE)].clone()
