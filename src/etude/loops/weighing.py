"""Invariant 5: each token reaches the gradient with the weight that it has in the whole minibatch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.errors import InvariantError

TOLERANCE = 1e-3
"""Of the largest weight: what rounding in another dtype may change of it."""


class Weighing:
    """Looks at d loss / d (the objective of a token), as micro-batches have it, beside the token's share.

    A loss that is averaged over a micro-batch, divided by the number of micro-batches as well, or put over another
    denominator, has other weights, whatever its formula.
    """

    def __init__(self) -> None:
        self.owed: tuple[Tensor, Tensor] | None = None
        self.apart: list[Tensor] = []

    def owe(self, batch: TokenBatch, index: Tensor) -> None:
        """The rows of the whole minibatch that are differentiated next."""
        shares = batch.shares if batch.objective_shares is None else batch.objective_shares
        assert shares is not None and batch.row_shares is not None
        self.owed = torch.where(batch.action_mask[index], shares[index], 0.0), batch.row_shares[index]

    def watch(self, values: Tensor) -> None:
        """Look at the gradient of their objective, [b, t] or [b], once it is there."""
        if self.owed is None or not values.requires_grad:
            return
        (tokens, rows), self.owed = self.owed, None
        owed = rows if values.dim() == 1 else tokens[:, : values.shape[1]]
        values.register_hook(lambda gradient: self._compare(gradient, owed))

    def _compare(self, gradient: Tensor, owed: Tensor) -> None:
        least = torch.finfo(torch.float32).tiny
        self.apart.append((gradient - owed).abs().max() / owed.abs().max().clamp(min=least))

    def check(self, apart: Sequence[Tensor], step: int) -> None:
        """Look at all micro-batches of a minibatch, `apart` as it is on the host. Raises InvariantError."""
        largest = float(torch.stack([*apart]).max()) if apart else 0.0
        if not largest <= TOLERANCE:
            raise InvariantError(
                f"In step {step} tokens reached the gradient with weights up to {largest:.0%} of the largest away from "
                "those that they have in the whole minibatch: the loss was averaged over a micro-batch, divided twice, "
                "or has another denominator. Nothing was updated with this batch."
            )
