"""Runs of recipes that put policies together without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from etude.core.fields import PositiveProbability
from etude.stages.chain import Combine

Weights = Mapping[str, Tensor]


class SCE(Combine):
    """What several policies learned since `begins`, merged: select, calculate, erase (FuseChat, arXiv:2408.07990).

    Of each weight tensor, with d_j = theta_j - theta_base:

        select      d_j stays where the variance over j is among the largest `share` of the tensor, else 0
        calculate   eta_j = sum d_j^2 / sum_k sum d_k^2
        erase       d_j is 0 where its sign is not that of sum_k d_k (0 counts as +)
        theta     = theta_base + sum_j eta_j d_j

    Entries of equal variance stay or go together. Published code divides by the eta that are left where some were
    erased; here nothing is made larger, as the text has it.

    Args:
        of: the runs whose policies are put together.
        share: of a tensor's entries that stay.

    Shapes: weights [...] by name, alike in all.

    >>> base, more = {"w": torch.zeros(4)}, [torch.tensor([1.0, 3.0, 0.0, 0.1]), torch.tensor([1.0, -1.0, 0.0, 0.0])]
    >>> merged = SCE(of=("a", "b"), share=0.25).combined(base, [{"w": w} for w in more])["w"]  # eta 0.9 and 0.1
    >>> [round(w, 4) for w in merged.tolist()]
    [0.0, 2.7, 0.0, 0.0]
    """

    share: PositiveProbability = 0.2

    def combined(self, base: Weights, others: Sequence[Weights]) -> dict[str, Tensor]:
        return {name: w + self._change(torch.stack([o[name] - w for o in others])) for name, w in base.items()}

    def _change(self, vectors: Tensor) -> Tensor:
        """What is added to a tensor [...], of task vectors [J, ...]."""
        spread = vectors.double().var(0, correction=0)
        count = max(1, round(self.share * spread.numel()))
        kept = vectors * (spread >= spread.flatten().topk(count).values[-1])
        squares = kept.double().pow(2).flatten(1).sum(1)
        eta = (squares / squares.sum().clamp(min=1e-300)).to(vectors).reshape(-1, *[1] * spread.dim())
        rises = kept.sum(0) >= 0
        return (eta * kept * ((kept >= 0) == rises)).sum(0)
