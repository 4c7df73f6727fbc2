"""From a loss per token to one number, with one denominator for the whole minibatch.

Each aggregation is a set of shares s [B, T] such that loss = sum(s * loss per token). Because the shares are
computed on the minibatch before it is cut into micro-batches, the gradient cannot depend on the cut.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def token_mean(mask: Tensor, length: int) -> Tensor:
    """Every token weighs the same (DAPO, arXiv:2503.14476): 1 / tokens in the minibatch."""
    return mask / mask.sum().clamp(min=1)


def sequence_mean(mask: Tensor, length: int) -> Tensor:
    """Every completion weighs the same (GRPO, arXiv:2402.03300): 1 / (rows * tokens of the row)."""
    return mask / (mask.sum(1, keepdim=True).clamp(min=1) * len(mask))


def fixed_length(mask: Tensor, length: int) -> Tensor:
    """A constant denominator, so that long wrong answers are not favoured (Dr. GRPO, arXiv:2503.20783)."""
    return mask / float(len(mask) * length)


AGGREGATIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "token-mean": token_mean,
    "sequence-mean": sequence_mean,
    "fixed-length": fixed_length,
}


def token_shares(aggregation: str, mask: Tensor, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[B, T] shares of a minibatch's tokens with action mask `mask`; `length` is the completion limit."""
    return AGGREGATIONS[aggregation](mask.to(dtype), length)
