"""Shards: tensors of which each rank holds some rows, and no rank all of them.

Of n rows and R ranks each rank has ceil(n / R), in order, and the last ones what is left, perhaps nothing: as
`torch.chunk` cuts them, and so FSDP2.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from etude.runtime.ranks import Ranks


def share(rows: int, count: int, rank: int) -> tuple[int, int]:
    """Which of so many rows a rank has: from the first number to before the second.

    >>> [share(5, 4, rank) for rank in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    each = -(-rows // count)
    return min(rank * each, rows), min((rank + 1) * each, rows)


class Shard(nn.Parameter):
    """This rank's rows of a weight that is divided among ranks, as the optimizer knows them.

    `whole` is the shape of the weight, and `ranks` who has the others.
    """

    whole: torch.Size
    ranks: Ranks

    @classmethod
    def of(cls, rows: Tensor, whole: torch.Size, ranks: Ranks) -> Shard:
        """A shard that shares memory with these rows."""
        shard = cls(rows.detach())
        shard.whole, shard.ranks = whole, ranks
        return shard

    def cut(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a tensor of the weight's shape."""
        start, end = share(self.whole[0], self.ranks.count, self.ranks.rank)
        return tensor[start:end]

    @torch.no_grad()
    def joined(self, rows: Tensor) -> Tensor:
        """The tensor of which every rank has the rows that its shard has of the weight; all ranks ask at once."""
        return self.ranks.joined(rows, self.whole[0])


def divided(parameters: Iterable[Tensor]) -> list[Shard]:
    """Those parameters of which this rank has a shard."""
    return [p for p in parameters if isinstance(p, Shard)]


def size(parameter: Tensor) -> int:
    """Numbers of a parameter, on all ranks together."""
    return parameter.whole.numel() if isinstance(parameter, Shard) else parameter.numel()


def square_sum(tensors: Iterable[Tensor]) -> Tensor:
    """[] sum of squares of all numbers of some tensors, in float64; 0 of none."""
    norms = [torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32)).double() for t in tensors]
    return torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float64)


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], limit: float) -> float:
    """Scale gradients down to a global norm of at most `limit`, in place, and return the norm before.

    It is the norm over all ranks: of what they hold alike once, of shards the sum of theirs.
    """
    own = [p for p in parameters if p.grad is not None]
    shards = divided(own)
    if not shards:
        return float(nn.utils.clip_grad_norm_(own, limit))
    total = square_sum(p.grad for p in shards if p.grad is not None)
    shards[0].ranks.sum([total])
    alike = square_sum(p.grad for p in own if p.grad is not None and not isinstance(p, Shard))
    norm = float((total + alike).sqrt())
    factor = min(1.0, limit / (norm + 1e-6))  # as torch has it
    for parameter in own:
        assert parameter.grad is not None
        parameter.grad.mul_(factor)
    return norm
