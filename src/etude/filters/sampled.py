"""Rows that the policy said, and no others."""

from __future__ import annotations

from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.slots import Filter


class SampledAnswers(Filter):
    """Drops what was written, which others were only held against or learned from.

    Shapes: [B] -> weights [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> SampledAnswers().weigh(Rows(sampled=torch.tensor([True, False]), scores=torch.zeros(2))).tolist()
    [1.0, 0.0]
    """

    def weigh(self, batch: TokenBatch) -> Tensor:
        return batch.sampled.to(batch.scores)
